"""MTA: MeanShift over the views of an image."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from zeroshift.arrays import Array, Home, namespace
from zeroshift.methods.parts.rows import unit_rows
from zeroshift.methods.parts.view_modes import (
    Affinity,
    Stop,
    fit_in,
    log_densities,
    shift_mode,
    squared_bandwidths,
)
from zeroshift.parameters import Constraint, Number
from zeroshift.view_method import EpisodicMethod
from zeroshift.zero_shot import logits, posterior

__all__ = ["MTA"]


class MTA(EpisodicMethod):
    """For each image, moves from its own feature to the nearest mode of its views' density by MeanShift, every view
    weighed by its inlierness: how dense it lies, and how far the other views agree with its prediction. The mode is
    answered in place of the image.

    Parameters
    ----------
    prototypes : (K, d) array or tensor
        One unit-length text embedding a class.
    logit_scale : float
        Scale of the logits; 100 for CLIP.
    affinity_weight : float
        How much agreeing with the other views' predictions counts beside density; lambda_q in the paper's code. 0 does
        without predictions.
    inlier_temperature : float
        Of the softmax inlierness is made by, lambda_y: large makes all views equal, small leaves one.
    neighbour_share : float
        Share of the other views, the nearest, whose mean squared distance is a view's bandwidth; at least one view.
    iterations : int
        Rounds of inlierness and mode, and the iterations at most of either in a round.
    tolerance : float
        Inlierness, or mode, that moves by less (Euclidean length) is taken as found for the round.

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
    constraints: ClassVar[Mapping[str, Constraint]] = {
        "logit_scale": Number(low=0, above=True),
        "affinity_weight": Number(low=0),
        "inlier_temperature": Number(low=0, above=True),
        "neighbour_share": Number(0, 1),
        "iterations": Number(low=1, integer=True),
        "tolerance": Number(low=0),
    }

    logit_scale: float
    affinity_weight: float
    inlier_temperature: float
    neighbour_share: float
    iterations: int
    tolerance: float

    def __init__(
        self,
        prototypes: Array,
        *,
        logit_scale: float = 100.0,
        affinity_weight: float = 4.0,
        inlier_temperature: float = 0.2,
        neighbour_share: float = 0.3,
        iterations: int = 5,
        tolerance: float = 1e-6,
    ) -> None:
        super().__init__(
            prototypes,
            logit_scale=logit_scale,
            affinity_weight=affinity_weight,
            inlier_temperature=inlier_temperature,
            neighbour_share=neighbour_share,
            iterations=iterations,
            tolerance=tolerance,
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
