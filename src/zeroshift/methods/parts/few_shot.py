"""What closed-form few-shot methods share: support samples, an optional validation set, nothing learned later."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np

from zeroshift.arrays import Array, Home, Rows, to_numpy
from zeroshift.labelled import Labelled, checked_labelled
from zeroshift.method import Method
from zeroshift.methods.parts.examples import example_support

__all__ = ["FewShotMethod", "accuracy_of", "first_best"]

C = TypeVar("C")


class FewShotMethod(Method):
    """A classifier fitted once to labelled support samples. `adapt` only counts samples: it answers as `predict` does.

    A subclass fills in `_fit` (support in hand, set what prediction needs) and `_predict_scores`.
    """

    protocol = "few-shot"
    needs: ClassVar[tuple[str, ...]] = ("prototypes", "support")
    array_parameters: ClassVar[tuple[str, ...]] = ("prototypes", "support", "validation")
    example_parameters: ClassVar[Mapping[str, Any]] = {"support": example_support}
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
