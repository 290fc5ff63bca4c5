"""What one insertion changes: the class's sums and mean, and a few squares added to and taken from the scatter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from zeroshift.adapt.bank import InsertionPlan, KnowledgeBank
from zeroshift.adapt.bank_term_bounds import (
    Cones,
    add_excess,
    against,
    cones,
    coordinates,
    doubtful,
    shared_direction,
    subspace,
)
from zeroshift.adapt.statistics import AdaptSettings, bank_sums, bank_term, class_means
from zeroshift.arrays import Array, Home, namespace, to_numpy

__all__ = ["ClassSums", "Insertion", "check_shapes", "scatter_rows"]


class Insertion(NamedTuple):
    """Sample x entered class k, which had `held` entries of plain mean `centre`; `old` left where not None."""

    k: int
    held: int
    x: Array
    old: Array | None
    centre: Array
    mean_before: Array
    mean_after: Array
    moved: bool


def scatter_rows(change: Insertion) -> tuple[Array, np.ndarray, int]:
    """Rows u (r, d) and signs s with S' = S + sum s u u^T, additions first, and which row is x - mu'.

    Moving the mean of the n entries held changes their scatter by n (c - mu')(c - mu')^T - n (c - mu)(c - mu)^T; the
    newcomer then adds its square and the one it replaces takes its own away. With additions first every matrix on the
    way is positive definite.
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


# Per-class sums, means and cones of the bank, kept current: an insertion recomputes one class and nothing else.


COORDINATES = 32
"""Dimensions of the subspace in which single entries are looked at."""

SKETCH_SLACK = 1e-9
"""Far above the rounding of products of unit vectors, far below any cosine that matters."""

CACHED_BOUNDS = 1_000_000
"""Bounds on cosines held at once: few enough to be in the caches still when they are looked at."""

FEW_ENTRIES = 256
"""Bank slots up to which the bank term is simply summed."""


class ClassSums:
    """sum p x, sum p, sum x and mean of every class, each summed from the class's own few entries: nothing drifts."""

    def __init__(self, prototypes: Array, rule: AdaptSettings, bank: KnowledgeBank) -> None:
        self._prototypes = prototypes
        self._rule = rule
        self._bank = bank
        self._home = Home.of(prototypes)
        self.refresh()

    def refresh(self) -> None:
        """Everything anew from the bank."""
        classes, d = self._prototypes.shape
        zeros = self._home.zeros
        self.weighted_sums, self.totals = zeros((classes, d)), zeros((classes, d))
        self.weights = zeros((classes,))
        self.means = self._home.copy(self._prototypes)
        self.cones = Cones(zeros((classes,)), zeros((classes,)))
        self.counts = self._bank.counts
        self._sum(slice(None))
        self._refit_cones()

    def _sum(self, k: Any) -> None:
        """Sums and means of the classes k, from their entries."""
        xp, rule = self._home.xp, self._rule
        features, weights = self._bank.features[k], self._bank.weights[k]
        weighted_sums, total_weights = bank_sums(features, weights)
        self.weighted_sums[k], self.weights[k] = weighted_sums, total_weights
        self.totals[k] = xp.sum(features, axis=1)
        if rule.update_mean:
            self.means[k] = class_means(weighted_sums, total_weights, self._prototypes[k], rule.alpha, rule.beta)

    def _refit_cones(self) -> None:
        """A fresh shared direction, and every class's cone about it."""
        self.direction = shared_direction(self.weighted_sums)
        self._cones_fitted_at = -1 if self.few else self.size.bit_length()
        if self._sketches:
            features = self._bank.features
            entries = self._home.xp.where(self._bank.occupied[..., None] > 0, features, self.direction)
            flat = self._home.xp.reshape(entries, (-1, entries.shape[2]))
            self.basis = subspace(flat, self.direction, COORDINATES)
            self.sketch = self._home.zeros((*features.shape[:2], self.basis.shape[0] + 1))
        self._measure(slice(None), self._bank.occupied)

    @property
    def _sketches(self) -> bool:
        """Whether a closer look at single samples is kept ready: on a GPU an exact sum costs less."""
        return self._rule.use_bank_term and self.size > 0 and not (self.few or self._home.on_gpu)

    @property
    def few(self) -> bool:
        """Whether the exact sums cost less than knowing that they can be spared."""
        return self._bank.weights.shape[0] * self._bank.weights.shape[1] <= FEW_ENTRIES

    def _measure(self, k: Any, occupied: Array) -> None:
        across, along = cones(self._bank.features[k], occupied, self.weighted_sums[k], self.weights[k], self.direction)
        self.cones.across[k], self.cones.along[k] = across, along
        if self._sketches:
            sketch = coordinates(self._bank.features[k], self.basis)
            # An empty slot is never in doubt.
            sketch[..., -1] -= 1.0 - occupied
            self.sketch[k] = sketch

    @property
    def counts(self) -> np.ndarray:
        """Entries a class; kept apart from the bank's, which are ahead while an insertion is followed."""
        return self._counts

    @counts.setter
    def counts(self, counts: np.ndarray) -> None:
        self._counts = counts
        self.size = int(counts.sum())

    def renew(self, classes: np.ndarray) -> None:
        """Bring classes whose banks changed up to date."""
        self.counts = self._bank.counts
        k = self._home.xp.asarray(classes, device=self._home.device)
        self._sum(k)
        if not self._rule.use_bank_term:
            return
        if self.few:
            self._cones_fitted_at = -1
        elif self.size.bit_length() != self._cones_fitted_at or self._outgrown:
            # The direction is worth another look whenever the bank has doubled.
            self._refit_cones()
        else:
            self._measure(k, self._home.bring(self._bank.occupied_in(classes).astype(np.float64)))

    @property
    def _outgrown(self) -> bool:
        """Whether the bank has widened since single entries were last looked at."""
        return self._sketches and self.sketch.shape[1] != self._bank.weights.shape[1]

    def expect(self, plan: InsertionPlan) -> None:
        """Make room for a plan, and begin to keep cones where the bank is then too large for exact sums."""
        self._bank.make_room(plan)
        if self._rule.use_bank_term and self._cones_fitted_at == -1 and not self.few:
            self._refit_cones()

    def insert(self, k: int, x: Array, old: Array | None) -> Insertion:
        """Bring class k up to date after `x` entered its bank, in the place of `old` where that is not None."""
        count = int(self.counts[k])
        centre = self.totals[k] / max(count, 1)
        mean_before = self._home.copy(self.means[k])
        self.renew(np.array([k]))
        return Insertion(k, count, x, old, centre, mean_before, self.means[k], self._rule.update_mean)

    def cones_on_host(self, classes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each of the classes: its largest distance across the shared direction, its lowest place along it."""
        weights = to_numpy(self.weights)
        safe = np.where(weights > 0, weights, 1.0)
        centres = to_numpy(self.weighted_sums @ self.direction) / safe
        across, along = (to_numpy(values) / safe for values in self.cones)
        return across[classes], (centres - along)[classes]

    def bank_term(self, x: Array) -> Array:
        """r_k (n, K) with the present banks."""
        if self.few:
            return self._plain_sum(x)
        term = x @ self.weighted_sums.T
        doubt = doubtful(term, x, self.direction, self.cones, self.weights)
        self.refine_doubtful(doubt, x)
        add_excess(term, x, self._bank.features, self._bank.weights, doubt)
        return term

    def _plain_sum(self, x: Array) -> Array:
        features, weights = self._bank.features, self._bank.weights
        if x.shape[0] > 1 or self._home.on_gpu:
            return bank_term(x, features, weights)
        # Class by class: one product this small would wake other threads, which takes longer than the product.
        cosines = self._home.xp.matmul(features, x[0])
        return self._home.xp.sum(cosines * (cosines > 0) * weights, axis=1)[None, :]

    def refine_doubtful(self, doubt: Array, x: Array) -> None:
        """Clear classes of doubt whose entries, one by one, cannot have a negative cosine with the sample."""
        xp = self._home.xp
        classes = xp.nonzero(xp.any(doubt, axis=0))[0] if self._sketches else ()
        if len(classes) == 0:
            return
        count, slots = len(classes), self.sketch.shape[1]
        entries = self.sketch if 2 * count > len(self.sketch) else self.sketch[classes]
        classes = classes if len(entries) == count else slice(None)
        entries = xp.reshape(entries, (-1, entries.shape[2]))
        extended = against(x, self.basis)
        at_once = max(1, CACHED_BOUNDS // entries.shape[0])
        for start in range(0, x.shape[0], at_once):
            rows = slice(start, start + at_once)
            bounds = xp.reshape(extended[rows] @ entries.T, (-1, entries.shape[0] // slots, slots))
            doubt[rows, classes] &= xp.min(bounds, axis=2) < SKETCH_SLACK

    def new_in_doubt(self, x: Array, entrants: Array) -> Array:
        """(n, E): which samples that have yet to enter may have a negative cosine with which rows."""
        if not self._sketches:
            return self._home.xp.ones((x.shape[0], entrants.shape[0]), dtype=bool)
        return against(x, self.basis) @ coordinates(entrants, self.basis).T < SKETCH_SLACK

    def arrays(self) -> dict[str, Array]:
        """What a file needs to go on bit for bit."""
        return {**self._kept(), "basis": self.basis} if self._sketches else self._kept()

    def _kept(self) -> dict[str, Array]:
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
        check_shapes(arrays, self._kept())
        for name in ("weighted_sums", "weights", "totals", "means", "direction"):
            setattr(self, name, arrays[name])
        self.cones = Cones(arrays["across"], arrays["along"])
        if self._sketches:
            # A file of a GPU has none; then the one just made serves.
            if "basis" in arrays:
                check_shapes(arrays, {"basis": self.basis})
                self.basis = arrays["basis"]
            self._measure(slice(None), self._bank.occupied)
            self.cones = Cones(arrays["across"], arrays["along"])
        self.counts = self._bank.counts
        self._cones_fitted_at = -1 if self.few else self.size.bit_length()


def check_shapes(arrays: Mapping[str, Array], own: Mapping[str, Array]) -> None:
    """Refuse saved arrays that cannot have come from an engine like this one."""
    for name, array in own.items():
        if name not in arrays or tuple(arrays[name].shape) != tuple(array.shape) or arrays[name].dtype != array.dtype:
            raise ValueError(f"the engine's {name} must be {array.dtype} of shape {tuple(array.shape)}")
