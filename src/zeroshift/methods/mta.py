"""MTA: MeanShift over the views of an image."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from zeroshift.arrays import Array, Home, namespace
from zeroshift.method import EpisodicMethod
from zeroshift.methods._shared.similarity import unit_rows
from zeroshift.parameters import Number, parameter
from zeroshift.zero_shot import log_softmax, logits, posterior, softmax

__all__ = ["MTA", "Affinity", "Stop", "fit_in", "log_densities", "shift_mode", "squared_bandwidths"]


# The mode of an image's views by MeanShift, each view weighed by how well it fits in with the others.
#
# Everything is for B images with V views each at once, (B, V, d), and for each image from its own views alone.


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


class MTA(EpisodicMethod):
    """For each image, moves from its own feature to the nearest mode of its views' density by MeanShift, every view
    weighed by its inlierness: how dense it lies, and how far the other views agree with its prediction. The mode is
    answered in place of the image.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import MTA
    >>> views = np.array([[0.8, 0.6], [1.0, 0.0], [0.96, 0.28], [0.0, 1.0]])
    >>> mta = MTA(np.eye(2), logit_scale=5.0)
    >>> mta.adapt_views(views).round(3)  # three views lie together, the last is left out
    array([0.969, 0.031])
    >>> mta.adapt(views[0]).round(3)
    array([0.731, 0.269])

    Notes
    -----
    Zanella and Ben Ayed, *On the test-time zero-shot generalization of vision-language models: Do we really need prompt
    learning?*, CVPR 2024. The authors take 64 views, the image and random crops of it (no AugMix), and one setting for
    all data; each view has a bandwidth of its own, and all views enter.

    Computed in float64, from views scaled to unit length once more, with squared distances 2 - 2 cos. The authors'
    code takes distances by torch's `cdist`, which rounds a view's distance to itself to 3e-4 where there are more than
    25 views; logits differ by less than 1e-3. Theirs divides by zero where a view's neighbours are equal to it, and
    takes the mean of no neighbours where there are fewer than five views: here a bandwidth has a floor and at least one
    neighbour, and a single view is its own mode. Weights are computed from logarithms, so that none of these cases
    underflows to no weight at all. Never more than the views and their logits is held: no V x V array where V exceeds
    K, and cosines between views a block at a time.
    """

    name = "mta"
    complexity = "O(V (K d + V d + V K) + I^2 V (V + d)) for V views, I = iterations"

    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)
    affinity_weight: float = parameter(
        Number(low=0),
        "How much agreeing with the other views' predictions counts beside density; lambda_q in the paper's code. 0 does without predictions.",
        default=4.0,
    )
    inlier_temperature: float = parameter(
        Number(low=0, above=True),
        "Of the softmax inlierness is made by, lambda_y: large makes all views equal, small leaves one.",
        default=0.2,
    )
    neighbour_share: float = parameter(
        Number(0, 1),
        "Share of the other views, the nearest, whose mean squared distance is a view's bandwidth; at least one view.",
        default=0.3,
    )
    iterations: int = parameter(
        Number(low=1, integer=True),
        "Rounds of inlierness and mode, and the iterations at most of either in a round.",
        default=5,
    )
    tolerance: float = parameter(
        Number(low=0),
        "Inlierness, or mode, that moves by less (Euclidean length) is taken as found for the round.",
        default=1e-6,
    )

    def _episodes(self, views: Array) -> Array:
        if views.shape[1] == 1:
            return logits(views[:, 0, :], self.prototypes, self.logit_scale)
        affinity = Affinity(posterior(views, self.prototypes, self.logit_scale))
        mode, _ = self._mode(unit_rows(views), affinity)
        return logits(mode, self.prototypes, self.logit_scale)

    def _mode(self, views: Array, affinity: Affinity) -> tuple[Array, Array]:
        """The mode of unit length (B, d) and the inlierness of the views (B, V), of B images."""
        xp = namespace(views)
        images, n_views, _ = views.shape
        stop = Stop(self.iterations, self.tolerance)
        bandwidths = squared_bandwidths(views, self.neighbour_share)
        log_y = xp.full((images, n_views), -math.log(n_views), dtype=views.dtype, device=Home.of(views).device)
        mode = views[:, 0, :]
        for _ in range(self.iterations):
            density = xp.exp(log_densities(views, mode, bandwidths))
            log_y = fit_in(log_y, density, affinity, self.affinity_weight, self.inlier_temperature, stop)
            mode = shift_mode(mode, views, log_y, bandwidths, stop)
        return mode, xp.exp(log_y)
