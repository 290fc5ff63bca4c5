"""A set of images, one view of some of them at a time: what goes over a set again and again with few views needs."""

from __future__ import annotations

from collections.abc import Iterator

from zeroshift.arrays import Array, Rows, to_numpy

__all__ = ["ImageViews"]

WORK_NUMBERS = 4_000_000
"""Features or logits held at once: 32 MB in float64."""


class ImageViews:
    """Checked rows, (N, V, d) with views or (N, d) without: the image itself is view 0 of both."""

    def __init__(self, rows: Rows, n_classes: int) -> None:
        shape = rows[:1].shape
        self._rows, self._several = rows, len(shape) == 3
        self.n_views = int(shape[1]) if self._several else 1
        self._at_once = max(1, WORK_NUMBERS // max(n_classes, int(shape[-1])))

    def __len__(self) -> int:
        return len(self._rows)

    def blocks(self) -> Iterator[slice]:
        """Which images are looked at together."""
        return (slice(start, min(start + self._at_once, len(self))) for start in range(0, len(self), self._at_once))

    def view(self, images: slice, number: int) -> Array:
        """(n, d): view `number` of these images, the others left where they are."""
        if not self._several:
            return self._rows[images]
        return self._rows[images, number]  # type: ignore[index]  # the one view only, of memory-mapped ones too

    def pick(self, numbers: Array) -> Array:
        """(n, d): view 0 of the images with these numbers."""
        if not self._several:
            return self._rows.take(numbers)
        return self._rows[to_numpy(numbers), 0]  # type: ignore[index]
