"""Made-up towers, as functions of the prototypes: small closed forms that tune, turn and permute as real ones do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from zeroshift.arrays import Array, Home, check_matrix, namespace
from zeroshift.methods.parts.rows import unit_rows
from zeroshift.methods.parts.towers import PromptedText

__all__ = ["ExampleText", "example_text"]

WORDS, WIDTH = 2, 3
"""Of the made-up context: few numbers, so that checks are quick."""


class ExampleText(PromptedText):
    """t_k = unit(p_k + sum_i tanh(W c)_i u_ik), c the change of the context and u_i three directions for each class.

    The directions are made of the prototypes alone (their mean, and sums of all of them weighed by powers of their
    cosines), so turning or permuting the prototypes turns or permutes everything. At the initial context it is exactly
    the prototypes.
    """

    def __init__(self, prototypes: Array) -> None:
        self._home = Home.of(prototypes)
        with self._home.computing():
            xp = self._home.xp
            wide = self._home.copy(self._home.bring(prototypes, xp.float64))
            cosines = wide @ wide.T
            mean = xp.broadcast_to(xp.mean(wide, axis=0)[None, :], wide.shape)
            self._directions = xp.stack([mean, unit_rows(cosines**2 @ wide), unit_rows(cosines**3 @ wide)])
            self._prototypes = unit_rows(wide)
        draw = np.random.default_rng(5)
        self.context = draw.normal(size=(WORDS, WIDTH))
        self._mixing = draw.normal(size=(3, WORDS * WIDTH))
        self.n_classes, self.dimension = (int(size) for size in prototypes.shape)

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"example": [self.n_classes, self.dimension]}

    def features(self, context: Array) -> Array:
        return Home.of(context).bring(unit_rows(self._raw(self._weights(context))), namespace(context).float64)

    def pull_back(self, context: Array, upstream: Array) -> Array:
        xp = self._home.xp
        weights = self._weights(context)
        raw = self._raw(weights)
        text = unit_rows(raw)
        above = self._home.bring(upstream, xp.float64)
        along = xp.sum(above * text, axis=1, keepdims=True)
        to_raw = (above - along * text) / xp.linalg.vector_norm(raw, axis=1, keepdims=True)
        to_weights = xp.sum(self._directions * to_raw[None, :, :], axis=(1, 2)) * (1 - weights**2)
        gradient = self._home.bring(self._mixing, xp.float64).T @ to_weights
        return Home.of(context).bring(xp.reshape(gradient, (WORDS, WIDTH)), namespace(context).float64)

    def _weights(self, context: Array) -> Array:
        xp = self._home.xp
        change = self._home.bring(context, xp.float64) - self._home.bring(self.context, xp.float64)
        return xp.tanh(self._home.bring(self._mixing, xp.float64) @ xp.reshape(change, (-1,)))

    def _raw(self, weights: Array) -> Array:
        return self._prototypes + self._home.xp.sum(weights[:, None, None] * self._directions, axis=0)

    def __repr__(self) -> str:
        return f"<example text of {self.n_classes} classes>"


def example_text(prototypes: Array) -> ExampleText | None:
    """None for prototypes that are none: the method that is given both refuses those first."""
    try:
        check_matrix("prototypes", prototypes)
    except (TypeError, ValueError):
        return None
    return ExampleText(prototypes)
