"""How the time of a sample grows: with the samples seen, with K, with d, with N. From the records of cells alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zeroshift.benchmarks.words import title

__all__ = ["AXIS_NAMES", "furthest", "growth"]

AXIS_NAMES = {"classes": "K", "dimension": "d", "samples": "N"}


def growth(cells: Mapping[str, Any]) -> dict[str, Any]:
    """Curves of [size, seconds a sample] for each engine, each group with a title.

    "seen": along the stream, for every cell. "classes", "dimension", "samples": over cells that differ in that alone.
    """
    return {
        "seen": [{"title": title(cell), "engines": _seen(cell)} for cell in cells.values()],
        **{axis: _lines(cells, axis) for axis in AXIS_NAMES},
    }


def _seen(cell: Mapping[str, Any]) -> dict[str, list[list[float]]]:
    curves = {}
    for name, record in cell["engines"].items():
        if "windows" in record:
            curves[name] = [[window["seen"], window["seconds_a_sample"]] for window in record["windows"]]
        elif "points" in record:
            curves[name] = [[point["seen"], _of_point(point)] for point in record["points"]]
    return curves


def _of_point(point: Mapping[str, Any]) -> float:
    """A sample that enters a bank is what costs; where none did, one that does not."""
    kind = point["entering"] or point["other"]
    return float(kind["p50"])


def _lines(cells: Mapping[str, Any], axis: str) -> list[dict[str, Any]]:
    """Groups of at least two cells that differ only along `axis`."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for cell in cells.values():
        fixed = {name: value for name, value in cell["settings"].items() if name != axis}
        groups.setdefault(repr(sorted(fixed.items())), []).append(cell)
    ordered = [sorted(group, key=lambda cell: int(cell["settings"][axis])) for group in groups.values()]
    return [_line(group, axis) for group in ordered if len(group) > 1]


def _line(group: list[Mapping[str, Any]], axis: str) -> dict[str, Any]:
    first = group[0]["settings"]
    return {
        "title": " ".join(f"{name}={first[other]}" for other, name in AXIS_NAMES.items() if other != axis),
        "engines": {
            name: [[cell["settings"][axis], cell["engines"][name]["seconds_a_sample"]] for cell in group]
            for name in group[0]["engines"]
        },
    }


def furthest(groups: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Of several groups the one that reaches furthest, and of those the slowest, where the costly fixed sizes are."""

    def reach(group: Mapping[str, Any]) -> tuple[float, float]:
        points = [point for curve in group["engines"].values() for point in curve]
        return max((at for at, _ in points), default=0.0), max((seconds for _, seconds in points), default=0.0)

    return max(groups, key=reach, default=None)
