"""MTA: MeanShift over the views of an image."""

from __future__ import annotations

import math
from collections.abc import Callable

from zeroshift.arrays import Array, namespace
from zeroshift.method import WORK_NUMBERS, EpisodicMethod
from zeroshift.methods._shared.similarity import unit_rows
from zeroshift.parameters import Number, parameter
from zeroshift.zero_shot import log_softmax, logits, posterior, softmax

SMALLEST_SQUARED_BANDWIDTH = 1e-12
"""For views whose neighbours are equal to them: far above the rounding of a squared distance, below any real one."""


def squared_bandwidths(views: Array, neighbour_share: float) -> Array:
    """(B, V): half the mean squared distance of each unit view to the nearest int(share (V - 1)) others, at least one.

    A view whose neighbours are all equal to it has a tiny bandwidth.
    """
    xp = namespace(views)
    neighbours = max(int(neighbour_share * (views.shape[1] - 1)), 1)
    cosines = xp.sort(views @ xp.matrix_transpose(views), axis=-1, descending=True)
    # The nearest is the view itself, or one that is equal to it; |a - b|^2 = 2 - 2 a.b for unit vectors.
    return xp.clip(1.0 - xp.mean(cosines[:, :, 1 : 1 + neighbours], axis=-1), min=SMALLEST_SQUARED_BANDWIDTH)


def log_kernels(views: Array, mode: Array, bandwidths: Array) -> Array:
    """(B, V): -|f_v - m|^2 / (2 h_v^2), the logarithm of the kernel of each view at the mode (B, d)."""
    squared = 2.0 - 2.0 * _times(views, mode)
    return -namespace(views).clip(squared, min=0.0) / (2.0 * bandwidths)


def _times(matrices: Array, vectors: Array) -> Array:
    """Products (B, m) of matrices (B, m, n) and vectors (B, n)."""
    return (matrices @ vectors[:, :, None])[:, :, 0]


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
    single view is its own mode. Weights are computed from logarithms, so that they never all underflow.
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

    def _images_per_block(self, n_views: int) -> int:
        return max(1, WORK_NUMBERS // (n_views * max(self.dimension, self.n_classes, n_views)))

    def _episodes(self, views: Array) -> Array:
        xp = namespace(views)
        if views.shape[1] == 1:
            return logits(views[:, 0, :], self.prototypes64, self.logit_scale)
        y = posterior(views, self.prototypes64, self.logit_scale)
        affinity = y @ xp.matrix_transpose(y)
        views = unit_rows(views)
        bandwidths = squared_bandwidths(views, self.neighbour_share)
        log_y, mode = xp.zeros_like(bandwidths) - math.log(views.shape[1]), views[:, 0, :]
        for _ in range(self.iterations):
            log_y = self._inlierness(log_y, affinity, xp.exp(log_kernels(views, mode, bandwidths)))
            mode = self._shifted(mode, views, bandwidths, log_y)
        return logits(mode, self.prototypes64, self.logit_scale)

    def _inlierness(self, log_y: Array, affinity: Array, density: Array) -> Array:
        """Logarithms of the inlierness y (B, V): the fixed point of softmax((density + weight A y) / temperature)."""
        xp = namespace(log_y)

        def update(log_y: Array) -> Array:
            agreement = _times(affinity, xp.exp(log_y))
            return log_softmax((density + self.affinity_weight * agreement) / self.inlier_temperature)

        return self._fixed_point(log_y, update, lambda new, old: xp.exp(new) - xp.exp(old))

    def _shifted(self, mode: Array, views: Array, bandwidths: Array, log_y: Array) -> Array:
        """The mode (B, d) of unit length: the fixed point of the views' mean, weighted by density times inlierness."""
        transposed = namespace(views).matrix_transpose(views)

        def update(mode: Array) -> Array:
            # Logarithms, since every density may underflow; the softmax divides the weights by their sum.
            return unit_rows(_times(transposed, softmax(log_kernels(views, mode, bandwidths) + log_y)))

        return self._fixed_point(mode, update, lambda new, old: new - old)

    def _fixed_point(
        self, values: Array, update: Callable[[Array], Array], change: Callable[[Array, Array], Array]
    ) -> Array:
        """Repeat `update`; an image that changed by less than the tolerance keeps its values from then on."""
        xp = namespace(values)
        active = xp.ones_like(values[:, :1], dtype=xp.bool)
        for _ in range(self.iterations):
            new = xp.where(active, update(values), values)
            distance = xp.linalg.vector_norm(change(new, values), axis=-1, keepdims=True)
            values, active = new, active & (distance >= self.tolerance)
            if not bool(xp.any(active)):
                break
        return values
