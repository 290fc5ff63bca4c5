"""The ridge moves with every insertion; the inverse need not be made anew.

The precision is P = (d N / tr S) C(rho) with the contraction C(rho) = rho (S + rho I)^-1, whose eigenvalues lie in
(0, 1], and rho = tr S / (N - 1). Two ways to have C at a ridge where nothing was factorised, each with an error bound:

- a polynomial in C(rho0): with rho = (1 + e) rho0, C(rho) = (1 + e) C0 (I + e C0)^-1. `polynomial` interpolates that
  function of C0's eigenvalues at Chebyshev points of [0, 1]; the error falls like (e / 4)^degree;
- interpolation between ridges: `nodes` are Chebyshev points of an interval of ridges, `node_weights` interpolate
  C(rho) between them; the error falls like (h / 2 rho)^nodes for an interval of half-width h.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

__all__ = ["node_error", "node_weights", "nodes", "polynomial", "polynomial_error"]


@cache
def _chebyshev(count: int) -> np.ndarray:
    """The Chebyshev points of [0, 1]."""
    return 0.5 + 0.5 * np.cos(math.pi * (np.arange(count) + 0.5) / count)


@cache
def _to_coefficients(degree: int) -> np.ndarray:
    """Values at the Chebyshev points to coefficients of 1, t, ..., t^(degree - 1)."""
    return np.linalg.inv(np.vander(_chebyshev(degree), increasing=True))


def polynomial(e: float, degree: int) -> np.ndarray:
    """Coefficients of C0, C0^2, ..., C0^degree in C((1 + e) rho0).

    >>> polynomial(0.0, 3).round(12)
    array([1., 0., 0.])
    """
    if e == 0.0:
        return np.eye(1, degree)[0]
    coefficients: np.ndarray = _to_coefficients(degree) @ ((1 + e) / (1 + e * _chebyshev(degree)))
    return coefficients


def polynomial_error(e: float, degree: int) -> float:
    """|C(rho) - polynomial| <= this times C0, as quadratic forms: an error relative to C0 itself."""
    if e == 0.0:
        return 0.0
    if e <= -1.0:
        return math.inf
    # 1/(1 + e t) minus its interpolant is w(t) / (w(-1/e) (1 + e t)) with w the nodal polynomial, |w| <= 2 / 4^degree.
    far = math.prod(abs(e) / (1 + e * t) for t in _chebyshev(degree))
    return 2 * 4.0**-degree * far * (1 + e) / min(1.0, 1 + e)


def nodes(low: float, high: float, count: int) -> np.ndarray:
    """`count` ridges between low and high to factorise at."""
    return low + (high - low) * _chebyshev(count)


def node_weights(rho: np.ndarray, at: np.ndarray) -> np.ndarray:
    """(len(rho), nodes): Lagrange's weights. C(rho) is about the sum of these times C(node).

    >>> node_weights(np.array([1.0, 1.5]), np.array([1.0, 2.0]))
    array([[1. , 0. ],
           [0.5, 0.5]])
    """
    weights = np.ones((len(rho), len(at)))
    for j in range(len(at)):
        for i in range(len(at)):
            if i != j:
                weights[:, j] *= (rho - at[i]) / (at[j] - at[i])
    return weights


def node_error(low: float, high: float, count: int) -> float:
    """Bound on the error of C(rho) = sum of weights times C(node), as an operator, anywhere in the interval."""
    half = (high - low) / 2
    if half == 0.0:
        return 0.0
    # For an eigenvalue l of S, rho / (rho + l) minus its interpolant is at most l |w(rho)| / ((rho + l) prod(node + l))
    # with w the nodal polynomial, |w| <= 2 (half / 2)^count; over l > 0 the worst is l = rho / count.
    worst = (1 / count) / (1 + 1 / count) ** (count + 1)
    return worst * 2 * (half / 2 / low) ** count
