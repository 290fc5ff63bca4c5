"""How strongly ECALP links a sample to others, to texts and to labelled samples: cosines that weigh dimensions."""

from __future__ import annotations

import numpy as np

from zeroshift.arrays import Array, Home, namespace
from zeroshift.labelled import Labelled
from zeroshift.methods.parts.rows import unit_rows
from zeroshift.methods.parts.top_k import top_k

__all__ = ["ContextLinks", "inverse_spread", "spread"]

TELLING = 1e12
"""Cosines are told apart to twelve digits: products of another shape leave those of equal samples a rounding apart."""

NO_SPREAD = 1e-12
"""A variance below this, or below this share of the largest, is none."""


class ContextLinks:
    """Links to the fixed nodes, which are the texts and behind them the labelled samples, and cosines of samples.

    Everything is float64, and samples are of unit length.
    """

    def __init__(self, prototypes: Array, support: Labelled | None, n_texts: int, n_support: int, gamma: float) -> None:
        home = Home.of(prototypes)
        self._gamma = gamma
        self._texts = unit_rows(home.bring(prototypes, home.xp.float64))
        self._context = spread(self._texts)
        self._n_texts = min(n_texts, prototypes.shape[0])
        self._n_support = 0
        labels = np.arange(prototypes.shape[0])
        if support is not None:
            self._support = unit_rows(home.bring(support[0], home.xp.float64))
            self._support_context = inverse_spread(self._support)
            self._n_support = min(n_support, len(support[1]))
            labels = np.concatenate([labels, support[1]])
        self.labels = home.index(labels)
        """The class of each fixed node."""

    @property
    def n_fixed(self) -> int:
        """Fixed nodes each sample is linked to."""
        return self._n_texts + self._n_support

    def weighed(self, x: Array) -> Array:
        """Samples (n, d) as later ones are compared with them: where the classes differ, dimensions count more."""
        return unit_rows(x * self._context)

    def cosines(self, x: Array, weighed: Array) -> Array:
        """(n, m) of samples (n, d) with earlier ones (m, d) that are weighed."""
        return namespace(x).round(x @ weighed.T * TELLING) / TELLING

    def weights(self, cosines: Array) -> Array:
        """Of links, from cosines; of those below zero the size counts, as it does with the authors' even power."""
        return abs(cosines) ** self._gamma

    def fixed(self, x: Array) -> tuple[Array, Array]:
        """The fixed nodes nearest to each sample and the weights of the links, (n, n_fixed) each."""
        xp = namespace(x)
        cosines, nodes = top_k(x @ self._texts.T, self._n_texts)
        if self._n_support:
            more, numbers = top_k(unit_rows(x * self._support_context) @ self._support.T, self._n_support)
            cosines = xp.concat([cosines, more], axis=1)
            nodes = xp.concat([nodes, numbers + self._texts.shape[0]], axis=1)
        return nodes, self.weights(cosines)


def spread(prototypes: Array) -> Array:
    """Variances (d,) at unit length: in which dimensions the classes differ. All alike where they do not differ at all.

    >>> import numpy as np
    >>> spread(np.array([[1.0, 0.0, 0.5], [0.0, 1.0, 0.5]])).round(6)
    array([0.707107, 0.707107, 0. ])
    """
    xp = namespace(prototypes)
    variances = xp.var(prototypes, axis=0)
    if float(xp.max(variances)) <= NO_SPREAD:
        variances = xp.ones_like(variances)
    return variances / xp.linalg.vector_norm(variances)


def inverse_spread(features: Array) -> Array:
    """1 / variance (d,), and 0 for a dimension in which nothing varies. All alike where none does.

    >>> import numpy as np
    >>> inverse_spread(np.array([[1.0, 0.0, 0.5], [0.0, 0.5, 0.5]]))
    array([ 4., 16.,  0.])
    """
    xp = namespace(features)
    variances = xp.var(features, axis=0)
    varies = variances > NO_SPREAD * xp.max(variances)
    ones = xp.ones_like(variances)
    if not bool(xp.any(varies)):
        return ones
    return xp.where(varies, 1.0 / xp.where(varies, variances, ones), 0.0 * ones)
