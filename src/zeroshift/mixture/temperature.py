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

__all__ = ["N_TEMPERATURES", "TEMPERATURES", "confidence_curve", "temperature_for"]

N_TEMPERATURES = 13

TEMPERATURES = 2.0 ** (-np.arange(N_TEMPERATURES) / 2.0)
"""1, 1/sqrt(2), 1/2, ... 1/64: exponents for a posterior. Between them the mean confidence is interpolated."""

SMALL_SIZE, SMALL_SIZE_ON_GPU = 2048, 262_144
"""Array sizes up to which all exponents are computed in one call: there the calls cost more than the exponentials."""

PRIOR = 1.0
"""Number of fictitious samples with calibrated answers. It decides the temperature if all answers are certain at every
temperature."""


def confidence_curve(log_posteriors: Array) -> Array:
    """(n, N_TEMPERATURES): the largest probability of each row of (n, K) raised to each exponent.

    >>> confidence_curve(np.log(np.array([[0.8, 0.2]])))[0, [0, 2]].round(6)
    array([0.8     , 0.666667])
    """
    backend = Backend.of(log_posteriors)
    xp = backend.xp
    shifted = log_posteriors - xp.max(log_posteriors, axis=1)[:, None]
    n, classes = shifted.shape
    if n * classes <= (SMALL_SIZE_ON_GPU if backend.on_gpu else SMALL_SIZE):
        exponents = 2.0 ** (xp.arange(N_TEMPERATURES, dtype=shifted.dtype, device=backend.device) * -0.5)
        return 1.0 / xp.sum(xp.exp(shifted[:, None, :] * exponents[:, None]), axis=2)
    curve = backend.zeros((n, N_TEMPERATURES), shifted.dtype)
    # From the smallest exponent, squaring doubles it: much faster than another exponential. The sum of squares needs no
    # squaring, so the last one is saved.
    powers = xp.empty_like(shifted)
    for index in (N_TEMPERATURES - 1, N_TEMPERATURES - 2):
        xp.multiply(shifted, float(TEMPERATURES[index]), out=powers)
        xp.exp(powers, out=powers)
        curve[:, index] = xp.sum(powers, axis=1)
        for doubled in range(index - 2, -1, -2):
            curve[:, doubled] = xp.linalg.vecdot(powers, powers)
            if doubled > 1:
                powers *= powers
    return 1.0 / curve


def temperature_for(confidences: np.ndarray) -> float:
    """The exponent at which the mean confidence of the answers equals the reference posterior's, from a row of sums.

    >>> sums = 1e6 * np.concatenate([[0.7], np.linspace(1.0, 0.4, N_TEMPERATURES)])
    >>> round(temperature_for(sums), 4)  # the seventh exponent, as 0.7 is the middle of the curve
    0.125
    """
    reference, curve = confidences[0] + PRIOR, confidences[1:] + PRIOR * np.linspace(1.0, 0.0, N_TEMPERATURES)
    return float(np.exp(np.interp(reference, curve[::-1], np.log(TEMPERATURES[::-1]))))
