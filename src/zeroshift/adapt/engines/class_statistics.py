"""Statistics per class, updated after every insertion into the bank.

`ClassSums` holds the sums, means and cones of all classes; an insertion recomputes those of one class. `scatter_rows`
gives the change of the scatter matrix as a few rank-one terms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from zeroshift.adapt.bank import InsertionPlan, KnowledgeBank
from zeroshift.adapt.bank_term_bounds import (
    ROUNDING,
    Cones,
    add_excess,
    bounding_coordinates,
    coordinates,
    fit_cones,
    shared_direction,
    subspace,
    uncertain_pairs,
)
from zeroshift.adapt.statistics import AdaptSettings, bank_sums, bank_term, class_means
from zeroshift.arrays import Array, Backend, namespace, to_numpy
from zeroshift.linalg import thin_product

__all__ = ["BankInsertion", "ClassSums", "check_shapes", "scatter_rows"]


class BankInsertion(NamedTuple):
    """Sample x entered class k, which had `held` entries of unweighted mean `centre`; it replaced `old` if not None."""

    k: int
    held: int
    x: Array
    old: Array | None
    centre: Array
    mean_before: Array
    mean_after: Array
    moved: bool


def scatter_rows(change: BankInsertion) -> tuple[Array, np.ndarray, int]:
    """Rows u (r, d) and signs s with S' = S + sum s u u^T, additions first; and the index of the row x - mu'.

    Moving the mean of the n entries changes their scatter by n (c - mu')(c - mu')^T - n (c - mu)(c - mu)^T. The new
    sample adds its own square, and the square of the sample it replaces is subtracted. With the additions first, every
    intermediate matrix is positive definite.
    """
    xp = namespace(change.x)
    rows, signs = [change.x - change.mean_after], [1.0]
    if change.moved and change.held > 0:
        root = float(np.sqrt(change.held))
        rows.insert(0, root * (change.centre - change.mean_after))
        rows.append(root * (change.centre - change.mean_before))
        signs = [1.0, 1.0, -1.0]
    if change.old is not None:
        rows.append(change.old - change.mean_after)
        signs.append(-1.0)
    return xp.stack(rows), np.array(signs), signs.count(1.0) - 1


COORDINATES = 48
"""Dimensions of the subspace for the bounds on single entries."""

BOUND_SLACK = 1e-9
"""Far above the rounding of products of unit vectors, far below any cosine that matters."""

CACHED_BOUNDS = 1_000_000
"""Bounds on cosines computed together, at most: they should stay in the caches until they are compared."""

ROUNDING32 = 1e-6
"""Slack of the cone bound, relative to the weight of the class, if x.s_k is a float32 product."""

SMALL_BANK = 256
"""Bank slots up to which the bank term is summed exactly, without bounds."""


class ClassSums:
    """sum p x, sum p, sum x, mean and cone of every class, recomputed from its entries so that nothing drifts."""

    def __init__(self, prototypes: Array, settings: AdaptSettings, bank: KnowledgeBank) -> None:
        self._prototypes = prototypes
        self._settings = settings
        self._bank = bank
        self._backend = Backend.of(prototypes)
        self.refresh()

    def refresh(self) -> None:
        """Recompute everything from the bank."""
        classes, d = self._prototypes.shape
        zeros = self._backend.zeros
        self._narrow_sums: Array | None = None
        """A float32 copy of the weighted sums, made when it is needed."""
        self.weighted_sums, self.totals = zeros((classes, d)), zeros((classes, d))
        self.weights = zeros((classes,))
        self.means = self._backend.copy(self._prototypes)
        self.cones = Cones(zeros((classes,)), zeros((classes,)))
        self.counts = self._bank.counts
        self._compute_sums(slice(None))
        self._refit_cones()

    def _compute_sums(self, k: Any) -> None:
        """Recompute sums and means of the classes k from their entries."""
        xp, settings = self._backend.xp, self._settings
        features, weights = self._bank.features[k], self._bank.weights[k]
        weighted_sums, total_weights = bank_sums(features, weights)
        self.weighted_sums[k], self.weights[k] = weighted_sums, total_weights
        if self._narrow_sums is not None:
            self._narrow_sums[k] = xp.astype(weighted_sums, xp.float32)
        self.totals[k] = xp.sum(features, axis=1)
        if settings.update_mean:
            self.means[k] = class_means(
                weighted_sums, total_weights, self._prototypes[k], settings.alpha, settings.beta
            )

    def _refit_cones(self) -> None:
        """Recompute the shared direction and the cones of all classes about it."""
        self.direction = shared_direction(self.weighted_sums)
        self._cones_fitted_at = -1 if self.is_small else self.size.bit_length()
        if self._bounds_entries:
            features, reshape = self._bank.features, self._backend.xp.reshape
            used = reshape(self._bank.occupied, (-1,)) > 0
            self.basis = subspace(reshape(features, (-1, features.shape[2])), used, self.direction, COORDINATES)
            self.entry_coordinates = self._backend.zeros((*features.shape[:2], self.basis.shape[0] + 1))
        self._update_bounds(slice(None), self._bank.occupied)

    @property
    def _bounds_entries(self) -> bool:
        """Whether bounds on single entries are maintained. On a GPU an exact sum is cheaper."""
        return self._settings.use_bank_term and self.size > 0 and not (self.is_small or self._backend.on_gpu)

    @property
    def is_small(self) -> bool:
        """Whether exact sums are cheaper than bounds."""
        return self._bank.weights.shape[0] * self._bank.weights.shape[1] <= SMALL_BANK

    def _update_cones(self, k: Any, occupied: Array) -> None:
        across, along = fit_cones(
            self._bank.features[k], occupied, self.weighted_sums[k], self.weights[k], self.direction
        )
        self.cones.across[k], self.cones.along[k] = across, along

    def _update_bounds(self, k: Any, occupied: Array) -> None:
        """Recompute cones and entry coordinates of the classes k."""
        self._update_cones(k, occupied)
        if self._bounds_entries:
            entry_coordinates = coordinates(self._bank.features[k], self.basis)
            # An empty slot is never uncertain.
            entry_coordinates[..., -1] -= 1.0 - occupied
            self.entry_coordinates[k] = entry_coordinates

    @property
    def counts(self) -> np.ndarray:
        """Entries per class. A copy: the bank's own counts change before the statistics do."""
        return self._counts

    @counts.setter
    def counts(self, counts: np.ndarray) -> None:
        self._counts = counts
        self.size = int(counts.sum())

    def recompute(self, classes: np.ndarray) -> None:
        """Recompute the statistics of classes whose banks changed."""
        self.counts = self._bank.counts
        k = self._backend.xp.asarray(classes, device=self._backend.device)
        self._compute_sums(k)
        if not self._refit_if_due():
            self._update_bounds(k, self._occupied_in(classes))

    def _occupied_in(self, classes: Any) -> Array:
        return self._backend.asarray(self._bank.occupied_in(classes).astype(np.float64))

    def _refit_if_due(self) -> bool:
        """Recompute all bounds if necessary. Returns whether those of single classes need no update."""
        if not self._settings.use_bank_term:
            return True
        if self.is_small or self._backend.on_gpu:
            self.forget_bounds()
            return True
        if self.size.bit_length() != self._cones_fitted_at or self._bank_widened:
            # The direction is recomputed whenever the bank has doubled.
            self._refit_cones()
            return True
        return False

    def forget_bounds(self) -> None:
        """The bounds no longer fit the bank. They are computed again when a replay needs them."""
        self._cones_fitted_at = -1

    @property
    def _bank_widened(self) -> bool:
        """Whether the bank has more slots than the entry coordinates."""
        return self._bounds_entries and self.entry_coordinates.shape[1] != self._bank.weights.shape[1]

    def prepare_for(self, plan: InsertionPlan) -> None:
        """Reserve slots for a plan, and start to maintain cones if the bank is then too large for exact sums."""
        self._bank.reserve_slots(plan)
        uses_cones = self._settings.use_bank_term and not self._backend.on_gpu
        if uses_cones and self._cones_fitted_at == -1 and not self.is_small:
            self._refit_cones()

    def insert(self, k: int, slot: int, x: Array, old: Array | None) -> BankInsertion:
        """Update class k after `x` entered a slot of its bank and replaced `old`, if that is not None."""
        count, own = int(self.counts[k]), slice(k, k + 1)
        centre = self.totals[k] / max(count, 1)
        mean_before = self._backend.copy(self.means[k])
        self.counts = self._bank.counts
        self._compute_sums(own)
        if not self._refit_if_due():
            self._update_cones(own, self._occupied_in(own))
            if self._bounds_entries:
                self.entry_coordinates[k, slot] = coordinates(x[None, :], self.basis)[0]
        return BankInsertion(k, count, x, old, centre, mean_before, self.means[k], self._settings.update_mean)

    def cones_on_host(self, classes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Per class: the largest distance across the shared direction, and the lowest position along it."""
        weights = to_numpy(self.weights)
        safe = np.where(weights > 0, weights, 1.0)
        centres = to_numpy(self.weighted_sums @ self.direction) / safe
        across, along = (to_numpy(values) / safe for values in self.cones)
        return across[classes], (centres - along)[classes]

    def bank_term(self, x: Array, *, float32: bool = False, scores: Array | None = None) -> Array:
        """r_k (n, K) with the present banks; with `float32`, the product with the sums is float32.

        With `scores` (n, K), lacking only the bank term, that of classes with a negligible probability may be too low.
        """
        if self.is_small or self._backend.on_gpu:
            return self._exact_bank_term(x)
        if float32:
            xp = self._backend.xp
            if self._narrow_sums is None:
                self._narrow_sums = xp.astype(self.weighted_sums, xp.float32)
            term = xp.astype(thin_product(xp.astype(x, xp.float32), self._narrow_sums), xp.float64)
        else:
            term = thin_product(x, self.weighted_sums)
        uncertain = uncertain_pairs(
            term, x, self.direction, self.cones, self.weights, ROUNDING32 if float32 else ROUNDING, scores
        )
        self.refine_uncertain(uncertain, x)
        add_excess(term, x, self._bank.features, self._bank.weights, uncertain)
        return term

    def _exact_bank_term(self, x: Array) -> Array:
        features, weights = self._bank.features, self._bank.weights
        if x.shape[0] > 1 or self._backend.on_gpu:
            return bank_term(x, features, weights)
        # One product per class: a single product would start other threads, which takes longer than the product.
        cosines = features @ x[0]
        return (cosines * (cosines > 0) * weights).sum(axis=1)[None, :]

    def refine_uncertain(self, uncertain: Array, x: Array) -> None:
        """Clear pairs in `uncertain` (n, K) if bounds on the single entries rule out a negative cosine."""
        xp = self._backend.xp
        classes = xp.nonzero(xp.any(uncertain, axis=0))[0] if self._bounds_entries else ()
        if len(classes) == 0:
            return
        count, slots = len(classes), self.entry_coordinates.shape[1]
        entries = self.entry_coordinates if 2 * count > len(self.entry_coordinates) else self.entry_coordinates[classes]
        classes = classes if len(entries) == count else slice(None)
        entries = xp.reshape(entries, (-1, entries.shape[2]))
        extended = bounding_coordinates(x, self.basis)
        block_rows = max(1, CACHED_BOUNDS // entries.shape[0])
        for start in range(0, x.shape[0], block_rows):
            rows = slice(start, start + block_rows)
            bounds = xp.reshape(extended[rows] @ entries.T, (-1, entries.shape[0] // slots, slots))
            uncertain[rows, classes] &= xp.min(bounds, axis=2) < BOUND_SLACK

    def arrays(self) -> dict[str, Array]:
        """The arrays a file needs to resume bit for bit."""
        return {**self._saved_arrays(), "basis": self.basis} if self._bounds_entries else self._saved_arrays()

    def _saved_arrays(self) -> dict[str, Array]:
        return {
            "weighted_sums": self.weighted_sums,
            "weights": self.weights,
            "totals": self.totals,
            "means": self.means,
            "direction": self.direction,
            "across": self.cones.across,
            "along": self.cones.along,
        }

    def restore(self, arrays: Mapping[str, Array]) -> None:
        check_shapes(arrays, self._saved_arrays())
        self._narrow_sums = None
        for name in ("weighted_sums", "weights", "totals", "means", "direction"):
            setattr(self, name, arrays[name])
        self.cones = Cones(arrays["across"], arrays["along"])
        if self._bounds_entries:
            # A file written on a GPU has no basis; then the one computed by `refresh` is used.
            if "basis" in arrays:
                check_shapes(arrays, {"basis": self.basis})
                self.basis = arrays["basis"]
            self._update_bounds(slice(None), self._bank.occupied)
            self.cones = Cones(arrays["across"], arrays["along"])
        self.counts = self._bank.counts
        self._cones_fitted_at = -1 if self.is_small or self._backend.on_gpu else self.size.bit_length()


def check_shapes(arrays: Mapping[str, Array], own: Mapping[str, Array]) -> None:
    """Raise ValueError if saved arrays do not have the type and shape of the engine's own."""
    for name, array in own.items():
        if name not in arrays or tuple(arrays[name].shape) != tuple(array.shape) or arrays[name].dtype != array.dtype:
            raise ValueError(f"the engine's {name} must be {array.dtype} of shape {tuple(array.shape)}")
