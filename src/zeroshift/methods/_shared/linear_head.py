"""A linear classifier fitted in float64, and the base class of transductive methods that learn one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from zeroshift.arrays import Array, Backend, Rows, is_double
from zeroshift.method import Method
from zeroshift.parameters import Number, parameter, state

__all__ = ["LinearHead", "TransductiveLinearMethod"]

BLOCK_ROWS = 4096


class LinearHead:
    """Scores x.w_k + b_k with weights (K, d) and offsets (K,), computed in the precision of the features.

    Kept in float64 and in float32: converting it for every sample would cost as much as the product itself.

    >>> import numpy as np
    >>> LinearHead(np.eye(2), np.array([0.5, 0.0])).scores(np.array([[0.8, 0.6]]))
    array([[1.3, 0.6]])
    """

    def __init__(self, weights: Array, offsets: Array) -> None:
        backend = Backend.of(weights)
        self.weights, self.offsets = (
            backend.asarray(weights, backend.xp.float64),
            backend.asarray(offsets, backend.xp.float64),
        )
        self._single = (backend.asarray(weights, backend.xp.float32), backend.asarray(offsets, backend.xp.float32))

    def scores(self, features: Array) -> Array:
        """(n, K) for features (n, d) in float32 or float64."""
        weights, offsets = (self.weights, self.offsets) if is_double(features) else self._single
        scores = features @ weights.T
        scores += offsets
        return scores

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return {"weights": self.weights, "offsets": self.offsets}, {}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> LinearHead:
        for name, own in self.state()[0].items():
            if tuple(arrays[name].shape) != tuple(own.shape):
                raise ValueError(f"{name} has shape {tuple(arrays[name].shape)}, not {tuple(own.shape)}")
        return LinearHead(arrays["weights"], arrays["offsets"])


class TransductiveLinearMethod(Method):
    """A method that learns a linear classifier from a whole set. `adapt` always starts from the zero-shot classifier.

    A subclass defines `_learn`.
    """

    protocol = "transductive"
    computes_in: ClassVar[str | None] = None
    linear = True

    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)

    _head: LinearHead = state(lambda self: self._zero_shot, saved_as="")

    @abstractmethod
    def _learn(self, rows: Rows) -> LinearHead:
        """The classifier learned from the whole set."""

    @property
    def _zero_shot(self) -> LinearHead:
        backend = Backend.of(self.prototypes)
        prototypes = backend.asarray(self.prototypes, backend.xp.float64)
        return LinearHead(self.logit_scale * prototypes, backend.zeros((self.n_classes,)))

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        head = self._learn(rows)
        with self._learning(len(rows), replace=True):
            self._head = head
        for block, features in rows.blocks(BLOCK_ROWS, reuse=True):
            yield block, head.scores(features)

    def _predict_scores(self, features: Array) -> Array:
        return self._head.scores(features)
