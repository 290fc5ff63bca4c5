"""Comparisons as plain dictionaries, for JSON: numbers at full precision, accuracies as fractions, gains in points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from zeroshift.evaluate import Comparison, Result, mean_accuracy

__all__ = ["comparison_record", "mean_calibration_error", "mean_record"]


def comparison_record(comparison: Comparison) -> dict[str, Any]:
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
    """Each method's expected calibration error averaged over the sets, which must be labelled."""
    names = [result.method for result in comparisons[0].results]
    found = {name: [comparison.result(name).calibration_error for comparison in comparisons] for name in names}
    return {name: float(np.mean(np.array(errors, dtype=float))) for name, errors in found.items()}
