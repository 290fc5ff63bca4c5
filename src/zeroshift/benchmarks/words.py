"""Records as rows of text: one place, so that the terminal, RESULTS.md and the figure say the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zeroshift.benchmarks.machine import BUSY
from zeroshift.benchmarks.online import DEFINITION
from zeroshift.benchmarks.settings import MADE_UP

__all__ = ["COLUMNS", "duration", "rows", "title", "warnings"]

COLUMNS = ("engine", "sample", "p50", "p99", "total", "faster", "floors", "MB", "error")

TOLERANCE = 1e-4
"""Difference of a probability, or of a score, to the definition's beyond which an engine counts as wrong."""


def duration(seconds: float | None) -> str:
    """
    >>> duration(0.00012), duration(0.0123), duration(4321.0), duration(None)
    ('120 us', '12.3 ms', '4,321 s', '')
    """
    if seconds is None:
        return ""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}" if seconds < 100 * size else f"{seconds / size:,.0f} {unit}"
    return f"{seconds * 1e6:.0f} us" if seconds >= 1e-5 else f"{seconds * 1e6:.2g} us"


def title(cell: Mapping[str, Any]) -> str:
    """What a cell measures."""
    settings = cell["settings"]
    source = "" if settings["source"] == MADE_UP else f"{settings['source']}, "
    where = settings["where"]
    library = "" if where["library"] == "numpy" else f", torch {where['device']}"
    threads = "" if where["threads"] is None else f", threads {where['threads']}"
    size = f"K={settings['classes']} d={settings['dimension']} N={settings['samples']}"
    return f"{source}{size}{library}{threads}"


def rows(cell: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """The floor and every engine of a cell, as texts in the order of `COLUMNS`."""
    floor, samples = cell["floor"], cell["settings"]["samples"]
    wide, narrow = floor["float64"]["median"], floor["float32"]["median"]
    single = duration(floor["single_sample_float64"]["p50"])
    yield "floor f64", duration(wide / samples), single, "", duration(wide), "", "1", "", ""
    yield "floor f32", duration(narrow / samples), "", "", duration(narrow), "", _times(narrow / wide), "", ""
    for engine, record in cell["engines"].items():
        latency = (record.get("latency") or {}).get("all") or {}
        about = "~" if engine == DEFINITION else ""
        yield (
            engine,
            about + duration(record["seconds_a_sample"]),
            duration(latency.get("p50")),
            duration(latency.get("p99")),
            about + duration(record["seconds"]),
            "1" if engine == DEFINITION else _times(record.get("times_faster_than_direct")),
            _times(record["times_the_floor"]),
            _memory(record.get("memory")),
            _error(record.get("agreement")),
        )


def _times(ratio: float | None) -> str:
    if ratio is None:
        return ""
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}"


def _memory(memory: Mapping[str, Any] | None) -> str:
    if memory is None:
        return ""
    return "?" if "error" in memory else f"{memory['bytes_beyond_input_and_output'] / 1e6:.0f}"


def _error(agreement: Mapping[str, Any] | None) -> str:
    if agreement is None:
        return ""
    found = max(agreement["largest_difference"], agreement.get("largest_score_difference", 0.0))
    return f"{found:.0e}{'!' if agreement['argmax_equal'] < 1 else ''}"


def warnings(cells: Mapping[str, Any]) -> list[str]:
    """What a reader of the table must not miss: answers that are not the definition's, measurements that failed."""
    found = _busy(cells)
    for cell in cells.values():
        for engine, record in cell["engines"].items():
            agreement, memory = record.get("agreement"), record.get("memory") or {}
            if agreement is not None and _is_wrong(agreement):
                found.append(
                    f"{engine} at {title(cell)}: {1 - agreement['argmax_equal']:.1%} of predictions differ from the "
                    f"definition's, probabilities by up to {agreement['largest_difference']:.1g}, scores by up to "
                    f"{agreement.get('largest_score_difference', 0.0):.1g}"
                )
            if record.get("banks_equal") is False:
                found.append(f"{engine} at {title(cell)}: its banks hold other samples than the definition's")
            if "error" in memory:
                found.append(f"{engine} at {title(cell)}: its memory could not be measured ({memory['error']})")
    return found


def _is_wrong(agreement: Mapping[str, Any]) -> bool:
    differences = (agreement["largest_difference"], agreement.get("largest_score_difference", 0.0))
    return agreement["argmax_equal"] < 1 or max(differences) > TOLERANCE


def _busy(cells: Mapping[str, Any]) -> list[str]:
    busy = [cores for cell in cells.values() if (cores := cell.get("busy_cores_before") or 0) > BUSY]
    if not busy:
        return []
    return [
        f"other programs kept up to {max(busy):.1f} cores busy while {len(busy)} of {len(cells)} sizes were measured: "
        "no time can be trusted, nor a ratio where threads wait for each other. Fix: a quiet machine, or --threads 1"
    ]
