"""Between 8-bit grey levels and the unit interval that the corruptions are defined on."""

from __future__ import annotations

import numpy as np

__all__ = ["LEVELS", "to_levels", "to_unit"]

LEVELS = 255
"""The highest grey level of 8 bits."""

TOLERANCE = 1e-6
"""What is added before truncation, in grey levels: a whole number that rounding left an ulp too low must not lose a
level on one machine and keep it on another."""


def to_unit(image: np.ndarray) -> np.ndarray:
    """8-bit pixels as float64 in [0, 1]."""
    return image / LEVELS


def to_levels(unit: np.ndarray) -> np.ndarray:
    """Float pixels as 8 bits: clipped to [0, 1] and truncated, not rounded, as ImageNet-C was written.

    >>> to_levels(np.array([-0.2, 0.5, 100 / 255, 7.0]))
    array([  0, 127, 100, 255], dtype=uint8)
    """
    return (np.clip(unit, 0, 1) * LEVELS + TOLERANCE).astype(np.uint8)
