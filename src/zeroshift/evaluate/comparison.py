"""Several methods on the same features, compared with a baseline on the same arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zeroshift.evaluate.metrics.functions import accuracy, class_accuracy, expected_calibration_error
from zeroshift.evaluate.stream_loop import EVERY, StreamRun, StreamStep, run_stream
from zeroshift.features import FeatureSet
from zeroshift.method import Method
from zeroshift.methods import MethodInfo, ZeroShot
from zeroshift.methods.inputs import SECOND, image_input
from zeroshift.suggest import did_you_mean

__all__ = ["Comparison", "Result", "compare", "mean_accuracy", "zero_shot_baseline"]


@dataclass(frozen=True)
class Result:
    """The result of one method on one set; fields that need labels are None without labels."""

    method: str
    """Name in the registry."""
    parameters: dict[str, Any]
    """The parameters of the method, without arrays and models."""
    run: StreamRun
    predictions: np.ndarray
    """(N,) index of the most probable class."""
    correct: np.ndarray | None
    """(N,) whether each prediction is correct."""
    accuracy: float | None
    class_accuracy: np.ndarray | None
    calibration_error: float | None

    @classmethod
    def of(cls, method: Method, features: FeatureSet, run: StreamRun) -> Result:
        """The result of a run of `method` on `features`."""
        predictions = np.argmax(run.probabilities, axis=1)
        labels, probabilities = features.labels, run.probabilities
        hidden = (*method.array_parameters, *method.model_parameters)
        return cls(
            method=method.name,
            parameters={name: v for name, v in method.get_params().items() if name not in hidden},
            run=run,
            predictions=predictions,
            correct=None if labels is None else predictions == labels,
            accuracy=None if labels is None else accuracy(probabilities, labels),
            class_accuracy=None if labels is None else class_accuracy(probabilities, labels),
            calibration_error=None if labels is None else expected_calibration_error(probabilities, labels),
        )


@dataclass(frozen=True)
class Comparison:
    """Several methods on one set; the first is the baseline of the others."""

    name: str
    features: FeatureSet
    results: tuple[Result, ...]

    @property
    def title(self) -> str:
        """The title in the provenance of the set, or its name."""
        return str(self.features.provenance.get("title", self.name))

    @property
    def baseline(self) -> Result:
        return self.results[0]

    def result(self, method: str) -> Result:
        for result in self.results:
            if result.method == method:
                return result
        raise KeyError(f"{method!r} is not among the compared methods: {', '.join(r.method for r in self.results)}.")

    def gain(self, result: Result) -> float | None:
        """Accuracy minus that of the baseline, in percentage points."""
        if result.accuracy is None or self.baseline.accuracy is None:
            return None
        return 100 * (result.accuracy - self.baseline.accuracy)

    def class_gain(self, result: Result) -> np.ndarray | None:
        """(K,) gain within each class, in percentage points; NaN for a class without samples."""
        if result.class_accuracy is None or self.baseline.class_accuracy is None:
            return None
        return 100 * (result.class_accuracy - self.baseline.class_accuracy)

    def changed(self, result: Result) -> int:
        """Number of samples for which method and baseline predict different classes."""
        return int(np.count_nonzero(result.predictions != self.baseline.predictions))


def compare(
    features: FeatureSet,
    methods: Sequence[Method],
    *,
    name: str = "features",
    every: int | None = None,
    progress: Callable[[Method, StreamStep], None] | None = None,
    views: bool = False,
    second: str | None = None,
) -> Comparison:
    """Run `methods` one after the other on the same features; the first is the baseline.

    Methods that need several views of each image are given those of the set; with `views`, so are methods that take
    them optionally. `second` is the name of the set's extra features that are given to methods that take a second
    encoder; the others run without. Online methods are given `every` rows per call; None is the number at which each is
    fastest, its `rows_per_call`.

    >>> from zeroshift import OnlineADAPT, ZeroShot
    >>> pets = FeatureSet(np.eye(2), prototypes=np.eye(2), labels=[0, 1])
    >>> comparison = compare(pets, [ZeroShot(np.eye(2)), OnlineADAPT(np.eye(2))])
    >>> comparison.gain(comparison.result("adapt_online"))
    0.0
    """
    if not methods:
        raise ValueError("methods is empty. Fix: give at least the baseline.")
    if second is not None and second not in features.extra:
        known = ", ".join(features.extra) or "none"
        raise ValueError(
            f"second must be the name of extra features of the set ({known}); got {second!r}. "
            f"{did_you_mean(second, features.extra)}Fix: features.with_extra({second!r}, rows)."
        )
    results = []
    for method in methods:
        other = features.extra[second] if second is not None and SECOND in method.takes else None
        notify = None if progress is None else (lambda step, method=method: progress(method, step))
        images = image_input(MethodInfo.of(type(method)), features, views=views)
        rows = getattr(method, "rows_per_call", EVERY) if every is None else every
        results.append(Result.of(method, features, run_stream(method, images, notify, every=rows, second=other)))
    return Comparison(name, features, tuple(results))


def zero_shot_baseline(method: Method, features: FeatureSet) -> ZeroShot:
    """The zero-shot classifier `method` starts from: its prototypes, and its logit scale (or else the set's)."""
    return ZeroShot(method.prototypes, logit_scale=getattr(method, "logit_scale", features.logit_scale))


def mean_accuracy(comparisons: Sequence[Comparison]) -> dict[str, float]:
    """Mean accuracy of each method over the sets, all weighted equally. All comparisons need labels and the same
    methods."""
    methods = [result.method for result in comparisons[0].results]
    if any([result.method for result in comparison.results] != methods for comparison in comparisons):
        raise ValueError("a mean needs the same methods, in the same order, in every comparison.")
    means = {}
    for method in methods:
        values = [comparison.result(method).accuracy for comparison in comparisons]
        if None in values:
            raise ValueError("a mean accuracy needs labels in every comparison.")
        means[method] = float(np.mean(np.array(values, dtype=float)))
    return means
