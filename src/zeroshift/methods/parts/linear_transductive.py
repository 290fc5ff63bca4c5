"""Transductive methods that end in a linear classifier: a set teaches its weights and offsets, anyone can ask it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from zeroshift.arrays import Array, Home, Rows
from zeroshift.method import Method

__all__ = ["LinearClassifier", "LinearTransductive"]

BLOCK_ROWS = 4096


class LinearClassifier(NamedTuple):
    """Logits x.w_k + b_k."""

    weights: Array
    """(K, d), float64."""
    offsets: Array
    """(K,), float64."""

    def logits(self, features: Array) -> Array:
        """(n, K), in the features' precision."""
        home = Home.of(features)
        scores = features @ home.bring(self.weights, features.dtype).T
        scores += home.bring(self.offsets, features.dtype)
        return scores


class LinearTransductive(Method):
    """A method that learns a linear classifier from a whole set. `adapt` starts afresh from the set it is given.

    A subclass fills in `_learn`, and has the parameter `logit_scale`: before anything is learned the classifier is the
    zero-shot one.
    """

    protocol = "transductive"
    computes_in = None

    logit_scale: float

    @abstractmethod
    def _learn(self, rows: Rows) -> LinearClassifier:
        """The classifier the whole set teaches."""

    @property
    def _zero_shot(self) -> LinearClassifier:
        home = Home.of(self.prototypes)
        prototypes = home.bring(self.prototypes, home.xp.float64)
        return LinearClassifier(self.logit_scale * prototypes, home.zeros((self.n_classes,)))

    def _begin(self) -> None:
        self._head = self._zero_shot

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        # Nothing is set before all is learned: an interrupt leaves what an earlier set taught.
        head = self._learn(rows)
        self._head, self.n_seen = head, len(rows)
        for block, features in rows.blocks(BLOCK_ROWS, reuse=True):
            yield block, head.logits(features)

    def _predict_scores(self, features: Array) -> Array:
        return self._head.logits(features)

    def _state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return {"weights": self._head.weights, "offsets": self._head.offsets}, {}

    def _restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        head = LinearClassifier(arrays["weights"], arrays["offsets"])
        for name, array, own in zip(head._fields, head, self._head, strict=True):
            if tuple(array.shape) != tuple(own.shape):
                raise ValueError(f"{name} of shape {tuple(array.shape)}, not {tuple(own.shape)}, were saved")
        self._head = head
