"""How far the tokens of a few views are from those of the source, position by position: PromptAlign's second loss."""

from __future__ import annotations

from typing import Any

from zeroshift.arrays import Array, Home, is_array, namespace
from zeroshift.methods.parts.maple_towers import CoupledPrompts

__all__ = ["alignment", "checked_token_source"]

FIX = "Fix: source=zeroshift.encode.maple_statistics(maple, images), from images of before the shift, without labels"


def alignment(tokens: Array, means: Array, variances: Array) -> tuple[Array, Array]:
    """The loss of tokens (V, L, T, width) against the source's means and variances (L, T, width), and its gradient.

    In each layer, half the mean absolute difference of the means over the views, and half that of the variances, which
    divide by V; then the sum over layers.

    >>> import numpy as np
    >>> loss, gradient = alignment(np.array([1.0, 3.0]).reshape(2, 1, 1, 1), np.zeros((1, 1, 1)), np.ones((1, 1, 1)))
    >>> float(loss), gradient.reshape(-1)  # a mean of 2 instead of 0, a variance of 1 as it should be
    (1.0, array([0.25, 0.25]))
    """
    xp = namespace(tokens)
    own = xp.mean(tokens, axis=0)
    around = tokens - own
    off_means, off_variances = own - means, xp.mean(around**2, axis=0) - variances
    share = 0.5 / (tokens.shape[2] * tokens.shape[3])
    loss = share * (xp.sum(xp.abs(off_means)) + xp.sum(xp.abs(off_variances)))
    gradient = share / tokens.shape[0] * (xp.sign(off_means) + 2 * xp.sign(off_variances) * around)
    return loss, gradient


def checked_token_source(source: Any, maple: CoupledPrompts, layers: int, home: Home) -> tuple[Array, Array]:
    """A pair (means, variances) as it was given, copied to `home` in float64; refused where it does not fit."""
    if not isinstance(source, (tuple, list)) or len(source) != 2:
        raise TypeError(f"source must be a pair (means, variances); got {type(source).__name__}. {FIX}.")
    parts = []
    for name, given in zip(("means", "variances"), source, strict=True):
        fits = is_array(given) and len(given.shape) == 3 and tuple(given.shape[1:]) == maple.token_shape
        if not fits or given.shape[0] < layers:
            found = f"shape {tuple(given.shape)}" if is_array(given) else type(given).__name__
            raise ValueError(
                f"source's {name} must be an array (L, {', '.join(map(str, maple.token_shape))}), L at least "
                f"layers = {layers}: a number for each token and channel; got {found}. {FIX}."
            )
        with home.computing():
            parts.append(home.copy(home.bring(given, home.xp.float64)))
        if not bool(home.xp.all(home.xp.isfinite(parts[-1]))):
            raise ValueError(f"source's {name} hold NaN or infinity. {FIX}.")
    if bool((parts[1] < 0).any()):
        raise ValueError(f"source's variances hold a negative number, which no variance is. {FIX}.")
    return parts[0], parts[1]
