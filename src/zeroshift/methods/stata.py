"""StatA: Gaussian classes anchored to the text, for sets that hold few of the classes."""

from __future__ import annotations

from functools import partial

import numpy as np

from zeroshift.arrays import Array, Home, namespace, to_numpy
from zeroshift.methods._shared.affinity import neighbour_affinity
from zeroshift.methods._shared.gaussian_method import (
    ZERO_MASS,
    GaussianMethod,
    Gaussians,
    Solution,
    floored,
    mean_directions,
    shared_variance,
    statistics,
)
from zeroshift.methods._shared.similarity import unit_rows
from zeroshift.parameters import Flag, Number, Optional, parameter

__all__ = ["StatA"]

RELEASED_CHUNK_ROWS = 2500
"""Rows after which the authors' first variance is divided by the number of all rows, again and again."""

TINY_COUNT = 1e-12
"""Keeps the weight of an empty class at 0 where the anchor weighs nothing."""


class StatA(GaussianMethod):
    """Classifies a whole set at once as TransCLIP does, with a diagonal variance for every class. Means and variances
    are anchored to the text's, the more the fewer samples a class has, so that classes the set lacks stay where they
    are.

    `adapt` starts afresh from the set it is given; `predict` then scores other features.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import StatA
    >>> features = np.eye(3, 8)[[0, 1, 1, 1]]
    >>> StatA(np.eye(3, 8), logit_scale=10.0).adapt(features).argmax(axis=1)
    array([0, 1, 1, 1])

    Notes
    -----
    *Realistic Test-Time Adaptation of Vision-Language Models*, CVPR 2025, after the authors' code. That divides the
    running sum of the first variance by the number of samples after every 2500 rows, which is right for up to 2500 rows
    only; `released=True` does the same. The authors leave out a last batch that is not full; here it is solved like the
    others. Variances have a floor of a millionth of 1/d. `predict` is ours, with the learned means and variances and
    the text but without neighbours.
    """

    name = "stata"
    state_size = "2 K d"
    complexity = "O(N^2 d + N K d)"

    anchor: float = parameter(Number(low=0), "Number of samples the text counts as (alpha).", default=1.0)
    soft_counts: bool = parameter(
        Flag(),
        "Count a class's samples by their assignments. By default each counts for its most probable class.",
        default=False,
    )
    text_weight: float = parameter(Number(low=0), "Power of the text's posterior.", default=1.0)
    neighbour_weight: float = parameter(Number(low=0), "How strongly; 0 leaves neighbours out.", default=1.0)
    batch_size: int | None = parameter(
        Optional(Number(low=1, integer=True)),
        "Samples solved together. The batches know nothing of each other; what the last one taught is kept. None, the default, takes the whole set.",
        default=None,
    )
    released: bool = parameter(
        Flag(),
        "With the authors' first variance, which for more than 2500 samples is far too small: see Notes.",
        default=False,
    )

    @property
    def _text_share(self) -> float:
        return self.text_weight

    def _first_variances(self) -> Array:
        return Home.of(self.prototypes).zeros((self.n_classes, self.dimension)) + 1 / self.dimension

    def _samples_at_once(self, n_samples: int) -> int:
        return self.batch_size or n_samples

    def _solve(self, features: Array) -> Solution:
        xp = namespace(features)
        log_y = self._log_text(features)
        z = xp.exp(log_y)
        variance = self._text_variance(features, z)
        text = Gaussians(self._wide_text, xp.broadcast_to(variance, (self.n_classes, self.dimension)))
        assignments = self._assignments(log_y, neighbour_affinity(features, self.neighbours), self.neighbour_weight)
        return self._alternate(features, Solution(z, text), assignments, partial(self._fit, features, text))

    def _text_variance(self, features: Array, z: Array) -> Array:
        """About the prototypes, shared by all classes: the anchor of every variance, (d,)."""
        n_samples = features.shape[0]
        if not self.released or n_samples <= RELEASED_CHUNK_ROWS:
            return shared_variance(statistics(features, z), self._wide_text)
        total = Home.of(features).zeros((self.dimension,))
        for start in range(0, n_samples, RELEASED_CHUNK_ROWS):
            chunk = slice(start, min(start + RELEASED_CHUNK_ROWS, n_samples))
            about = shared_variance(statistics(features[chunk], z[chunk]), self._wide_text)
            total = (total + (chunk.stop - start) * about) / n_samples
        return floored(total)

    def _fit(self, features: Array, text: Gaussians, z: Array, _: Gaussians) -> Gaussians:
        xp = namespace(features)
        mass, sums, _ = statistics(features, z)
        share = self._share(z, mass)[:, None]
        means = share * mean_directions(mass, sums, text.means) + (1 - share) * text.means
        means = unit_rows(means)
        mass = xp.where(mass > ZERO_MASS, mass, 1.0)[:, None]
        squares = xp.astype(z.T @ (features * features), xp.float64, copy=False)
        spread = squares / mass - 2 * means * (sums / mass) + means * means
        anchored = text.variances + (text.means - means) ** 2
        return Gaussians(means, floored(share * spread + (1 - share) * anchored))

    def _share(self, z: Array, mass: Array) -> Array:
        """How much the samples, and not the text, say of each class (beta), (K,)."""
        if self.soft_counts:
            return mass / (self.anchor + mass + TINY_COUNT)
        home = Home.of(z)
        winners = to_numpy(home.xp.argmax(z, axis=1))
        counts = np.bincount(winners, minlength=self.n_classes).astype(np.float64)
        return home.xp.asarray(counts / (self.anchor + counts + TINY_COUNT), device=home.device)
