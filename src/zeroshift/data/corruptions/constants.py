"""Names and order of the fifteen kinds, and the constants of each severity in ImageNet-C and CIFAR-10-C.

D. Hendrycks and T. Dietterich, Benchmarking Neural Network Robustness to Common Corruptions and Perturbations, ICLR
2019, and the code released with it (make_imagenet_c.py, make_cifar_c.py). Both data sets have the same kinds with
different constants; lengths are in pixels of the images they were chosen for.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["CONSTANTS", "GROUPS", "KINDS", "SEVERITIES", "SIZES", "constants"]

Table = Mapping[str, Mapping[str, tuple[float, ...]]]
"""For each kind, the values of each parameter at severities 1 to 5."""

GROUPS: Mapping[str, tuple[str, ...]] = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
}
"""The four groups of kinds in the paper."""

KINDS: tuple[str, ...] = tuple(kind for kinds in GROUPS.values() for kind in kinds)
"""The fifteen kinds, in the paper's order."""

SEVERITIES = (1, 2, 3, 4, 5)

IMAGENET_C: Table = {
    "gaussian_noise": {"sigma": (0.08, 0.12, 0.18, 0.26, 0.38)},
    "shot_noise": {"photons": (60, 25, 12, 5, 3)},
    "impulse_noise": {"amount": (0.03, 0.06, 0.09, 0.17, 0.27)},
    "defocus_blur": {"radius": (3, 4, 6, 8, 10), "smoothing": (0.1, 0.5, 0.5, 0.5, 0.5)},
    "glass_blur": {"sigma": (0.7, 0.9, 1.0, 1.1, 1.5), "reach": (1, 2, 2, 3, 4), "passes": (2, 1, 3, 2, 2)},
    "motion_blur": {"radius": (10, 15, 15, 15, 20), "sigma": (3, 5, 8, 12, 15)},
    # The release writes these as ranges; by rounding, the first includes its end, 1.11.
    "zoom_blur": {"step": (0.01, 0.01, 0.02, 0.02, 0.03), "zooms": (12, 16, 11, 13, 11)},
    "snow": {
        "mean": (0.1, 0.2, 0.55, 0.55, 0.55),
        "spread": (0.3, 0.3, 0.3, 0.3, 0.3),
        "zoom": (3, 2, 4, 4.5, 2.5),
        "threshold": (0.5, 0.5, 0.9, 0.85, 0.85),
        "radius": (10, 12, 12, 12, 12),
        "sigma": (4, 4, 8, 8, 12),
        "keep": (0.8, 0.7, 0.7, 0.65, 0.55),
    },
    "frost": {"image_weight": (1, 0.8, 0.7, 0.65, 0.6), "frost_weight": (0.4, 0.6, 0.7, 0.7, 0.75), "every": (1,) * 5},
    "fog": {"thickness": (1.5, 2, 2.5, 2.5, 3), "decay": (2, 2, 1.7, 1.5, 1.4), "map_side": (256,) * 5},
    "brightness": {"amount": (0.1, 0.2, 0.3, 0.4, 0.5)},
    "contrast": {"factor": (0.4, 0.3, 0.2, 0.1, 0.05)},
    # In the release these are multiples of 244, a mistake for 224 that its authors kept.
    "elastic_transform": {
        "distance": (488, 488, 12.2, 17.08, 29.28),
        "sigma": (170.8, 19.52, 2.44, 2.44, 2.44),
        "jitter": (24.4, 48.8, 4.88, 4.88, 4.88),
    },
    "pixelate": {"scale": (0.6, 0.5, 0.4, 0.3, 0.25)},
    "jpeg_compression": {"quality": (25, 18, 15, 10, 7)},
}

CIFAR10_C: Table = {
    "gaussian_noise": {"sigma": (0.04, 0.06, 0.08, 0.09, 0.1)},
    "shot_noise": {"photons": (500, 250, 100, 75, 50)},
    "impulse_noise": {"amount": (0.01, 0.02, 0.03, 0.05, 0.07)},
    # Disks of 1, 1, 1, 5 and 9 pixels: the first three severities blur by the smoothing alone.
    "defocus_blur": {"radius": (0.3, 0.4, 0.5, 1, 1.5), "smoothing": (0.4, 0.5, 0.6, 0.2, 0.1)},
    "glass_blur": {"sigma": (0.05, 0.25, 0.4, 0.25, 0.4), "reach": (1, 1, 1, 1, 1), "passes": (1, 1, 1, 2, 2)},
    "motion_blur": {"radius": (6, 6, 6, 8, 9), "sigma": (1, 1.5, 2, 2, 2.5)},
    # By rounding, the first two ranges include their ends, 1.06 and 1.11.
    "zoom_blur": {"step": (0.01, 0.01, 0.01, 0.01, 0.01), "zooms": (7, 12, 16, 21, 26)},
    "snow": {
        "mean": (0.1, 0.1, 0.15, 0.25, 0.3),
        "spread": (0.2, 0.2, 0.3, 0.3, 0.3),
        "zoom": (1, 1, 1.75, 2.25, 1.25),
        "threshold": (0.6, 0.5, 0.55, 0.6, 0.65),
        "radius": (8, 10, 10, 12, 14),
        "sigma": (3, 4, 4, 6, 12),
        "keep": (0.95, 0.9, 0.9, 0.85, 0.8),
    },
    # The release shrinks its photographs to a fifth by linear interpolation, which selects every fifth pixel.
    "frost": {
        "image_weight": (1, 1, 0.9, 0.85, 0.75),
        "frost_weight": (0.2, 0.3, 0.4, 0.4, 0.45),
        "every": (5,) * 5,
    },
    "fog": {"thickness": (0.2, 0.5, 0.75, 1, 1.5), "decay": (3, 3, 2.5, 2, 1.75), "map_side": (32,) * 5},
    "brightness": {"amount": (0.05, 0.1, 0.15, 0.2, 0.3)},
    "contrast": {"factor": (0.75, 0.5, 0.4, 0.3, 0.15)},
    # In the release these are multiples of 32. Severity 1 has only the affine map.
    "elastic_transform": {
        "distance": (0, 1.6, 2.56, 3.2, 3.2),
        "sigma": (0, 6.4, 1.92, 1.28, 0.96),
        "jitter": (2.56, 2.24, 1.92, 1.6, 0.96),
    },
    "pixelate": {"scale": (0.95, 0.9, 0.85, 0.75, 0.65)},
    "jpeg_compression": {"quality": (80, 65, 58, 50, 40)},
}

CONSTANTS: Mapping[int, Table] = {224: IMAGENET_C, 32: CIFAR10_C}
"""The tables by the side length, in pixels, of the images they were chosen for."""

SIZES: tuple[int, ...] = tuple(CONSTANTS)


def constants(kind: str, severity: int, made_for: int = 224) -> dict[str, float]:
    """The parameters of `kind` at `severity`, chosen for images of `made_for` x `made_for` pixels.

    >>> constants("fog", 5)
    {'thickness': 3, 'decay': 1.4, 'map_side': 256}
    >>> constants("fog", 5, made_for=32)
    {'thickness': 1.5, 'decay': 1.75, 'map_side': 32}
    """
    return {name: values[severity - 1] for name, values in CONSTANTS[made_for][kind].items()}
