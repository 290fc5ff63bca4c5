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

FLAT = 1e-7
"""Rows that differ from their mean by so small a share of their length are all the same."""


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
        """From unit rows (n, d) and prototypes (K, d); two rows and two dimensions at least."""
        centred = rows - rows.mean(axis=0)
        if len(rows) < 2 or np.linalg.norm(centred) <= FLAT * np.linalg.norm(rows):
            raise ValueError(
                f"the {len(rows)} rows are all the same: there is no plane in which they differ. Fix: a set whose "
                "samples differ."
            )
        _, lengths, directions = np.linalg.svd(centred, full_matrices=False)
        top = _upright(directions[:2])
        points = centred @ top.T
        anchors = (prototypes - prototypes.mean(axis=0)) @ top.T
        anchors = anchors * _radius(points) / max(_radius(anchors), np.finfo(np.float64).tiny)
        scale = HALF_SIDE / max(np.abs(points).max(), np.abs(anchors).max())
        points, anchors = points * scale, anchors * scale
        before = logit_scale * _variation(rows @ prototypes.T)
        variation = _variation(lifted(points) @ lifted(anchors).T)
        if variation == 0.0:
            raise ValueError(
                f"the {len(anchors)} prototypes fall on one point of the plane: no field is nearer to any. Fix: "
                "prompts that tell the classes apart."
            )
        return cls(points, anchors, before / variation, float(np.sum(lengths[:2] ** 2) / np.sum(lengths**2)))


def lifted(points: np.ndarray) -> np.ndarray:
    """Points of the unit disc (n, 2) to the upper half of the unit sphere (n, 3).

    >>> lifted(np.array([[0.6, 0.0], [0.0, 0.0]])).tolist()
    [[0.6, 0.0, 0.8], [0.0, 0.0, 1.0]]
    """
    return np.column_stack([points, np.sqrt(1 - np.sum(points**2, axis=1))])


def _upright(directions: np.ndarray) -> np.ndarray:
    """A direction is as good as its negative; here the entry of largest magnitude is positive on every machine."""
    largest = np.argmax(np.abs(directions), axis=1)
    signs = np.sign(directions[np.arange(len(directions)), largest])
    return np.asarray(directions * signs[:, None])


def _radius(points: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.sum(points**2, axis=1))))


def _variation(cosines: np.ndarray) -> float:
    """How much the cosines (n, K) of a row differ between classes, on average."""
    return float(np.sqrt(np.mean(np.var(cosines, axis=1))))
