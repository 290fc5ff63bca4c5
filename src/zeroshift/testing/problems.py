"""Small made-up problems with the geometry of a dual encoder: features in one cone, prototypes in another."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from zeroshift.arrays import normalize
from zeroshift.parameters import Number

__all__ = ["Problem", "make_problem"]


class Problem(NamedTuple):
    features: np.ndarray
    prototypes: np.ndarray
    labels: np.ndarray


def make_problem(
    classes: int = 6,
    dimension: int = 16,
    samples: int = 80,
    *,
    seed: int = 0,
    cone: float = 2.0,
    noise: float = 1.0,
    gap: float = 0.5,
) -> Problem:
    """Unit features scattered about class directions that lean towards one common direction by `cone`.

    Prototypes are the class directions moved by a shared `gap`. With `cone=0` cosines take both signs. The posteriors
    stay unsure on purpose: confidences that rounding could reorder would make every comparison of banks a lottery.

    >>> make_problem(classes=3, dimension=8, samples=5).features.shape
    (5, 8)
    """
    for name, value in (("classes", classes), ("dimension", dimension), ("samples", samples)):
        Number(low=1, integer=True).check(name, value)
    rng = np.random.default_rng(seed)
    common = rng.normal(size=dimension)
    shift = rng.normal(size=dimension)
    directions = rng.normal(size=(classes, dimension)) + cone * common
    labels = rng.integers(classes, size=samples)
    features = normalize(directions[labels] + noise * rng.normal(size=(samples, dimension)))
    return Problem(features, normalize(directions + gap * shift), labels)
