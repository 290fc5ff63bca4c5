"""The comparison as one HTML file with everything inside it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeroshift._version import __version__
from zeroshift.evaluate import ComparisonSummary, MethodSummary, describe_skipped
from zeroshift.files import atomic_path
from zeroshift.report.compare_tables import (
    COST_COLUMNS,
    by_protocol,
    cost_legend,
    costs_shown,
    marked,
    megabytes,
    remarks,
    span,
)
from zeroshift.report.formatting import counted, percent, points, sig
from zeroshift.report.html import is_report, template_environment
from zeroshift.report.palette import INK, METHOD_COLOURS, OTHER_COLOURS, inline_svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "COLOURS",
    "check_page",
    "gain_bars",
    "render_page",
    "write_page",
]


# One picture of a comparison: each method's mean gain over zero-shot as a bar, and how far its orders reach.


WIDTH = 7.0
ROW = 0.24
"""Inches of a bar."""

COLOURS = {
    "online": METHOD_COLOURS["adapt_online"],
    "episodic": OTHER_COLOURS[1],
    "transductive": METHOD_COLOURS["adapt_transductive"],
    "few-shot": OTHER_COLOURS[0],
}
"""A colour for each protocol: methods of different ones have seen different things."""


def gain_bars(summary: Sequence[MethodSummary]) -> Figure:
    """Horizontal bars from zero, protocol by protocol; a thin line from the least to the greatest order."""
    from matplotlib.figure import Figure

    rows = [method_summary for _, group in by_protocol(summary) for method_summary in group]
    figure = Figure(figsize=(WIDTH, 0.6 + ROW * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    for place, method_summary in enumerate(rows):
        gain = method_summary.gain
        axes.barh(place, gain.mean, 0.7, color=COLOURS[method_summary.spec.protocol])
        if len(gain.values) > 1:
            axes.plot([gain.low, gain.high], [place, place], color=INK, linewidth=1.1, solid_capstyle="butt")
        # Beside the far end, so that the line never crosses the number.
        axes.annotate(
            points(gain.mean), (max(gain.high, 0.0), place), xytext=(5, 0), textcoords="offset points",
            va="center_baseline", fontsize=8, color=INK,
        )  # fmt: skip
    axes.axvline(0, color=INK, linewidth=0.7, alpha=0.5)
    axes.set_yticks(range(len(rows)), [marked(method_summary) for method_summary in rows], parse_math=False)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.margins(x=0.08)
    axes.set_facecolor("none")
    axes.set_xlabel("mean gain over zero-shot, points", fontsize=8, color=INK)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="x", colors=INK, labelsize=8, width=0.7, length=3)
    axes.tick_params(axis="y", colors=INK, labelsize=8, length=0)
    axes.grid(axis="x", color=INK, alpha=0.12, linewidth=0.6)
    axes.set_axisbelow(True)
    return figure


def render_page(summary: ComparisonSummary) -> str:
    """The page as text; the same bytes for the same records."""
    environment = template_environment()
    environment.filters["minus"] = lambda text: text.replace("-", "\N{MINUS SIGN}")
    return environment.get_template("compare.html.j2").render(_page(summary))


def write_page(path: str | os.PathLike[str], summary: ComparisonSummary) -> None:
    """`render_page` to a file, whole or not at all."""
    text = render_page(summary)
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def check_page(path: str | os.PathLike[str]) -> None:
    """Refuse a file that is someone else's."""
    # os.path takes a name too long for one that is not there; the folder is tried elsewhere.
    if os.path.exists(path) and (Path(path).is_dir() or not is_report(path)):
        raise FileExistsError(f"{path} exists and is not a page of zeroshift. Fix: --out another folder.")


def _page(summary: ComparisonSummary) -> dict[str, Any]:
    plan = summary.plan
    sets = counted(len(plan.datasets), "set")
    drawn = inline_svg(gain_bars(summary.overall), name="gains", label=_spoken(summary.overall))
    for protocol, colour in COLOURS.items():
        drawn = drawn.replace(colour, f"var(--{protocol})")
    return {
        "version": __version__,
        "title": f"{counted(len(summary.overall), 'method')} on {sets} of features",
        "remarks": remarks(summary),
        "encoders": list(dict.fromkeys(dataset.encoder for dataset in plan.datasets if dataset.encoder)),
        "bars": drawn,
        "costs": costs_shown(summary.overall),
        "costs_legend": cost_legend(costs_shown(summary.overall)),
        "groups": [
            {"protocol": protocol, "rows": [_row(method_summary, len(plan.datasets)) for method_summary in group]}
            for protocol, group in by_protocol(summary.overall)
        ],
        "sets": [
            {
                "name": dataset.name,
                "title": dataset.title,
                "detail": f"{dataset.n_samples} samples, {dataset.n_classes} classes, d = {dataset.dimension}, "
                f"prompts {dataset.prompt}",
                "hints": list(dataset.hints),
            }
            for dataset in plan.datasets
        ],
        "matrix": _matrix(summary),
        "left_out": describe_skipped(plan.skipped),
        "failed": [f"{outcome.job}: {outcome.error}" for outcome in summary.failed],
        "machines": sorted({str(record["machine"]) for record in summary.records if "machine" in record}),
    }


def _row(method_summary: MethodSummary, of: int) -> dict[str, Any]:
    sets = len(method_summary.sets)
    return {
        "label": marked(method_summary),
        "detail": "" if sets == of else f"{sets} of {of} sets",
        "accuracy": percent(method_summary.accuracy.mean),
        "gain": points(method_summary.gain.mean),
        "span": span(method_summary.gain),
        "calibration": percent(method_summary.calibration_error),
        "microseconds": sig(method_summary.microseconds),
        "setup": sig(1e3 * method_summary.setup_seconds),
        "megabytes": megabytes(method_summary.peak_bytes),
        "costs": {name: sig(method_summary.costs[cost]) for name, cost in COST_COLUMNS.items()},
    }


def _matrix(summary: ComparisonSummary) -> list[dict[str, Any]]:
    """Sets down, methods across would not fit either; methods down, as in the first table."""
    rows = []
    for protocol, group in by_protocol(summary.overall):
        for mean in group:
            found = [summary.on(dataset.name, mean.spec) for dataset in summary.plan.datasets]
            cells = [None if s is None else _row(s, 1) for s in found]
            rows.append({"label": marked(mean), "protocol": protocol, "cells": cells})
    return rows


def _spoken(summary: Sequence[MethodSummary]) -> str:
    """The bars in words, for whoever cannot see them."""
    said = ", ".join(f"{method_summary.spec.label} {points(method_summary.gain.mean)}" for method_summary in summary)
    return f"Bar chart of mean gains over zero-shot in points: {said}."
