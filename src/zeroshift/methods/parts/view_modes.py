"""The mode of an image's views by MeanShift, each view weighed by how well it fits in with the others.

Everything is for B images with V views each at once, (B, V, d), and for each image from its own views alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from zeroshift.arrays import Array, Home, namespace
from zeroshift.methods.parts.rows import unit_rows
from zeroshift.zero_shot import log_softmax, softmax

__all__ = ["Affinity", "Stop", "fit_in", "log_densities", "shift_mode", "squared_bandwidths"]

SMALLEST_SQUARED_BANDWIDTH = 1e-12
"""For views whose neighbours are equal to them: far above the rounding of a squared distance, below any real one."""

WORK_NUMBERS = 4_000_000
"""Cosines between views held at once: 32 MB in float64."""


class Stop(NamedTuple):
    """When a fixed point is found: after so many iterations, or once none of an image's values moves further."""

    iterations: int
    tolerance: float


class Affinity:
    """A = Q Q^T for each image, Q (B, V, K) its views' probabilities: what A makes of a vector.

    Held as V x V where that is no larger than Q itself, and not at all where there are more views than classes.
    """

    def __init__(self, probabilities: Array) -> None:
        n_views, n_classes = probabilities.shape[1:]
        self._probabilities = probabilities
        transposed = namespace(probabilities).matrix_transpose(probabilities)
        self._matrix = probabilities @ transposed if n_views <= n_classes else None

    def times(self, values: Array) -> Array:
        """A y for y (B, V)."""
        column = values[:, :, None]
        if self._matrix is not None:
            return (self._matrix @ column)[:, :, 0]
        transposed = namespace(values).matrix_transpose(self._probabilities)
        return (self._probabilities @ (transposed @ column))[:, :, 0]


def squared_bandwidths(views: Array, neighbour_share: float) -> Array:
    """(B, V): half the mean squared distance of each unit view to its nearest others, int(share (V - 1)) of them.

    At least one other, of two views or more; a view whose neighbours are all equal to it has a tiny bandwidth.
    """
    xp = namespace(views)
    images, n_views, _ = views.shape
    neighbours = max(int(neighbour_share * (n_views - 1)), 1)
    at_once = max(1, WORK_NUMBERS // (images * n_views))
    parts = []
    for start in range(0, n_views, at_once):
        cosines = views[:, start : start + at_once, :] @ xp.matrix_transpose(views)
        # The nearest of all is the view itself, or one that is equal to it.
        nearest = xp.sort(cosines, axis=-1, descending=True)[:, :, 1 : 1 + neighbours]
        parts.append(1.0 - xp.mean(nearest, axis=-1))  # |a - b|^2 = 2 - 2 a.b for unit vectors
    return xp.clip(xp.concat(parts, axis=1), min=SMALLEST_SQUARED_BANDWIDTH)


def log_densities(views: Array, mode: Array, bandwidths: Array) -> Array:
    """(B, V): -|f_v - m|^2 / (2 h_v^2), the logarithm of each view's kernel at the mode (B, d)."""
    xp = namespace(views)
    squared = 2.0 - 2.0 * (views @ mode[:, :, None])[:, :, 0]
    return -xp.clip(squared, min=0.0) / (2.0 * bandwidths)


def fit_in(log_y: Array, density: Array, affinity: Affinity, weight: float, temperature: float, stop: Stop) -> Array:
    """Logarithms of the views' inlierness (B, V): y = softmax((g + weight A y) / temperature), a fixed point."""
    xp = namespace(log_y)

    def again(log_y: Array) -> Array:
        return log_softmax((density + weight * affinity.times(xp.exp(log_y))) / temperature)

    return _fixed_point(log_y, again, lambda new, old: xp.exp(new) - xp.exp(old), stop)


def shift_mode(mode: Array, views: Array, log_y: Array, bandwidths: Array, stop: Stop) -> Array:
    """The mode (B, d), of unit length: the mean of the views weighed by density times inlierness, a fixed point."""

    def again(mode: Array) -> Array:
        # Logarithms, as every density may underflow; their softmax is the weights divided by their sum.
        weights = softmax(log_densities(views, mode, bandwidths) + log_y)
        return unit_rows((weights[:, None, :] @ views)[:, 0, :])

    return _fixed_point(mode, again, lambda new, old: new - old, stop)


def _fixed_point(
    values: Array, again: Callable[[Array], Array], change: Callable[[Array, Array], Array], stop: Stop
) -> Array:
    """`again` and again; an image whose values moved by less than the tolerance keeps them from then on."""
    xp = namespace(values)
    moving = xp.ones(values.shape[0], dtype=xp.bool, device=Home.of(values).device)
    for _ in range(stop.iterations):
        new = xp.where(moving[:, None], again(values), values)
        moved = xp.linalg.vector_norm(change(new, values), axis=-1)
        values, moving = new, moving & (moved >= stop.tolerance)
        if not bool(xp.any(moving)):
            break
    return values
