"""Mean and standard deviation of a batch's states, how far they are from others, and the way there."""

from __future__ import annotations

from typing import NamedTuple

from zeroshift.arrays import Array, namespace

__all__ = ["Moments", "distance", "distance_gradient", "moments"]


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
