"""Transductive methods that end in a linear classifier: a set teaches its weights and offsets, anyone can ask it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from zeroshift.arrays import Array, Home, Rows
from zeroshift.method import Method
from zeroshift.methods.parts.linear_head import LinearHead

__all__ = ["LinearTransductive"]

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
