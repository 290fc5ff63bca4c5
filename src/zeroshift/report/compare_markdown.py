"""The comparison as Markdown: a file of its own, or a section of one that holds more."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from zeroshift._version import __version__
from zeroshift.evaluate import Spread, Standing, Standings, told
from zeroshift.files import atomic_path
from zeroshift.report.compare_costs import COST_COLUMNS, cost_legend, costs_shown
from zeroshift.report.compare_tables import by_protocol, marked, megabytes, remarks, span
from zeroshift.report.words import percent, points, sig

__all__ = ["check_markdown", "compare_markdown", "write_markdown"]

OPEN, CLOSE = "<!-- compare -->", "<!-- /compare -->"


def compare_markdown(standings: Standings) -> str:
    """Means over the sets; accuracy and gain of every method on every set."""
    entries = [entry.name for entry in standings.plan.entries]
    machines = sorted({_plain(record["machine"]) for record in standings.records if "machine" in record})
    parts = [
        f"zeroshift {__version__}{', ' + '; '.join(machines) if machines else ''}. {' '.join(remarks(standings))}",
        _means(standings),
    ]
    parts += [said] if (said := cost_legend(costs_shown(standings.overall))) else []
    if len(entries) > 1:
        parts += [
            "Accuracy in percent, mean over the orders (least to greatest):",
            _matrix(standings, lambda s: _with_span(percent(s.accuracy.mean), s.accuracy)),
            "Gain over zero-shot on the same rows, in points:",
            _matrix(standings, lambda s: points(s.gain.mean)),
        ]
    parts += [f"Left out: {'; '.join(map(_plain, told(standings.plan.left_out)))}."] if standings.plan.left_out else []
    parts += [f"Failed: {'; '.join(_plain(o.job) for o in standings.failed)}."] if standings.failed else []
    return "\n\n".join(parts)


def _means(standings: Standings) -> str:
    of = len(standings.plan.entries)
    head = ["method", "protocol", "sets", "accuracy", "gain", "min to max", "ECE", "µs a sample", "set-up, ms", "MB"]
    shown = costs_shown(standings.overall)
    rows = [
        [
            f"`{marked(standing)}`",
            protocol,
            f"{len(standing.sets)}" if len(standing.sets) == of else f"{len(standing.sets)} of {of}",
            percent(standing.accuracy.mean),
            points(standing.gain.mean),
            span(standing.gain),
            percent(standing.calibration_error),
            sig(standing.microseconds),
            sig(1e3 * standing.setup_seconds),
            megabytes(standing.peak_bytes),
            *(sig(standing.costs[COST_COLUMNS[name]]) for name in shown),
        ]
        for protocol, group in by_protocol(standings.overall)
        for standing in group
    ]
    return _table([*head, *shown], rows)


def _matrix(standings: Standings, write: Callable[[Standing], str]) -> str:
    entries = [entry.name for entry in standings.plan.entries]
    rows = []
    for _, group in by_protocol(standings.overall):
        for mean in group:
            cells = (standings.on(entry, mean.contestant) for entry in entries)
            rows.append([f"`{marked(mean)}`", *("" if cell is None else write(cell) for cell in cells)])
    return _table(["method", *map(_plain, entries)], rows)


def _with_span(text: str, spread: Spread) -> str:
    return text if len(spread.values) == 1 else f"{text} ({percent(spread.low)} to {percent(spread.high)})"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(_lines(head, rows))


def _lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def _plain(value: object) -> str:
    """Names as letters: a file may be called what Markdown would take for something else."""
    return re.sub(r"([\\`*_<>|\[\]])", r"\\\1", str(value))


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


def write_markdown(path: str | os.PathLike[str], standings: Standings) -> None:
    """Replace what stands between the marks of `path`, or make the file; whole or not at all."""
    section = f"{OPEN}\n{compare_markdown(standings)}\n{CLOSE}"
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
