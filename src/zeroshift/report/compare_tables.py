"""The comparison for the terminal: one row a method, grouped by what the methods are allowed to see."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from zeroshift.evaluate import Spread, Standing, Standings
from zeroshift.evaluate.code import code_digest
from zeroshift.report.words import counted, percent, points

__all__ = ["LEGEND", "by_protocol", "compare_table", "marked", "megabytes", "remarks", "set_tables", "sig", "span"]

PROTOCOLS = ("online", "transductive", "few-shot")

LEGEND = (
    "Means over the sets, each counting the same. Accuracy and calibration error (ECE) in percent; gain over zero-shot "
    "on the same rows in points, with the least and the greatest of the orders; microseconds a sample on one thread, "
    "online methods given 64 samples at a time; peak memory in MB beyond what was there before, of the largest set."
)


def compare_table(standings: Standings) -> Table:
    """Means over all sets."""
    return _table(standings.overall, of=len(standings.plan.entries))


def set_tables(standings: Standings) -> Iterator[tuple[str, Table]]:
    """(title, table) of each set."""
    for entry in standings.plan.entries:
        title = f"{entry.name}: {entry.n_samples} samples, {entry.n_classes} classes, prompts {entry.prompt}"
        yield title, _table(standings.by_set[entry.name], of=1)


def _table(rows: Sequence[Standing], *, of: int) -> Table:
    labels = [_label(standing, of) for standing in rows]
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="dim", collapse_padding=True)
    table.add_column("method", no_wrap=True, min_width=max(map(cell_len, (*PROTOCOLS, *labels)), default=0))
    for name in ("acc", "gain", "min to max", "ECE", "us", "MB"):
        table.add_column(name, justify="right", no_wrap=True)
    for protocol, group in by_protocol(rows):
        table.add_row(Text(protocol, style="dim italic"))
        for standing in group:
            gain = points(standing.gain.mean)
            table.add_row(
                Text(_label(standing, of)),
                percent(standing.accuracy.mean),
                Text(gain, style={"+": "green", "-": "red"}.get(gain[:1], "")),
                span(standing.gain),
                percent(standing.calibration_error),
                sig(standing.microseconds),
                megabytes(standing.peak_bytes),
            )
        table.add_section()
    return table


def _label(standing: Standing, of: int) -> str:
    """A mean that leaves out sets says so beside its name."""
    lacks = len(standing.sets) < of
    return f"{marked(standing)} ({len(standing.sets)} of {of} sets)" if lacks else marked(standing)


def marked(standing: Standing) -> str:
    """A contestant's label, with a star where `remarks` says what it is not."""
    cls = standing.contestant.info.cls
    return standing.contestant.label + ("*" if cls.reconstructed or cls.from_features else "")


def by_protocol(standings: Sequence[Standing]) -> Iterator[tuple[str, list[Standing]]]:
    """Methods that may see the same, together."""
    for protocol in PROTOCOLS:
        group = [standing for standing in standings if standing.contestant.protocol == protocol]
        if group:
            yield protocol, group


def span(spread: Spread) -> str:
    """From the least to the greatest gain; nothing where there was one order only."""
    return "" if len(spread.values) == 1 else f"{points(spread.low)} to {points(spread.high)}"


def sig(value: float) -> str:
    """
    >>> sig(1234.5), sig(12.34), sig(0.123)
    ('1,234', '12', '0.12')
    """
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def megabytes(peak: int | None) -> str:
    """
    >>> megabytes(12_345_678), megabytes(1_234_567), megabytes(None)
    ('12', '1.2', '')
    """
    if peak is None:
        return ""
    return f"{peak / 1e6:,.0f}" if peak >= 1e7 else f"{peak / 1e6:.1f}"


def remarks(standings: Standings) -> list[str]:
    """What a reader must know to read the numbers rightly."""
    plan = standings.plan
    lines = []
    if any(contestant.streamed or contestant.drawn for contestant in plan.contestants):
        many = "one random order or draw (seed 0)" if plan.orders == 1 else f"{plan.orders} random orders or draws"
        seeds = "" if plan.orders == 1 else f" (seeds 0 to {plan.orders - 1})"
        lines.append(f"Online and few-shot methods: {many}{seeds}.")
    if any("support" in contestant.given for contestant in plan.contestants):
        lines.append(f"Few-shot: {plan.shots} labelled samples of a class (at most half of it), not scored.")
    if any("unlabelled" in contestant.given for contestant in plan.contestants):
        lines.append("Methods that learn from unlabelled samples first: a random half, the other half scored.")
    for method in dict.fromkeys(contestant.info.cls for contestant in plan.contestants):
        if method.from_features:
            lines.append(f"* {method.name}: {method.from_features}.")
        elif method.reconstructed:
            lines.append(f"* {method.name}: reconstructed, not the authors' code.")
    if others := sum(record.get("code") != code_digest() for record in standings.records):
        lines.append(f"{counted(others, 'run')} made by another state of the code: --again repeats them.")
    if standings.partial:
        lines.append("Means over fewer sets than the others' are not comparable with them.")
    busy = sorted({int(record.get("jobs", 1)) for record in standings.records} - {0, 1})
    if busy:
        lines.append(f"Some runs were made {' or '.join(map(str, busy))} at a time: do not compare their times.")
    return lines
