"""Small matrices for the tests of the engines."""

from __future__ import annotations

import numpy as np


def positive(rng, *shape):
    rows = rng.normal(size=(*shape, shape[-1] + 3))
    return rows @ np.swapaxes(rows, -1, -2)


def contraction(scatter, rho):
    return rho * np.linalg.inv(scatter + rho * np.eye(len(scatter)))
