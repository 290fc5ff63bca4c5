"""The precision once the bank is too large for the dual form: one inverse, maintained by low-rank updates.

The precision is P = (d N / tr S) C(rho) with the contraction C(rho) = rho (S + rho I)^-1, whose eigenvalues lie in
(0, 1], and the ridge rho = tr S / (N - 1). Every insertion changes S by a few squares, and with it the ridge.

`PrimalPrecision` holds C0 = rho0 (S + rho0 I)^-1 at a ridge rho0, and for every class the moments mu^T C0^t mu,
t = 1, 2, ... Woodbury's formula on power series in the ridge (see `woodbury`) updates C0 and all moments from the
products of powers of C0 with the vectors of the squares. At the present ridge, C is a polynomial in C0, so the
quadratic terms are combinations of the moments. When the bound on the error of the polynomial exceeds the tolerance, C0
is recomputed.

There are two ways to evaluate C at a ridge without a factorisation, each with an error bound:

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
from zeroshift.adapt.engines.class_statistics import BankInsertion, ClassSums, check_shapes, scatter_rows
from zeroshift.adapt.engines.woodbury import PrecisionUpdate, compute_update, moment_decrease, rows_and_sample
from zeroshift.arrays import Array, Backend, to_numpy
from zeroshift.linalg import SMALLEST_TRACE, ZERO_TRACE, positive_inverse, subtract_product, thin_product

__all__ = [
    "MAX_LENGTHS",
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
    """`count` ridges between low and high at which to factorise."""
    return low + (high - low) * _chebyshev(count)


def node_weights(rho: np.ndarray, at: np.ndarray) -> np.ndarray:
    """(len(rho), nodes): Lagrange weights. C(rho) is approximately the sum of the weights times C(node).

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
    """Bound on the error of interpolating C(rho) from the nodes, as an operator, anywhere in the interval."""
    half = (high - low) / 2
    if half == 0.0:
        return 0.0
    # For an eigenvalue l of S, rho / (rho + l) minus its interpolant is at most l |w(rho)| / ((rho + l) prod(node + l))
    # with w the nodal polynomial, |w| <= 2 (half / 2)^count; over l > 0 the worst is l = rho / count.
    worst = (1 / count) / (1 + 1 / count) ** (count + 1)
    return worst * 2 * (half / 2 / low) ** count


EARLY_DEGREE, DEGREE, SETTLED = 5, 4, 2048
"""Number of moments, and degree of the polynomial in the ridge: one more while the bank holds fewer than SETTLED
entries and every insertion changes the ridge considerably."""

SCORE_TOLERANCE = 5e-7
"""Bound on the error of a score caused by the polynomial in the ridge."""

MAX_NORM = 1.01
"""Largest length accepted for a unit vector."""

MAX_LENGTHS = 1.6
"""|mu| |x| + |mu|^2 / 2 is at most this for unit vectors, which may be 1% longer."""

CHECK_EVERY = 64
"""Insertions between two checks of the inverse. Between checks, changes of the scatter are collected."""

MAX_UPDATES = 1024
"""Insertions after which the inverse is always recomputed."""

EPSILON = float(np.finfo(np.float64).eps)

SCATTER_ROUNDING = 1e-10
"""Rounding error of the scatter matrix, relative to the ridge, above which it is recomputed from the bank."""

SMALLEST_SPREAD = 1e-3
"""Mean squared distance of the entries from their means (a distance of 0.03) below which nothing is maintained: the
precision is so large that rounding errors of the updates would matter, and every insertion is computed directly."""

SCALARS = ("rho0", "trace", "accumulated", "updates", "degree")


def scatter_is_sound(accumulated: float, ridge: float) -> bool:
    """Whether the rounding error after changes of this accumulated size is far below the ridge."""
    return ridge >= SMALLEST_SPREAD and EPSILON * accumulated <= SCATTER_ROUNDING * ridge


class PrimalPrecision:
    """C0, the moments of all classes, and the scatter matrix with the changes not yet added to it."""

    form = "primal"

    def __init__(self, backend: Backend, bank: KnowledgeBank, sums: ClassSums, diagnostics: EngineDiagnostics) -> None:
        self._backend = backend
        self._bank = bank
        self._sums = sums
        self._diagnostics = diagnostics
        self.refresh()

    def refresh(self) -> None:
        """Recompute everything from the bank."""
        self.restart(self._bank.scatter(self._sums.means))

    def restart(self, scatter: Array, accumulated: float = 0.0) -> None:
        """Start from a scatter matrix; `accumulated` is the size of its changes since it was summed from the bank."""
        self.scatter = scatter
        self.trace = float(self._backend.xp.linalg.trace(scatter))
        self._waiting: list[tuple[Array, np.ndarray]] = []
        self.accumulated = accumulated or self.trace
        self._is_factorised = False

    def finish(self) -> None:
        """Factorise if that was deferred: between two replayed blocks the inverse is not needed."""
        if not self._is_factorised:
            self._factorise()

    def current_scatter(self) -> Array:
        """The scatter matrix with all changes so far."""
        self._apply_waiting()
        return self.scatter

    @property
    def quadratic(self) -> Array:
        self.finish()
        return self._quadratic

    @property
    def size(self) -> int:
        return self._sums.size

    @property
    def _has_no_spread(self) -> bool:
        """Whether all entries equal their means; the precision is then the identity by definition."""
        return self.trace <= ZERO_TRACE * self.size

    @property
    def _bounded_trace(self) -> float:
        return max(self.trace, SMALLEST_TRACE * self.size)

    @property
    def _scale(self) -> float:
        return 1.0 if self._has_no_spread else self.scatter.shape[0] * self.size / self._bounded_trace

    @property
    def _ridge(self) -> float:
        return self._bounded_trace / (self.size - 1)

    def _factorise(self) -> None:
        self._apply_waiting()
        self._diagnostics.factorisations += 1
        xp, means = self._backend.xp, self._sums.means
        d = self.scatter.shape[0]
        identity = xp.eye(d, dtype=xp.float64, device=self._backend.device)
        self.rho0 = self._ridge
        self._had_no_spread = self._has_no_spread
        if self._has_no_spread:
            self.contraction = identity
        else:
            self.contraction = self.rho0 * positive_inverse(self.scatter + self.rho0 * identity)
            self._diagnostics.bounded_precisions += self.trace < SMALLEST_TRACE * self.size
        self.degree = DEGREE if self.size >= SETTLED else EARLY_DEGREE
        # mu C^(s+t) mu = (C^s mu).(C^t mu): needs half as many products as moments.
        powers = [means]
        for _ in range((self.degree + 1) // 2):
            powers.append(powers[-1] @ self.contraction)
        pairs = ((powers[t // 2], powers[t - t // 2]) for t in range(1, self.degree + 1))
        self.moments = xp.stack([xp.sum(a * b, axis=1) for a, b in pairs])
        self.updates = 0
        self._move_to_ridge()
        self._is_factorised = True

    def _move_to_ridge(self) -> None:
        """Compute the polynomial for the present ridge and the quadratic terms."""
        self._e = 0.0 if self._has_no_spread else self._ridge / self.rho0 - 1.0
        self._coefficients = polynomial(self._e, self.degree)
        coefficients = self._backend.asarray(self._coefficients)
        self._quadratic = self._scale * (coefficients @ self.moments)

    def _apply_waiting(self) -> None:
        """Add the collected changes to the scatter matrix in one product."""
        if not self._waiting:
            return
        rows = self._backend.xp.concat([rows for rows, _ in self._waiting])
        signs = self._backend.asarray(np.concatenate([signs for _, signs in self._waiting]))
        self.scatter = self.scatter + (rows * signs[:, None]).T @ rows
        self._waiting = []

    def insert(self, change: BankInsertion, slot: int) -> Array | None:
        """Update after one insertion. Returns mu_k^T P x (K,) of its sample if the update computed it."""
        self.finish()
        if self._had_no_spread:
            self.refresh()
            return None
        xp = self._backend.xp
        rows, signs, new_row = scatter_rows(change)
        self._waiting.append((rows, signs))
        # Powers of C0 times the vectors of the update and the sample: the only products with C0 that are needed.
        width, d = len(signs) + 1, rows.shape[1]
        chain = xp.empty(((self.degree + 1) * width, d), dtype=rows.dtype, device=self._backend.device)
        chain[: width - 1], chain[width - 1] = rows, change.x
        for start in range(width, chain.shape[0], width):
            chain[start : start + width] = thin_product(chain[start - width : start], self.contraction)
        inner = thin_product(chain[:width], chain)
        host = to_numpy(xp.concat([xp.reshape(inner, (-1,)), xp.max(self.moments[0])[None]]))
        inner, largest = host[:-1].reshape(width, -1), float(host[-1])
        update = self.prepare_update(inner, signs, new_row, largest)
        if update is None:
            return None
        cross = self._apply(change.k, update, chain[width:], len(signs))
        self.count_update(change.x)
        return cross

    def prepare_update(
        self, inner: np.ndarray, signs: np.ndarray, new_row: int, largest: float
    ) -> PrecisionUpdate | None:
        """Move to the ridge after an insertion. Returns the update to apply, or None if everything was recomputed.

        `inner`: products of the update's rows and the sample (see `woodbury`); `largest`: the largest first moment.
        """
        lengths = np.diagonal(inner)[:-1]
        self.trace += float(signs @ lengths)
        self.accumulated += float(lengths.sum())
        if self._recompute_if_unsound():
            return None
        self._e = self._ridge / self.rho0 - 1.0
        self._coefficients = polynomial(self._e, self.degree)
        update = compute_update(inner, signs, new_row, self.rho0, self._coefficients)
        own = max(largest, float(update.own_moments[0]))
        # For any sample x, mu^T C0 x is at most the square root of mu^T C0 mu times |x|.
        error = polynomial_error(self._e, self.degree) * (0.5 * own + np.sqrt(own) * MAX_NORM)
        if self._scale * error <= SCORE_TOLERANCE:
            return update
        self._diagnostics.ridge_factorisations += 1
        self._factorise()
        return None

    def count_update(self, probe: Array) -> None:
        """Count an update; check the inverse after every CHECK_EVERY updates."""
        self._diagnostics.updates += 1
        self.updates += 1
        if self.updates % CHECK_EVERY == 0:
            self._check(probe)

    def _recompute_if_unsound(self) -> bool:
        """Recompute everything if the changes of the scatter are so large that its rounding errors could matter."""
        if scatter_is_sound(self.accumulated, self.trace / (self.size - 1)):
            return False
        self._diagnostics.scatter_rebuilds += 1
        self.refresh()
        return True

    def _apply(self, k: int, update: PrecisionUpdate, powers: Array, rank: int) -> Array:
        backend = self._backend
        # Only the mean of class k has changed; its moments are part of the update.
        vectors = rows_and_sample(powers, backend.asarray(update.sample_coefficients), rank)
        onto = thin_product(vectors, self._sums.means)
        cross = onto[-1]
        self.moments -= moment_decrease(onto[:-1], backend.asarray(update.spread), self.degree)
        self.moments[:, k] = backend.asarray(update.own_moments)
        first = powers[:rank]
        subtract_product(self.contraction, first.T @ backend.asarray(update.inverse), first)
        self._move_to_ridge()
        cross[k] = update.own_cross
        return self._scale * cross

    def _check(self, probe: Array) -> None:
        """Compare C0 with rho0 (S + rho0 I)^-1 on a probe vector; recompute it if it drifted or after MAX_UPDATES."""
        self._apply_waiting()
        self._diagnostics.checks += 1
        answer = self.contraction @ probe
        residual = (self.scatter @ answer) / self.rho0 + answer - probe
        drift = float(self._backend.xp.linalg.vector_norm(residual) / self._backend.xp.linalg.vector_norm(probe))
        self._diagnostics.largest_drift = max(self._diagnostics.largest_drift, drift if drift >= 0 else np.inf)
        # A relative error of the inverse becomes an error of the scores, which are as large as the precision.
        if not drift <= min(DRIFT_TOLERANCE, SCORE_TOLERANCE / (MAX_LENGTHS * self._scale)):
            self._diagnostics.drift_factorisations += 1
            self._factorise()
        elif self.updates >= MAX_UPDATES:
            self._diagnostics.scheduled_factorisations += 1
            self._factorise()

    def _contract(self, rows: Array) -> Array:
        """C(rho) applied to rows (n, d), by the polynomial in C0."""
        power = thin_product(rows, self.contraction)
        result = float(self._coefficients[0]) * power
        if self._e == 0.0:
            return result
        for coefficient in self._coefficients[1:]:
            power = thin_product(power, self.contraction)
            result += float(coefficient) * power
        return result

    def cross(self, x: Array) -> Array:
        """mu_k^T P x, (n, K)."""
        self.finish()
        return self._scale * (self._contract(x) @ self._sums.means.T)

    def directions(self) -> Array:
        """P mu_k, (K, d)."""
        self.finish()
        return self._scale * self._contract(self._sums.means)

    def matrix(self) -> Array:
        """P (d, d)."""
        self.finish()
        xp = self._backend.xp
        return self._scale * self._contract(
            xp.eye(self.scatter.shape[0], dtype=xp.float64, device=self._backend.device)
        )

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        self.finish()
        arrays = {"scatter": self.scatter, "contraction": self.contraction, "moments": self.moments}
        if self._waiting:
            arrays["waiting"] = self._backend.xp.concat([rows for rows, _ in self._waiting])
            signs = np.concatenate([signs for _, signs in self._waiting])
            arrays["waiting_signs"] = self._backend.asarray(signs)
        waiting = sum(len(signs) for _, signs in self._waiting)
        return arrays, {"waiting": waiting, **{name: getattr(self, name) for name in SCALARS}}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        own = {"scatter": self.scatter, "contraction": self.contraction}
        check_shapes(arrays, own)
        self.degree, waiting = int(values["degree"]), int(values["waiting"])
        shapes: dict[str, tuple[int, ...]] = {"moments": (self.degree, self.moments.shape[1])}
        if waiting:
            shapes |= {"waiting": (waiting, len(self.scatter)), "waiting_signs": (waiting,)}
        for name, shape in shapes.items():  # compared without making arrays of these shapes, which may be huge
            if tuple(arrays[name].shape) != shape or arrays[name].dtype != self.scatter.dtype:
                raise ValueError(f"the engine's {name} must be {self.scatter.dtype} of shape {shape}")
        for name in SCALARS:
            setattr(self, name, type(getattr(self, name))(values[name]))
        self.scatter, self.contraction, self.moments = arrays["scatter"], arrays["contraction"], arrays["moments"]
        self._waiting = []
        if waiting:
            self._waiting.append((arrays["waiting"], to_numpy(arrays["waiting_signs"])))
        self._move_to_ridge()
