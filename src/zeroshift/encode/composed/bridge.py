"""From sentences to the image side: kernel ridge regression on the thousand names and weights of ImageNet's classes.

The idea is DeViSE's (Frome et al., NeurIPS 2013): the weights of a classifier are places of its classes among pictures,
their names have places among sentences, and a map learnt from one to the other places every other name, too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zeroshift.arrays import normalize

__all__ = ["Bridge", "fit_bridge"]

SHARPNESS = 4.0
"""In the kernel exp(4 (cos - 1)); as in the bundled packs."""

RIDGE = 1.0
"""Lambda, added to the kernel's diagonal; as in the bundled packs."""


@dataclass(frozen=True)
class Bridge:
    """A fitted map: sentences (e) to the image side (d).

    Attributes
    ----------
    centre : (e,), mean of the sentences it was fitted on.
    anchors : (C, e), those sentences less the centre, of unit length.
    weights : (C, d), what the kernel with each anchor counts for.
    """

    centre: np.ndarray
    anchors: np.ndarray
    weights: np.ndarray

    def __call__(self, texts: np.ndarray, centre: np.ndarray | None = None) -> np.ndarray:
        """(K, d) of any length. `centre` takes the place of the bridge's own where `texts` are worded otherwise."""
        centred = texts.astype(np.float64) - (self.centre if centre is None else centre)
        return _kernel(np.asarray(normalize(centred)), self.anchors) @ self.weights


def fit_bridge(texts: np.ndarray, targets: np.ndarray) -> Bridge:
    """The bridge that carries (C, e) `texts` near (C, d) `targets`.

    >>> bridge = fit_bridge(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[1.0], [-1.0]]))
    >>> bridge(np.array([[0.9, 0.1]])).round(3)  # (1 - exp(-8)) / (2 - exp(-8))
    array([[0.5]])
    """
    centre = texts.mean(axis=0, dtype=np.float64)
    anchors = np.asarray(normalize(texts.astype(np.float64) - centre))
    ridge = _kernel(anchors, anchors) + RIDGE * np.eye(len(anchors))
    return Bridge(centre, anchors, np.linalg.solve(ridge, targets.astype(np.float64)))


def _kernel(rows: np.ndarray, anchors: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(SHARPNESS * (rows @ anchors.T - 1)))
