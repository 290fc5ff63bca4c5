"""What image states look like before the shift: made from images, and checked where they are given."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from zeroshift.arrays import Array, Home, check_matrix, is_array, namespace
from zeroshift.methods._shared.towers import PromptedVision
from zeroshift.parameters import Number
from zeroshift.views import entropy
from zeroshift.zero_shot import logits

__all__ = ["Moments", "checked_source", "distance", "distance_gradient", "moments", "source_statistics"]


# Mean and standard deviation of a batch's states, how far they are from others, and the way there.


class Moments(NamedTuple):
    """Of states (B, width), along each of their coordinates."""

    mean: Array
    """(..., width)."""
    std: Array
    """(..., width), with B - 1 in the denominator; 0 for one state alone."""


def moments(states: Array) -> Moments:
    """
    >>> import numpy as np
    >>> moments(np.array([[1.0, 0.0], [3.0, 0.0]]))
    Moments(mean=array([2., 0.]), std=array([1.41421356, 0.        ]))
    """
    xp = namespace(states)
    mean = xp.mean(states, axis=0)
    spread = xp.sum((states - mean) ** 2, axis=0) / max(states.shape[0] - 1, 1)
    return Moments(mean, xp.sqrt(spread))


def distance(one: Moments, other: Moments, std_weight: float) -> Array:
    """(...): between the means, and `std_weight` times that between the standard deviations. Either may be several."""
    xp = namespace(one.mean)
    means, stds = (xp.linalg.vector_norm(a - b, axis=-1) for a, b in zip(one, other, strict=True))
    return means + std_weight * stds


def distance_gradient(states: Array, target: Moments, std_weight: float) -> Array:
    """(B, width): the gradient of the distance from the states' moments to the target's.

    A distance or a deviation of exactly 0, where there is none, has the gradient 0.
    """
    mean, std = moments(states)
    to_mean, to_std = _direction(mean - target.mean), std_weight * _direction(std - target.std)
    count = states.shape[0]
    return to_mean / count + _divided(to_std, std) * (states - mean) / max(count - 1, 1)


def _direction(vector: Array) -> Array:
    return _divided(vector, namespace(vector).linalg.vector_norm(vector))


def _divided(above: Array, below: Array) -> Array:
    """above / below, and 0 where below is 0."""
    xp = namespace(below)
    none = below == 0
    return xp.where(none, xp.zeros_like(above), above / xp.where(none, xp.ones_like(below), below))


FIX = "Fix: source=source_statistics(vision, images, prototypes)"


def source_statistics(
    vision: PromptedVision,
    images: Array,
    prototypes: Array,
    *,
    logit_scale: float = 100.0,
    max_entropy: float | None = None,
    limit: int = 300,
    batch_size: int = 64,
) -> Moments:
    """Mean and standard deviation of the states of images from before the shift, for `DPCore`'s `source`.

    Parameters
    ----------
    vision : the image side, without a prompt.
    images : (N, ...), as `vision` takes them. Labels are not needed.
    prototypes, logit_scale : the classifier by whose certainty images are kept.
    max_entropy : images are kept whose prediction has a lower entropy; log(K) / 2 - 1 unless given, as the authors have
        it for ImageNet's K = 1000. That is below 0 for fewer than eight classes.
    limit : the first so many of those are used.
    batch_size : images looked at together.
    """
    check_matrix("prototypes", prototypes, columns=vision.dimension)
    vision.check("images", images)
    limit = int(Number(2, integer=True).check("limit", limit))
    batch_size = int(Number(1, integer=True).check("batch_size", batch_size))
    bound = math.log(prototypes.shape[0]) / 2 - 1 if max_entropy is None else float(max_entropy)
    home = Home.of(prototypes)
    kept, found = [], 0
    with home.computing():
        wide = home.bring(prototypes, home.xp.float64)
        for start in range(0, images.shape[0], batch_size):
            seen = vision.see(images[start : start + batch_size], None)
            features, states = (home.bring(array, home.xp.float64) for array in seen)
            kept.append(states[entropy(logits(features, wide, logit_scale)) < bound])
            found += kept[-1].shape[0]
            if found >= limit:
                break
        if found < 2:
            raise ValueError(
                f"{found} of {images.shape[0]} images have a prediction of entropy below max_entropy = {bound:.3g}; "
                "at least two are needed. Fix: more images, or a larger max_entropy, log(K) to keep nearly all."
            )
        return moments(home.xp.concat(kept)[:limit])


def checked_source(source: Any, vision: PromptedVision, home: Home) -> tuple[Array, Array]:
    """A pair (mean, std) as it was given, copied to `home` in float64; refused where it does not fit `vision`."""
    if not isinstance(source, (tuple, list)) or len(source) != 2:
        raise TypeError(f"source must be a pair (mean, std); got {type(source).__name__}. {FIX}.")
    parts = []
    for name, given in zip(("mean", "std"), source, strict=True):
        if not is_array(given) or tuple(given.shape) != (vision.width,):
            found = f"shape {tuple(given.shape)}" if is_array(given) else type(given).__name__
            raise ValueError(
                f"source's {name} must be an array of shape ({vision.width},), as a state is; got {found}. {FIX}."
            )
        with home.computing():
            parts.append(home.copy(home.bring(given, home.xp.float64)))
        if not bool(home.xp.all(home.xp.isfinite(parts[-1]))):
            raise ValueError(f"source's {name} holds NaN or infinity. {FIX}.")
    if bool((parts[1] < 0).any()):
        raise ValueError(f"source's std holds a negative number, which no standard deviation is. {FIX}.")
    return parts[0], parts[1]
