"""StatA: TransCLIP with means and variances anchored to those of the text."""

from __future__ import annotations

from typing import Any

import numpy as np

from zeroshift.arrays import Array, namespace, to_numpy
from zeroshift.methods._shared.gaussian_method import (
    ZERO_MASS,
    ClassGaussians,
    GaussianMethod,
    WeightedSums,
    mean_directions,
    neighbour_sums,
    shared_variance,
    with_floor,
)
from zeroshift.methods._shared.similarity import unit_rows
from zeroshift.parameters import Flag, Number, Optional, parameter
from zeroshift.zero_shot import log_posterior

RELEASED_BLOCK_ROWS = 2500
"""After every so many rows, the authors' code divides its sum for the initial variance by the number of all rows."""

TINY_COUNT = 1e-12
"""Keeps the weight of an empty class at 0 if the anchor is 0."""


class StatA(GaussianMethod):
    """Classifies a whole set together like TransCLIP, with one diagonal variance per class. Means and variances are
    anchored to those of the text, more strongly the fewer samples a class has, so classes absent from the set do not
    move.

    Every call of `adapt` starts from the beginning with the set it is given; `predict` then scores other features.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import StatA
    >>> features = np.eye(3, 8)[[0, 1, 1, 1]]
    >>> StatA(np.eye(3, 8), logit_scale=10.0).adapt(features).argmax(axis=1)
    array([0, 1, 1, 1])

    Notes
    -----
    *Realistic Test-Time Adaptation of Vision-Language Models*, CVPR 2025, after the authors' code. That code divides
    the running sum of the initial variance by the number of samples after every 2500 rows, which is correct for up to
    2500 rows only; `released=True` does the same. The authors skip an incomplete last batch; here it is solved like the
    others. Variances have a floor of a millionth of 1/d. `predict` is ours, with the learned means and variances and
    the text but without neighbours.
    """

    name = "stata"
    headline = "TransCLIP anchored at statistics of the text"
    state_size = "2 K d"
    complexity = "O(N^2 d + N K d)"

    anchor: float = parameter(
        Number(low=0), "Number of samples that the text counts as (alpha in the paper).", default=1.0
    )
    soft_counts: bool = parameter(
        Flag(),
        "Count the samples of a class by their soft assignments. By default, each sample counts for its most probable "
        "class.",
        default=False,
    )
    text_weight: float = parameter(Number(low=0), "Exponent of the text posterior.", default=1.0)
    neighbour_weight: float = parameter(Number(low=0), "Weight of the neighbours; 0 ignores them.", default=1.0)
    batch_size: int | None = parameter(
        Optional(Number(low=1, integer=True)),
        "Samples solved together, independently of other batches; the result of the last batch is kept. None solves "
        "the whole set.",
        default=None,
    )
    released: bool = parameter(
        Flag(),
        "Use the authors' initial variance, which is much too small for more than 2500 samples; see Notes.",
        default=False,
    )

    @property
    def _text_exponent(self) -> float:
        return self.text_weight

    def _initial_variances(self) -> Array:
        return self.zeros(self.n_classes, self.dimension) + 1 / self.dimension

    def fit(self, features: Array) -> tuple[Array, dict[str, Any]]:
        xp = namespace(features)
        log_y = log_posterior(features, self._text, self.logit_scale)
        z = xp.exp(log_y)
        variance = self._text_variance(features, z)
        text = ClassGaussians(self._text, xp.broadcast_to(variance, (self.n_classes, self.dimension)))
        neighbours = neighbour_sums(features, self.neighbours)

        def refit(z: Array, _: ClassGaussians) -> ClassGaussians:
            return self._anchored(features, z, text)

        z, gaussians = self._alternate(
            features, log_y, z, text, neighbours, refit, neighbour_weight=self.neighbour_weight
        )
        return z, {"_gaussians": gaussians}

    def _text_variance(self, features: Array, z: Array) -> Array:
        """Variance about the prototypes, shared by all classes: the anchor of every variance, (d,)."""
        n = len(features)
        if not self.released or n <= RELEASED_BLOCK_ROWS:
            return shared_variance(WeightedSums.of(features, z), self._text)
        total = self.zeros(self.dimension)
        for start in range(0, n, RELEASED_BLOCK_ROWS):
            block = slice(start, min(start + RELEASED_BLOCK_ROWS, n))
            variance = shared_variance(WeightedSums.of(features[block], z[block]), self._text)
            total = (total + (block.stop - start) * variance) / n
        return with_floor(total)

    def _anchored(self, features: Array, z: Array, text: ClassGaussians) -> ClassGaussians:
        """Means and variances of the samples, mixed with those of the text by how many samples a class has."""
        xp = namespace(features)
        mass, sums = z.sum(axis=0), z.T @ features
        share = self._sample_share(z, mass)[:, None]
        means = unit_rows(share * mean_directions(mass, sums, text.means) + (1 - share) * text.means)
        mass = xp.where(mass > ZERO_MASS, mass, 1.0)[:, None]
        spread = z.T @ (features * features) / mass - 2 * means * (sums / mass) + means * means
        anchored = text.variances + (text.means - means) ** 2
        return ClassGaussians(means, with_floor(share * spread + (1 - share) * anchored))

    def _sample_share(self, z: Array, mass: Array) -> Array:
        """Weight of the samples relative to the text for each class (beta in the paper), (K,)."""
        counts = mass
        if not self.soft_counts:
            counts = self.as_own(np.bincount(to_numpy(z).argmax(axis=1), minlength=self.n_classes) * 1.0)
        return counts / (self.anchor + counts + TINY_COUNT)
