"""A few methods compared on a few sets, as in `zeroshift demo` and `adapt`: as a table, as JSON, and in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from zeroshift.evaluate import Comparison, Result, mean_accuracy
from zeroshift.report.formatting import method_label, percent, points
from zeroshift.report.tables import ReportCell, ReportColumn, ReportRow, ReportTable

__all__ = [
    "class_losses",
    "comparison_record",
    "comparison_table",
    "losses",
    "mean_calibration_error",
    "mean_record",
    "verdict",
]


def comparison_table(comparisons: Sequence[Comparison]) -> ReportTable:
    """One row per set with every method's accuracy and gain; then the means of several sets, and calibration errors."""
    names = [result.method for result in comparisons[0].results]
    columns = (
        ReportColumn("features", is_whole=True),
        *(ReportColumn(method_label(name), name=name, is_right=True) for name in names),
    )
    rows = [
        _row(comparison.name, [_accuracy(comparison, comparison.result(name)) for name in names])
        for comparison in comparisons
    ]
    last = []
    if len(comparisons) > 1:
        means = mean_accuracy(comparisons)
        cells = [_accuracy_cell(means[name], 100 * (means[name] - means[names[0]])) for name in names[1:]]
        last.append(_row("mean", [_accuracy_cell(means[names[0]]), *cells], is_strong=True))
    errors = mean_calibration_error(comparisons)
    last.append(_row("calibration error", [_accuracy_cell(errors[name]) for name in names], style="dim"))
    last[0] = ReportRow(last[0].cells, "", True, last[0].is_strong, last[0].style)
    # Zero-shot is repeated: where there is no room for all methods, each part can be compared with it.
    return ReportTable(columns, (*rows, *last), n_repeated=2)


def _row(name: str, cells: Sequence[ReportCell], **how: Any) -> ReportRow:
    return ReportRow((ReportCell(name, name), *cells), **how)


def _accuracy(comparison: Comparison, result: Result) -> ReportCell:
    """A method's accuracy on a set, with its gain where it is not the baseline."""
    return _accuracy_cell(result.accuracy, None if result is comparison.baseline else comparison.gain(result))


def _accuracy_cell(accuracy: float | None, gain: float | None = None) -> ReportCell:
    return ReportCell(percent(accuracy), accuracy, change=points(gain), is_number=True)


def comparison_record(comparison: Comparison) -> dict[str, Any]:
    """For JSON: numbers at full precision, accuracies as fractions, gains in points."""
    features = comparison.features
    return {
        "name": comparison.name,
        "title": comparison.title,
        "n_samples": features.n_samples,
        "n_classes": features.n_classes,
        "dimension": features.dimension,
        "hints": features.hints(),
        "methods": [_result_record(comparison, result) for result in comparison.results],
    }


def _result_record(comparison: Comparison, result: Result) -> dict[str, Any]:
    history = result.run.bank_history
    return {
        "method": result.method,
        "parameters": result.parameters,
        "accuracy": result.accuracy,
        "gain": comparison.gain(result),
        "calibration_error": result.calibration_error,
        "changed": comparison.changed(result),
        "bank_counts": None if history is None else history[-1].tolist(),
        "seconds": result.run.seconds,
    }


def mean_record(comparisons: Sequence[Comparison]) -> dict[str, dict[str, float]]:
    """Mean accuracy, gain and calibration error of each method over the sets."""
    means, errors = mean_accuracy(comparisons), mean_calibration_error(comparisons)
    baseline = next(iter(means.values()))
    return {
        name: {"accuracy": mean, "gain": 100 * (mean - baseline), "calibration_error": errors[name]}
        for name, mean in means.items()
    }


def mean_calibration_error(comparisons: Sequence[Comparison]) -> dict[str, float]:
    """Each method's expected calibration error averaged over the sets, which must have labels."""
    names = [result.method for result in comparisons[0].results]
    found = {name: [comparison.result(name).calibration_error for comparison in comparisons] for name in names}
    return {name: float(np.mean(np.array(errors, dtype=float))) for name, errors in found.items()}


def gain_range(gains: Sequence[float]) -> str:
    """
    >>> gain_range([4.96, -0.31]), gain_range([1.0])
    ('-0.3 to +5.0', '+1.0')
    """
    low, high = points(min(gains)), points(max(gains))
    return low if low == high else f"{low} to {high}"


def titled_with_gains(comparison: Comparison) -> str:
    """The title of a set, and the gains of the methods on it: "CIFAR-10: +5.0 to +9.2 points"."""
    gains = [gain for result in comparison.results[1:] if (gain := comparison.gain(result)) is not None]
    return f"{comparison.title}: {gain_range(gains)} points" if gains else comparison.title


def losses(comparisons: Sequence[Comparison]) -> list[tuple[str, str, str]]:
    """(method, set, gain) wherever a method is worse than the baseline."""
    return [
        (method_label(result.method), comparison.title, points(gain))
        for comparison in comparisons
        for result in comparison.results[1:]
        if (gain := comparison.gain(result)) is not None and gain < 0
    ]


def verdict(comparisons: Sequence[Comparison]) -> str:
    """What a mean hides, in two sentences: sets and classes on which adaptation is worse than zero-shot."""
    lost = [f"{method} on {title} ({gain})" for method, title, gain in losses(comparisons)]
    sets = f"Adaptation lost to zero-shot: {'; '.join(lost)}." if lost else "No method lost to zero-shot on any set."
    fewer, total = class_losses(comparisons)
    return f"{sets} Class by class, {fewer} of {total} results are below zero-shot's."


def class_losses(comparisons: Sequence[Comparison]) -> tuple[int, int]:
    """How many classes, over all sets and methods, are recognised less often than by the baseline; and of how many."""
    gains = [comparison.class_gain(result) for comparison in comparisons for result in comparison.results[1:]]
    known = [gain[~np.isnan(gain)] for gain in gains if gain is not None]
    return sum(int(np.count_nonzero(gain < 0)) for gain in known), sum(len(gain) for gain in known)
