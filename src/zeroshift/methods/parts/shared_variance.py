"""TransCLIP's Gaussians: where the class means start, and how means and one shared variance follow assignments."""

from __future__ import annotations

from dataclasses import dataclass

from zeroshift.arrays import Array, namespace
from zeroshift.methods.parts.diagonal_gaussians import (
    Gaussians,
    Statistics,
    mean_directions,
    shared_variance,
    statistics,
)
from zeroshift.methods.parts.top_k import top_k

__all__ = ["SharedVarianceFit", "confident_means"]


@dataclass(frozen=True)
class SharedVarianceFit:
    """Means of unit length and one diagonal variance from a set's assignments, and from labelled samples if any."""

    features: Array
    squares: Array
    """sum_i x_i^2, (d,): it is the same in every round."""
    labelled: Statistics | None = None
    """Of the labelled samples, all together of mass 1, as the set is."""
    weight: float = 0.0
    """Theirs; the set has weight 1."""

    def __call__(self, z: Array, gaussians: Gaussians) -> Gaussians:
        """New ones; a class without mass keeps its mean."""
        gathered = statistics(self.features, z, self.squares).times(1 / self.features.shape[0])
        if self.labelled is not None:
            gathered = gathered.plus(self.labelled, self.weight)
        means = mean_directions(gathered.mass, gathered.sums, gaussians.means)
        return Gaussians(means, shared_variance(gathered, means))


def confident_means(features: Array, log_y: Array, confident: int, otherwise: Array) -> Array:
    """The direction of each class's most probable samples, weighted by how probable they are; (K, d), float64.

    >>> import numpy as np
    >>> y = np.array([[0.8, 0.2], [0.6, 0.4], [0.1, 0.9]])
    >>> confident_means(np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]), np.log(y), 2, np.eye(2)).round(3)
    array([[0.8  , 0.6  ],
           [0.434, 0.901]])
    """
    xp = namespace(features)
    logs, samples = top_k(log_y.T, confident)
    # Relative to the most probable one: of an improbable class every posterior might underflow.
    weights = xp.exp(logs - logs[:, :1])
    sums = xp.matmul(weights[:, None, :], features[samples])[:, 0, :]
    wide = xp.float64
    return mean_directions(xp.sum(weights, axis=1, dtype=wide), xp.astype(sums, wide, copy=False), otherwise)
