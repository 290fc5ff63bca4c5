"""How sure the answers may be, found without labels: one temperature, from what a calm look believes of them.

A mixture's posteriors rank its answers well and are far too sure of them: the likelihood counts hundreds of dependent
coordinates as if each were evidence of its own. A calm look weighs the likelihood many times less. It makes worse
labels, but its probability of the label given is about how often that label is right. All answers are tempered alike,
so that on average they are as confident as the calm look is of them; which class leads never changes.
"""

from __future__ import annotations

import numpy as np

from zeroshift.arrays import Array, Home

__all__ = ["N_TEMPERATURES", "TEMPERATURES", "confidence_curve", "temperature_for"]

N_TEMPERATURES = 13

TEMPERATURES = 2.0 ** (-np.arange(N_TEMPERATURES) / 2.0)
"""1, 1/sqrt(2), 1/2, ... 1/64: exponents a posterior is raised to. Between them the mean confidence is interpolated."""

FEW_NUMBERS, GPU_FEW_NUMBERS = 2048, 262_144
"""Numbers up to which all exponents are taken at once: calls then cost more than exponentials."""

PRIOR = 1.0
"""Samples for which the answers are taken to be as sure as they may be: where all are certain at every temperature,
nothing else says which it is."""


def confidence_curve(log_posteriors: Array) -> Array:
    """(n, N_TEMPERATURES): the largest probability of each row of (n, K) raised to each exponent.

    >>> confidence_curve(np.log(np.array([[0.8, 0.2]])))[0, [0, 2]].round(6)
    array([0.8     , 0.666667])
    """
    home = Home.of(log_posteriors)
    xp = home.xp
    shifted = log_posteriors - xp.max(log_posteriors, axis=1)[:, None]
    n, classes = shifted.shape
    if n * classes <= (GPU_FEW_NUMBERS if home.on_gpu else FEW_NUMBERS):
        exponents = 2.0 ** (xp.arange(N_TEMPERATURES, dtype=shifted.dtype, device=home.device) * -0.5)
        return 1.0 / xp.sum(xp.exp(shifted[:, None, :] * exponents[:, None]), axis=2)
    curve = home.zeros((log_posteriors.shape[0], N_TEMPERATURES))
    for start in (0, 1):
        powers = xp.exp(shifted * float(TEMPERATURES[start]))
        for place in range(start, N_TEMPERATURES, 2):
            if place > start:
                xp.sqrt(powers, out=powers)  # half the exponent, many times quicker than another exponential
            curve[:, place] = 1.0 / xp.sum(powers, axis=1)
    return curve


def temperature_for(confidences: np.ndarray) -> float:
    """The exponent at which the answers' mean confidence is the calm look's belief, from a row of sums.

    >>> sums = 1e6 * np.concatenate([[0.7], np.linspace(1.0, 0.4, N_TEMPERATURES)])
    >>> round(temperature_for(sums), 4)  # the seventh, as 0.7 is half way
    0.125
    """
    belief, curve = confidences[0] + PRIOR, confidences[1:] + PRIOR * np.linspace(1.0, 0.0, N_TEMPERATURES)
    return float(np.exp(np.interp(belief, curve[::-1], np.log(TEMPERATURES[::-1]))))
