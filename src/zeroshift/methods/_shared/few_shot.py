"""Base class of few-shot methods, and their search for parameters on labelled samples."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, ClassVar

import numpy as np

from zeroshift.arrays import Array, Backend, Labelled, checked_labelled, to_numpy
from zeroshift.features.checks import blocks
from zeroshift.method import Method
from zeroshift.parameters import array_parameter


class FewShotMethod(Method):
    """A classifier fitted once to labelled support samples. `adapt` predicts like `predict` and counts the samples.

    A subclass defines `_fit`, which computes what prediction needs, and `_predict_scores`.
    """

    protocol = "few-shot"
    needs: ClassVar[tuple[str, ...]] = ("prototypes", "support")

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
        self._chosen: dict[str, Any] = {}
        self._fit()

    @property
    def chosen(self) -> dict[str, float]:
        """The parameters used for prediction: those chosen with the validation set, or else those given."""
        return dict(self._chosen)

    @property
    def _support64(self) -> Array:
        """The features of the support samples in float64."""
        return self.as_float64(self.support[0])

    @property
    def _adapted_together(self) -> int:
        return 1  # a batch size is that of the training


def accuracy(scores: Array, labels: np.ndarray) -> float:
    """Fraction of rows whose largest score is that of the label."""
    return float(np.mean(to_numpy(scores).argmax(axis=1) == labels))


def correct(scores: Array, labels: Array) -> int:
    """Number of rows of scores (n, K) whose largest score, the first of several, is that of the label (n,)."""
    return int((scores.argmax(1) == labels).sum())


def labelled_blocks(samples: Labelled, width: int) -> Iterator[tuple[Array, Array]]:
    """Labelled samples in blocks, features in float64; each sample needs `width` numbers."""
    features, labels = samples
    backend = Backend.of(features)
    for rows in blocks(len(labels), width):
        yield backend.asarray(features[rows], backend.xp.float64), backend.index(labels[rows])


def most_accurate(
    samples: Labelled, width: int, grid: Mapping[str, Sequence[Any]], scores: Callable[[Array], Callable[..., Array]]
) -> dict[str, Any]:
    """The first of the combinations of candidates, of which `grid` has some for each parameter, that are most accurate.

    `scores` makes of features (n, d) a function from the parameters to the scores (n, K). See `labelled_blocks` for
    `width`.
    """
    candidates = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    right = np.zeros(len(candidates))
    for x, labels in labelled_blocks(samples, width):
        of_candidate = scores(x)
        right += [correct(of_candidate(**candidate), labels) for candidate in candidates]
    return candidates[int(right.argmax())]
