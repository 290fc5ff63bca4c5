"""What the fifteen kinds are and how strong each severity is: names, order and numbers of ImageNet-C.

D. Hendrycks and T. Dietterich, Benchmarking Neural Network Robustness to Common Corruptions and Perturbations, ICLR
2019, and the code they released with it. Lengths are in pixels of a 224 x 224 image.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["CONSTANTS", "GROUPS", "KINDS", "SEVERITIES", "constants"]

GROUPS: Mapping[str, tuple[str, ...]] = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
}
"""The paper's four groups of kinds."""

KINDS: tuple[str, ...] = tuple(kind for kinds in GROUPS.values() for kind in kinds)
"""The fifteen kinds, in the paper's order."""

SEVERITIES = (1, 2, 3, 4, 5)

CONSTANTS: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "gaussian_noise": {"sigma": (0.08, 0.12, 0.18, 0.26, 0.38)},
    "shot_noise": {"photons": (60, 25, 12, 5, 3)},
    "impulse_noise": {"amount": (0.03, 0.06, 0.09, 0.17, 0.27)},
    "defocus_blur": {"radius": (3, 4, 6, 8, 10), "smoothing": (0.1, 0.5, 0.5, 0.5, 0.5)},
    "glass_blur": {"sigma": (0.7, 0.9, 1.0, 1.1, 1.5), "reach": (1, 2, 2, 3, 4), "passes": (2, 1, 3, 2, 2)},
    "motion_blur": {"radius": (10, 15, 15, 15, 20), "sigma": (3, 5, 8, 12, 15)},
    # The release writes these as ranges; rounding lets the first run one step further than its end suggests, to 1.11.
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
    "frost": {"image_weight": (1, 0.8, 0.7, 0.65, 0.6), "frost_weight": (0.4, 0.6, 0.7, 0.7, 0.75)},
    "fog": {"thickness": (1.5, 2, 2.5, 2.5, 3), "decay": (2, 2, 1.7, 1.5, 1.4)},
    "brightness": {"amount": (0.1, 0.2, 0.3, 0.4, 0.5)},
    "contrast": {"factor": (0.4, 0.3, 0.2, 0.1, 0.05)},
    # In the release: multiples of 244, a slip for 224 that its authors kept.
    "elastic_transform": {
        "distance": (488, 488, 12.2, 17.08, 29.28),
        "sigma": (170.8, 19.52, 2.44, 2.44, 2.44),
        "jitter": (24.4, 48.8, 4.88, 4.88, 4.88),
    },
    "pixelate": {"scale": (0.6, 0.5, 0.4, 0.3, 0.25)},
    "jpeg_compression": {"quality": (25, 18, 15, 10, 7)},
}
"""For each kind its parameters, and of each parameter the values at severities 1 to 5."""


def constants(kind: str, severity: int) -> dict[str, float]:
    """The parameters of `kind` at `severity`.

    >>> constants("fog", 5)
    {'thickness': 3, 'decay': 1.4}
    """
    return {name: values[severity - 1] for name, values in CONSTANTS[kind].items()}
