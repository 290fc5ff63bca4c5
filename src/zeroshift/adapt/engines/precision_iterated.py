"""The precision on a GPU once the bank has some entries: one inverse, corrected after every insertion.

Like `precision_primal`, this holds the contraction C = rho (S + rho I)^-1 with P = (d N / tr S) C, and an insertion
changes S by a few squares and the ridge rho by a little. On a GPU a product of (d, d) matrices takes about as long as
the launch of a small kernel, so here C is moved to the new ridge itself, and there are no moments, series or
polynomials:

1. Woodbury's formula for the squares, at the old ridge.
2. The new ridge rho', to first order: with a = 1 - rho / rho', C + a (C - C^2). The relative error is at most a^2.
3. One Newton step for the inverse of A = S / rho' + I: X (2 I - A X). It squares the error, and because A is computed
   from the scatter itself it also removes the rounding errors of all earlier steps: nothing drifts.

The error is at most a^4, relative to C. If that is too much for the scores (the ridge changed by more than about half a
percent, as in small banks), more Newton steps follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from zeroshift.adapt.bank import KnowledgeBank
from zeroshift.adapt.engines.base import EngineDiagnostics
from zeroshift.adapt.engines.class_statistics import BankInsertion, ClassSums, check_shapes, scatter_rows
from zeroshift.adapt.engines.precision_primal import CHECK_EVERY, MAX_LENGTHS, SCORE_TOLERANCE, scatter_is_sound
from zeroshift.arrays import Array, Backend
from zeroshift.linalg import SMALLEST_TRACE, ZERO_TRACE, positive_inverse

__all__ = ["IteratedPrecision", "move_to_ridge"]

CONVERGED = 1e-11
"""Newton steps end when A X differs from the identity by less, in the Frobenius norm: far above its rounding."""

NEWTON_STEPS = 6
"""After so many steps the inverse is computed from scratch. Two or three are usual."""

SCALARS = ("rho", "trace", "accumulated", "updates")


def move_to_ridge(contraction: Array, scatter: Array, change: Any, ridge: Any) -> Array:
    """C at the ridge rho' from C at rho, for the same scatter; `change` is 1 - rho / rho'."""
    first_order = contraction + change * (contraction - contraction @ contraction)
    return newton_step(first_order, scatter, ridge)[0]


def newton_step(inverse: Array, scatter: Array, ridge: Any) -> tuple[Array, Array]:
    """A better inverse X of A = S / ridge + I, and A X with the one before."""
    product = inverse + (scatter @ inverse) / ridge
    return 2.0 * inverse - inverse @ product, product


class IteratedPrecision:
    """C, the quadratic terms of all classes, and the scatter matrix."""

    form = "iterated"

    def __init__(self, backend: Backend, bank: KnowledgeBank, sums: ClassSums, diagnostics: EngineDiagnostics) -> None:
        self._backend = backend
        self._bank = bank
        self._sums = sums
        self._diagnostics = diagnostics
        self.refresh()

    def refresh(self) -> None:
        """Recompute everything from the bank."""
        self.scatter = self._bank.scatter(self._sums.means)
        self.trace = float(self._backend.xp.linalg.trace(self.scatter))
        self.accumulated = self.trace
        """Size of all changes of the scatter since it was summed from the bank."""
        self.updates = 0
        self._is_inverted = False

    def finish(self) -> None:
        """Invert the scatter if that was deferred: between two replayed blocks the inverse is not needed."""
        if not self._is_inverted:
            self._invert()

    def current_scatter(self) -> Array:
        return self.scatter

    @property
    def size(self) -> int:
        return self._sums.size

    @property
    def has_no_spread(self) -> bool:
        """Whether all entries equal their means; the precision is then the identity by definition."""
        return self.trace <= ZERO_TRACE * self.size

    @property
    def is_sound(self) -> bool:
        """Whether there is enough spread to maintain the scatter and its inverse."""
        return scatter_is_sound(self.accumulated, self.trace / (self.size - 1))

    @property
    def _bounded_trace(self) -> float:
        return max(self.trace, SMALLEST_TRACE * self.size)

    @property
    def scale(self) -> float:
        return 1.0 if self.has_no_spread else self.scatter.shape[0] * self.size / self._bounded_trace

    @property
    def ridge(self) -> float:
        return self._bounded_trace / (self.size - 1)

    def _identity(self) -> Array:
        xp = self._backend.xp
        return xp.eye(self.scatter.shape[0], dtype=xp.float64, device=self._backend.device)

    def _invert(self) -> None:
        """Compute C from scratch."""
        self._diagnostics.factorisations += 1
        self.rho = self.ridge
        if self.has_no_spread:
            self.contraction = self._identity()
        else:
            self.contraction = self.rho * positive_inverse(self.scatter + self.rho * self._identity())
            self._diagnostics.bounded_precisions += self.trace < SMALLEST_TRACE * self.size
        self._compute_quadratic()
        self._is_inverted = True

    def _compute_quadratic(self) -> None:
        means = self._sums.means
        self.quadratic_terms = self.scale * self._backend.xp.sum((means @ self.contraction) * means, axis=1)

    @property
    def quadratic(self) -> Array:
        self.finish()
        return self.quadratic_terms

    def insert(self, change: BankInsertion, slot: int) -> None:
        """Update after one insertion."""
        self.finish()
        if self.has_no_spread:
            self.refresh()
            return
        rows, signs, _ = scatter_rows(change)
        signed = self._backend.asarray(signs)
        self.scatter = self.scatter + (rows * signed[:, None]).T @ rows
        xp = self._backend.xp
        products = rows @ self.contraction
        inner = products @ rows.T + xp.eye(len(signs), dtype=xp.float64, device=self._backend.device) * (
            self.rho / signed
        )
        self.contraction = self.contraction - products.T @ xp.linalg.solve(inner, products)
        before = self.rho
        self.trace = float(xp.linalg.trace(self.scatter))
        self.accumulated += float(xp.sum(rows * rows))
        self.rho = self.ridge
        if self.is_sound:
            self.contraction = move_to_ridge(self.contraction, self.scatter, 1 - before / self.rho, self.rho)
            self._compute_quadratic()
        self.correct(before, change.x, newton_steps=1)

    def correct(self, ridge_before: float, probe: Array, newton_steps: int) -> bool:
        """Complete an update with so many Newton steps. Returns whether C changed once more."""
        self._diagnostics.updates += 1
        self.updates += 1
        if not self.is_sound:
            self._diagnostics.scatter_rebuilds += 1
            self.refresh()
            self.finish()
            return True
        error = (1 - ridge_before / self.rho) ** (2 ** (newton_steps + 1))
        if MAX_LENGTHS * self.scale * error > SCORE_TOLERANCE:
            self._diagnostics.ridge_factorisations += 1
            self._iterate()
            return True
        if self.updates % CHECK_EVERY == 0:
            return self._check(probe)
        return False

    def _iterate(self) -> None:
        """Newton steps until C is exact, or a new inverse if it does not become so."""
        xp, identity = self._backend.xp, self._identity()
        for _ in range(NEWTON_STEPS):
            self.contraction, product = newton_step(self.contraction, self.scatter, self.rho)
            # The step that was just made squares this residual.
            if float(xp.linalg.matrix_norm(product - identity)) ** 2 <= CONVERGED:
                self._compute_quadratic()
                return
        self._invert()

    def _check(self, probe: Array) -> bool:
        """Compare C with the scatter on a probe vector; invert again if they differ, which they never should."""
        norm = self._backend.xp.linalg.vector_norm
        answer = self.contraction @ probe
        drift = float(norm((self.scatter @ answer) / self.rho + answer - probe) / norm(probe))
        self._diagnostics.checks += 1
        self._diagnostics.largest_drift = max(self._diagnostics.largest_drift, drift if drift >= 0 else np.inf)
        if MAX_LENGTHS * self.scale * drift <= SCORE_TOLERANCE:
            return False
        self._diagnostics.drift_factorisations += 1
        self._invert()
        return True

    def cross(self, x: Array) -> Array:
        """mu_k^T P x, (n, K)."""
        self.finish()
        return self.scale * ((x @ self.contraction) @ self._sums.means.T)

    def directions(self) -> Array:
        """P mu_k, (K, d)."""
        self.finish()
        return self.scale * (self._sums.means @ self.contraction)

    def matrix(self) -> Array:
        """P (d, d)."""
        self.finish()
        return self.scale * self.contraction

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        self.finish()
        arrays = {"scatter": self.scatter, "contraction": self.contraction, "quadratic": self.quadratic_terms}
        return arrays, {name: getattr(self, name) for name in SCALARS}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        self.finish()
        check_shapes(
            arrays,
            {"scatter": self.scatter, "contraction": self.contraction, "quadratic": self.quadratic_terms},
        )
        for name in SCALARS:
            setattr(self, name, type(getattr(self, name))(values[name]))
        self.scatter, self.contraction = arrays["scatter"], arrays["contraction"]
        self.quadratic_terms = arrays["quadratic"]
