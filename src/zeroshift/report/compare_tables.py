"""The comparison for the terminal: one row a method, grouped by what the methods are allowed to see."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from zeroshift import __version__
from zeroshift.evaluate import ComparisonSummary, MethodSummary, Spread, describe_skipped
from zeroshift.evaluate.costs import COSTS
from zeroshift.files import atomic_path
from zeroshift.report.formatting import counted, percent, points, sig
from zeroshift.report.tables import ReportColumn, ReportTable, escape_markdown

__all__ = [
    "COST_COLUMNS",
    "by_protocol",
    "compare_record",
    "compare_table",
    "cost_legend",
    "costs_shown",
    "marked",
    "megabytes",
    "remarks",
    "set_tables",
    "span",
]


# What an image takes of the encoder, in the tables of a comparison: columns that stand where they say something.


COST_COLUMNS = {
    "views": "image_passes",
    "steps": "gradient_steps",
    "prompts": "prompt_passes",
    "grads": "prompt_gradients",
}
"""What a column is called, and what it shows."""

COST_MEANINGS = {
    "views": "views of it that are encoded",
    "steps": "steps along a gradient",
    "prompts": "prompts encoded, beside those encoded once for all images",
    "grads": "prompts a gradient is carried through, each encoded once more for it",
}


def costs_shown(summary: Sequence[MethodSummary]) -> list[str]:
    """The columns in which some method differs from one that is given a feature an image and does nothing more."""
    return [
        name
        for name, cost in COST_COLUMNS.items()
        if any(method_summary.costs[cost] != COSTS[cost] for method_summary in summary)
    ]


def cost_legend(shown: Sequence[str]) -> str:
    """
    >>> cost_legend(["views", "steps"])
    'For each image: views of it that are encoded (views); steps along a gradient (steps).'
    >>> cost_legend([])
    ''
    """
    return f"For each image: {'; '.join(f'{COST_MEANINGS[name]} ({name})' for name in shown)}." if shown else ""


# The comparison as plain dictionaries, for JSON: full precision, accuracies as fractions, gains in points.


def compare_record(summary: ComparisonSummary) -> dict[str, Any]:
    plan = summary.plan
    return {
        "zeroshift": __version__,
        "orders": plan.orders,
        "shots": plan.shots,
        "encoder": None if plan.encoder is None else {**plan.encoder.identity, "source": plan.encoder.source},
        "sets": [
            {
                "name": dataset.name,
                "digest": dataset.digest,
                "prompt": dataset.prompt,
                "n_samples": dataset.n_samples,
                "n_classes": dataset.n_classes,
                "dimension": dataset.dimension,
                "n_views": dataset.n_views,
                "methods": [_standing(method_summary) for method_summary in summary.by_set[dataset.name]],
            }
            for dataset in plan.datasets
        ],
        "mean": [
            {**_standing(method_summary), "sets": list(method_summary.sets)} for method_summary in summary.overall
        ],
        "left_out": [
            {
                "method": left.spec.label,
                "set": None if left.dataset is None else left.dataset.name,
                "reason": left.reason,
            }
            for left in plan.skipped
        ],
        "failed": [{"run": str(outcome.job), "error": outcome.error} for outcome in summary.failed],
        "runs": [_short(record) for record in summary.records],
    }


def _short(record: dict[str, Any]) -> dict[str, Any]:
    """Without what figures are drawn from, which is most of it; the ledger's files have it."""
    return {name: value for name, value in record.items() if name != "detail"}


def _standing(method_summary: MethodSummary) -> dict[str, Any]:
    return {
        "method": method_summary.spec.label,
        "protocol": method_summary.spec.protocol,
        "runs": method_summary.runs,
        "accuracy": asdict(method_summary.accuracy),
        "gain": asdict(method_summary.gain),
        "calibration_error": method_summary.calibration_error,
        "microseconds": method_summary.microseconds,
        "setup_seconds": method_summary.setup_seconds,
        "peak_bytes": method_summary.peak_bytes,
        **method_summary.costs,
        "setup_prompts": method_summary.setup_prompts,
    }


PROTOCOLS = ("online", "episodic", "transductive", "few-shot")

DROPPED_FIRST = (*reversed(COST_COLUMNS), "MB", "min to max", "us", "ECE")
"""Columns that are hidden first where the terminal is too narrow."""

MEANINGS = {
    "acc": "accuracy in percent (acc)",
    "gain": "gain over zero-shot on the same rows in points",
    "min to max": "the least and the greatest gain of the orders",
    "ECE": "calibration error in percent (ECE)",
    "us": "microseconds a sample on one thread (us), online methods given 64 samples at a time",
    "MB": "peak memory in MB beyond what was there before, of the largest set",
}

LABEL_WIDTH = 60
"""Characters of a method's name that are kept on one line before columns are hidden."""


def compare_table(summary: ComparisonSummary) -> ReportTable:
    """Means over all sets, one row per method, grouped by what the methods may see."""
    return _summary_table(summary.overall, n_sets=len(summary.plan.datasets), legend=_legend)


def set_tables(summary: ComparisonSummary) -> Iterator[ReportTable]:
    """The same for each set."""
    for dataset in summary.plan.datasets:
        sizes = f"{counted(dataset.n_samples, 'sample')}, {counted(dataset.n_classes, 'class', 'classes')}"
        title = f"{dataset.name}: {sizes}, prompts {dataset.prompt}"
        yield _summary_table(summary.by_set[dataset.name], n_sets=1, title=title)


def _summary_table(summary: Sequence[MethodSummary], *, n_sets: int, **fields: Any) -> ReportTable:
    def number(title: str, write: Callable[[Any], str], *, is_signed: bool = False) -> ReportColumn:
        order = DROPPED_FIRST.index(title) + 1 if title in DROPPED_FIRST else 0
        return ReportColumn(title, format=write, is_right=True, is_whole=True, is_signed=is_signed, drop_order=order)

    costs = costs_shown(summary)
    columns = (
        ReportColumn("method", preferred_width=LABEL_WIDTH),
        number("acc", percent),
        number("gain", points, is_signed=True),
        number("min to max", str),
        number("ECE", percent),
        number("us", sig),
        number("MB", megabytes),
        *(number(name, sig) for name in costs),
    )
    rows, groups = [], []
    for protocol, group in by_protocol(summary):
        for method in group:
            rows.append(
                (
                    _label(method, n_sets),
                    method.accuracy.mean,
                    method.gain.mean,
                    span(method.gain),
                    method.calibration_error,
                    method.microseconds,
                    method.peak_bytes,
                    *(method.costs[COST_COLUMNS[name]] for name in costs),
                )
            )
            groups.append(protocol)
    return ReportTable.from_values(columns, rows, groups=groups, **fields)


def _legend(names: Sequence[str]) -> str:
    meanings = "; ".join(MEANINGS[name] for name in names if name in MEANINGS)
    costs = cost_legend([name for name in names if name in COST_COLUMNS])
    return " ".join(filter(None, [f"Means over the sets, each counting the same: {meanings}.", costs]))


def _label(method: MethodSummary, n_sets: int) -> str:
    """A mean over fewer sets than the others says so next to its name."""
    is_partial = len(method.sets) < n_sets
    return f"{marked(method)} ({len(method.sets)} of {n_sets} sets)" if is_partial else marked(method)


def marked(method: MethodSummary) -> str:
    """A method's label, with a star where `remarks` has more to say about it."""
    cls = method.spec.info.cls
    return method.spec.label + ("*" if cls.reconstructed or cls.from_features else "")


def by_protocol(summary: Sequence[MethodSummary]) -> Iterator[tuple[str, list[MethodSummary]]]:
    """Methods that may see the same, together."""
    for protocol in PROTOCOLS:
        group = [method_summary for method_summary in summary if method_summary.spec.protocol == protocol]
        if group:
            yield protocol, group


def span(spread: Spread) -> str:
    """From the least to the greatest gain; nothing where there was one order only."""
    return "" if len(spread.values) == 1 else f"{points(spread.low)} to {points(spread.high)}"


def megabytes(peak: int | None) -> str:
    """
    >>> megabytes(12_345_678), megabytes(1_234_567), megabytes(None)
    ('12', '1.2', '')
    """
    if peak is None:
        return ""
    return f"{peak / 1e6:,.0f}" if peak >= 1e7 else f"{peak / 1e6:.1f}"


def remarks(summary: ComparisonSummary) -> list[str]:
    """What a reader must know to read the numbers rightly."""
    plan = summary.plan
    lines = []
    if any(spec.streamed or spec.drawn for spec in plan.specs):
        many = "one random order or draw (seed 0)" if plan.orders == 1 else f"{plan.orders} random orders or draws"
        seeds = "" if plan.orders == 1 else f" (seeds 0 to {plan.orders - 1})"
        lines.append(f"Online and few-shot methods: {many}{seeds}.")
    if any("support" in spec.given for spec in plan.specs):
        up_to = "up to " if any(_short_of(record) for record in summary.records) else ""
        samples = counted(plan.shots, "labelled sample")
        lines.append(f"Few-shot: {up_to}{samples} of a class (at most half of it), not scored.")
    many_views = sorted({dataset.n_views for dataset in plan.datasets} - {0})
    if any("views" in spec.given for spec in plan.specs):
        each = " or ".join(map(str, many_views))
        lines.append(
            f"Methods with +views and those that need views see {each} of each image, the others the image alone."
        )
    tuned: dict[str, list[str]] = {}
    for spec in plan.specs:
        if spec.starts_from_prompt:
            tuned.setdefault(spec.prompt_words, []).append(spec.label)
    if plan.encoder is not None and any(spec.tunes_text for spec in plan.specs):
        of = f"{plan.encoder.source} on {plan.encoder.identity.get('device', plan.encoder.device)}"
        lines.append(f"The time of methods that tune or search a prompt is that of {of}, all threads.")
    if tuned:
        begun = "; ".join(f'{", ".join(labels)} with "{words}"' for words, labels in tuned.items())
        lines.append(
            f"Methods that tune prompts begin with words of their own, whose zero-shot is what their gain is over, not "
            f"that of the other rows: {begun}."
        )
    if any("validation" in spec.given for spec in plan.specs):
        lines.append("Methods that need validation take every other labelled sample for it.")
    if any("unlabelled" in spec.given for spec in plan.specs):
        lines.append("Methods that learn from unlabelled samples first: a random half, the other half scored.")
    for method in dict.fromkeys(spec.info.cls for spec in plan.specs):
        if method.from_features:
            lines.append(f"* {method.name}: {method.from_features}.")
        elif method.reconstructed:
            lines.append(f"* {method.name}: reconstructed, not the authors' code.")
    weighing = [spec.label for spec in plan.specs if "prompts" in spec.given]
    single = [dataset.name for dataset in plan.datasets if dataset.n_prompts == 1]
    if weighing and single:
        lines.append(f"One prompt a class only, in {', '.join(single)}: less than {', '.join(weighing)} can use.")
    if summary.partial:
        lines.append("Means over fewer sets than the others' are not comparable with them.")
    busy = sorted({int(record.get("jobs", 1)) for record in summary.records} - {0, 1})
    if busy:
        lines.append(f"Some runs were made {' or '.join(map(str, busy))} at a time: do not compare their times.")
    return lines


def _short_of(record: Mapping[str, Any]) -> bool:
    """Whether a class of the set had fewer samples to give than were asked for."""
    given = record.get("support", 0) + record.get("validation", 0)
    return bool(given < (record.get("shots") or 0) * record.get("n_classes", 0))


# The comparison as Markdown: a file of its own, or a section of one that holds more.


OPEN, CLOSE = "<!-- compare -->", "<!-- /compare -->"


def compare_markdown(summary: ComparisonSummary) -> str:
    """Means over the sets; accuracy and gain of every method on every set."""
    datasets = [dataset.name for dataset in summary.plan.datasets]
    machines = sorted({escape_markdown(str(record["machine"])) for record in summary.records if "machine" in record})
    parts = [
        f"zeroshift {__version__}{', ' + '; '.join(machines) if machines else ''}. {' '.join(remarks(summary))}",
        _means_table(summary),
    ]
    parts += [said] if (said := cost_legend(costs_shown(summary.overall))) else []
    if len(datasets) > 1:
        parts += [
            "Accuracy in percent, mean over the orders (least to greatest):",
            _sets_matrix(summary, lambda s: _with_range(percent(s.accuracy.mean), s.accuracy)),
            "Gain over zero-shot on the same rows, in points:",
            _sets_matrix(summary, lambda s: points(s.gain.mean)),
        ]
    parts += (
        [f"Left out: {'; '.join(map(escape_markdown, describe_skipped(summary.plan.skipped)))}."]
        if summary.plan.skipped
        else []
    )
    parts += [f"Failed: {'; '.join(escape_markdown(str(o.job)) for o in summary.failed)}."] if summary.failed else []
    return "\n\n".join(parts)


def _means_table(summary: ComparisonSummary) -> str:
    n_sets = len(summary.plan.datasets)
    costs = costs_shown(summary.overall)
    titles = ["protocol", "sets", "accuracy", "gain", "min to max", "ECE", "µs a sample", "set-up, ms", "MB", *costs]
    columns = (ReportColumn("method", is_code=True), *(ReportColumn(title, is_right=True) for title in titles))
    rows = [
        [
            marked(method),
            protocol,
            f"{len(method.sets)}" if len(method.sets) == n_sets else f"{len(method.sets)} of {n_sets}",
            percent(method.accuracy.mean),
            points(method.gain.mean),
            span(method.gain),
            percent(method.calibration_error),
            sig(method.microseconds),
            sig(1e3 * method.setup_seconds),
            megabytes(method.peak_bytes),
            *(sig(method.costs[COST_COLUMNS[name]]) for name in costs),
        ]
        for protocol, group in by_protocol(summary.overall)
        for method in group
    ]
    return ReportTable.from_values(columns, rows).markdown()


def _sets_matrix(summary: ComparisonSummary, write: Callable[[MethodSummary], str]) -> str:
    """One row per method, one column per set."""
    names = [dataset.name for dataset in summary.plan.datasets]
    columns = (ReportColumn("method", is_code=True), *(ReportColumn(name, is_right=True) for name in names))
    rows = []
    for _, group in by_protocol(summary.overall):
        for mean in group:
            found = (summary.on(name, mean.spec) for name in names)
            rows.append([marked(mean), *(None if method is None else write(method) for method in found)])
    return ReportTable.from_values(columns, rows).markdown()


def _with_range(text: str, spread: Spread) -> str:
    return text if len(spread.values) == 1 else f"{text} ({percent(spread.low)} to {percent(spread.high)})"


def check_markdown(path: str | os.PathLike[str]) -> None:
    """Refuse a file that could not be written, or that exists and has no place marked for the comparison."""
    target = Path(path)
    if target.is_dir():
        raise ValueError(f"{path} is a folder; the name of a file is needed. Fix: {target / 'compare.md'}.")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"the folder {target.parent} does not exist. Fix: create it, or write elsewhere.")
    if target.exists() and _section(_text(target)) is None:
        raise FileExistsError(
            f"{path} exists and has no lines {OPEN} and {CLOSE} to write between. "
            "Fix: add them where the tables are to stand, or name another file."
        )


def write_markdown(path: str | os.PathLike[str], summary: ComparisonSummary) -> None:
    """Replace what stands between the marks of `path`, or make the file; whole or not at all."""
    section = f"{OPEN}\n{compare_markdown(summary)}\n{CLOSE}"
    text = f"{section}\n"
    if Path(path).exists():
        before = _text(Path(path))
        found = _section(before)
        if found is None:
            raise FileExistsError(f"{path} no longer has the lines {OPEN} and {CLOSE}. Fix: put them back.")
        text = before[: found[0]] + section + before[found[1] :]
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def _section(text: str) -> tuple[int, int] | None:
    """Where the marks and what is between them stand."""
    start = text.find(OPEN)
    stop = text.find(CLOSE, start)
    return None if start < 0 or stop < 0 else (start, stop + len(CLOSE))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file. Fix: name another file.") from None
