"""Mean and standard deviation of image states: of a batch, and of images from before the shift (the source)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from zeroshift.arrays import Array, Backend, check_matrix, namespace
from zeroshift.methods._shared.similarity import unit_rows
from zeroshift.methods._shared.towers import PromptedVision
from zeroshift.methods._shared.tuning import checked_start
from zeroshift.parameters import Number
from zeroshift.views import entropy
from zeroshift.zero_shot import logits


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
    (mean, std), count = moments(states), states.shape[0]
    to_mean, to_std = unit_rows(mean - target.mean), std_weight * unit_rows(std - target.std)
    xp = namespace(states)
    per_state = to_std / xp.where(std > 0, std, xp.inf)
    return to_mean / count + per_state * (states - mean) / max(count - 1, 1)


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
    kept: list[Array] = []
    with backend.computing():
        wide = backend.asarray(prototypes, backend.xp.float64)
        for start in range(0, images.shape[0], batch_size):
            output = vision.encode(images[start : start + batch_size], None)
            features, states = (backend.asarray(array, backend.xp.float64) for array in output)
            kept.append(states[entropy(logits(features, wide, logit_scale)) < bound])
            if sum(map(len, kept)) >= limit:
                break
        states = backend.xp.concat(kept)[:limit]
        if len(states) < 2:
            raise ValueError(
                f"{len(states)} of {images.shape[0]} images have a prediction of entropy below max_entropy = "
                f"{bound:.3g}; at least two are needed. Fix: more images, or a larger max_entropy, log(K) to keep "
                "nearly all."
            )
        return moments(states)


def checked_source(
    source: Any, names: tuple[str, str], shape: Callable[[Any], tuple[int, ...]], fix: str
) -> tuple[np.ndarray, np.ndarray]:
    """A user's pair of arrays, of which the second holds nothing negative, in float64; an error that names the part.

    `shape` of a part is the shape that it must have.
    """
    if not isinstance(source, (tuple, list)) or len(source) != 2:
        raise TypeError(f"source must be a pair ({', '.join(names)}); got {type(source).__name__}. Fix: {fix}.")
    first, second = (
        checked_start(f"source's {name}", given, shape(given), fix) for name, given in zip(names, source, strict=True)
    )
    if second.min() < 0:
        raise ValueError(f"source's {names[1]} must be at least 0; it has {second.min():g}. Fix: {fix}.")
    return first, second
