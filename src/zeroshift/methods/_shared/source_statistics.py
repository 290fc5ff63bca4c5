"""Mean and standard deviation of image states: of a batch, and of images from before the shift (the source)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from zeroshift.arrays import Array, Backend, as_floats, check_matrix, namespace
from zeroshift.methods._shared.towers import PromptedVision
from zeroshift.parameters import Number
from zeroshift.views import entropy
from zeroshift.zero_shot import logits

__all__ = ["Moments", "checked_source", "distance", "distance_gradient", "moments", "source_statistics"]


class Moments(NamedTuple):
    """Mean and standard deviation of states (B, width), per coordinate."""

    mean: Array
    """(..., width)."""
    std: Array
    """(..., width), with B - 1 in the denominator; 0 for a single state."""


def moments(states: Array) -> Moments:
    """Mean and standard deviation of states (B, width).

    >>> import numpy as np
    >>> moments(np.array([[1.0, 0.0], [3.0, 0.0]]))
    Moments(mean=array([2., 0.]), std=array([1.41421356, 0.        ]))
    """
    xp = namespace(states)
    mean = xp.mean(states, axis=0)
    spread = xp.sum((states - mean) ** 2, axis=0) / max(states.shape[0] - 1, 1)
    return Moments(mean, xp.sqrt(spread))


def distance(one: Moments, other: Moments, std_weight: float) -> Array:
    """Distance (...) between the means, plus `std_weight` times that between the standard deviations; broadcasts."""
    xp = namespace(one.mean)
    means, stds = (xp.linalg.vector_norm(a - b, axis=-1) for a, b in zip(one, other, strict=True))
    return means + std_weight * stds


def distance_gradient(states: Array, target: Moments, std_weight: float) -> Array:
    """Gradient (B, width) of the distance between the moments of the states and the target's.

    Where a distance or a deviation is exactly 0, and has no gradient, this is 0.
    """
    mean, std = moments(states)
    to_mean, to_std = _direction(mean - target.mean), std_weight * _direction(std - target.std)
    count = states.shape[0]
    return to_mean / count + _divide(to_std, std) * (states - mean) / max(count - 1, 1)


def _direction(vector: Array) -> Array:
    return _divide(vector, namespace(vector).linalg.vector_norm(vector))


def _divide(numerator: Array, denominator: Array) -> Array:
    """numerator / denominator, and 0 where the denominator is 0."""
    xp = namespace(denominator)
    zero = denominator == 0
    return xp.where(zero, xp.zeros_like(numerator), numerator / xp.where(zero, xp.ones_like(denominator), denominator))


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
    vision : the image side of the encoder, used without a prompt.
    images : (N, ...), in the form `vision` takes. Labels are not needed.
    prototypes, logit_scale : the zero-shot classifier whose entropy selects the images.
    max_entropy : only images whose prediction has a lower entropy are used. The default is log(K) / 2 - 1, the authors'
        value for ImageNet with K = 1000; it is negative for fewer than eight classes.
    limit : largest number of images used; the first ones are taken.
    batch_size : images encoded together.
    """
    check_matrix("prototypes", prototypes, columns=vision.dimension)
    vision.check("images", images)
    limit = int(Number(2, integer=True).check("limit", limit))
    batch_size = int(Number(1, integer=True).check("batch_size", batch_size))
    bound = math.log(prototypes.shape[0]) / 2 - 1 if max_entropy is None else float(max_entropy)
    backend = Backend.of(prototypes)
    kept, n_kept = [], 0
    with backend.computing():
        wide = backend.asarray(prototypes, backend.xp.float64)
        for start in range(0, images.shape[0], batch_size):
            output = vision.encode(images[start : start + batch_size], None)
            features, states = (backend.asarray(array, backend.xp.float64) for array in output)
            kept.append(states[entropy(logits(features, wide, logit_scale)) < bound])
            n_kept += kept[-1].shape[0]
            if n_kept >= limit:
                break
        if n_kept < 2:
            raise ValueError(
                f"{n_kept} of {images.shape[0]} images have a prediction of entropy below max_entropy = {bound:.3g}; "
                "at least two are needed. Fix: more images, or a larger max_entropy, log(K) to keep nearly all."
            )
        return moments(backend.xp.concat(kept)[:limit])


def checked_source(source: Any, vision: PromptedVision, backend: Backend) -> tuple[Array, Array]:
    """A user's pair (mean, std), copied to `backend` in float64; an error if it does not fit `vision`."""
    if not isinstance(source, (tuple, list)) or len(source) != 2:
        raise TypeError(f"source must be a pair (mean, std); got {type(source).__name__}. {FIX}.")
    parts = []
    for name, given in zip(("mean", "std"), source, strict=True):
        given = as_floats(f"source {name}", given)
        if tuple(given.shape) != (vision.width,):
            raise ValueError(
                f"source's {name} must be an array of shape ({vision.width},), like a state; "
                f"got shape {tuple(given.shape)}. {FIX}."
            )
        with backend.computing():
            parts.append(backend.copy(backend.asarray(given, backend.xp.float64)))
        if not bool(backend.xp.all(backend.xp.isfinite(parts[-1]))):
            raise ValueError(f"source's {name} holds NaN or infinity. {FIX}.")
    if bool((parts[1] < 0).any()):
        raise ValueError(f"source's std holds a negative number. {FIX}.")
    return parts[0], parts[1]
