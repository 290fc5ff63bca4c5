"""Pictures to corrupt, and the constants as the release of ImageNet-C lists them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image
from scipy import ndimage

from zeroshift.data.corruptions.photographs import PHOTOGRAPHS

PUBLISHED = {
    "gaussian_noise": [(0.08,), (0.12,), (0.18,), (0.26,), (0.38,)],
    "shot_noise": [(60,), (25,), (12,), (5,), (3,)],
    "impulse_noise": [(0.03,), (0.06,), (0.09,), (0.17,), (0.27,)],
    "defocus_blur": [(3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)],
    "glass_blur": [(0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)],
    "motion_blur": [(10, 3), (15, 5), (15, 8), (15, 12), (20, 15)],
    "snow": [
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ],
    "frost": [(1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)],
    "fog": [(1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)],
    "brightness": [(0.1,), (0.2,), (0.3,), (0.4,), (0.5,)],
    "contrast": [(0.4,), (0.3,), (0.2,), (0.1,), (0.05,)],
    "elastic_transform": [
        (244 * 2, 244 * 0.7, 244 * 0.1),
        (244 * 2, 244 * 0.08, 244 * 0.2),
        (244 * 0.05, 244 * 0.01, 244 * 0.02),
        (244 * 0.07, 244 * 0.01, 244 * 0.02),
        (244 * 0.12, 244 * 0.01, 244 * 0.02),
    ],
    "pixelate": [(0.6,), (0.5,), (0.4,), (0.3,), (0.25,)],
    "jpeg_compression": [(25,), (18,), (15,), (10,), (7,)],
}
"""As the release lists them, a row for each severity; zoom blur has a test of its own."""


def grey(level: int, side: int = 64) -> np.ndarray:
    return np.full((side, side, 3), level, np.uint8)


def pictures(count: int = 3, side: int = 96) -> list[np.ndarray]:
    """Smooth colours with hard shapes on them, as photographs have."""
    made = []
    for k in range(count):
        rng = np.random.default_rng(k)
        smooth = ndimage.gaussian_filter(rng.normal(size=(side, side, 3)), (12, 12, 0), mode="wrap")
        image = 110 + 40 * smooth / smooth.std()
        for _ in range(12):
            top, left = rng.integers(0, side - 20, size=2)
            image[top : top + rng.integers(6, 20), left : left + rng.integers(6, 20)] = rng.uniform(20, 220, size=3)
        made.append(np.clip(image, 0, 255).astype(np.uint8))
    return made


def frost_photographs(folder: Path) -> Path:
    """Five one-coloured "photographs" of frost, 40 x 30 pixels, of levels 0, 40, 80, 120 and 160."""
    for k, name in enumerate(PHOTOGRAPHS):
        Image.new("RGB", (40, 30), (40 * k, 40 * k, 40 * k)).save(folder / name)
    return folder
