"""Outputs of the authors' own code on a small problem (tests/golden/README.md), for the tests of their methods."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).parent / "golden"


@cache
def golden(name: str) -> dict[str, np.ndarray]:
    """Every array of a golden file, by its key."""
    with np.load(GOLDEN / f"{name}.npz") as arrays:
        return {key: arrays[key] for key in arrays.files}


def problem(dtype: str = "float32") -> dict[str, np.ndarray]:
    """The problem of all golden files, floating-point arrays in `dtype`: 600 samples, 12 classes, 64 dimensions."""
    return {key: _converted(array, dtype) for key, array in golden("problem").items()}


def views(dtype: str = "float32") -> dict[str, np.ndarray]:
    """64 views of the first 120 samples; view 0 is the sample itself."""
    return {key: _converted(array, dtype) for key, array in golden("peer_problem_views").items()}


def first_shots(shots: int, dtype: str = "float32") -> tuple[np.ndarray, np.ndarray]:
    """The first `shots` support samples of every class, as the goldens of the few-shot methods take them."""
    given = problem(dtype)
    labels = given["support_labels"]
    rows = np.concatenate([np.flatnonzero(labels == k)[:shots] for k in range(labels.max() + 1)])
    return given["support_features"][rows], labels[rows]


def assert_golden(scores: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    """Scores within `tolerance` of the authors', and the same predictions."""
    np.testing.assert_allclose(scores, expected, rtol=0, atol=tolerance)
    np.testing.assert_array_equal(scores.argmax(axis=-1), expected.argmax(axis=-1))


def _converted(array: np.ndarray, dtype: str) -> np.ndarray:
    # float32 rows converted to float64 have unit length only within 1e-7, which every tolerance allows.
    return array.astype(dtype) if array.dtype.kind == "f" else array
