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

FLOAT32_DEGREES, FLOAT32_INSERTIONS = (3, 6), 150.0
"""Number of moments with float32 products: the smallest for which the ridge may change by FLOAT32_INSERTIONS / N, which
takes about as many insertions."""

FLOAT32_RIDGE = 3e-5
"""Bound on the error of a score caused by the polynomial, with float32 products."""

FLOAT32_ROUNDING = 1.2e-4
"""Bound on the error of a score caused by the rounding of float32 products. Together with FLOAT32_RIDGE it changes no
probability by more than half of both: less than `precision.FLOAT32_TOLERANCE`."""

ROUNDINGS = 2 * 2.0**-24
"""Error of a float32 product with a unit vector, relative to the length of the other vector: twice the largest error we
have seen. (The bound for the worst case grows with d and is never reached: BLAS adds many partial sums, whose errors
cancel.)"""

LONGER_SAMPLES = 1.25
"""|C x| of a sample, relative to the largest |C mu|. (If it is more, the sample is not computed in float32.)"""

FLOAT32_DRIFT = 1e-5
"""Largest relative error of an inverse in float32, measured on a probe vector, before it is recomputed."""

MAX_NORM = 1.01
"""Largest length accepted for a unit vector."""

MAX_LENGTHS = 1.6
"""|mu| |x| + |mu|^2 / 2 is at most this for unit vectors, which may be 1% longer."""

CHECK_EVERY = 64
"""Insertions between two checks of the inverse. Between checks, changes of the scatter are collected."""

MAX_UPDATES = 1024
"""Insertions after which the inverse is always recomputed."""

REFINEMENTS, REFINED = 20, 1e-11
"""Largest number of corrections of a float32 solution in float64, and the residual at which they end."""

EPSILON = float(np.finfo(np.float64).eps)

SCATTER_ROUNDING = 1e-10
"""Rounding error of the scatter matrix, relative to the ridge, above which it is recomputed from the bank."""

SMALLEST_SPREAD = 1e-3
"""Mean squared distance of the entries from their means (a distance of 0.03) below which nothing is maintained: the
precision is so large that rounding errors of the updates would matter, and every insertion is computed directly."""

SCALARS = ("rho0", "trace", "accumulated", "updates", "degree", "rounding", "longest")


def scatter_is_sound(accumulated: float, ridge: float) -> bool:
    """Whether the rounding error after changes of this accumulated size is far below the ridge."""
    return ridge >= SMALLEST_SPREAD and EPSILON * accumulated <= SCATTER_ROUNDING * ridge


class PrimalPrecision:
    """C0, the moments of all classes, and the scatter matrix with the changes not yet added to it.

    With float32 products, C0 is a float32 matrix, and the class means are multiplied as float32 differences from a
    reference point, which makes the rounding errors several times smaller. Scatter and moments stay float64.
    """

    form = "primal"

    def __init__(self, backend: Backend, bank: KnowledgeBank, sums: ClassSums, diagnostics: EngineDiagnostics) -> None:
        self._backend = backend
        self._bank = bank
        self._sums = sums
        self._diagnostics = diagnostics
        self.wants_float32 = False
        self._is_factorised = False
        self.rounding = 0.0
        """Bound on the error of a score by rounding of the moments since they were computed, with float32 products."""
        self.longest = 0.0
        """The largest distance of a class mean from the reference point, with float32 products."""
        self._differences: Array | None = None
        self.refresh()

    def select(self, float32: bool) -> None:
        """Use float32 products from the next factorisation on if the error allows it, or float64 products from now."""
        self.wants_float32 = float32
        if self._is_factorised and self.uses_float32 and not float32:
            self._is_factorised = False

    @property
    def uses_float32(self) -> bool:
        """Whether the present inverse, and so the products, are float32."""
        return bool(self.contraction.dtype == self._backend.xp.float32)

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
    def scale(self) -> float:
        """The factor between P and the contraction."""
        return 1.0 if self._has_no_spread else self.scatter.shape[0] * self.size / self._bounded_trace

    @property
    def _ridge(self) -> float:
        return self._bounded_trace / (self.size - 1)

    def _factorise(self) -> None:
        self._apply_waiting()
        self._diagnostics.factorisations += 1
        self.rounding = self.longest = 0.0
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
        first = means @ self.contraction
        moments = [xp.sum(first * means, axis=1), xp.sum(first * first, axis=1)]
        largest = float(xp.max(moments[0]))
        self.degree = DEGREE if self.size >= SETTLED else EARLY_DEGREE
        if self.wants_float32 and self._convert(largest, float(xp.max(moments[1]))):
            self.degree = self._float32_degree(largest)
            first = xp.astype(first, xp.float32)
        # mu C^(s+t) mu = (C^s mu).(C^t mu): needs half as many products as moments.
        powers = [means, first]
        for t in range(3, self.degree + 1):
            if t - t // 2 == len(powers):
                powers.append(powers[-1] @ self.contraction)
            moments.append(xp.sum(powers[t // 2] * powers[t - t // 2], axis=1, dtype=xp.float64))
        self.moments = xp.stack(moments)
        self.updates = 0
        self._move_to_ridge()
        self._is_factorised = True

    def _convert(self, largest: float, second: float) -> bool:
        """Go on with float32 products if their error is small enough; returns whether it is.

        `largest`, `second`: the largest first and second moment, mu^T C mu and |C mu|^2.
        """
        if self._had_no_spread or self._float32_error(largest, LONGER_SAMPLES * second**0.5) > FLOAT32_ROUNDING:
            return False
        xp = self._backend.xp
        self.reference = xp.mean(self._sums.means, axis=0)
        self._set_differences()
        self.longest = float(xp.max(xp.vecdot(self._differences, self._differences))) ** 0.5
        self.contraction = xp.astype(self.contraction, xp.float32)
        return True

    def _set_differences(self) -> None:
        xp = self._backend.xp
        self._differences = xp.astype(self._sums.means - self.reference, xp.float32)

    def _float32_error(self, largest: float, length: float) -> float:
        """Bound on the rounding error of the score of a sample x with |C x| = `length`."""
        return self.scale * ROUNDINGS * (length + 0.25 * largest) + self.rounding

    def _float32_degree(self, largest: float) -> int:
        """The smallest degree for which the ridge may change by FLOAT32_INSERTIONS / N (see `polynomial_error`)."""
        low, high = FLOAT32_DEGREES
        error = FLOAT32_RIDGE / (2.0 * self.scale * (0.5 * largest + largest**0.5))
        wide_enough = (q for q in range(low, high) if 4.0 * error ** (1 / q) * self.size >= FLOAT32_INSERTIONS)
        return next(wide_enough, high)

    def _move_to_ridge(self) -> None:
        """Compute the polynomial for the present ridge and the quadratic terms."""
        self._e = 0.0 if self._has_no_spread else self._ridge / self.rho0 - 1.0
        self._coefficients = polynomial(self._e, self.degree)
        coefficients = self._backend.asarray(self._coefficients)
        self._quadratic = self.scale * (coefficients @ self.moments)

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
        if self.wants_float32 and not self.uses_float32:
            self._convert(*(float(xp.max(moment)) for moment in self.moments[:2]))
        # Powers of C0 times the vectors of the update and the sample: the only products with C0 that are needed.
        width, d = len(signs) + 1, rows.shape[1]
        chain = xp.empty(((self.degree + 1) * width, d), dtype=rows.dtype, device=self._backend.device)
        chain[: width - 1], chain[width - 1] = rows, change.x
        power = xp.astype(chain[:width], self.contraction.dtype, copy=False)
        for start in range(width, chain.shape[0], width):
            chain[start : start + width] = power = thin_product(power, self.contraction)
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
        if self.scale * error > (FLOAT32_RIDGE if self.uses_float32 else SCORE_TOLERANCE):
            self._diagnostics.ridge_factorisations += 1
        elif self.uses_float32 and not self._rounds_little(inner, own):
            self._diagnostics.float64_fallbacks += 1
            self.wants_float32 = False
        else:
            return update
        self._factorise()
        return None

    def _rounds_little(self, inner: np.ndarray, own: float) -> bool:
        """Whether float32 products are accurate enough for this sample; `inner` as in `prepare_update`."""
        width = inner.shape[0]
        length = max(float(inner[-1, 3 * width - 1]), 0.0) ** 0.5  # |C x|, from x^T C^2 x
        return self._float32_error(own, length) <= FLOAT32_ROUNDING

    def count_update(self, probe: Array) -> None:
        """Count an update; check the inverse after every CHECK_EVERY updates."""
        self._diagnostics.updates += 1
        self.updates += 1
        if self.updates % CHECK_EVERY == 0:
            self._check(probe)
        elif self.rounding > FLOAT32_ROUNDING / 4.0:
            self._diagnostics.scheduled_factorisations += 1
            self._factorise()

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
        if self.uses_float32:
            steps, cross = self._onto_differences(k, vectors)
            self._count_rounding(update, powers[:rank], steps[:rank])
        else:
            onto = thin_product(vectors, self._sums.means)
            steps, cross = onto[:-1], onto[-1]
        self.moments -= moment_decrease(steps, backend.asarray(update.spread, steps.dtype), self.degree)
        self.moments[:, k] = backend.asarray(update.own_moments)
        first = powers[:rank]
        left = first.T @ backend.asarray(update.inverse)
        if self.uses_float32:
            left, first = (backend.asarray(part, self.contraction.dtype) for part in (left, first))
        subtract_product(self.contraction, left, first)
        self._move_to_ridge()
        cross[k] = update.own_cross
        return self.scale * cross

    def _onto_differences(self, k: int, vectors: Array) -> tuple[Array, Array]:
        """Products of the means with all rows but the last, float32, and with the last one, float64."""
        xp = self._backend.xp
        assert self._differences is not None
        own = self._sums.means[k] - self.reference
        self._differences[k] = xp.astype(own, xp.float32)
        self.longest = max(self.longest, float(own @ own) ** 0.5)
        shift = vectors @ self.reference
        onto = thin_product(xp.astype(vectors, xp.float32), self._differences)
        cross = xp.astype(onto[-1], xp.float64) + shift[-1]
        onto += xp.astype(shift, xp.float32)[:, None]
        return onto[:-1], cross

    def _count_rounding(self, update: PrecisionUpdate, first: Array, steps: Array) -> None:
        """Add the rounding of the moments by this insertion. Its sign is random, so squares are added."""
        xp = self._backend.xp
        largest = max(float(xp.max(steps)), -float(xp.min(steps)))
        size = float(xp.linalg.vector_norm(first)) * self.longest
        rounding = self.scale * float(np.abs(update.inverse).sum()) * largest * ROUNDINGS * size
        self.rounding = math.hypot(self.rounding, rounding)

    def _check(self, probe: Array) -> None:
        """Compare C0 with rho0 (S + rho0 I)^-1 on a probe vector; recompute it if it drifted or after MAX_UPDATES."""
        self._apply_waiting()
        self._diagnostics.checks += 1
        xp, backend = self._backend.xp, self._backend
        answer = backend.asarray(self.contraction @ backend.asarray(probe, self.contraction.dtype), xp.float64)
        residual = (self.scatter @ answer) / self.rho0 + answer - probe
        drift = float(xp.linalg.vector_norm(residual) / xp.linalg.vector_norm(probe))
        self._diagnostics.largest_drift = max(self._diagnostics.largest_drift, drift if drift >= 0 else np.inf)
        # A relative error of the inverse becomes an error of the scores, which are as large as the precision.
        allowed = min(DRIFT_TOLERANCE, SCORE_TOLERANCE / (MAX_LENGTHS * self.scale))
        if not drift <= (FLOAT32_DRIFT if self.uses_float32 else allowed):
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
        if not self.uses_float32:
            return self.scale * thin_product(self._contract(x), self._sums.means)
        xp = self._backend.xp
        assert self._differences is not None
        contracted = self._contract(xp.astype(x, xp.float32))
        length = float(xp.max(xp.vecdot(contracted, contracted))) ** 0.5
        if self._float32_error(float(xp.max(self.moments[0])), length) > FLOAT32_ROUNDING:
            return self.scale * (self.exact(x) @ self._sums.means.T)
        shift = xp.astype(contracted, xp.float64) @ self.reference
        return self.scale * (xp.astype(thin_product(contracted, self._differences), xp.float64) + shift[:, None])

    def exact(self, rows: Array) -> Array:
        """C(rho) applied to rows (n, d) in float64, whatever the precision of the products."""
        if not self.uses_float32:
            return self._contract(rows)
        xp, scatter, ridge = self._backend.xp, self.scatter, self._ridge
        waiting = [(part, self._backend.asarray(signs)) for part, signs in self._waiting]
        result = xp.zeros_like(rows)
        for _ in range(REFINEMENTS):
            changes = sum((((result @ part.T) * signs) @ part for part, signs in waiting), xp.zeros_like(rows))
            residual = rows - result - (thin_product(result, scatter) + changes) / ridge
            if float(xp.max(xp.abs(residual))) < REFINED:
                return result
            correction = thin_product(xp.astype(residual, xp.float32), self.contraction)
            result = result + xp.astype(correction, xp.float64)
        return rows @ self._exact_contraction()

    def _exact_contraction(self) -> Array:
        """C(rho) in float64, from the scatter."""
        xp, scatter = self._backend.xp, self._backend.copy(self.scatter)
        for rows, signs in self._waiting:
            scatter += (rows * self._backend.asarray(signs)[:, None]).T @ rows
        identity = xp.eye(scatter.shape[0], dtype=xp.float64, device=self._backend.device)
        return self._ridge * positive_inverse(scatter + self._ridge * identity)

    def directions(self) -> Array:
        """P mu_k, (K, d)."""
        self.finish()
        if self.uses_float32:
            return self._sums.means @ self.matrix()
        return self.scale * self._contract(self._sums.means)

    def matrix(self) -> Array:
        """P (d, d)."""
        self.finish()
        xp = self._backend.xp
        if self.uses_float32:
            return self.scale * self._exact_contraction()
        return self.scale * self._contract(xp.eye(self.scatter.shape[0], dtype=xp.float64, device=self._backend.device))

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        self.finish()
        arrays = {"scatter": self.scatter, "contraction": self.contraction, "moments": self.moments}
        if self.uses_float32:
            arrays["reference"] = self.reference
        if self._waiting:
            arrays["waiting"] = self._backend.xp.concat([rows for rows, _ in self._waiting])
            signs = np.concatenate([signs for _, signs in self._waiting])
            arrays["waiting_signs"] = self._backend.asarray(signs)
        waiting = sum(len(signs) for _, signs in self._waiting)
        return arrays, {"waiting": waiting, **{name: getattr(self, name) for name in SCALARS}}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        check_shapes(arrays, {"scatter": self.scatter})
        self.degree, waiting = int(values["degree"]), int(values["waiting"])
        d, float64 = len(self.scatter), self.scatter.dtype
        float32 = "reference" in arrays
        shapes: dict[str, tuple[int, ...]] = {"contraction": (d, d), "moments": (self.degree, self.moments.shape[1])}
        if float32:
            shapes["reference"] = (d,)
        if waiting:
            shapes |= {"waiting": (waiting, d), "waiting_signs": (waiting,)}
        for name, shape in shapes.items():  # compared without making arrays of these shapes, which may be huge
            dtype = self._backend.xp.float32 if float32 and name == "contraction" else float64
            if tuple(arrays[name].shape) != shape or arrays[name].dtype != dtype:
                raise ValueError(f"the engine's {name} must be {dtype} of shape {shape}")
        for name in SCALARS:  # files of earlier versions have no "rounding"
            setattr(self, name, type(getattr(self, name))(values.get(name, 0)))
        self.scatter, self.contraction, self.moments = arrays["scatter"], arrays["contraction"], arrays["moments"]
        self._waiting = []
        if waiting:
            self._waiting.append((arrays["waiting"], to_numpy(arrays["waiting_signs"])))
        if float32:
            self.reference = arrays["reference"]
            self._set_differences()
        self._move_to_ridge()
