"""TCA's reservoir: a few samples a class, sure ones and different ones, each as the class token of every layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from zeroshift.arrays import Array, Home, to_numpy
from zeroshift.methods.parts.rows import unit_rows

__all__ = ["ClassTokens", "TokenReservoir"]


class ClassTokens(NamedTuple):
    """What a class holds once a sample was offered: tokens (m, layers, width) and entropies (m,), surest first."""

    k: int
    tokens: Array
    entropies: np.ndarray


class TokenReservoir:
    """At most `capacity` samples a class. One too many, and the one with the largest entropy plus mean cosine to the
    others goes: neither unsure samples nor near copies stay.

    >>> reservoir = TokenReservoir(Home.of(np.eye(2)), classes=1, capacity=2, layers=1, width=2)
    >>> for token, entropy in (([1.0, 0.0], 0.1), ([0.0, 1.0], 0.3), ([0.8, 0.6], 0.2)):
    ...     reservoir.take(reservoir.with_sample(np.array([token]), 0, entropy))
    >>> reservoir.tokens[0, :, 0]  # the last is between the two others, and less sure than the first
    array([[1., 0.],
           [0., 1.]])
    """

    def __init__(self, home: Home, classes: int, capacity: int, layers: int, width: int) -> None:
        self._home = home
        self.tokens = home.zeros((classes, capacity, layers, width))
        self.entropies = np.full((classes, capacity), np.inf)

    @property
    def counts(self) -> np.ndarray:
        """Samples a class, (K,)."""
        return np.isfinite(self.entropies).sum(axis=1)

    def with_sample(self, tokens: Array, k: int, entropy: float) -> ClassTokens:
        """What class k will hold once it is offered a sample's tokens (layers, width); nothing is stored yet."""
        xp = self._home.xp
        held = int(np.isfinite(self.entropies[k]).sum())
        candidates = xp.concat([self.tokens[k, :held], tokens[None, ...]], axis=0)
        entropies = np.append(self.entropies[k, :held], entropy)
        if held == self.entropies.shape[1]:
            gone = int(np.argmax(entropies + self._likeness(candidates)))
            staying = np.delete(np.arange(held + 1), gone)
        else:
            staying = np.arange(held + 1)
        order = staying[np.argsort(entropies[staying], kind="stable")]
        return ClassTokens(k, candidates[self._home.index(order)], entropies[order])

    def take(self, held: ClassTokens) -> None:
        """Store that. Doing it again changes nothing."""
        self.tokens[held.k, : len(held.entropies)] = held.tokens
        self.entropies[held.k, : len(held.entropies)] = held.entropies

    def _likeness(self, candidates: Array) -> np.ndarray:
        """Each candidate's mean cosine to the others, of the means of their layers."""
        means = unit_rows(self._home.xp.mean(candidates, axis=1))
        cosines = to_numpy(means @ means.T)
        return (cosines.sum(axis=1) - np.diag(cosines)) / (len(cosines) - 1)

    def anchors(self) -> Array | None:
        """The mean tokens of each class (K, layers, width), once every class has more than one sample; else None."""
        counts = self.counts
        if (counts < 2).any():
            return None
        held = self._home.xp.asarray(counts, device=self._home.device)
        return self._home.xp.sum(self.tokens, axis=1) / held[:, None, None]

    def arrays(self) -> dict[str, Array]:
        """What to save; an empty place's entropy as -1, since files hold finite numbers only."""
        entropies = np.where(np.isfinite(self.entropies), self.entropies, -1.0)
        return {"tokens": self.tokens, "entropies": self._home.bring(entropies, self._home.xp.float64)}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        entropies = to_numpy(arrays["entropies"]).astype(np.float64)
        tokens = arrays["tokens"]
        if entropies.shape != self.entropies.shape or tuple(tokens.shape[:2]) != entropies.shape:
            raise ValueError(f"a reservoir of shape {entropies.shape}, not {self.entropies.shape}, was saved")
        self.tokens, self.entropies = tokens, np.where(entropies < 0, np.inf, entropies)
