"""What the numbers of a loaded state must satisfy, whatever samples led to it. See `state(..., check=...)`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from zeroshift.arrays import UNIT_NORM_TOLERANCE, Array, to_numpy

__all__ = ["check_lengths", "check_range", "check_seen", "check_semidefinite", "short_rows", "unit_length", "within"]


def check_range(name: str, values: Array | float, low: float, high: float = np.inf) -> None:
    """ValueError if any number is outside `low` to `high`; rounding errors are allowed for."""
    numbers = np.asarray(to_numpy(values) if hasattr(values, "shape") else values)
    slack = 1e-6 * max(1.0, abs(low), abs(high) if np.isfinite(high) else 0.0)
    if numbers.size and not (numbers.min() >= low - slack and numbers.max() <= high + slack):
        allowed = f"at least {low:g}" if high == np.inf else f"from {low:g} to {high:g}"
        raise ValueError(f"{name} must be {allowed}; it contains numbers from {numbers.min():g} to {numbers.max():g}.")


def check_lengths(name: str, rows: Array, *, unit: bool = False, longest: float = 1.0) -> None:
    """ValueError if a row (along the last axis) is longer than `longest`; no mean of features is longer than 1.

    With `unit`, every row must have unit length, except rows of zeros.
    """
    numbers = np.asarray(to_numpy(rows), dtype=np.float64)
    with np.errstate(over="ignore"):
        lengths = np.sqrt(np.einsum("...i,...i->...", numbers, numbers))
    tolerance = 2 * UNIT_NORM_TOLERANCE
    wrong = ~(lengths <= longest * (1 + tolerance))
    if unit:
        wrong |= (lengths != 0) & (lengths < 1 - tolerance)
    if wrong.any():
        allowed = "of unit length" if unit else f"no longer than {longest:g}"
        raise ValueError(f"the rows of {name} must be {allowed}; one has the length {lengths[wrong].flat[0]:g}.")


def check_seen(name: str, count: float, n_seen: int) -> None:
    """ValueError if a count of samples is negative or above the number of samples seen."""
    if not -1e-6 <= count <= n_seen + 1e-6 * max(1, n_seen):
        raise ValueError(f"{name} must be from 0 to n_seen = {n_seen}; it is {count:g}.")


def check_semidefinite(name: str, matrices: Array) -> None:
    """ValueError if a matrix (..., d, d) is not a sum of squares: symmetric, without negative eigenvalues; rounding
    errors are allowed for."""
    numbers = to_numpy(matrices)
    d, eps = numbers.shape[-1], float(np.finfo(numbers.dtype).eps)
    for matrix in numbers.reshape(-1, d, d).astype(np.float64, copy=False):
        largest = float(np.abs(np.diagonal(matrix)).max())
        slack = d * eps * largest + np.finfo(np.float64).tiny ** 0.5
        try:
            if not np.abs(matrix - matrix.T).max() <= slack:
                raise np.linalg.LinAlgError
            np.linalg.cholesky(matrix + 2 * slack * np.eye(d))
        except np.linalg.LinAlgError:
            raise ValueError(f"{name} must be symmetric, without negative eigenvalues.") from None


def within(low: float, high: float = np.inf) -> Callable[[str, Array], None]:
    """For `state(..., holds=)`: numbers from `low` to `high`."""
    return lambda name, values: check_range(name, values, low, high)


def unit_length(name: str, rows: Array) -> None:
    """For `state(..., holds=)`: rows of unit length, or of zeros."""
    check_lengths(name, rows, unit=True)


def short_rows(name: str, rows: Array) -> None:
    """For `state(..., holds=)`: rows no longer than 1, such as means of features."""
    check_lengths(name, rows)
