"""Several views of an image as the one feature that stands for it: the mean of the surest."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from zeroshift.arrays import Array, Home, Rows, namespace, to_numpy
from zeroshift.low_entropy import average_views

__all__ = ["AveragedRows", "images_at_once"]

WORK_NUMBERS = 4_000_000
"""Features or logits of views held at once: 32 MB in float64."""

NO_DIRECTION = 1e-6
"""The length below which a mean of unit vectors is rounding: they cancelled each other."""

SUREST_ALONE = 1e-9
"""A share so small that one view is kept."""


def images_at_once(images: Rows, prototypes: Array) -> int:
    """How many images' views, and logits of these, are worked on together."""
    return max(1, WORK_NUMBERS // (images[:1].shape[1] * max(prototypes.shape)))


class AveragedRows(Rows):
    """Images (N, V, d), handed out as one feature (N, d) each, made when it is asked for and a few images at a time.

    Parameters
    ----------
    images : the views, unit features.
    prototypes, logit_scale, ratio : which views are the surest, see `average_views`.
    unit : scale the means to unit length. A kept view that is the only one stays as it is, so that an image with one
        view is that view bit for bit; where the kept views cancel, the surest stands for the image.
    """

    def __init__(self, images: Rows, prototypes: Array, logit_scale: float, ratio: float, *, unit: bool) -> None:
        self._images = images
        self._prototypes = prototypes
        self._logit_scale = logit_scale
        self._ratio = ratio
        self._normalise = unit and int(images[:1].shape[1] * ratio) > 1
        self._at_once = images_at_once(images, prototypes)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, rows: slice) -> Array:
        start, stop, _ = rows.indices(len(self))
        return self._gather(start, stop, self._images.__getitem__)

    def blocks(self, size: int, *, reuse: bool = False) -> Iterator[tuple[slice, Array]]:
        return super().blocks(size)  # an average is a new array every time; there is none to use again

    def take(self, rows: Array) -> Array:
        numbers = to_numpy(rows)
        return self._gather(0, len(numbers), lambda some: self._images.take(numbers[some]))

    def held(self) -> Rows:
        """All of them averaged at once, for those who go over the rows more than once."""
        home = Home.of(self._prototypes)
        features = home.zeros((len(self), self._prototypes.shape[1]))
        for block, some in self.blocks(self._at_once):
            features[block] = some
        return Rows(features, home, features.dtype)

    def _gather(self, start: int, stop: int, views: Callable[[slice], Array]) -> Array:
        starts = range(start, stop, self._at_once)
        parts = [self._average(views(slice(a, min(a + self._at_once, stop)))) for a in starts]
        return parts[0] if len(parts) == 1 else namespace(*parts).concat(parts)

    def _average(self, views: Array) -> Array:
        mean = average_views(views, self._prototypes, self._logit_scale, ratio=self._ratio).features
        if not self._normalise:
            return mean
        xp = namespace(mean)
        lengths = xp.linalg.vector_norm(mean, axis=1, keepdims=True)
        cancelled = lengths < NO_DIRECTION
        if bool(xp.any(cancelled)):
            surest = average_views(views, self._prototypes, self._logit_scale, ratio=SUREST_ALONE).features
            mean, lengths = xp.where(cancelled, surest, mean), xp.where(cancelled, xp.ones_like(lengths), lengths)
        return mean / lengths
