"""Which of DynaPrompt's prompts suit an image: how sure each is of it, and how well it tells it from its views."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from zeroshift.arrays import Array, Home, namespace, to_numpy
from zeroshift.low_entropy import entropy
from zeroshift.zero_shot import pseudo_class, softmax

__all__ = ["MODES", "Ratings", "choose", "ratings_of"]

MODES = ("paper", "released")

DIGITS = 9
"""Ratings are compared to so many digits: prompts that are alike must tie, whatever the rounding of a sum."""


class Ratings(NamedTuple):
    """How each of the M prompts takes an image."""

    entropies: np.ndarray
    """(M,), the mean over all views."""
    differences: np.ndarray
    """(M,): how much surer, on average, a prompt is of the image than of its other views; 0 where there are none."""


def ratings_of(scores: Array, mode: str) -> Ratings:
    """Ratings from each prompt's logits of the views, (M, V, K) in all, view 0 the image itself."""
    xp = namespace(scores)
    sure = _of_the_same_class(scores) if mode == "paper" else xp.max(scores, axis=2)
    entropies = to_numpy(xp.mean(entropy(scores), axis=1))
    several = scores.shape[1] > 1
    differences = to_numpy(sure[:, 0] - xp.mean(sure[:, 1:], axis=1)) if several else np.zeros(len(entropies))
    return Ratings(np.round(entropies, DIGITS), np.round(differences, DIGITS))


def _of_the_same_class(scores: Array) -> Array:
    """The probability (M, V) each prompt gives, in each view, to the class it gives the image itself."""
    classes = pseudo_class(scores[:, 0, :])
    prompts = namespace(scores).arange(scores.shape[0], device=Home.of(scores).device)
    return softmax(scores)[prompts, :, classes]


def choose(ratings: Ratings, first: int, mode: str) -> tuple[int, ...]:
    """Numbers of the prompts an image is given to; `first`, the least recently used, is the last of them.

    >>> ratings = Ratings(np.array([0.3, 0.9, 0.1, 0.2]), np.array([0.1, 0.2, 0.5, 0.4]))
    >>> choose(ratings, 0, "paper"), choose(ratings, 0, "released")
    ((2, 3, 0), (3, 0))
    """
    return _surer_and_keener(ratings, first) if mode == "paper" else _as_released(ratings, first)


def _surer_and_keener(ratings: Ratings, first: int) -> tuple[int, ...]:
    """Those of lower entropy and larger difference than `first`, and it."""
    entropies, differences = ratings
    better = (entropies < entropies[first]) & (differences > differences[first])
    return (*np.flatnonzero(better).tolist(), first)


def _as_released(ratings: Ratings, first: int) -> tuple[int, ...]:
    """The same meant, with two slips: the rank by entropy cuts the list by difference, and numbers serve as ranks."""
    unsure = np.argsort(-ratings.entropies, kind="stable").tolist()
    keen = np.argsort(-ratings.differences, kind="stable").tolist()
    rank = unsure.index(first)
    surer = unsure[min(rank + 1, len(unsure) - 1) :]
    both = sorted(set(surer) & set(keen[:rank]))
    return (*(unsure[number] for number in both), first)
