"""Made-up values for array parameters, as functions of the prototypes: what checks and listings build methods with.

They turn and permute as the prototypes do, so that a method's symmetries can be checked with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from zeroshift.arrays import Array, Home, check_matrix, namespace
from zeroshift.methods.parts.rows import unit_rows

__all__ = ["example_descriptions", "example_prompts", "example_support", "example_unlabelled"]

LEANINGS = (0.0, 0.3, -0.3)
"""How far the made-up samples of a class lean towards what all prototypes share."""

DESCRIPTION_LEANINGS = (0.0, 0.05, 0.1, 0.15, -0.05, -0.1, -0.15)
"""The same of made-up descriptions: enough of a class for a method that counts them."""


def _where_sound(example: Callable[[Array], Any]) -> Callable[[Array], Any]:
    """None for prototypes that are none: the method that is given both refuses those first."""

    def guarded(prototypes: Array) -> Any:
        try:
            check_matrix("prototypes", prototypes)
        except (TypeError, ValueError):
            return None
        return example(prototypes)

    return guarded


def _leaning(prototypes: Array, leanings: Sequence[float] = LEANINGS) -> Array:
    """(K, P, d): each prototype, and it leaning to either side."""
    home = Home.of(prototypes)
    with home.computing():
        wide = home.bring(prototypes, home.xp.float64)
        shared = namespace(wide).mean(wide, axis=0)
        return home.xp.stack([unit_rows(wide + leaning * shared) for leaning in leanings], axis=1)


@_where_sound
def example_support(prototypes: Array) -> tuple[Array, np.ndarray]:
    """Three labelled samples a class."""
    features = _leaning(prototypes)
    classes, shots, d = features.shape
    return features.reshape(classes * shots, d), np.repeat(np.arange(classes), shots)


@_where_sound
def example_prompts(prototypes: Array) -> Array:
    """Three prompts a class (K, 3, d)."""
    return _leaning(prototypes)


@_where_sound
def example_descriptions(prototypes: Array) -> Array:
    """Seven descriptions a class (K, 7, d)."""
    return _leaning(prototypes, DESCRIPTION_LEANINGS)


@_where_sound
def example_unlabelled(prototypes: Array) -> Array:
    """Three unlabelled samples a class (3 K, d)."""
    features = _leaning(prototypes)
    return features.reshape(-1, features.shape[2])
