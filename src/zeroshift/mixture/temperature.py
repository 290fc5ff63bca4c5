"""One temperature that calibrates the answers without labels.

A mixture's posteriors rank its answers well but are far too confident: the likelihood counts hundreds of dependent
coordinates as if they were independent. A reference posterior weights the likelihood many times less (`calm`). Its
labels are worse, but its probability of the mixture's label is close to how often that label is right. All answers are
raised to one exponent so that their mean confidence equals the reference posterior's. The predicted class never
changes.
"""

from __future__ import annotations

import numpy as np

from zeroshift.arrays import Array, Backend

__all__ = ["N_TEMPERATURES", "TEMPERATURES", "confidence_curve", "row_maxima", "row_sums", "temperature_for"]

N_TEMPERATURES = 13

TEMPERATURES = 2.0 ** (-np.arange(N_TEMPERATURES) / 2.0)
"""1, 1/sqrt(2), 1/2, ... 1/64: exponents for a posterior. Between them the mean confidence is interpolated."""

SMALL_SIZE, SMALL_SIZE_ON_GPU = 2048, 262_144
"""Array sizes up to which all exponents are computed in one call: there the calls cost more than the exponentials."""

PRIOR = 1.0
"""Number of fictitious samples with calibrated answers. It decides the temperature if all answers are certain at every
temperature."""


def row_sums(array: Array) -> Array:
    """(n,) sums of the rows, without the functions around it, which take longer than the sums of a single row."""
    return np.add.reduce(array, axis=1) if isinstance(array, np.ndarray) else array.sum(1)


def row_maxima(array: Array) -> Array:
    """(n,) the largest number of each row."""
    return np.maximum.reduce(array, axis=1) if isinstance(array, np.ndarray) else array.amax(1)


def confidence_curve(log_posteriors: Array) -> Array:
    """(n, N_TEMPERATURES): the largest probability of each row of (n, K) raised to each exponent.

    >>> confidence_curve(np.log(np.array([[0.8, 0.2]])))[0, [0, 2]].round(6)
    array([0.8     , 0.666667])
    """
    backend = Backend.of(log_posteriors)
    xp = backend.xp
    shifted = log_posteriors - row_maxima(log_posteriors)[:, None]
    n, classes = shifted.shape
    if n * classes <= (SMALL_SIZE_ON_GPU if backend.on_gpu else SMALL_SIZE):
        exponents = backend.asarray(TEMPERATURES, shifted.dtype)
        powers = shifted[:, None, :] * exponents[:, None]
        return 1.0 / xp.exp(powers, out=powers).sum(-1)
    curve: list[Array] = [None] * N_TEMPERATURES
    if backend.on_gpu:
        # A sum of m-th powers is a norm of order m, to the power m: one operation for each exponent.
        powers = xp.empty_like(shifted)
        orders = 2.0 ** ((N_TEMPERATURES - 1 - np.arange(N_TEMPERATURES)) // 2)
        for last in (N_TEMPERATURES - 1, N_TEMPERATURES - 2):
            powers = xp.multiply(shifted, float(TEMPERATURES[last]), out=powers)
            xp.exp(powers, out=powers)
            for index in range(last, -1, -2):
                curve[index] = xp.linalg.vector_norm(powers, ord=float(orders[index]), axis=1)
        return 1.0 / xp.stack(curve, axis=1) ** backend.asarray(orders, shifted.dtype)
    # From the smallest exponent, squaring doubles it: much faster than another exponential. The sum of squares needs no
    # squaring, so the last one is saved.
    powers = xp.empty_like(shifted)
    for index in (N_TEMPERATURES - 1, N_TEMPERATURES - 2):
        xp.multiply(shifted, float(TEMPERATURES[index]), out=powers)
        xp.exp(powers, out=powers)
        curve[index] = row_sums(powers)
        for doubled in range(index - 2, -1, -2):
            curve[doubled] = xp.linalg.vecdot(powers, powers)
            if doubled > 1:
                powers *= powers
    return 1.0 / xp.stack(curve, axis=1)


def temperature_for(confidences: np.ndarray) -> float:
    """The exponent at which the mean confidence of the answers equals the reference posterior's, from a row of sums.

    >>> sums = 1e6 * np.concatenate([[0.7], np.linspace(1.0, 0.4, N_TEMPERATURES)])
    >>> round(temperature_for(sums), 4)  # the seventh exponent, as 0.7 is the middle of the curve
    0.125
    """
    reference, curve = confidences[0] + PRIOR, confidences[1:] + PRIOR * np.linspace(1.0, 0.0, N_TEMPERATURES)
    return float(np.exp(np.interp(reference, curve[::-1], np.log(TEMPERATURES[::-1]))))
