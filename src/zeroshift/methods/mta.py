"""MTA: MeanShift over the views of an image."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from zeroshift.arrays import Array, Backend, namespace
from zeroshift.method import EpisodicMethod
from zeroshift.methods._shared.similarity import unit_rows
from zeroshift.parameters import Number, parameter
from zeroshift.zero_shot import log_softmax, logits, posterior, softmax

__all__ = [
    "MTA",
    "StoppingRule",
    "ViewAffinity",
    "log_kernels",
    "shift_mode",
    "squared_bandwidths",
    "update_inlierness",
]

SMALLEST_SQUARED_BANDWIDTH = 1e-12
"""For views whose neighbours are equal to them: far above the rounding of a squared distance, below any real one."""

WORK_NUMBERS = 4_000_000
"""Cosines between views in memory together: 32 MB in float64."""


class StoppingRule(NamedTuple):
    """A fixed-point iteration stops after this many iterations, or once the values of an image change by less."""

    iterations: int
    tolerance: float


class ViewAffinity:
    """Products with A = Q Q^T for each image, Q (B, V, K) being the probabilities of its views.

    A (V x V) is computed only if it is not larger than Q itself.
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
    """(B, V): half the mean squared distance of each unit view to the nearest int(share (V - 1)) others, at least one.

    A view whose neighbours are all equal to it has a tiny bandwidth.
    """
    xp = namespace(views)
    images, n_views, _ = views.shape
    neighbours = max(int(neighbour_share * (n_views - 1)), 1)
    block = max(1, WORK_NUMBERS // (images * n_views))
    parts = []
    for start in range(0, n_views, block):
        cosines = views[:, start : start + block, :] @ xp.matrix_transpose(views)
        # The nearest is the view itself, or one that is equal to it.
        nearest = xp.sort(cosines, axis=-1, descending=True)[:, :, 1 : 1 + neighbours]
        parts.append(1.0 - xp.mean(nearest, axis=-1))  # |a - b|^2 = 2 - 2 a.b for unit vectors
    return xp.clip(xp.concat(parts, axis=1), min=SMALLEST_SQUARED_BANDWIDTH)


def log_kernels(views: Array, mode: Array, bandwidths: Array) -> Array:
    """(B, V): -|f_v - m|^2 / (2 h_v^2), the logarithm of the kernel of each view at the mode (B, d)."""
    xp = namespace(views)
    squared = 2.0 - 2.0 * (views @ mode[:, :, None])[:, :, 0]
    return -xp.clip(squared, min=0.0) / (2.0 * bandwidths)


def update_inlierness(
    log_y: Array, density: Array, affinity: ViewAffinity, weight: float, temperature: float, stop: StoppingRule
) -> Array:
    """Logarithms of the views' inlierness (B, V): the fixed point of y = softmax((g + weight A y) / temperature)."""
    xp = namespace(log_y)

    def update(log_y: Array) -> Array:
        return log_softmax((density + weight * affinity.times(xp.exp(log_y))) / temperature)

    return _fixed_point(log_y, update, lambda new, old: xp.exp(new) - xp.exp(old), stop)


def shift_mode(mode: Array, views: Array, log_y: Array, bandwidths: Array, stop: StoppingRule) -> Array:
    """The mode (B, d) of unit length: the fixed point of the views' mean, weighted by density times inlierness."""

    def update(mode: Array) -> Array:
        # Logarithms, since every density may underflow; the softmax divides the weights by their sum.
        weights = softmax(log_kernels(views, mode, bandwidths) + log_y)
        return unit_rows((weights[:, None, :] @ views)[:, 0, :])

    return _fixed_point(mode, update, lambda new, old: new - old, stop)


def _fixed_point(
    values: Array, update: Callable[[Array], Array], change: Callable[[Array, Array], Array], stop: StoppingRule
) -> Array:
    """Repeat `update`; an image whose values changed by less than the tolerance keeps them from then on."""
    xp = namespace(values)
    active = xp.ones(values.shape[0], dtype=xp.bool, device=Backend.of(values).device)
    for _ in range(stop.iterations):
        new = xp.where(active[:, None], update(values), values)
        distance = xp.linalg.vector_norm(change(new, values), axis=-1)
        values, active = new, active & (distance >= stop.tolerance)
        if not bool(xp.any(active)):
            break
    return values


class MTA(EpisodicMethod):
    """For each image, moves from its own feature to the nearest mode of the density of its views by MeanShift. Every
    view is weighted by its inlierness: the density around it, and the agreement of the other views with its prediction.
    The mode is classified instead of the image.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import MTA
    >>> views = np.array([[0.8, 0.6], [1.0, 0.0], [0.96, 0.28], [0.0, 1.0]])
    >>> mta = MTA(np.eye(2), logit_scale=5.0)
    >>> mta.adapt_views(views).round(3)  # three views are close together, the last is an outlier
    array([0.969, 0.031])
    >>> mta.adapt(views[0]).round(3)
    array([0.731, 0.269])

    Notes
    -----
    Zanella and Ben Ayed, *On the test-time zero-shot generalization of vision-language models: Do we really need prompt
    learning?*, CVPR 2024. The authors use 64 views, the image and random crops of it (no AugMix), and one setting for
    all data; each view has its own bandwidth, and all views are used.

    Computed in float64, from views scaled to unit length once more, with squared distances 2 - 2 cos. The authors' code
    computes distances with torch's `cdist`, which rounds a view's distance to itself to 3e-4 for more than 25 views;
    logits differ by less than 1e-3. Their code divides by zero if a view's neighbours are equal to it, and takes the
    mean of no neighbours for fewer than five views: here a bandwidth has a floor and at least one neighbour, and a
    single view is its own mode. Weights are computed from logarithms, so that they never all underflow. Memory is that
    of the views and their logits: no V x V array if V exceeds K, and cosines between views in blocks.
    """

    name = "mta"
    headline = "Classifies the densest point of the views"
    complexity = "O(V (K d + V d + V K) + I^2 V (V + d)) for V views, I = iterations"

    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)
    affinity_weight: float = parameter(
        Number(low=0),
        "Weight of the agreement with the other views' predictions relative to density (lambda_q in the authors' "
        "code); 0 ignores predictions.",
        default=4.0,
    )
    inlier_temperature: float = parameter(
        Number(low=0, above=True),
        "Temperature of the softmax that gives the inlierness (lambda_y in the authors' code): a large value weights "
        "all views equally, a small one selects a single view.",
        default=0.2,
    )
    neighbour_share: float = parameter(
        Number(0, 1),
        "Fraction of the other views, the nearest ones, whose mean squared distance is a view's bandwidth; at least "
        "one view.",
        default=0.3,
    )
    iterations: int = parameter(
        Number(low=1, integer=True),
        "Rounds of updating inlierness and mode, and largest number of iterations of either in a round.",
        default=5,
    )
    tolerance: float = parameter(
        Number(low=0),
        "Inlierness and mode have converged in a round if they change by less than this (Euclidean length).",
        default=1e-6,
    )

    def _episodes(self, views: Array) -> Array:
        if views.shape[1] == 1:
            return logits(views[:, 0, :], self.prototypes, self.logit_scale)
        affinity = ViewAffinity(posterior(views, self.prototypes, self.logit_scale))
        mode, _ = self._mode(unit_rows(views), affinity)
        return logits(mode, self.prototypes, self.logit_scale)

    def _mode(self, views: Array, affinity: ViewAffinity) -> tuple[Array, Array]:
        """The mode of unit length (B, d) and the inlierness of the views (B, V), for B images with V views each."""
        xp = namespace(views)
        images, n_views, _ = views.shape
        stop = StoppingRule(self.iterations, self.tolerance)
        bandwidths = squared_bandwidths(views, self.neighbour_share)
        log_y = xp.full((images, n_views), -math.log(n_views), dtype=views.dtype, device=Backend.of(views).device)
        mode = views[:, 0, :]
        for _ in range(self.iterations):
            density = xp.exp(log_kernels(views, mode, bandwidths))
            log_y = update_inlierness(log_y, density, affinity, self.affinity_weight, self.inlier_temperature, stop)
            mode = shift_mode(mode, views, log_y, bandwidths, stop)
        return mode, xp.exp(log_y)
