"""A few-shot problem with classes of different sizes, one of them without support samples."""

from __future__ import annotations

import numpy as np

from zeroshift.testing import make_problem

EMPTY = 3
"""The class without support samples."""


def unbalanced(seed=0):
    """(prototypes, support, validation, features): seven classes with up to 12 support samples."""
    made = make_problem(classes=7, dimension=12, samples=200, seed=seed)
    rows = np.flatnonzero(made.labels[:60] != EMPTY)
    parts = (made.features[rows], made.labels[rows]), (made.features[60:120], made.labels[60:120])
    return made.prototypes, *parts, made.features[120:]
