"""The page of `zeroshift compare`: a figure of the gains, and every number, in one HTML file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from zeroshift.evaluate import ComparisonSummary, MethodSummary, describe_skipped
from zeroshift.evaluate.method_spec import GROUPS
from zeroshift.report.compare_tables import (
    COST_COLUMNS,
    PAIRED,
    by_group,
    cost_legend,
    interval_text,
    megabytes,
    place_text,
    range_text,
    remarks,
    shown_costs,
    starred_label,
)
from zeroshift.report.formatting import counted, join_words, one_line, percent, points, prose, significant
from zeroshift.report.page import drawing, render_template, write_text
from zeroshift.report.style import INK, METHOD_COLOURS, OTHER_COLOURS, annotate, new_figure, style_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["gain_bars", "headline", "page_context", "render_page", "write_page"]

WIDTH, BAR_HEIGHT = 4.4, 0.2
"""Inches of the figure, and of one of its bars: text stays readable in the width of a phone."""

MAX_NAMED = 3
"""Methods that the title names one by one."""

COLUMNS = {
    "accuracy": "Accuracy",
    "gain": "Gain",
    "place": "To the best",
    "over": "Over",
    "span": "Range",
    "calibration": "ECE",
    "microseconds": "µs per sample",
    "setup": "Set-up, ms",
    "megabytes": "MB",
}
"""Columns of the table of means, by their key in `_row`."""

_COLOURS = {
    "online": METHOD_COLOURS["adapt_online"],
    "episodic": OTHER_COLOURS[1],
    "transductive": METHOD_COLOURS["adapt_transductive"],
    "few-shot": OTHER_COLOURS[0],
}

GROUP_COLOURS = {group: _COLOURS[group.removesuffix(" with views")] for group in GROUPS}


def write_page(path: str | os.PathLike[str], summary: ComparisonSummary) -> None:
    """Write `render_page` to a file, completely or not at all."""
    write_text(path, render_page(summary))


def render_page(summary: ComparisonSummary) -> str:
    """The page as text; the same bytes for the same records."""
    return render_template("compare.html.j2", page_context(summary))


def gain_bars(methods: Sequence[MethodSummary]) -> Figure:
    """Each method's mean gain over zero-shot as a bar, by group; a thin line spans its orders."""
    rows = [method for _, group in by_group(methods) for method in group]
    figure = new_figure(WIDTH, 0.6 + BAR_HEIGHT * len(rows))
    axes = figure.add_subplot()
    for place, method in enumerate(rows):
        gain = method.gain
        axes.barh(place, gain.mean, 0.7, color=GROUP_COLOURS[method.spec.group])
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
    groups = [
        {"name": name, "rows": [_row(method, len(plan.datasets)) for method in group]}
        for name, group in by_group(summary.overall)
    ]
    costs = shown_costs(summary.overall)
    return {
        "title": prose(headline(summary)),
        "gains_title": prose(_gains_title(summary.overall)),
        "gains_caption": _gains_caption(summary),
        "numbers_title": _numbers_title(summary.overall),
        "numbers_caption": _numbers_caption(summary, costs),
        "columns": _columns(groups, costs, summary.baseline),
        "matrix_title": _matrix_title(summary),
        "matrix_caption": f"Accuracy in percent{_order_note(summary)}; below it, the gain over zero-shot in points.",
        "sets_title": _sets_title(summary),
        "missing_title": _missing_title(summary),
        "remarks": remarks(summary),
        "encoders": list(dict.fromkeys(dataset.encoder for dataset in plan.datasets if dataset.encoder)),
        "bars": drawing(gain_bars(summary.overall), name="gains", text=_bars_text(summary.overall)),
        "groups": groups,
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


def headline(summary: ComparisonSummary) -> str:
    """The gains of up to three methods by name; of more, how many gain, and the most accurate methods of each group
    that the samples cannot tell apart."""
    where = _where(summary)
    gains = {starred_label(method): method.gain.mean for method in _adapting(summary.overall)}
    if not gains:
        accuracies = [f"{method.spec.label} {percent(method.accuracy.mean)}%" for method in summary.overall]
        return f"{join_words(accuracies) or 'no result'} on {where}"
    if len(gains) <= MAX_NAMED:
        return f"{', '.join(f'{label} {points(gain)}' for label, gain in gains.items())} points on {where}"
    above = sum(_gains(method) for method in _adapting(summary.overall))
    best = [f"{name} {_best_of(group)}" for name, group in by_group(summary.overall)]
    return f"{above} of {len(gains)} methods gain on {where}; most accurate: {'; '.join(best)} points"


def _gains(method: MethodSummary) -> bool:
    """Whether the interval of the gain is above zero; where there is none, whether the gain is."""
    return (method.gain.mean if method.gain_interval is None else method.gain_interval[0]) > 0


def _best_of(group: Sequence[MethodSummary]) -> str:
    """The most accurate method of a group, how many others are tied with it, and its gain."""
    best = max(group, key=lambda method: (len(method.sets), method.accuracy.mean, method.gain.mean))
    tied = sum(method is not best and method.to_best is not None and method.to_best.is_tie for method in group)
    others = f" and {counted(tied, 'other')}" if tied else ""
    return f"{starred_label(best)}{others}, {points(best.gain.mean)}"


def _where(summary: ComparisonSummary) -> str:
    datasets = summary.plan.datasets
    return one_line(datasets[0].title) if len(datasets) == 1 else counted(len(datasets), "set")


def _adapting(methods: Sequence[MethodSummary]) -> list[MethodSummary]:
    return [method for method in methods if method.spec.info.name != "zero_shot"]


def _gains_title(methods: Sequence[MethodSummary]) -> str:
    gains = sorted(method.gain.mean for method in _adapting(methods))
    if not gains:
        return "No method that adapts"
    low, high = points(gains[0]), points(gains[-1])
    return f"Mean gain {low if low == high else f'{low} to {high}'} points"


def _gains_caption(summary: ComparisonSummary) -> str:
    mean = "Mean over the sets, all with the same weight. " if len(summary.plan.datasets) > 1 else ""
    is_drawn = any(len(method.gain.values) > 1 for method in summary.overall)
    return f"{mean}{'The thin line is the range over the orders.' if is_drawn else ''}"


def _numbers_title(methods: Sequence[MethodSummary]) -> str:
    """How calibration changes, which the figure above does not show."""
    known = [method for method in _adapting(methods) if method.calibration_error is not None]
    baseline = next((m.calibration_error for m in methods if m.spec.info.name == "zero_shot"), None)
    if not known or baseline is None:
        return "All numbers"
    worse = sum(method.calibration_error > baseline for method in known)
    return f"Calibration error: {worse} of {counted(len(known), 'method')} higher than zero-shot ({percent(baseline)}%)"


def _numbers_caption(summary: ComparisonSummary, costs: Sequence[str]) -> str:
    means = "Means over the sets. " if len(summary.plan.datasets) > 1 else ""
    return (
        f"{means}Accuracy and calibration error (ECE, 15 bins) in percent, gain in points. Below a gain or "
        f"difference, its interval: {PAIRED}. To the best: the difference to the most accurate method of the group, "
        "tied where its interval contains zero. Time per sample on one thread, all samples in one call; peak memory in "
        f"addition to what was in use before, of the largest set. {cost_legend(costs)}"
    )


def _columns(groups: Sequence[dict[str, Any]], costs: Sequence[str], baseline: str | None) -> list[dict[str, str]]:
    """The columns in which some method has a number."""
    titles = {**COLUMNS, "over": f"Over {baseline}", **{name: name.capitalize() for name in costs}}
    rows = [row for group in groups for row in group["rows"]]
    return [{"key": key, "title": title} for key, title in titles.items() if any(row[key] for row in rows)]


def _order_note(summary: ComparisonSummary) -> str:
    return ", mean over the orders" if any(len(method.gain.values) > 1 for method in summary.overall) else ""


def _matrix_title(summary: ComparisonSummary) -> str:
    """On how many sets every method gains."""
    adapting = _adapting(summary.overall)
    losing = 0
    for dataset in summary.plan.datasets:
        found = (summary.on(dataset.name, method.spec) for method in adapting)
        losing += any(one is not None and one.gain.mean < 0 for one in found)
    if not adapting:
        return "Accuracy on each set"
    if not losing:
        return "No method loses to zero-shot on any set"
    return f"On {losing} of {counted(len(summary.plan.datasets), 'set')}, some method loses to zero-shot"


def _sets_title(summary: ComparisonSummary) -> str:
    datasets = summary.plan.datasets
    samples = sum(dataset.n_samples for dataset in datasets)
    return f"{counted(len(datasets), 'set')}, {counted(samples, 'sample')}"


def _missing_title(summary: ComparisonSummary) -> str:
    failed = counted(len(summary.failed), "run") + " failed" if summary.failed else ""
    return " and ".join(filter(None, [failed, "some methods left out" if summary.plan.skipped else ""])).capitalize()


def _row(method: MethodSummary, n_sets: int) -> dict[str, Any]:
    return {
        "label": starred_label(method),
        "detail": "" if len(method.sets) == n_sets else f"{len(method.sets)} of {n_sets} sets",
        "accuracy": percent(method.accuracy.mean),
        "gain": points(method.gain.mean),
        "place": place_text(method),
        "over": "" if method.to_baseline is None else points(method.to_baseline.points),
        "intervals": _intervals(method),
        "span": range_text(method.gain),
        "calibration": percent(method.calibration_error),
        "microseconds": significant(method.microseconds),
        "setup": significant(1e3 * method.setup_seconds),
        "megabytes": megabytes(method.peak_bytes),
        **{name: significant(method.costs[cost]) for name, cost in COST_COLUMNS.items()},
    }


def _intervals(method: MethodSummary) -> dict[str, str]:
    """The intervals that are shown below numbers, by the key of their column."""
    differences = {"place": method.to_best, "over": method.to_baseline}
    label = method.spec.label
    return {
        "gain": interval_text(method.gain_interval),
        **{key: interval_text((d.low, d.high)) for key, d in differences.items() if d is not None and d.to != label},
    }


def _matrix(summary: ComparisonSummary) -> list[dict[str, Any]]:
    """One row per method, one cell per set."""
    rows = []
    for name, group in by_group(summary.overall):
        for mean in group:
            found = [summary.on(dataset.name, mean.spec) for dataset in summary.plan.datasets]
            cells = [None if s is None else _row(s, 1) for s in found]
            rows.append({"label": starred_label(mean), "group": name, "cells": cells})
    return rows


def _bars_text(methods: Sequence[MethodSummary]) -> str:
    """The bars in words."""
    gains = ", ".join(f"{method.spec.label} {points(method.gain.mean)}" for method in methods)
    return f"Bar chart of mean gains over zero-shot in points: {gains}."
