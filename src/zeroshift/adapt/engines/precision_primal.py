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
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from zeroshift.adapt.bank import KnowledgeBank
from zeroshift.adapt.engines.base import DRIFT_TOLERANCE, EngineDiagnostics
from zeroshift.adapt.engines.class_statistics import ClassSums, Insertion, check_shapes, scatter_rows
from zeroshift.adapt.engines.woodbury import Update, moments_lost, rows_and_sample, update_series
from zeroshift.arrays import Array, Home, to_numpy
from zeroshift.linalg import ZERO_TRACE, positive_inverse, subtract_product

__all__ = [
    "SCORE_TOLERANCE",
    "PrimalPrecision",
    "node_error",
    "node_weights",
    "nodes",
    "polynomial",
    "polynomial_error",
    "scatter_is_sound",
]


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


# The precision once the bank has outgrown the dual form: one maintained inverse, moved by low-rank updates.
#
# Kept: C0 = rho0 (S + rho0 I)^-1 at a ridge rho0, and for every class the moments mu^T C0^t mu, t = 1, 2, ... An
# insertion changes S by a few squares; by Woodbury's formula on power series in the ridge (see `series`), C0 and all
# moments follow from the products of C0's powers with those few vectors. The ridge itself has moved too: what is
# needed
# at the present ridge is a polynomial in C0 (see `ridge`), so quadratic terms are a combination of the moments. Where
# the
# bound on the polynomial's error passes the tolerance, C0 is made anew.


EARLY_DEGREE, DEGREE, SETTLED = 5, 4, 2048
"""Moments kept, and the degree of the polynomial that follows the ridge: one more while the bank holds fewer than
SETTLED entries and every insertion moves the ridge a good deal."""

SCORE_TOLERANCE = 5e-7
"""Bound on the error of a score by following the ridge with a polynomial instead of a new inverse."""

LONGEST = 1.01
"""Unit vectors may be this long."""

CHECK_EVERY = 64
"""Insertions between two checks of the maintained inverse; also how many wait before they enter the scatter matrix."""

UPDATES = 1024
"""Insertions after which the inverse is made anew in any case."""

EPSILON = float(np.finfo(np.float64).eps)

SCATTER_ROUNDING = 1e-10
"""Rounding that may gather in the scatter matrix, relative to the ridge, before it is summed anew from the bank."""

SMALLEST_RIDGE = 1e-16
"""A mean squared distance this small is of differences of unit vectors that have lost half their digits."""

SCALARS = ("rho0", "trace", "accumulated", "updates", "degree")


def scatter_is_sound(accumulated: float, ridge: float) -> bool:
    """Whether rounding in a scatter matrix, through which squares of that sum came and went, is far below the ridge."""
    return ridge >= SMALLEST_RIDGE and EPSILON * accumulated <= SCATTER_ROUNDING * ridge


class PrimalPrecision:
    form = "primal"

    def __init__(self, home: Home, bank: KnowledgeBank, sums: ClassSums, diagnostics: EngineDiagnostics) -> None:
        self._home = home
        self._bank = bank
        self._sums = sums
        self._health = diagnostics
        self.refresh()

    def refresh(self) -> None:
        """Everything anew from the bank."""
        self.begin(self._bank.scatter(self._sums.means))

    def begin(self, scatter: Array, accumulated: float = 0.0) -> None:
        """Start from a scatter matrix; `accumulated` squares came and went since it was summed from the bank."""
        self.scatter = scatter
        self.trace = float(self._home.xp.linalg.trace(scatter))
        self._waiting: list[tuple[Array, np.ndarray]] = []
        self.accumulated = accumulated or self.trace
        self._made = False

    def finish(self) -> None:
        """Factorise, where that was left for later: between two replayed blocks nobody needs it."""
        if not self._made:
            self._factorise()

    def current_scatter(self) -> Array:
        """The scatter matrix, with every change so far."""
        self._settle()
        return self.scatter

    @property
    def quadratic(self) -> Array:
        self.finish()
        return self._quadratic

    @property
    def size(self) -> int:
        return self._sums.size

    @property
    def _flat(self) -> bool:
        """No spread at all: the precision is the identity, by definition."""
        return self.trace <= ZERO_TRACE * self.size

    @property
    def _scale(self) -> float:
        return 1.0 if self._flat else self.scatter.shape[0] * self.size / self.trace

    @property
    def _ridge(self) -> float:
        return self.trace / (self.size - 1)

    def _factorise(self) -> None:
        self._settle()
        self._health.factorisations += 1
        xp, means = self._home.xp, self._sums.means
        d = self.scatter.shape[0]
        identity = xp.eye(d, dtype=xp.float64, device=self._home.device)
        self.rho0 = self._ridge
        self._flat_at_start = self._flat
        if self._flat:
            self.contraction = identity
        else:
            self.contraction = self.rho0 * positive_inverse(self.scatter + self.rho0 * identity)
        self.degree = DEGREE if self.size >= SETTLED else EARLY_DEGREE
        # mu C^(s+t) mu = (C^s mu).(C^t mu): half as many products as moments.
        powers = [means]
        for _ in range((self.degree + 1) // 2):
            powers.append(powers[-1] @ self.contraction)
        pairs = ((powers[t // 2], powers[t - t // 2]) for t in range(1, self.degree + 1))
        self.moments = xp.stack([xp.sum(a * b, axis=1) for a, b in pairs])
        self.updates = 0
        self._at_ridge()
        self._made = True

    def _at_ridge(self) -> None:
        """The polynomial of the present ridge, and the quadratic terms it gives."""
        self._e = 0.0 if self._flat else self._ridge / self.rho0 - 1.0
        self._coefficients = polynomial(self._e, self.degree)
        coefficients = self._home.bring(self._coefficients)
        self._quadratic = self._scale * (coefficients @ self.moments)

    def _settle(self) -> None:
        """Carry the waiting squares into the scatter matrix, in one product."""
        if not self._waiting:
            return
        rows = self._home.xp.concat([rows for rows, _ in self._waiting])
        signs = self._home.bring(np.concatenate([signs for _, signs in self._waiting]))
        self.scatter = self.scatter + (rows * signs[:, None]).T @ rows
        self._waiting = []

    def insert(self, change: Insertion, slot: int) -> Array | None:
        """Follow one insertion; mu_k^T P x (K,) of its sample for all classes where that fell out on the way."""
        self.finish()
        if self._flat_at_start:
            self.refresh()
            return None
        xp = self._home.xp
        rows, signs, newcomer = scatter_rows(change)
        self._waiting.append((rows, signs))
        # One chain of products serves everything: powers of C0 times the update's vectors, and times the sample.
        chain = [xp.concat([rows, change.x[None, :]])]
        for _ in range(self.degree):
            chain.append(chain[-1] @ self.contraction)
        powers = xp.concat(chain[1:])
        largest = xp.max(self.moments[0])
        inner = chain[0] @ xp.concat([chain[0], powers]).T
        host = to_numpy(xp.concat([xp.reshape(inner, (-1,)), xp.reshape(largest, (1,))]))
        inner, largest = host[:-1].reshape(len(signs) + 1, -1), float(host[-1])
        update = self.prepare(inner, signs, newcomer, largest)
        if update is None:
            return None
        cross = self._apply(change.k, update, powers, len(signs))
        self.applied(change.x)
        return cross

    def prepare(self, inner: np.ndarray, signs: np.ndarray, newcomer: int, largest: float) -> Update | None:
        """Move to the ridge after an insertion: what has to be applied, or None where everything was made anew instead.

        `inner` are the products of the update's rows and the sample (see `series`), `largest` the largest first moment.
        """
        lengths = np.diagonal(inner)[:-1]
        self.trace += float(signs @ lengths)
        self.accumulated += float(lengths.sum())
        if self._needs_refactorisation():
            return None
        self._e = self._ridge / self.rho0 - 1.0
        self._coefficients = polynomial(self._e, self.degree)
        update = update_series(inner, signs, newcomer, self.rho0, self._coefficients)
        own = max(largest, float(update.own_moments[0]))
        # mu^T C0 x is at most the root of mu^T C0 mu and |x|^2, whichever sample will be scored.
        error = polynomial_error(self._e, self.degree) * (0.5 * own + np.sqrt(own) * LONGEST)
        if self._scale * error <= SCORE_TOLERANCE:
            return update
        self._health.ridge_factorisations += 1
        self._factorise()
        return None

    def applied(self, probe: Array) -> None:
        """Count an update, and look at the maintained inverse now and then."""
        self._health.updates += 1
        self.updates += 1
        if self.updates % CHECK_EVERY == 0:
            self._check(probe)

    def _needs_refactorisation(self) -> bool:
        """Sum the scatter anew where rounding could show: the squares that came and went dwarf what is left."""
        if scatter_is_sound(self.accumulated, self._ridge):
            return False
        self._health.scatter_rebuilds += 1
        self.refresh()
        return True

    def _apply(self, k: int, update: Update, powers: Array, rank: int) -> Array:
        home = self._home
        # No mean has moved but the class's own, whose numbers came with the series.
        onto = rows_and_sample(powers, home.bring(update.sample_coefficients), rank) @ self._sums.means.T
        cross = onto[-1]
        self.moments -= moments_lost(onto[:-1], home.bring(update.spread), self.degree)
        self.moments[:, k] = home.bring(update.own_moments)
        first = powers[:rank]
        subtract_product(self.contraction, first.T @ home.bring(update.inverse), first)
        self._at_ridge()
        cross[k] = update.own_cross
        return self._scale * cross

    def _check(self, probe: Array) -> None:
        """Is C0 still rho0 (S + rho0 I)^-1? And is it time for a new one?"""
        self._settle()
        self._health.checks += 1
        answer = self.contraction @ probe
        residual = (self.scatter @ answer) / self.rho0 + answer - probe
        drift = float(self._home.xp.linalg.vector_norm(residual) / self._home.xp.linalg.vector_norm(probe))
        self._health.largest_drift = max(self._health.largest_drift, drift if drift >= 0 else np.inf)
        if not drift <= DRIFT_TOLERANCE:
            self._health.drift_factorisations += 1
            self._factorise()
        elif self.updates >= UPDATES:
            self._health.scheduled_factorisations += 1
            self._factorise()

    def _contracted(self, rows: Array) -> Array:
        """C(rho) applied to rows (n, d), by as many terms as the polynomial has."""
        result = self._coefficients[0] * (rows @ self.contraction)
        if self._e == 0.0:
            return result
        power = rows @ self.contraction
        for coefficient in self._coefficients[1:]:
            power = power @ self.contraction
            result = result + float(coefficient) * power
        return result

    def cross(self, x: Array) -> Array:
        """mu_k^T P x, (n, K)."""
        self.finish()
        return self._scale * (self._contracted(x) @ self._sums.means.T)

    def directions(self) -> Array:
        """P mu_k, (K, d)."""
        self.finish()
        return self._scale * self._contracted(self._sums.means)

    def matrix(self) -> Array:
        """P (d, d)."""
        self.finish()
        xp = self._home.xp
        return self._scale * self._contracted(xp.eye(self.scatter.shape[0], dtype=xp.float64, device=self._home.device))

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        self.finish()
        arrays = {"scatter": self.scatter, "contraction": self.contraction, "moments": self.moments}
        if self._waiting:
            arrays["waiting"] = self._home.xp.concat([rows for rows, _ in self._waiting])
            signs = np.concatenate([signs for _, signs in self._waiting])
            arrays["waiting_signs"] = self._home.bring(signs)
        waiting = sum(len(signs) for _, signs in self._waiting)
        return arrays, {"waiting": waiting, **{name: getattr(self, name) for name in SCALARS}}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        own = {"scatter": self.scatter, "contraction": self.contraction}
        self.degree = int(values["degree"])
        check_shapes(arrays, {**own, "moments": self._home.zeros((self.degree, self.moments.shape[1]))})
        waiting = int(values["waiting"])
        if waiting:
            zeros = self._home.zeros
            check_shapes(arrays, {"waiting": zeros((waiting, len(self.scatter))), "waiting_signs": zeros((waiting,))})
        for name in SCALARS:
            setattr(self, name, type(getattr(self, name))(values[name]))
        self.scatter, self.contraction, self.moments = arrays["scatter"], arrays["contraction"], arrays["moments"]
        self._waiting = []
        if waiting:
            self._waiting.append((arrays["waiting"], to_numpy(arrays["waiting_signs"])))
        self._at_ridge()
