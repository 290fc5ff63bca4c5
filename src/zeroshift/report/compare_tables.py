"""The comparison of `zeroshift compare` as a table, as Markdown and as JSON, and the remarks that go with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from zeroshift import __version__
from zeroshift.evaluate import ComparisonSummary, MethodSummary, Spread, describe_skipped
from zeroshift.evaluate.costs import COSTS
from zeroshift.evaluate.differences import Difference
from zeroshift.evaluate.method_spec import GROUPS
from zeroshift.files import check_writable
from zeroshift.methods.registry import describe_caveats
from zeroshift.report.formatting import counted, percent, points, significant
from zeroshift.report.page import write_text
from zeroshift.report.tables import ReportColumn, ReportTable, escape_markdown

__all__ = [
    "COMPARE_MARKS",
    "COST_COLUMNS",
    "PAIRED",
    "by_group",
    "check_markdown",
    "compare_markdown",
    "compare_record",
    "compare_table",
    "cost_legend",
    "difference_text",
    "interval_text",
    "margin_text",
    "megabytes",
    "place_text",
    "range_text",
    "remarks",
    "set_tables",
    "shown_costs",
    "starred_label",
    "write_markdown",
    "write_section",
]

COST_COLUMNS = {
    "views": "image_passes",
    "steps": "gradient_steps",
    "prompts": "prompt_passes",
    "grads": "prompt_gradients",
}
"""Titles of columns about the encoder, and the cost that each shows."""

COST_MEANINGS = {
    "views": "views of it that are encoded",
    "steps": "gradient steps",
    "prompts": "prompts encoded, in addition to those encoded once for all images",
    "grads": "prompts with a gradient, each encoded once more for it",
}

DROPPED_FIRST = (*reversed(COST_COLUMNS), "MB", "min to max", "us", "ECE", "±")
"""Columns that are hidden first where the terminal is too narrow."""

PAIRED = "95 percent, paired over the samples of each set; it covers neither other sets nor other orders"
"""What an interval is."""

MEANINGS = {
    "acc": "accuracy in percent (acc)",
    "gain": "gain over zero-shot on the same rows in points",
    "±": f"half the width of its interval (±; {PAIRED})",
    "to best": "difference to the most accurate method of the group (to best), tied where its interval contains zero",
    "min to max": "the smallest and the largest gain of the orders",
    "ECE": "calibration error in percent (ECE)",
    "us": "microseconds per sample on one thread (us), all samples in one call",
    "MB": "peak memory in MB beyond what was in use before, of the largest set",
}

LABEL_WIDTH = 60
"""Characters of a method's name that are kept on one line before columns are hidden."""

COMPARE_MARKS = "<!-- compare -->", "<!-- /compare -->"
"""Lines between which `write_markdown` writes."""


def compare_table(summary: ComparisonSummary) -> ReportTable:
    """Means over all sets, one row per method, grouped by what the methods may see."""
    return _summary_table(summary, summary.overall, n_sets=len(summary.plan.datasets), legend=_legend)


def set_tables(summary: ComparisonSummary) -> Iterator[ReportTable]:
    """The same for each set."""
    for dataset in summary.plan.datasets:
        sizes = f"{counted(dataset.n_samples, 'sample')}, {counted(dataset.n_classes, 'class', 'classes')}"
        title = f"{dataset.name}: {sizes}, prompts {dataset.prompt}"
        yield _summary_table(summary, summary.by_set[dataset.name], n_sets=1, title=title)


def _summary_table(
    summary: ComparisonSummary, methods: Sequence[MethodSummary], *, n_sets: int, **fields: Any
) -> ReportTable:
    def number(title: str, write: Callable[[Any], str], *, is_signed: bool = False) -> ReportColumn:
        order = DROPPED_FIRST.index(title) + 1 if title in DROPPED_FIRST else 0
        return ReportColumn(title, format=write, is_right=True, is_whole=True, is_signed=is_signed, drop_order=order)

    costs = shown_costs(methods)
    other = summary.baseline
    columns = (
        ReportColumn("method", preferred_width=LABEL_WIDTH),
        number("acc", percent),
        number("gain", points, is_signed=True),
        number("±", str),
        number("to best", str),
        *((number(f"over {other}", str),) if other else ()),
        number("min to max", str),
        number("ECE", percent),
        number("us", significant),
        number("MB", megabytes),
        *(number(name, significant) for name in costs),
    )
    rows, groups = [], []
    for name, group in by_group(methods):
        for method in group:
            rows.append(
                (
                    _label(method, n_sets),
                    method.accuracy.mean,
                    method.gain.mean,
                    margin_text(method.gain_interval),
                    place_text(method),
                    *((difference_text(method.to_baseline),) if other else ()),
                    range_text(method.gain),
                    method.calibration_error,
                    method.microseconds,
                    method.peak_bytes,
                    *(method.costs[COST_COLUMNS[name]] for name in costs),
                )
            )
            groups.append(name)
    return ReportTable.from_values(columns, rows, groups=groups, **fields)


def _legend(names: Sequence[str]) -> str:
    found = [MEANINGS[name] for name in names if name in MEANINGS]
    found += [f"difference to {name[5:]} and its interval ({name})" for name in names if name.startswith("over ")]
    meanings = "; ".join(found)
    costs = cost_legend([name for name in names if name in COST_COLUMNS])
    return " ".join(filter(None, [f"Means over the sets, all with the same weight: {meanings}.", costs]))


def _label(method: MethodSummary, n_sets: int) -> str:
    """A mean over fewer sets than the others says so next to its name."""
    is_partial = len(method.sets) < n_sets
    return f"{starred_label(method)} ({len(method.sets)} of {n_sets} sets)" if is_partial else starred_label(method)


def starred_label(method: MethodSummary) -> str:
    """A method's label, with a star where `remarks` has more to say about it."""
    return method.spec.label + ("*" if method.spec.info.caveat else "")


def by_group(methods: Sequence[MethodSummary]) -> Iterator[tuple[str, list[MethodSummary]]]:
    """Methods grouped by what they may see."""
    for name in GROUPS:
        group = [method for method in methods if method.spec.group == name]
        if group:
            yield name, group


def margin_text(interval: tuple[float, float] | None) -> str:
    """Half the width of an interval in points."""
    return "" if interval is None else f"{(interval[1] - interval[0]) / 2:.1f}"


def interval_text(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f"{points(interval[0])} to {points(interval[1])}"


def place_text(method: MethodSummary) -> str:
    """How far a method is behind the most accurate one of its group; empty where that is not known."""
    to_best = method.to_best
    if to_best is None:
        return ""
    if to_best.to == method.spec.label:
        return "best"
    return "tied" if to_best.is_tie else points(to_best.points)


def difference_text(difference: Difference | None) -> str:
    """
    >>> difference_text(Difference("tda", 1.26, -0.2, 2.7))
    '+1.3 (-0.2 to +2.7)'
    """
    if difference is None:
        return ""
    return f"{points(difference.points)} ({interval_text((difference.low, difference.high))})"


def range_text(spread: Spread) -> str:
    """The range of gains; empty where there was only one order."""
    return "" if len(spread.values) == 1 else f"{points(spread.low)} to {points(spread.high)}"


def megabytes(peak: int | None) -> str:
    """
    >>> megabytes(12_345_678), megabytes(1_234_567), megabytes(None)
    ('12', '1.2', '')
    """
    if peak is None:
        return ""
    return f"{peak / 1e6:,.0f}" if peak >= 1e7 else f"{peak / 1e6:.1f}"


def shown_costs(methods: Sequence[MethodSummary]) -> list[str]:
    """The columns in which some method differs from one that only gets one feature per image."""
    return [name for name, cost in COST_COLUMNS.items() if any(method.costs[cost] != COSTS[cost] for method in methods)]


def cost_legend(shown: Sequence[str]) -> str:
    """
    >>> cost_legend(["views", "steps"])
    'For each image: views of it that are encoded (views); gradient steps (steps).'
    >>> cost_legend([])
    ''
    """
    return f"For each image: {'; '.join(f'{COST_MEANINGS[name]} ({name})' for name in shown)}." if shown else ""


def remarks(summary: ComparisonSummary) -> list[str]:
    """What a reader must know to interpret the numbers."""
    plan = summary.plan
    lines = []
    if any(spec.streamed or spec.drawn for spec in plan.specs):
        many = "one random order or draw (seed 0)" if plan.orders == 1 else f"{plan.orders} random orders or draws"
        seeds = "" if plan.orders == 1 else f" (seeds 0 to {plan.orders - 1})"
        lines.append(
            f"Online and few-shot methods: {many}{seeds}; zeroshift adapt keeps the stored order, so its accuracies "
            "differ."
        )
    if any("support" in spec.given for spec in plan.specs):
        up_to = "up to " if any(_has_fewer_shots(record) for record in summary.records) else ""
        samples = counted(plan.shots, "labelled sample")
        lines.append(f"Few-shot: {up_to}{samples} per class (at most half of it), not scored.")
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
        prompts = "; ".join(f'{", ".join(labels)} with "{words}"' for words, labels in tuned.items())
        lines.append(
            "Methods that tune prompts start from their own prompt, and their gain is over zero-shot with that prompt: "
            f"{prompts}."
        )
    if any("validation" in spec.given for spec in plan.specs):
        lines.append("Methods that need validation take every other labelled sample for it.")
    if any("unlabelled" in spec.given for spec in plan.specs):
        lines.append("Methods that learn from unlabelled samples first: a random half, the other half scored.")
    lines += describe_caveats({spec.method: spec.info.caveat for spec in plan.specs})
    weighted = [spec.label for spec in plan.specs if "prompts" in spec.given]
    single = [dataset.name for dataset in plan.datasets if dataset.n_prompts == 1]
    if weighted and single:
        lines.append(f"Only one prompt per class in {', '.join(single)}: less than {', '.join(weighted)} can use.")
    if summary.partial:
        lines.append("Means over fewer sets than the others' are not comparable with them.")
    busy = sorted({int(record.get("jobs", 1)) for record in summary.records} - {0, 1})
    if busy:
        lines.append(f"Some runs were made {' or '.join(map(str, busy))} at a time: do not compare their times.")
    return lines


def _has_fewer_shots(record: Mapping[str, Any]) -> bool:
    """Whether a class had fewer labelled samples than requested."""
    given = record.get("support", 0) + record.get("validation", 0)
    return bool(given < (record.get("shots") or 0) * record.get("n_classes", 0))


def compare_markdown(summary: ComparisonSummary) -> str:
    """Means over the sets; accuracy and gain of every method on every set."""
    machines = sorted({escape_markdown(str(record["machine"])) for record in summary.records if "machine" in record})
    parts = [
        f"zeroshift {__version__}{', ' + '; '.join(machines) if machines else ''}. {' '.join(remarks(summary))}",
        _means_table(summary),
    ]
    parts.append(f"Intervals: {PAIRED}. {cost_legend(shown_costs(summary.overall))}".rstrip())
    if len(summary.plan.datasets) > 1:
        parts += [
            "Accuracy in percent, mean over the orders (minimum to maximum):",
            _sets_matrix(summary, lambda s: _with_range(percent(s.accuracy.mean), s.accuracy)),
            "Gain over zero-shot on the same rows, in points:",
            _sets_matrix(summary, lambda s: points(s.gain.mean)),
        ]
    if summary.plan.skipped:
        parts.append(f"Left out: {'; '.join(map(escape_markdown, describe_skipped(summary.plan.skipped)))}.")
    if summary.failed:
        parts.append(f"Failed: {'; '.join(escape_markdown(str(outcome.job)) for outcome in summary.failed)}.")
    return "\n\n".join(parts)


def _means_table(summary: ComparisonSummary) -> str:
    n_sets = len(summary.plan.datasets)
    costs = shown_costs(summary.overall)
    other = [f"over {summary.baseline}"] if summary.baseline else []
    differences = ["gain", "interval", "to the best of its group", *other]
    numbers = ["sets", "accuracy", *differences, "min to max", "ECE", "µs per sample", "set-up, ms", "MB", *costs]
    columns = (
        ReportColumn("method", is_code=True),
        ReportColumn("group"),
        *(ReportColumn(title, is_right=True) for title in numbers),
    )
    rows = [
        [
            starred_label(method),
            name,
            f"{len(method.sets)}" if len(method.sets) == n_sets else f"{len(method.sets)} of {n_sets}",
            percent(method.accuracy.mean),
            points(method.gain.mean),
            interval_text(method.gain_interval),
            difference_text(method.to_best),
            *([difference_text(method.to_baseline)] if other else []),
            range_text(method.gain),
            percent(method.calibration_error),
            significant(method.microseconds),
            significant(1e3 * method.setup_seconds),
            megabytes(method.peak_bytes),
            *(significant(method.costs[COST_COLUMNS[name]]) for name in costs),
        ]
        for name, group in by_group(summary.overall)
        for method in group
    ]
    return ReportTable.from_values(columns, rows).markdown()


def _sets_matrix(summary: ComparisonSummary, write: Callable[[MethodSummary], str]) -> str:
    """One row per method, one column per set."""
    names = [dataset.name for dataset in summary.plan.datasets]
    columns = (ReportColumn("method", is_code=True), *(ReportColumn(name, is_right=True) for name in names))
    rows = []
    for _, group in by_group(summary.overall):
        for mean in group:
            found = (summary.on(name, mean.spec) for name in names)
            rows.append([starred_label(mean), *(None if method is None else write(method) for method in found)])
    return ReportTable.from_values(columns, rows).markdown()


def _with_range(text: str, spread: Spread) -> str:
    return text if len(spread.values) == 1 else f"{text} ({percent(spread.low)} to {percent(spread.high)})"


def check_markdown(path: str | os.PathLike[str], marks: tuple[str, str] = COMPARE_MARKS) -> None:
    """Refuse a file that cannot be written, or that exists and has no section between `marks`."""
    target = Path(path)
    if target.is_dir():
        raise ValueError(f"{path} is a folder; the name of a file is needed. Fix: {target / 'compare.md'}.")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"the folder {target.parent} does not exist. Fix: create it, or write elsewhere.")
    check_writable(target)
    if os.path.exists(target) and _find_section(_read_text(target), marks) is None:
        raise FileExistsError(
            f"{path} exists and has no lines {marks[0]} and {marks[1]} to write between. "
            "Fix: add them where the tables belong, or name another file."
        )


def write_markdown(path: str | os.PathLike[str], summary: ComparisonSummary) -> None:
    """Write the tables as `write_section` does."""
    write_section(path, compare_markdown(summary), COMPARE_MARKS)


def write_section(path: str | os.PathLike[str], content: str, marks: tuple[str, str]) -> None:
    """Replace the section between `marks`, or create the file; completely or not at all."""
    section = f"{marks[0]}\n{content}\n{marks[1]}"
    text = f"{section}\n"
    if Path(path).exists():
        before = _read_text(Path(path))
        found = _find_section(before, marks)
        if found is None:
            raise FileExistsError(f"{path} no longer has the lines {marks[0]} and {marks[1]}. Fix: put them back.")
        text = before[: found[0]] + section + before[found[1] :]
    write_text(path, text)


def _find_section(text: str, marks: tuple[str, str]) -> tuple[int, int] | None:
    """Start and end of the section, marks included."""
    start = text.find(marks[0])
    stop = text.find(marks[1], start)
    return None if start < 0 or stop < 0 else (start, stop + len(marks[1]))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file. Fix: name another file.") from None


def compare_record(summary: ComparisonSummary) -> dict[str, Any]:
    """For JSON: numbers at full precision, accuracies as fractions, gains in points."""
    plan = summary.plan
    return {
        "zeroshift": __version__,
        "orders": plan.orders,
        "shots": plan.shots,
        "baseline": summary.baseline,
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
                "methods": [_method_record(method) for method in summary.by_set[dataset.name]],
            }
            for dataset in plan.datasets
        ],
        "mean": [{**_method_record(method), "sets": list(method.sets)} for method in summary.overall],
        "left_out": [
            {
                "method": skipped.spec.label,
                "set": None if skipped.dataset is None else skipped.dataset.name,
                "reason": skipped.reason,
            }
            for skipped in plan.skipped
        ],
        "failed": [{"run": str(outcome.job), "error": outcome.error} for outcome in summary.failed],
        "runs": [_without_detail(record) for record in summary.records],
    }


def _without_detail(record: dict[str, Any]) -> dict[str, Any]:
    """Without the data of figures, which is most of a record; the files of the ledger have it."""
    return {name: value for name, value in record.items() if name != "detail"}


def _difference_record(difference: Difference | None) -> dict[str, Any] | None:
    return None if difference is None else asdict(difference)


def _method_record(method: MethodSummary) -> dict[str, Any]:
    return {
        "method": method.spec.label,
        "protocol": method.spec.protocol,
        "group": method.spec.group,
        "caveat": method.spec.info.caveat,
        "runs": method.runs,
        "accuracy": asdict(method.accuracy),
        "gain": asdict(method.gain),
        "gain_interval": method.gain_interval,
        "to_best": _difference_record(method.to_best),
        "to_baseline": _difference_record(method.to_baseline),
        "calibration_error": method.calibration_error,
        "microseconds": method.microseconds,
        "setup_seconds": method.setup_seconds,
        "peak_bytes": method.peak_bytes,
        **method.costs,
        "setup_prompts": method.setup_prompts,
    }
