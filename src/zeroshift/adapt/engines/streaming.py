"""Updates the statistics after every insertion instead of recomputing them. Suits single samples.

The numbers are those of `direct` up to `precision_primal.SCORE_TOLERANCE`, which bounds the only approximation. Once
the bank holds more than d/2 samples, an insertion costs a few products with the class means, however large the bank is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Protocol, Self

import numpy as np

from zeroshift.adapt.bank import HELD, InsertionPlan, KnowledgeBank
from zeroshift.adapt.engines.base import EngineBase, EngineDiagnostics
from zeroshift.adapt.engines.class_statistics import BankInsertion, ClassSums
from zeroshift.adapt.engines.cuda_graph import RecordedStep
from zeroshift.adapt.engines.precision_dual import DualPrecision
from zeroshift.adapt.engines.precision_iterated import IteratedPrecision
from zeroshift.adapt.engines.precision_primal import PrimalPrecision
from zeroshift.adapt.engines.precision_simple import RECOMPUTE_WORK, FixedPrecision, RecomputedPrecision
from zeroshift.adapt.statistics import AdaptSettings, Gaussians
from zeroshift.arrays import Array, Backend, to_numpy
from zeroshift.zero_shot import log_posterior, zero_shot_stats

__all__ = ["SMALLEST_PRIMAL", "Precision", "StreamingEngine"]

HEAD_AFTER = 8
"""A sample that enters no bank costs a few d^2, or K d if the linear classifier P mu is available. Computing that
classifier takes about as long as K / HEAD_AFTER such samples."""

SMALLEST_PRIMAL = 8
"""Banks of up to this many entries always use the dual form, for any dimension."""


class Precision(Protocol):
    """The shared precision P in one of its forms, updated after every insertion."""

    form: str

    def __init__(
        self, backend: Backend, bank: KnowledgeBank, sums: ClassSums, diagnostics: EngineDiagnostics
    ) -> None: ...

    @property
    def quadratic(self) -> Array:
        """mu_k^T P mu_k, (K,)."""

    def insert(self, change: BankInsertion, slot: int) -> Array | None: ...
    def cross(self, x: Array) -> Array: ...
    def directions(self) -> Array: ...
    def matrix(self) -> Array: ...
    def current_scatter(self) -> Array: ...
    @property
    def accumulated(self) -> float: ...
    def state(self) -> tuple[dict[str, Array], dict[str, Any]]: ...
    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None: ...


class StreamingEngine(EngineBase):
    """Maintains sums, means and precision, and updates them after every insertion."""

    def __init__(self, prototypes: Array, logit_scale: float, settings: AdaptSettings, evidence: KnowledgeBank) -> None:
        self._prototypes = prototypes
        self._logit_scale = logit_scale
        self._settings = settings
        self._bank = evidence
        self._backend = Backend.of(prototypes)
        self.diagnostics = EngineDiagnostics()
        self._recorded_step: RecordedStep | None = None
        self.refresh()

    def copied(self) -> Self:
        """An engine with the same statistics, and with a bank of its own."""
        constant = (self._prototypes, self._settings, self._backend)
        return copy.deepcopy(self, {id(value): value for value in constant})

    @property
    def evidence(self) -> KnowledgeBank:
        return self._bank

    def refresh(self) -> None:
        """Recompute everything from the bank."""
        self._sums = ClassSums(self._prototypes, self._settings, self._bank)
        self._precision = self._new_precision()
        self.finish()
        self._mark_changed()
        self._derived = True

    @property
    def _suitable_form(self) -> type[Precision]:
        """The form of the precision that suits the size of the bank."""
        classes, d = self._prototypes.shape
        if not self._settings.update_covariance:
            return FixedPrecision
        if self._backend.on_gpu:
            return IteratedPrecision if self._sums.size > SMALLEST_PRIMAL else DualPrecision
        if (self._sums.size + d + classes) * d * d <= RECOMPUTE_WORK:
            return RecomputedPrecision
        return DualPrecision if self._sums.size <= self._dual_limit else PrimalPrecision

    def _new_precision(self) -> Precision:
        return self._suitable_form(self._backend, self._bank, self._sums, self.diagnostics)

    @property
    def _dual_limit(self) -> int:
        return max(int(self._prototypes.shape[1]) // 2, SMALLEST_PRIMAL)

    def _mark_changed(self) -> None:
        self._idle = 0
        self._head: Array | None = None
        self._derived = False
        if self._recorded_step is not None:
            self._recorded_step.is_stale = True

    def finish(self) -> None:
        """Do deferred work. Called after the last row of a call, so that predicting never changes the state."""
        if isinstance(self._precision, PrimalPrecision | IteratedPrecision):
            self._precision.finish()

    def step(self, features: Array) -> Array:
        """Algorithm 1 for one sample or one batch: offer, update, score (n, K)."""
        if features.shape[0] > 1:
            return self._step_batch(self.widened(features))
        if self._backend.on_gpu:
            recorded = self.step_recorded(features)
            if recorded is not None:
                return recorded.scores
        features = self.widened(features)
        log_y, classes, confidences = zero_shot_stats(features, self._prototypes, self._logit_scale)
        k, confidence = int(classes[0]), float(confidences[0])
        found = self._bank.find_slot(k, confidence)
        if found is None:
            self._idle += 1
            return self._score(features, log_y)
        cross = self._insert(k, *found, features[0], self._backend.xp.exp(log_y[0, k]), confidence)
        self._mark_changed()
        return self._fuse(features, log_y, self._precision.cross(features) if cross is None else cross[None, :])

    def _step_batch(self, features: Array) -> Array:
        log_y, plan, confidences = self._plan_insertions(features)
        if len(plan) == 0:
            self._idle += features.shape[0]
            return self._score(features, log_y)
        self._learn(plan, features, log_y, confidences)
        return self._fuse(features, log_y, self._precision.cross(features))

    def step_recorded(self, features: Array) -> RecordedStep | None:
        """One row, as a recorded CUDA graph with its scores. None, with nothing changed, if `step` must process it."""
        if type(self._precision) is not IteratedPrecision:
            return None
        self._precision.finish()
        if self._recorded_step is None or not self._recorded_step.is_valid():
            self._recorded_step = None
            self._recorded_step = RecordedStep(self)
        return self._recorded_step if self._recorded_step.step(features) else None

    def _plan_insertions(self, features: Array) -> tuple[Array, InsertionPlan, np.ndarray]:
        """Log-posteriors of the rows, the insertions they cause, and their confidences."""
        log_y, classes, row_confidences = zero_shot_stats(features, self._prototypes, self._logit_scale)
        confidences = to_numpy(row_confidences)
        return log_y, self._bank.plan(to_numpy(classes), confidences), confidences

    def _learn(self, plan: InsertionPlan, features: Array, log_y: Array, confidences: np.ndarray) -> None:
        """Carry out the insertions one by one."""
        weights = self._bank.inserted_weights(plan, log_y)
        for e, (row, k, slot, replaced) in enumerate(zip(*(column.tolist() for column in plan), strict=True)):
            self._insert(k, slot, replaced >= HELD, features[row], weights[e], float(confidences[row]))
        self._mark_changed()

    def _insert(self, k: int, slot: int, replaces: bool, x: Array, weight: Array, confidence: float) -> Array | None:
        """Put one sample into a slot. Returns its mu^T P x (K,) if the update computed that."""
        old = self._backend.copy(self._bank.features[k, slot]) if replaces else None
        self._bank.put(k, slot, x, weight, confidence)
        change = self._sums.insert(k, slot, x, old)
        if type(self._precision) is self._suitable_form:
            return self._precision.insert(change, slot)
        self._precision = self._new_precision()
        return None

    def scorer(self, rows: int) -> Callable[[Array], Array]:
        """A function that scores features with the present statistics; `rows` is the total number of rows."""
        # Depends only on the number of rows: an answer must not depend on earlier calls of `predict`.
        head = self._precision.directions() if rows * HEAD_AFTER >= self._prototypes.shape[0] else None

        def scores(features: Array) -> Array:
            features = self.widened(features)
            log_y = log_posterior(features, self._prototypes, self._logit_scale)
            if self._sums.size == 0:
                return log_y
            cross = self._precision.cross(features) if head is None else features @ head.T
            return self._fuse(features, log_y, cross)

        return scores

    def _score(self, features: Array, log_y: Array) -> Array:
        if self._sums.size == 0:
            return log_y
        if self._head is None and self._idle * HEAD_AFTER >= self._prototypes.shape[0]:
            self._head = self._precision.directions()
        cross = self._precision.cross(features) if self._head is None else features @ self._head.T
        return self._fuse(features, log_y, cross)

    def _fuse(self, features: Array, log_y: Array, cross: Array) -> Array:
        scores = log_y + cross - 0.5 * self._precision.quadratic
        return scores + self._sums.bank_term(features) if self._settings.use_bank_term else scores

    @property
    def gaussians(self) -> Gaussians:
        directions = self._precision.directions()
        return Gaussians(self._sums.means, self._precision.matrix(), directions, -0.5 * self._precision.quadratic)

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """What resuming bit for bit needs in addition to the bank; nothing if all was just recomputed from the bank."""
        if self._derived:
            return {}, {"idle": self._idle} if self._idle else {}
        arrays, values = self._precision.state()
        return {**self._sums.arrays(), **arrays}, {**values, "form": self._precision.form, "idle": self._idle}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        """Restore a saved state, or recompute everything from the bank if nothing was saved."""
        self.refresh()
        self._idle = int(values.get("idle", 0))
        if values.get("form") != self._precision.form:
            # Nothing was saved, or a version that selects another form saved it: use what `refresh` computed.
            return
        self._sums.restore(arrays)
        self._precision.restore(arrays, values)
        self._mark_changed()
        self._idle = int(values["idle"])
