"""A linear classifier fitted in float64 that answers in the features' own precision."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from zeroshift.arrays import Array, Home, Rows, is_double
from zeroshift.method import Method

__all__ = ["LinearHead", "LinearTransductive"]


class LinearHead:
    """Scores x.w_k + b_k of weights (K, d) and offsets (K,).

    Kept in float64 and in float32: to convert it for every sample would cost as much as the product itself.

    >>> import numpy as np
    >>> LinearHead(np.eye(2), np.array([0.5, 0.0])).scores(np.array([[0.8, 0.6]]))
    array([[1.3, 0.6]])
    """

    def __init__(self, weights: Array, offsets: Array) -> None:
        home = Home.of(weights)
        self.weights, self.offsets = home.bring(weights, home.xp.float64), home.bring(offsets, home.xp.float64)
        self._single = (home.bring(weights, home.xp.float32), home.bring(offsets, home.xp.float32))

    def scores(self, features: Array) -> Array:
        """(n, K) for features (n, d) in float32 or float64."""
        weights, offsets = (self.weights, self.offsets) if is_double(features) else self._single
        scores = features @ weights.T
        scores += offsets
        return scores


# Transductive methods that end in a linear classifier: a set teaches its weights and offsets, anyone can ask it.


BLOCK_ROWS = 4096


class LinearTransductive(Method):
    """A method that learns a linear classifier from a whole set. `adapt` starts afresh from the set it is given.

    A subclass fills in `_learn`, and has the parameter `logit_scale`: before anything is learned the classifier is the
    zero-shot one.
    """

    protocol = "transductive"
    computes_in: ClassVar[str | None] = None

    logit_scale: float

    @abstractmethod
    def _learn(self, rows: Rows) -> LinearHead:
        """The classifier the whole set teaches."""

    @property
    def _zero_shot(self) -> LinearHead:
        home = Home.of(self.prototypes)
        prototypes = home.bring(self.prototypes, home.xp.float64)
        return LinearHead(self.logit_scale * prototypes, home.zeros((self.n_classes,)))

    def _begin(self) -> None:
        self._head = self._zero_shot

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        # Nothing is set before all is learned: an interrupt leaves what an earlier set taught.
        head = self._learn(rows)
        self._head, self.n_seen = head, len(rows)
        for block, features in rows.blocks(BLOCK_ROWS, reuse=True):
            yield block, head.scores(features)

    def _predict_scores(self, features: Array) -> Array:
        return self._head.scores(features)

    def _state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return {"weights": self._head.weights, "offsets": self._head.offsets}, {}

    def _restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        for name in ("weights", "offsets"):
            saved, own = tuple(arrays[name].shape), tuple(getattr(self._head, name).shape)
            if saved != own:
                raise ValueError(f"{name} of shape {saved}, not {own}, were saved")
        self._head = LinearHead(arrays["weights"], arrays["offsets"])
