"""The latest text features, first in, first out, in a ring that is allocated once."""

from __future__ import annotations

from typing import Any

import numpy as np

from zeroshift.arrays import Array, Home

__all__ = ["TextQueue"]


class TextQueue:
    """`size` text features (K, d). Image number i has the slot i modulo `size`; image 0 fills them all.

    What the queue would hold with a new entry can be asked before the entry is written.

    >>> import numpy as np
    >>> queue = TextQueue(Home.of(np.eye(1)), size=2, shape=(1, 2), dtype=None)
    >>> queue.write(0, np.array([[1.0, 0.0]]))
    >>> queue.mixed(queue.evenly[None, :], 1, np.array([[0.0, 1.0]]))
    array([[[0.5, 0.5]]])
    """

    def __init__(self, home: Home, size: int, shape: tuple[int, int], dtype: Any) -> None:
        self._home, self.size = home, size
        self.entries = home.zeros((size, *shape), dtype)
        self.evenly = np.full(size, 1 / size)

    def slot(self, image: int) -> int:
        return image % self.size

    def mixed(self, weights: np.ndarray, image: int, newest: Array) -> Array:
        """Means (m, K, d) over the entries once `newest` (K, d) of this image is among them, by weights (m, size)."""
        xp, slot = self._home.xp, self.slot(image)
        others = weights.copy()
        others[:, slot] = 0
        # A product, not a sum of chosen entries: these are large, and are neither copied nor widened.
        mixed = self._home.bring(others, self.entries.dtype) @ xp.reshape(self.entries, (self.size, -1))
        mixed = xp.reshape(self._home.bring(mixed, newest.dtype), (-1, *newest.shape))
        return mixed + self._home.bring(weights[:, slot], newest.dtype)[:, None, None] * newest

    def oldest(self, image: int, newest: Array) -> Array:
        """(K, d): the entry that leaves next once `newest` of this image is among them."""
        leaving = self.slot(image + 1)
        return newest if leaving == self.slot(image) else self._home.bring(self.entries[leaving], newest.dtype)

    def write(self, image: int, newest: Array) -> None:
        """Hold `newest` (K, d). Doing it again changes nothing."""
        self.entries[self.slot(image) if image else slice(None)] = newest

    def newest_first(self, image: int) -> np.ndarray:
        """(size,): the slots of image number `image` and those before it."""
        return (image - np.arange(self.size)) % self.size
