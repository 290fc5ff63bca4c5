"""Images bent out of shape: an affine map of three points, and a smooth field of displacements."""

from __future__ import annotations

import numpy as np

__all__ = ["displace", "move_points"]


def move_points(image: np.ndarray, points: np.ndarray, moved: np.ndarray) -> np.ndarray:
    """`image` (H, W, 3) under the affine map that takes three `points`, (3, 2) as row and column, to `moved`.

    >>> image = np.arange(48.0).reshape(4, 4, 3)
    >>> points = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    >>> bool(np.allclose(move_points(image, points, points + (0, 1))[:, 1:], image[:, :-1]))
    True
    """
    # Each pixel of the result looks up where it came from, so the map is fitted backwards.
    backward, *_ = np.linalg.lstsq(_homogeneous(moved), points, rcond=None)
    return _look_up(image, _homogeneous(_grid(image)) @ backward, mode="mirror")


def displace(image: np.ndarray, field: np.ndarray) -> np.ndarray:
    """`image` (H, W, 3), each pixel taken from where `field` (H, W, 2), as rows and columns, points."""
    return _look_up(image, _grid(image) + field, mode="reflect")


def _grid(image: np.ndarray) -> np.ndarray:
    """Row and column of every pixel, (H, W, 2)."""
    rows, columns = image.shape[:2]
    return np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"), axis=-1)


def _homogeneous(points: np.ndarray) -> np.ndarray:
    return np.concatenate([points, np.ones((*points.shape[:-1], 1))], axis=-1)


def _look_up(image: np.ndarray, where: np.ndarray, mode: str) -> np.ndarray:
    """Values between pixels, linearly; beyond the border the image is mirrored, at its outermost pixels ("mirror") or
    at their rim ("reflect")."""
    from scipy.ndimage import map_coordinates

    coordinates = np.moveaxis(where, -1, 0)
    channels = [map_coordinates(channel, coordinates, order=1, mode=mode) for channel in np.moveaxis(image, -1, 0)]
    return np.stack(channels, axis=-1)
