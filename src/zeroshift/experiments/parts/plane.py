"""Features brought to a plane and lifted from there to the unit sphere in three dimensions, where methods can run.

Methods need rows of unit length, and a plane has none but a circle's. So: (1) the rows are projected to their first two
principal components; (2) the prototypes, which lie in a cone of their own apart from the images, are projected to the
same plane about their own mean, and brought to the rows' root-mean-square radius; (3) everything is scaled into a
square inside the unit disc, and each point (u, v) goes to (u, v, sqrt(1 - u^2 - v^2)). Near the middle the sphere is
all but flat, so that cosines order points as distances in the plane do. (4) The logit scale is set so that zero-shot
logits vary as much as they did in all dimensions, else confidence would mean something else. No labels are used.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["HALF_SIDE", "Plane", "lifted"]

HALF_SIDE = 0.7
"""Half the side of the square everything lies in: its corners are inside the unit disc."""


@dataclass(frozen=True)
class Plane:
    """Rows and prototypes in two dimensions."""

    points: np.ndarray
    """(n, 2), within `HALF_SIDE` of the middle in both directions."""
    anchors: np.ndarray
    """(K, 2), the prototypes; likewise."""
    logit_scale: float
    kept: float
    """Share of the rows' variance that the plane keeps."""

    @classmethod
    def of(cls, rows: np.ndarray, prototypes: np.ndarray, logit_scale: float) -> Plane:
        """From unit rows (n, d) and prototypes (K, d)."""
        centred = rows - rows.mean(axis=0)
        _, lengths, directions = np.linalg.svd(centred, full_matrices=False)
        # A singular vector is as good as its negative; the same side up on every machine.
        top = directions[:2]
        top = top * np.sign(np.sum(top**3, axis=1))[:, None]
        points = centred @ top.T
        anchors = (prototypes - prototypes.mean(axis=0)) @ top.T
        anchors = anchors * _radius(points) / max(_radius(anchors), np.finfo(np.float64).tiny)
        scale = HALF_SIDE / max(np.abs(points).max(), np.abs(anchors).max())
        points, anchors = points * scale, anchors * scale
        before = logit_scale * _variation(rows @ prototypes.T)
        variation = _variation(lifted(points) @ lifted(anchors).T)
        return cls(points, anchors, before / variation, float(np.sum(lengths[:2] ** 2) / np.sum(lengths**2)))


def lifted(points: np.ndarray) -> np.ndarray:
    """Points of the unit disc (n, 2) to the upper half of the unit sphere (n, 3).

    >>> lifted(np.array([[0.6, 0.0], [0.0, 0.0]])).tolist()
    [[0.6, 0.0, 0.8], [0.0, 0.0, 1.0]]
    """
    return np.column_stack([points, np.sqrt(1 - np.sum(points**2, axis=1))])


def _radius(points: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.sum(points**2, axis=1))))


def _variation(cosines: np.ndarray) -> float:
    """How much the cosines (n, K) of a row differ between classes, on average."""
    return float(np.sqrt(np.mean(np.var(cosines, axis=1))))
