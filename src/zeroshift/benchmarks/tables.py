"""Records as rows of text: one place, so that the terminal, RESULTS.md and the figure say the same."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeroshift.benchmarks.case import MADE_UP
from zeroshift.benchmarks.engines import DEFINITION
from zeroshift.benchmarks.machine import BUSY
from zeroshift.report.style import INK, METHOD_COLOURS, OTHER_COLOURS, new_figure, save_figure, style_axes
from zeroshift.report.tables import ReportColumn, ReportTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "AXIS_NAMES",
    "COLUMNS",
    "LEGEND",
    "bench_tables",
    "duration",
    "figure_paths",
    "furthest",
    "growth",
    "growth_figure",
    "growth_table",
    "markdown",
    "rows",
    "title",
    "warnings",
    "write_figures",
]

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


# How the time of a sample grows: with the samples seen, with K, with d, with N. From the records of cells alone.


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


# The results as tables for the terminal and for a Markdown page.


LEGEND = (
    "sample: mean time of one, ~ where interpolated between sampled steps; p50, p99: of calls with one sample (the "
    "floor's: three products with K vectors); faster: times, than direct; floors: times the bare product N K d in "
    "float64, measured in the same run; MB: peak memory beyond input and output; error: largest difference of a "
    "probability or (relative) of a score to the definition's, on sampled rows. mixture: the anchored mixture, another "
    "method, one sample a call; mixture call: the stream in one call (error: to one by one); mixture set: transductive."
)

SHOWN_POINTS = 6
"""Points of a curve in a table."""


def bench_tables(cells: Mapping[str, Any]) -> list[ReportTable]:
    """One table per cell, its baseline products first."""
    return [ReportTable.from_values(_columns(), rows(cell), title=title(cell)) for cell in cells.values()]


def markdown(cells: Mapping[str, Any]) -> str:
    """All cells in one table."""
    lines = [("" if place else title(cell), *row) for cell in cells.values() for place, row in enumerate(rows(cell))]
    return ReportTable.from_values((ReportColumn("features"), *_columns()), lines).markdown()


def _columns() -> list[ReportColumn]:
    return [ReportColumn(name, is_right=place > 0, is_whole=True) for place, name in enumerate(COLUMNS)]


def growth_table(growth: Mapping[str, Any]) -> ReportTable:
    """How the time per sample grows with the samples seen, with K, d and N."""
    columns = (ReportColumn("engine", is_whole=True), ReportColumn("over"), ReportColumn("time of a sample"))
    return ReportTable.from_values(columns, _growth_rows(growth))


def _growth_rows(growth: Mapping[str, Any]) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    longest = furthest(growth["seen"])
    if longest is not None:
        for engine, curve in longest["engines"].items():
            found.append((engine, f"samples seen, {longest['title']}", _steps(_thinned(curve))))
    for axis, name in AXIS_NAMES.items():
        for line in growth[axis]:
            for engine, curve in line["engines"].items():
                found.append((engine, f"{name}, {line['title']}", _steps(curve)))
    return found


def _thinned(curve: list[list[float]]) -> list[list[float]]:
    if len(curve) <= SHOWN_POINTS:
        return curve
    return [curve[round(i * (len(curve) - 1) / (SHOWN_POINTS - 1))] for i in range(SHOWN_POINTS)]


def _steps(curve: list[list[float]]) -> str:
    return ", ".join(f"{int(at)}: {duration(seconds)}" for at, seconds in curve)


# One picture of growth: time of a sample against samples seen, against K, against d, a line for each engine.


WIDTH, HEIGHT = 3.6, 2.7
SUFFIXES = (".png", ".svg")
COLOURS = {
    "direct": METHOD_COLOURS["zero_shot"],
    "streaming": METHOD_COLOURS["adapt_online"],
    "transductive": METHOD_COLOURS["adapt_transductive"],
}
"""The definition recedes; the methods keep the colours they have elsewhere."""


def growth_figure(growth: Mapping[str, Any]) -> Figure:
    """Panels for which there is something to draw; the largest line of each kind where there are several."""
    panels = _panels(growth)
    figure = new_figure(max(1, len(panels)) * WIDTH, HEIGHT)
    handles: dict[str, Any] = {}
    for place, (title, label, curves) in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), place + 1)
        for position, (engine, curve) in enumerate(curves.items()):
            colour = COLOURS.get(engine, OTHER_COLOURS[position % len(OTHER_COLOURS)])
            milliseconds = [1e3 * seconds for _, seconds in curve]
            (line,) = axes.plot(
                [at for at, _ in curve], milliseconds, color=colour, linewidth=1.5, marker=".", label=engine
            )
            handles.setdefault(engine, line)
        _style(axes, title, label, categories=None if place == 0 else _places(curves))
    if handles:
        figure.legend(
            handles=list(handles.values()), loc="outside upper left", ncols=len(handles), frameon=False, labelcolor=INK
        )
    return figure


def _panels(growth: Mapping[str, Any]) -> list[tuple[str, str, dict[str, list[list[float]]]]]:
    """(title, what is along the bottom, curves): of several groups the one that reaches furthest."""
    kinds = {"seen": "samples seen", "classes": "K", "dimension": "d"}
    found = ((furthest(growth[kind]), label) for kind, label in kinds.items())
    return [(group["title"], label, group["engines"]) for group, label in found if group is not None]


def _places(curves: Mapping[str, Sequence[Sequence[float]]]) -> list[float]:
    return sorted({at for curve in curves.values() for at, _ in curve})


def _style(axes: Axes, title: str, label: str, categories: list[float] | None) -> None:
    """Logarithmic upwards: engines differ by orders of magnitude. Sizes double, so they are drawn that way too."""
    from matplotlib.ticker import NullFormatter, NullLocator, StrMethodFormatter

    axes.set_yscale("log")
    low, high = axes.dataLim.intervaly
    axes.set_ylim(10 ** math.floor(math.log10(low) - 0.05), 10 ** math.ceil(math.log10(high) + 0.05))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    if categories is not None:
        axes.set_xscale("log")
        axes.set_xticks(categories, [f"{at:g}" for at in categories])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
    style_axes(axes, label, "ms per sample", grid="y")
    axes.set_title(title, loc="left", fontsize=9, color=INK, parse_math=False)


def figure_paths(folder: str | os.PathLike[str]) -> list[Path]:
    """The files that `write_figures` writes."""
    return [Path(folder) / f"growth{suffix}" for suffix in SUFFIXES]


def write_figures(folder: str | os.PathLike[str], growth: Mapping[str, Any]) -> list[Path]:
    """Write the figure as PNG and SVG; returns the paths."""
    return save_figure(growth_figure(growth), folder, "growth", SUFFIXES)
