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
from zeroshift.adapt.engines.precision_primal import CHECK_EVERY, PrimalPrecision
from zeroshift.adapt.engines.precision_simple import RECOMPUTE_WORK, FixedPrecision, RecomputedPrecision
from zeroshift.adapt.statistics import AdaptSettings, Gaussians, discriminant
from zeroshift.arrays import Array, Backend, to_numpy
from zeroshift.precision import FLOAT32_TOLERANCE
from zeroshift.zero_shot import log_posterior, softmax, zero_shot_stats

__all__ = ["SMALLEST_PRIMAL", "Precision", "StreamingEngine"]

HEAD_AFTER = 8
"""A sample that enters no bank costs a few d^2, or K d if the linear classifier P mu is available. Computing that
classifier takes about as long as K / HEAD_AFTER such samples."""

CHECKED_CLASSES = 4
"""Classes whose quadratic terms a check of float32 products computes in float64."""

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
        self._float32 = False
        """Whether products of this call may be float32."""
        self._complete = True
        """Whether float32 scores of this call must also be right for classes with a negligible probability."""
        self._float64_only = False
        """Whether a check found float32 products too inaccurate."""
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
        self._derived = not self._uses_float32

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
        precision = self._suitable_form(self._backend, self._bank, self._sums, self.diagnostics)
        if isinstance(precision, PrimalPrecision):
            precision.select(self._float32)
        return precision

    def select_products(self, features: Array, *, complete: bool = True) -> None:
        """Products may be float32 if the rows are, in the primal form, once its error bound allows it."""
        self._complete = complete
        self._float32 = features.dtype == self._backend.xp.float32 and not self._float64_only
        if isinstance(self._precision, PrimalPrecision):
            self._precision.select(self._float32)

    @property
    def _uses_float32(self) -> bool:
        return isinstance(self._precision, PrimalPrecision) and self._precision.uses_float32

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
            scores = self._score(features, log_y)
        else:
            cross = self._insert(k, *found, features[0], self._backend.xp.exp(log_y[0, k]), confidence)
            self._mark_changed()
            scores = self._fuse(
                features,
                log_y,
                self._precision.cross(features) if cross is None else cross[None, :],
                complete=self._complete,
            )
        self._check_products(features, log_y, scores)
        return scores

    def _step_batch(self, features: Array) -> Array:
        log_y, plan, confidences = self._plan_insertions(features)
        if len(plan) == 0:
            self._idle += features.shape[0]
            return self._score(features, log_y)
        self._learn(plan, features, log_y, confidences)
        scores = self._fuse(features, log_y, self._precision.cross(features), complete=self._complete)
        self._check_products(features[:1], log_y[:1], scores[:1])
        return scores

    def _check_products(self, features: Array, log_y: Array, scores: Array) -> None:
        """Note the precision of the products; if it is float32, check this row once in a while."""
        precision = self._precision
        self.diagnostics.products = "float64"
        if isinstance(precision, PrimalPrecision) and precision.uses_float32:
            self.diagnostics.products = "float32"
            if (self._idle or precision.updates) % CHECK_EVERY == 0:
                self._compare_with_float64(features, log_y, scores)

    def _compare_with_float64(self, features: Array, log_y: Array, scores: Array) -> None:
        """Score one row in float64 as well. If its probabilities differ too much, products are float64 from now on."""
        xp, diagnostics = self._backend.xp, self.diagnostics
        exact = softmax(self._exact_scores(features, log_y, scores))
        answer = softmax(self._backend.asarray(scores, xp.float64))
        error = float(xp.max(xp.abs(exact - answer)))
        diagnostics.float32_checks += 1
        diagnostics.largest_float32_error = max(diagnostics.largest_float32_error, error if error >= 0 else np.inf)
        if not error <= FLOAT32_TOLERANCE:
            diagnostics.float64_fallbacks += 1
            self._float64_only = True
            if isinstance(self._precision, PrimalPrecision):
                self._precision.select(False)

    def _exact_scores(self, features: Array, log_y: Array, scores: Array) -> Array:
        """Scores of one row in float64; `scores` are about the same."""
        xp, precision = self._backend.xp, self._precision
        if not isinstance(precision, PrimalPrecision):
            return self._score(features, log_y)
        # The quadratic terms of the most probable classes are exact; those of the others hardly matter.
        best = xp.argsort(-scores[0])[:CHECKED_CLASSES]
        means = self._sums.means[best]
        quadratic = self._backend.copy(precision.quadratic)
        contracted = precision.exact(xp.concat([features, means]))
        quadratic[best] = precision.scale * xp.sum(contracted[1:] * means, axis=1)
        cross = precision.scale * (contracted[:1] @ self._sums.means.T)
        return self._add_bank_term(log_y + cross - 0.5 * quadratic, features)

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
        use_head = rows * HEAD_AFTER >= self._prototypes.shape[0] and not self._uses_float32
        head = self._precision.directions() if use_head else None
        exact: list[Gaussians] = []

        def scores(features: Array) -> Array:
            float32 = self._uses_float32 and features.dtype == self._backend.xp.float32
            features = self.widened(features)
            log_y = log_posterior(features, self._prototypes, self._logit_scale)
            if self._sums.size == 0:
                return log_y
            if self._uses_float32 and not float32:
                # Learned with float32 products, but float64 ones are wanted now.
                exact[:] = exact or [self.gaussians]
                return self._add_bank_term(
                    discriminant(features, exact[0].directions, exact[0].offsets) + log_y, features
                )
            cross = self._precision.cross(features) if head is None else features @ head.T
            return self._fuse(features, log_y, cross)

        return scores

    def _score(self, features: Array, log_y: Array) -> Array:
        if self._sums.size == 0:
            return log_y
        if self._head is None and self._idle * HEAD_AFTER >= self._prototypes.shape[0] and not self._uses_float32:
            self._head = self._precision.directions()
        cross = self._precision.cross(features) if self._head is None else features @ self._head.T
        return self._fuse(features, log_y, cross, complete=self._complete)

    def _fuse(self, features: Array, log_y: Array, cross: Array, *, complete: bool = True) -> Array:
        scores = log_y + cross - 0.5 * self._precision.quadratic
        return self._add_bank_term(scores, features, float32=self._uses_float32, complete=complete)

    def _add_bank_term(self, scores: Array, features: Array, *, float32: bool = False, complete: bool = True) -> Array:
        if not self._settings.use_bank_term:
            return scores
        known = None if complete or not float32 else scores
        return scores + self._sums.bank_term(features, float32=float32, scores=known)

    @property
    def gaussians(self) -> Gaussians:
        matrix = self._precision.matrix()
        if self._uses_float32:
            return Gaussians.of(self._sums.means, matrix)
        directions = self._precision.directions()
        return Gaussians(self._sums.means, matrix, directions, -0.5 * self._precision.quadratic)

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """What resuming bit for bit needs in addition to the bank; nothing if all was just recomputed from the bank."""
        if self._derived:
            return {}, {"idle": self._idle} if self._idle else {}
        arrays, values = self._precision.state()
        values |= {"form": self._precision.form, "idle": self._idle}
        if self._float64_only:
            values["float64_only"] = True
        return {**self._sums.arrays(), **arrays}, values

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        """Restore a saved state, or recompute everything from the bank if nothing was saved."""
        self.refresh()
        self._idle = int(values.get("idle", 0))
        self._float64_only = bool(values.get("float64_only", False))
        if values.get("form") != self._precision.form:
            # Nothing was saved, or a version that selects another form saved it: use what `refresh` computed.
            return
        self._sums.restore(arrays)
        self._precision.restore(arrays, values)
        self._mark_changed()
        self._idle = int(values["idle"])
