"""A linear classifier, and the base class of transductive methods that learn one."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

from zeroshift.arrays import Array, Backend
from zeroshift.method import SetMethod
from zeroshift.parameters import Number, parameter, state


class LinearHead(NamedTuple):
    """Scores x.w_k + b_k with weights (K, d) and offsets (K,).

    >>> import numpy as np
    >>> LinearHead(np.eye(2), np.array([0.5, 0.0])).scores(np.array([[0.8, 0.6]]))
    array([[1.3, 0.6]])
    """

    weights: Array
    offsets: Array

    def scores(self, features: Array) -> Array:
        """(n, K) for features (n, d)."""
        return Backend.of(self.weights).asarray(features, self.weights.dtype) @ self.weights.T + self.offsets


class TransductiveLinearMethod(SetMethod):
    """A method that learns a linear classifier from a whole set. `adapt` always starts from the zero-shot classifier.

    A subclass defines `learned_head`.
    """

    linear = True

    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)

    _head: LinearHead = state(lambda self: self._zero_shot, saved_as="")

    @abstractmethod
    def learned_head(self, features: Array) -> LinearHead:
        """The classifier learned from a whole set (N, d)."""

    @property
    def _zero_shot(self) -> LinearHead:
        return LinearHead(self.logit_scale * self.prototypes64, self.zeros(self.n_classes))

    def fit(self, features: Array) -> tuple[Array, dict[str, Any]]:
        head = self.learned_head(features)
        return head.scores(features), {"_head": head}

    def score(self, features: Array) -> Array:
        return self._head.scores(features)
