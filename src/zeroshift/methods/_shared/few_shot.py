"""What closed-form few-shot methods share: support samples, an optional validation set, nothing learned later."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np

from zeroshift.arrays import Array, Home, Labelled, Rows, checked_labelled, namespace, to_numpy
from zeroshift.method import Method

__all__ = ["FewShotMethod", "accuracy_of", "best_weight", "first_best", "row_blocks", "rows_right"]

C = TypeVar("C")


class FewShotMethod(Method):
    """A classifier fitted once to labelled support samples. `adapt` only counts samples: it answers as `predict` does.

    A subclass fills in `_fit` (support in hand, set what prediction needs) and `_predict_scores`.
    """

    protocol = "few-shot"
    needs: ClassVar[tuple[str, ...]] = ("prototypes", "support")
    array_parameters: ClassVar[tuple[str, ...]] = ("prototypes", "support", "validation")
    computes_in = None

    support: Labelled
    validation: Labelled | None

    def _validate(self) -> None:
        self.support = checked_labelled("support", self.support, self.prototypes)
        if getattr(self, "validation", None) is not None:
            self.validation = checked_labelled("validation", self.validation, self.prototypes)

    @abstractmethod
    def _fit(self) -> None:
        """Learn from `support`, and choose by `validation` where it is given."""

    @property
    def chosen(self) -> dict[str, float]:
        """The parameters prediction uses: those found on the validation set, or else those given."""
        return {}

    def _begin(self) -> None:
        self._fit()

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        for block, features in rows.blocks(self._predict_rows):
            self.n_seen += features.shape[0]
            yield block, self._predict_scores(features)

    def _state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return {}, {}  # everything follows from the parameters

    def _restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        pass

    def _wide(self, array: Array) -> Array:
        """Fitted in float64, whatever the samples came in."""
        home = Home.of(self.prototypes)
        return home.bring(array, home.xp.float64)


def first_best(candidates: Sequence[C], accuracy: Callable[[C], float]) -> C:
    """The first of the candidates that no other beats: the authors' searches take only what is strictly better.

    >>> first_best([1.0, 2.0, 3.0], lambda alpha: min(alpha, 2.0))
    2.0
    """
    return candidates[int(np.argmax([accuracy(candidate) for candidate in candidates]))]


def accuracy_of(scores: Array, labels: np.ndarray) -> float:
    """Fraction of rows whose largest score is at the label."""
    return float(np.mean(to_numpy(scores).argmax(axis=1) == labels))


# How many labelled samples are right at each weight of one score against another, for all weights in one pass.


WORK_NUMBERS, WORK_NUMBERS_ON_GPU = 1 << 20, 1 << 26
"""Numbers worked on at once: about what a processor caches, and what keeps a GPU busy."""


def rows_right(base: Array, term: Array, labels: Array, weights: Array) -> Array:
    """For each weight w (m,), how many rows of base + w term, both (n, K), are largest at their label (n,).

    A row's lead over every other class is linear in w, so that it is right from one weight to another: two bounds a
    row say it for every w. Of classes that tie the first is the predicted one, as everywhere.

    >>> base, term = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])
    >>> rows_right(base, term, np.array([1]), np.array([0.5, 1.5]))
    array([0, 1])
    """
    xp = namespace(base)
    own = labels[:, None]
    behind = xp.take_along_axis(base, own, axis=1) - base
    gain = term - xp.take_along_axis(term, own, axis=1)
    still = gain == 0
    bound = behind / xp.where(still, 1.0, gain)
    # A class before the label must be beaten, one after it may tie.
    before = xp.arange(base.shape[1], device=Home.of(base).device)[None, :] < own
    never = xp.any(still & ((behind < 0) | (before & (behind == 0))), axis=1)
    right = ~never[:, None]
    for those, beaten in ((before, True), (~before, False)):
        highest = xp.min(xp.where(those & (gain > 0), bound, xp.inf), axis=1)[:, None]
        lowest = xp.max(xp.where(those & (gain < 0), bound, -xp.inf), axis=1)[:, None]
        within = (lowest < weights) & (weights < highest) if beaten else (lowest <= weights) & (weights <= highest)
        right = right & within
    return xp.sum(xp.astype(right, xp.int64), axis=0)


def row_blocks(rows: int, width: int, home: Home) -> Iterator[slice]:
    """Rows in blocks of a good size to work on, where each needs `width` numbers."""
    size = max(1, (WORK_NUMBERS_ON_GPU if home.on_gpu else WORK_NUMBERS) // width)
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))


def best_weight(
    validation: Labelled, classes: int, weights: Sequence[float], scores: Callable[[Array], tuple[Array, Array]]
) -> tuple[float, float]:
    """The first of the weights w at which base + w term is most often right, and the fraction that then is.

    `scores` gives (base, term), (n, K) each for K `classes`, of a block of features in float64.
    """
    features, labels = validation
    home = Home.of(features)
    at = home.xp.asarray(weights, dtype=home.xp.float64, device=home.device)
    right = home.zeros((len(weights),), home.xp.int64)
    for block in row_blocks(len(labels), max(classes, features.shape[1]), home):
        base, term = scores(home.bring(features[block], home.xp.float64))
        right += rows_right(base, term, home.index(labels[block]), at)
    counts = to_numpy(right)
    best = int(np.argmax(counts))
    return weights[best], float(counts[best]) / len(labels)
