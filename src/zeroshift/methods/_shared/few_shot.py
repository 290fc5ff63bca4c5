"""Base class of closed-form few-shot methods, and their search for the weight of one score relative to another."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

import numpy as np

from zeroshift.arrays import Array, Backend, Labelled, checked_labelled, namespace, to_numpy
from zeroshift.method import Method
from zeroshift.parameters import array_parameter

__all__ = ["FewShotMethod", "accuracy", "best_weight", "count_correct", "row_blocks"]

WORK_NUMBERS, WORK_NUMBERS_ON_GPU = 1 << 20, 1 << 26
"""Numbers in memory together: about the cache of a processor, and enough to keep a GPU busy."""


class FewShotMethod(Method):
    """A classifier fitted once to labelled support samples. `adapt` predicts like `predict` and counts the samples.

    A subclass defines `_fit`, which computes what prediction needs, and `_predict_scores`.
    """

    protocol = "few-shot"
    needs: ClassVar[tuple[str, ...]] = ("prototypes", "support")
    computes_in = None

    support: Labelled = array_parameter("Labelled samples: unit-length features (n, d) and class indices (n,).")
    validation: Labelled | None = array_parameter(
        "Labelled samples to choose parameters with, in the form of `support`; `chosen` returns the choice.",
        default=None,
    )

    def _validate(self) -> None:
        self.support = checked_labelled("support", self.support, self.prototypes)
        if self.validation is not None:
            self.validation = checked_labelled("validation", self.validation, self.prototypes)

    @abstractmethod
    def _fit(self) -> None:
        """Learn from `support`, and choose parameters with `validation` if it is given."""

    def _prepare(self) -> None:
        self._fit()

    @property
    def chosen(self) -> dict[str, float]:
        """The parameters used for prediction: those chosen with the validation set, or else those given."""
        return {}

    @property
    def _adapted_together(self) -> int:
        return 1  # a batch size is that of the training

    def _to_float64(self, array: Array) -> Array:
        """Fits are computed in float64, whatever the precision of the samples."""
        backend = Backend.of(self.prototypes)
        return backend.asarray(array, backend.xp.float64)


def accuracy(scores: Array, labels: np.ndarray) -> float:
    """Fraction of rows whose largest score is that of the label."""
    return float(np.mean(to_numpy(scores).argmax(axis=1) == labels))


def best_weight(
    validation: Labelled, classes: int, weights: Sequence[float], scores: Callable[[Array], tuple[Array, Array]]
) -> tuple[float, float]:
    """The weight w with which base + w term is most accurate, the first of several, and that accuracy.

    `scores` computes (base, term), (n, K) each for K `classes`, of a block of features in float64.
    """
    features, labels = validation
    backend = Backend.of(features)
    candidates = backend.xp.asarray(weights, dtype=backend.xp.float64, device=backend.device)
    correct = backend.zeros((len(weights),), backend.xp.int64)
    for block in row_blocks(len(labels), max(classes, features.shape[1]), backend):
        base, term = scores(backend.asarray(features[block], backend.xp.float64))
        correct += count_correct(base, term, backend.index(labels[block]), candidates)
    counts = to_numpy(correct)
    best = int(np.argmax(counts))
    return weights[best], float(counts[best]) / len(labels)


def count_correct(base: Array, term: Array, labels: Array, weights: Array) -> Array:
    """For each weight w (m,), the number of rows of base + w term, both (n, K), that are largest at their label (n,).

    The lead of the label over another class is linear in w, so a row is correct on an interval of weights. Its two ends
    decide for all w. Among tied classes the first is predicted.

    >>> base, term = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])
    >>> count_correct(base, term, np.array([1]), np.array([0.5, 1.5]))
    array([0, 1])
    """
    xp = namespace(base)
    label = labels[:, None]
    lead = xp.take_along_axis(base, label, axis=1) - base
    loss = term - xp.take_along_axis(term, label, axis=1)
    constant = loss == 0
    bound = lead / xp.where(constant, 1.0, loss)
    # The label must beat the classes before it, and may tie with those after it.
    before = xp.arange(base.shape[1], device=Backend.of(base).device)[None, :] < label
    never = xp.any(constant & ((lead < 0) | (before & (lead == 0))), axis=1)
    correct = ~never[:, None]
    for classes, strict in ((before, True), (~before, False)):
        highest = xp.min(xp.where(classes & (loss > 0), bound, xp.inf), axis=1)[:, None]
        lowest = xp.max(xp.where(classes & (loss < 0), bound, -xp.inf), axis=1)[:, None]
        within = (lowest < weights) & (weights < highest) if strict else (lowest <= weights) & (weights <= highest)
        correct = correct & within
    return xp.sum(xp.astype(correct, xp.int64), axis=0)


def row_blocks(rows: int, width: int, backend: Backend) -> Iterator[slice]:
    """Slices that split the rows into blocks of a suitable size, where each row needs `width` numbers."""
    size = max(1, (WORK_NUMBERS_ON_GPU if backend.on_gpu else WORK_NUMBERS) // width)
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))
