"""Records of cases as tables, warnings and a figure, for the terminal and for Markdown pages.

A case is the record of `zeroshift.benchmarks.case.measure_case`, as the JSON file holds it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeroshift.benchmarks.case import SYNTHETIC
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
    "case_rows",
    "case_title",
    "case_warnings",
    "cases_markdown",
    "figure_paths",
    "format_seconds",
    "growth",
    "growth_figure",
    "growth_table",
    "longest_curves",
    "write_figures",
]

COLUMNS = ("engine", "sample", "f64", "p50", "p99", "total", "faster", "floors", "MB", "error")

TOLERANCE = 1e-4
"""An engine is wrong if a probability or a score differs by more from the definition's."""


def format_seconds(seconds: float | None) -> str:
    """
    >>> format_seconds(0.00012), format_seconds(0.0123), format_seconds(4321.0), format_seconds(None)
    ('120 us', '12.3 ms', '4,321 s', '')
    """
    if seconds is None:
        return ""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}" if seconds < 100 * size else f"{seconds / size:,.0f} {unit}"
    return f"{seconds * 1e6:.0f} us" if seconds >= 1e-5 else f"{seconds * 1e6:.2g} us"


def case_title(case: Mapping[str, Any]) -> str:
    """The size and the backend of a case."""
    settings = case["settings"]
    source = "" if settings["source"] == SYNTHETIC else f"{settings['source']}, "
    where = settings["where"]
    library = "" if where["library"] == "numpy" else f", torch {where['device']}"
    threads = "" if where["threads"] is None else f", threads {where['threads']}"
    size = f"K={settings['classes']} d={settings['dimension']} N={settings['samples']}"
    busy = f", {settings['competitors']} competing processes" if settings.get("competitors") else ""
    return f"{source}{size}{library}{threads}{busy}"


def case_rows(case: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """The baseline products and every engine of a case, as texts in the order of `COLUMNS`."""
    floor, samples = case["floor"], case["settings"]["samples"]
    wide, narrow = floor["float64"]["median"], floor["float32"]["median"]
    single = format_seconds(floor["single_sample_float64"]["p50"])
    yield (
        "floor", format_seconds(narrow / samples), format_seconds(wide / samples), single, "",
        format_seconds(narrow), "", "1", "", "",
    )  # fmt: skip
    for engine, record in case["engines"].items():
        latency = (record.get("latency") or {}).get("all") or {}
        about = "~" if engine == DEFINITION else ""
        yield (
            engine,
            about + format_seconds(record["seconds_per_sample"]),
            _format_float64(record.get("float64")),
            format_seconds(latency.get("p50")),
            format_seconds(latency.get("p99")),
            about + format_seconds(record["seconds"]),
            "1" if engine == DEFINITION else _format_ratio(record.get("times_faster_than_direct")),
            _format_ratio(record["times_the_floor"]),
            _format_memory(record.get("memory")),
            _format_error(record.get("agreement")),
        )


def _format_float64(record: Mapping[str, Any] | None) -> str:
    if record is None:
        return ""
    return ("~" if record.get("interpolated") else "") + format_seconds(record["seconds_per_sample"])


def _format_ratio(ratio: float | None) -> str:
    if ratio is None:
        return ""
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}"


def _format_memory(memory: Mapping[str, Any] | None) -> str:
    if memory is None:
        return ""
    return "?" if "error" in memory else f"{memory['bytes_beyond_input_and_output'] / 1e6:.0f}"


def _format_error(agreement: Mapping[str, Any] | None) -> str:
    if agreement is None:
        return ""
    found = max(agreement["largest_difference"], agreement.get("largest_score_difference", 0.0))
    return f"{found:.0e}{'!' if agreement['argmax_equal'] < 1 else ''}"


def case_warnings(cases: Mapping[str, Any]) -> list[str]:
    """Other answers than the definition's, failed measurements, and a busy machine."""
    found = _busy_warnings(cases)
    for case in cases.values():
        for engine, record in case["engines"].items():
            agreement, memory = record.get("agreement"), record.get("memory") or {}
            if agreement is not None and _is_wrong(agreement):
                found.append(
                    f"{engine} at {case_title(case)}: {1 - agreement['argmax_equal']:.1%} of predictions differ from "
                    f"the definition's, probabilities by up to {agreement['largest_difference']:.1g}, scores by up to "
                    f"{agreement.get('largest_score_difference', 0.0):.1g}"
                )
            if record.get("banks_equal") is False:
                found.append(f"{engine} at {case_title(case)}: its banks hold other samples than the definition's")
            if "error" in memory:
                found.append(f"{engine} at {case_title(case)}: its memory could not be measured ({memory['error']})")
    return found


def _is_wrong(agreement: Mapping[str, Any]) -> bool:
    differences = (agreement["largest_difference"], agreement.get("largest_score_difference", 0.0))
    return agreement["argmax_equal"] < 1 or max(differences) > TOLERANCE


def _busy_warnings(cases: Mapping[str, Any]) -> list[str]:
    busy = [cores for case in cases.values() if (cores := case.get("busy_cores_before") or 0) > BUSY]
    # The cases that are busy on purpose started their competitors after this was observed.
    if not busy:
        return []
    return [
        f"other programs kept up to {max(busy):.1f} cores busy while {len(busy)} of {len(cases)} sizes were measured: "
        "no time can be trusted, and no ratio if threads wait for each other. Fix: a quiet machine, or --threads 1"
    ]


AXIS_NAMES = {"classes": "K", "dimension": "d", "samples": "N"}


def growth(cases: Mapping[str, Any]) -> dict[str, Any]:
    """Curves of [size, seconds per sample] for each engine, in groups with a title.

    "seen": along the stream, one group per case. "classes", "dimension", "samples": for cases that differ only in it.
    """
    return {
        "seen": [{"title": case_title(case), "engines": _curves_along_stream(case)} for case in cases.values()],
        **{axis: _curves_over(cases, axis) for axis in AXIS_NAMES},
    }


def _curves_along_stream(case: Mapping[str, Any]) -> dict[str, list[list[float]]]:
    curves = {}
    for name, record in case["engines"].items():
        if "windows" in record:
            curves[name] = [[window["seen"], window["seconds_per_sample"]] for window in record["windows"]]
        elif "points" in record:
            curves[name] = [[point["seen"], _point_seconds(point)] for point in record["points"]]
    return curves


def _point_seconds(point: Mapping[str, Any]) -> float:
    """The time of a sample that enters a bank, which costs most; if none did, of the others."""
    kind = point["entering"] or point["other"]
    return float(kind["p50"])


def _curves_over(cases: Mapping[str, Any], axis: str) -> list[dict[str, Any]]:
    """Groups of at least two cases that differ only along `axis`."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for case in cases.values():
        fixed = {name: value for name, value in case["settings"].items() if name != axis}
        groups.setdefault(repr(sorted(fixed.items())), []).append(case)
    ordered = [sorted(group, key=lambda case: int(case["settings"][axis])) for group in groups.values()]
    return [_curve_group(group, axis) for group in ordered if len(group) > 1]


def _curve_group(group: list[Mapping[str, Any]], axis: str) -> dict[str, Any]:
    first = group[0]["settings"]
    source = "" if first["source"] == SYNTHETIC else f"{first['source']}, "
    return {
        "title": source + " ".join(f"{name}={first[other]}" for other, name in AXIS_NAMES.items() if other != axis),
        "engines": {
            name: [[case["settings"][axis], case["engines"][name]["seconds_per_sample"]] for case in group]
            for name in group[0]["engines"]
        },
    }


def longest_curves(groups: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The group with the largest sizes and, of several such groups, the slowest."""

    def reach(group: Mapping[str, Any]) -> tuple[float, float]:
        points = [point for curve in group["engines"].values() for point in curve]
        return max((at for at, _ in points), default=0.0), max((seconds for _, seconds in points), default=0.0)

    return max(groups, key=reach, default=None)


LEGEND = (
    "floor: the bare product N K d in float32 (f64: in float64), measured in the same run; sample: mean time per "
    "sample with float32 products, ~ where interpolated between sampled steps; f64: the same with float64 products; "
    "p50, p99: of calls with one sample (the floor's: three products with K vectors in float64); faster: times, "
    "than direct; floors: times the floor in float32; MB: peak memory beyond input and output; error: largest "
    "difference of a probability or (relative) of a score to the definition's, on sampled rows. direct is always "
    "float64. mixture: the anchored mixture, another method, one sample per call; mixture call: the stream in one "
    "call (error: compared with one by one); mixture set: transductive. clustered: the second geometry "
    "(zeroshift.benchmarks.problems)."
)

SHOWN_POINTS = 6
"""Points of a curve in a table."""


def bench_tables(cases: Mapping[str, Any]) -> list[ReportTable]:
    """One table per case, its baseline products first."""
    return [ReportTable.from_values(_columns(), case_rows(case), title=case_title(case)) for case in cases.values()]


def cases_markdown(cases: Mapping[str, Any]) -> str:
    """All cases in one table."""
    lines = [
        ("" if place else case_title(case), *row)
        for case in cases.values()
        for place, row in enumerate(case_rows(case))
    ]
    return ReportTable.from_values((ReportColumn("features"), *_columns()), lines).markdown()


def _columns() -> list[ReportColumn]:
    return [ReportColumn(name, is_right=place > 0, is_whole=True) for place, name in enumerate(COLUMNS)]


def growth_table(growth: Mapping[str, Any]) -> ReportTable:
    """How the time per sample grows with the samples seen, with K, d and N."""
    columns = (ReportColumn("engine", is_whole=True), ReportColumn("over"), ReportColumn("time per sample"))
    return ReportTable.from_values(columns, _growth_rows(growth))


def _growth_rows(growth: Mapping[str, Any]) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    longest = longest_curves(growth["seen"])
    if longest is not None:
        for engine, curve in longest["engines"].items():
            found.append((engine, f"samples seen, {longest['title']}", _format_curve(_thinned(curve))))
    for axis, name in AXIS_NAMES.items():
        for line in growth[axis]:
            for engine, curve in line["engines"].items():
                found.append((engine, f"{name}, {line['title']}", _format_curve(curve)))
    return found


def _thinned(curve: list[list[float]]) -> list[list[float]]:
    if len(curve) <= SHOWN_POINTS:
        return curve
    return [curve[round(i * (len(curve) - 1) / (SHOWN_POINTS - 1))] for i in range(SHOWN_POINTS)]


def _format_curve(curve: list[list[float]]) -> str:
    return ", ".join(f"{int(at)}: {format_seconds(seconds)}" for at, seconds in curve)


WIDTH, HEIGHT = 3.6, 2.7
SUFFIXES = (".png", ".svg")
COLOURS = {
    "direct": METHOD_COLOURS["zero_shot"],
    "streaming": METHOD_COLOURS["adapt_online"],
    "transductive": METHOD_COLOURS["adapt_transductive"],
}
"""The definition is grey; the methods have the same colours as in the reports."""


def growth_figure(growth: Mapping[str, Any]) -> Figure:
    """Time per sample against samples seen, against K and against d, one line per engine; empty panels are left out."""
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
        _style_panel(axes, title, label, sizes=None if place == 0 else _measured_sizes(curves))
    if handles:
        figure.legend(
            handles=list(handles.values()), loc="outside upper left", ncols=len(handles), frameon=False, labelcolor=INK
        )
    return figure


def _panels(growth: Mapping[str, Any]) -> list[tuple[str, str, dict[str, list[list[float]]]]]:
    """(title, label of the horizontal axis, curves) of each panel."""
    kinds = {"seen": "samples seen", "classes": "K", "dimension": "d"}
    found = ((longest_curves(growth[kind]), label) for kind, label in kinds.items())
    return [(group["title"], label, group["engines"]) for group, label in found if group is not None]


def _measured_sizes(curves: Mapping[str, Sequence[Sequence[float]]]) -> list[float]:
    return sorted({at for curve in curves.values() for at, _ in curve})


def _style_panel(axes: Axes, title: str, label: str, sizes: list[float] | None) -> None:
    """Logarithmic axes: engines differ by orders of magnitude, and sizes double."""
    from matplotlib.ticker import NullFormatter, NullLocator, StrMethodFormatter

    axes.set_yscale("log")
    low, high = axes.dataLim.intervaly
    axes.set_ylim(10 ** math.floor(math.log10(low) - 0.05), 10 ** math.ceil(math.log10(high) + 0.05))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    if sizes is not None:
        axes.set_xscale("log")
        axes.set_xticks(sizes, [f"{at:g}" for at in sizes])
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
