"""`maple_statistics`: what tokens are like before the shift, from images as they go by."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from zeroshift.arrays import Array, is_array, to_numpy
from zeroshift.methods.parts.maple_towers import CoupledPrompts
from zeroshift.parameters import Number

__all__ = ["TokenStatistics", "maple_statistics"]

LAYERS = 3
"""As many as PromptAlign's paper aligns."""

BATCH = 32


class TokenStatistics(NamedTuple):
    """PromptAlign's `source`: of each token and channel, in the first L layers of the image side."""

    means: np.ndarray
    """(L, T, width)."""
    variances: np.ndarray
    """(L, T, width), divided by the number of images."""


def maple_statistics(
    maple: CoupledPrompts, images: Array | Iterable[Array], *, layers: int = LAYERS, batch_size: int = BATCH
) -> TokenStatistics:
    """Means and variances of tokens under the trained prompts, over images of before the shift; no labels are needed.

    Parameters
    ----------
    maple : as `load_maple` makes it. Its classes do not matter.
    images : (N, 3, H, W) as the encoder's preprocessing makes them, or batches of such, one after the other: the
        authors take ImageNet's whole training set.
    layers : L, how many layers from the first on.
    batch_size : images looked at together.
    """
    if not isinstance(maple, CoupledPrompts):
        raise TypeError(f"maple must be CoupledPrompts; got {type(maple).__name__}. Fix: zeroshift.encode.load_maple.")
    layers = int(Number(1, maple.n_layers, integer=True).check("layers", layers))
    batch_size = int(Number(1, integer=True).check("batch_size", batch_size))
    count, shape = 0, (layers, *maple.token_shape)
    means, squares = np.zeros(shape), np.zeros(shape)
    for number, batch in enumerate([images] if is_array(images) else images):
        maple.check("images" if is_array(images) else f"images, batch {number}: it", batch)
        for start in range(0, batch.shape[0], batch_size):
            tokens = maple.look(batch[start : start + batch_size], maple.parameters, layers).tokens
            wide = to_numpy(tokens).astype(np.float64)
            # Merged as means and sums of squares around them: differences of large sums would lose what is small.
            more, own = len(wide), wide.mean(axis=0)
            apart = own - means
            squares += ((wide - own) ** 2).sum(axis=0) + apart**2 * (count * more / (count + more))
            means += apart * (more / (count + more))
            count += more
    if count < 2:
        raise ValueError(f"images must be at least two, or nothing varies; got {count}. Fix: hundreds, of all classes.")
    return TokenStatistics(means, squares / count)
