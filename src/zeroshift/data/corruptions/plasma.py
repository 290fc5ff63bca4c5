"""Clouds: a height map by the diamond-square algorithm, rough at every scale."""

from __future__ import annotations

import numpy as np

__all__ = ["plasma"]

ROUGHNESS = 100.0
"""How far heights stray on the coarsest grid, as the square of this number. The map is scaled to [0, 1] at the end, so
only the decay matters."""


def plasma(side: int, decay: float, rng: np.random.Generator) -> np.ndarray:
    """Heights in [0, 1], (`side`, `side`), whose opposite edges meet; `side` is a power of two.

    Grids are halved until they are a pixel wide. Each new point is the mean of its four neighbours plus a random
    height, uniform up to the square of a roughness that is divided by `decay` from grid to grid: a small decay gives
    small, hard clouds, a large one soft, wide ones.

    >>> clouds = plasma(64, 2.0, np.random.default_rng(0))
    >>> clouds.shape, float(clouds.min()), float(clouds.max())
    ((64, 64), 0.0, 1.0)
    """
    heights = np.zeros((side, side))
    step, roughness = side, ROUGHNESS

    def strayed(four: np.ndarray) -> np.ndarray:
        return four / 4 + roughness**2 * rng.uniform(-1, 1, size=four.shape)

    while step >= 2:
        on, between = slice(0, side, step), slice(step // 2, side, step)
        corners = heights[on, on]
        pairs = corners + np.roll(corners, -1, axis=0)
        heights[between, between] = strayed(pairs + np.roll(pairs, -1, axis=1))
        centres = heights[between, between]
        heights[on, between] = strayed(centres + np.roll(centres, 1, axis=0) + corners + np.roll(corners, -1, axis=1))
        heights[between, on] = strayed(centres + np.roll(centres, 1, axis=1) + corners + np.roll(corners, -1, axis=0))
        step //= 2
        roughness /= decay
    heights -= heights.min()
    return heights / heights.max()
