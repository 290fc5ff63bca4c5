"""The page of `zeroshift compare`: a figure of the gains, and every number, in one HTML file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from zeroshift.evaluate import ComparisonSummary, MethodSummary, describe_skipped
from zeroshift.report.compare_tables import (
    COST_COLUMNS,
    by_protocol,
    cost_legend,
    megabytes,
    range_text,
    remarks,
    shown_costs,
    starred_label,
)
from zeroshift.report.formatting import counted, percent, points, significant
from zeroshift.report.page import drawing, render_template, write_text
from zeroshift.report.style import INK, METHOD_COLOURS, OTHER_COLOURS, annotate, new_figure, style_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["gain_bars", "page_context", "render_page", "write_page"]

WIDTH, BAR_HEIGHT = 7.0, 0.24
"""Inches of the figure, and of one of its bars."""

PROTOCOL_COLOURS = {
    "online": METHOD_COLOURS["adapt_online"],
    "episodic": OTHER_COLOURS[1],
    "transductive": METHOD_COLOURS["adapt_transductive"],
    "few-shot": OTHER_COLOURS[0],
}


def write_page(path: str | os.PathLike[str], summary: ComparisonSummary) -> None:
    """Write `render_page` to a file, completely or not at all."""
    write_text(path, render_page(summary))


def render_page(summary: ComparisonSummary) -> str:
    """The page as text; the same bytes for the same records."""
    return render_template("compare.html.j2", page_context(summary))


def gain_bars(methods: Sequence[MethodSummary]) -> Figure:
    """Each method's mean gain over zero-shot as a bar, grouped by protocol; a thin line spans its orders."""
    rows = [method for _, group in by_protocol(methods) for method in group]
    figure = new_figure(WIDTH, 0.6 + BAR_HEIGHT * len(rows))
    axes = figure.add_subplot()
    for place, method in enumerate(rows):
        gain = method.gain
        axes.barh(place, gain.mean, 0.7, color=PROTOCOL_COLOURS[method.spec.protocol])
        if len(gain.values) > 1:
            axes.plot([gain.low, gain.high], [place, place], color=INK, linewidth=1.1, solid_capstyle="butt")
        # At the far end, so that the line never crosses the number.
        annotate(axes, (max(gain.high, 0.0), place), points(gain.mean), xytext=(5, 0))
    axes.axvline(0, color=INK, linewidth=0.7, alpha=0.5)
    axes.set_yticks(range(len(rows)), [starred_label(method) for method in rows], parse_math=False)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.margins(x=0.08)
    style_axes(axes, "mean gain over zero-shot, points", grid="x")
    axes.spines["bottom"].set_visible(False)
    return figure


def page_context(summary: ComparisonSummary) -> dict[str, Any]:
    """Strings and numbers for the template."""
    plan = summary.plan
    sets = counted(len(plan.datasets), "set")
    return {
        "title": f"{counted(len(summary.overall), 'method')} on {sets} of features",
        "remarks": remarks(summary),
        "encoders": list(dict.fromkeys(dataset.encoder for dataset in plan.datasets if dataset.encoder)),
        "bars": drawing(gain_bars(summary.overall), name="gains", text=_bars_text(summary.overall)),
        "costs": shown_costs(summary.overall),
        "costs_legend": cost_legend(shown_costs(summary.overall)),
        "groups": [
            {"protocol": protocol, "rows": [_row(method, len(plan.datasets)) for method in group]}
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
        "skipped": describe_skipped(plan.skipped),
        "failed": [f"{outcome.job}: {outcome.error}" for outcome in summary.failed],
        "machines": sorted({str(record["machine"]) for record in summary.records if "machine" in record}),
    }


def _row(method: MethodSummary, n_sets: int) -> dict[str, Any]:
    return {
        "label": starred_label(method),
        "detail": "" if len(method.sets) == n_sets else f"{len(method.sets)} of {n_sets} sets",
        "accuracy": percent(method.accuracy.mean),
        "gain": points(method.gain.mean),
        "span": range_text(method.gain),
        "calibration": percent(method.calibration_error),
        "microseconds": significant(method.microseconds),
        "setup": significant(1e3 * method.setup_seconds),
        "megabytes": megabytes(method.peak_bytes),
        "costs": {name: significant(method.costs[cost]) for name, cost in COST_COLUMNS.items()},
    }


def _matrix(summary: ComparisonSummary) -> list[dict[str, Any]]:
    """One row per method, one cell per set."""
    rows = []
    for protocol, group in by_protocol(summary.overall):
        for mean in group:
            found = [summary.on(dataset.name, mean.spec) for dataset in summary.plan.datasets]
            cells = [None if s is None else _row(s, 1) for s in found]
            rows.append({"label": starred_label(mean), "protocol": protocol, "cells": cells})
    return rows


def _bars_text(methods: Sequence[MethodSummary]) -> str:
    """The bars in words."""
    gains = ", ".join(f"{method.spec.label} {points(method.gain.mean)}" for method in methods)
    return f"Bar chart of mean gains over zero-shot in points: {gains}."
