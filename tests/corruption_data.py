"""Images to corrupt, and the constants as in the releases of ImageNet-C and CIFAR-10-C."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from zeroshift.data.corruptions.kinds import FROST_IMAGES

IMAGENET_C = {
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
    "frost": [(1, 0.4, 1), (0.8, 0.6, 1), (0.7, 0.7, 1), (0.65, 0.7, 1), (0.6, 0.75, 1)],
    "fog": [(1.5, 2, 256), (2, 2, 256), (2.5, 1.7, 256), (2.5, 1.5, 256), (3, 1.4, 256)],
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

CIFAR10_C = {
    "gaussian_noise": [(0.04,), (0.06,), (0.08,), (0.09,), (0.1,)],
    "shot_noise": [(500,), (250,), (100,), (75,), (50,)],
    "impulse_noise": [(0.01,), (0.02,), (0.03,), (0.05,), (0.07,)],
    "defocus_blur": [(0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)],
    "glass_blur": [(0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)],
    "motion_blur": [(6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)],
    "snow": [
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ],
    "frost": [(1, 0.2, 5), (1, 0.3, 5), (0.9, 0.4, 5), (0.85, 0.4, 5), (0.75, 0.45, 5)],
    "fog": [(0.2, 3, 32), (0.5, 3, 32), (0.75, 2.5, 32), (1, 2, 32), (1.5, 1.75, 32)],
    "brightness": [(0.05,), (0.1,), (0.15,), (0.2,), (0.3,)],
    "contrast": [(0.75,), (0.5,), (0.4,), (0.3,), (0.15,)],
    "elastic_transform": [
        (32 * 0, 32 * 0, 32 * 0.08),
        (32 * 0.05, 32 * 0.2, 32 * 0.07),
        (32 * 0.08, 32 * 0.06, 32 * 0.06),
        (32 * 0.1, 32 * 0.04, 32 * 0.05),
        (32 * 0.1, 32 * 0.03, 32 * 0.03),
    ],
    "pixelate": [(0.95,), (0.9,), (0.85,), (0.75,), (0.65,)],
    "jpeg_compression": [(80,), (65,), (58,), (50,), (40,)],
}

PUBLISHED = {224: IMAGENET_C, 32: CIFAR10_C}
"""As in the release, one row per severity; the last values of frost and fog are the divisor of the photographs' size
and the side of the cloud map. Zoom blur has a separate test."""

both_sizes = pytest.mark.parametrize("made_for", PUBLISHED)


def grey(level: int, side: int = 64) -> np.ndarray:
    return np.full((side, side, 3), level, np.uint8)


def sample_images(count: int = 3, side: int = 96) -> list[np.ndarray]:
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


def frost_photographs(folder: Path, scale: int = 1) -> Path:
    """Five one-coloured "photographs" of frost, `scale` times 40 x 30 pixels, of levels 0, 40, 80, 120 and 160."""
    for k, name in enumerate(FROST_IMAGES):
        Image.new("RGB", (40 * scale, 30 * scale), (40 * k, 40 * k, 40 * k)).save(folder / name)
    return folder
