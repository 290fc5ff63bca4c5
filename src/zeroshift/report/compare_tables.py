"""The comparison for the terminal: one row a method, grouped by what the methods are allowed to see."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from zeroshift import __version__
from zeroshift.evaluate import ComparisonSummary, MethodSummary, Spread
from zeroshift.evaluate.costs import COSTS
from zeroshift.report.formatting import counted, percent, points, sig

__all__ = [
    "COST_COLUMNS",
    "by_protocol",
    "compare_record",
    "compare_table",
    "cost_legend",
    "costs_shown",
    "legend",
    "marked",
    "megabytes",
    "remarks",
    "set_tables",
    "sig",
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

COMPARE_COSTS_MEANING = {
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
    return f"For each image: {'; '.join(f'{MEANING[name]} ({name})' for name in shown)}." if shown else ""


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

COLUMNS = ("acc", "gain", "min to max", "ECE", "us", "MB")
DISPENSABLE = (*reversed(COST_COLUMNS), "MB", "min to max", "us", "ECE")
"""What goes first where the terminal is too narrow: half a number says less than none."""

WIDEST = 1000

MEANING = {
    "acc": "accuracy in percent (acc)",
    "gain": "gain over zero-shot on the same rows in points",
    "min to max": "the least and the greatest gain of the orders",
    "ECE": "calibration error in percent (ECE)",
    "us": "microseconds a sample on one thread (us), online methods given 64 samples at a time",
    "MB": "peak memory in MB beyond what was there before, of the largest set",
}


def legend(summary: ComparisonSummary, width: int = WIDEST) -> str:
    """What the columns of `compare_table` are; and which there would be in a wider one."""
    _, shown, hidden = _fitting(summary.overall, width, of=len(summary.plan.datasets))
    said = "; ".join(MEANING[name] for name in shown if name in MEANING)
    costs = cost_legend([name for name in shown if name in COST_COLUMNS])
    lost = f"Too narrow for {', '.join(hidden)}: see the page." if hidden else ""
    return " ".join(filter(None, [f"Means over the sets, each counting the same: {said}.", costs, lost]))


def compare_table(summary: ComparisonSummary, width: int = WIDEST) -> Table:
    """Means over all sets, with the columns that `width` holds."""
    return _fitting(summary.overall, width, of=len(summary.plan.datasets))[0]


def set_tables(summary: ComparisonSummary, width: int = WIDEST) -> Iterator[tuple[str, Table]]:
    """(title, table) of each set."""
    for dataset in summary.plan.datasets:
        sizes = f"{counted(dataset.n_samples, 'sample')}, {counted(dataset.n_classes, 'class', 'classes')}"
        yield (
            f"{dataset.name}: {sizes}, prompts {dataset.prompt}",
            _fitting(summary.by_set[dataset.name], width, of=1)[0],
        )


def _fitting(rows: Sequence[MethodSummary], width: int, *, of: int) -> tuple[Table, list[str], list[str]]:
    """The table, the columns it has and those there was no room for."""
    columns = (*COLUMNS, *costs_shown(rows))
    for dropped in range(len(DISPENSABLE) + 1):
        shown = [name for name in columns if name not in DISPENSABLE[:dropped]]
        table = _table(rows, shown, of=of)
        if Console(width=WIDEST).measure(table).maximum <= width:
            break
    return table, shown, [name for name in columns if name not in shown]


def _table(rows: Sequence[MethodSummary], columns: Sequence[str], *, of: int) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="dim", collapse_padding=True)
    table.add_column("method", overflow="fold")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for protocol, group in by_protocol(rows):
        table.add_row(Text(protocol, style="dim italic"))
        for method_summary in group:
            gain = points(method_summary.gain.mean)
            cells: dict[str, Text | str] = {
                "acc": percent(method_summary.accuracy.mean),
                "gain": Text(gain, style={"+": "green", "-": "red"}.get(gain[:1], "")),
                "min to max": span(method_summary.gain),
                "ECE": percent(method_summary.calibration_error),
                "us": sig(method_summary.microseconds),
                "MB": megabytes(method_summary.peak_bytes),
                **{name: sig(method_summary.costs[cost]) for name, cost in COST_COLUMNS.items()},
            }
            table.add_row(Text(_label(method_summary, of)), *(cells[name] for name in columns))
        table.add_section()
    return table


def _label(method_summary: MethodSummary, of: int) -> str:
    """A mean that leaves out sets says so beside its name."""
    lacks = len(method_summary.sets) < of
    return f"{marked(method_summary)} ({len(method_summary.sets)} of {of} sets)" if lacks else marked(method_summary)


def marked(method_summary: MethodSummary) -> str:
    """A contestant's label, with a star where `remarks` says what it is not."""
    cls = method_summary.spec.info.cls
    return method_summary.spec.label + ("*" if cls.reconstructed or cls.from_features else "")


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
        if spec.begins_with_words:
            tuned.setdefault(spec.words, []).append(spec.label)
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
