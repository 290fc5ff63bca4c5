"""One streaming step on a GPU as three recorded CUDA graphs.

A step consists of about a hundred small kernels, and launching them takes longer than running them. Recorded as CUDA
graphs they are three launches: score the sample; apply the insertion up to the small matrices that the host processes;
apply the update. A graph is bound to the memory it was recorded with. Before every step, `RecordedStep` therefore makes
its own arrays the engine's arrays again: if other code replaced one, its content is copied back.

The mathematics is that of `class_statistics` and `precision_primal`, for fixed shapes: always four scatter rows, some
of which may be zero. The bank term is summed exactly, which on a GPU is cheaper than bounds.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from zeroshift.adapt.bank import HELD, InsertionPlan
from zeroshift.adapt.bank_term_bounds import fit_cones
from zeroshift.adapt.engines.precision_primal import PrimalPrecision
from zeroshift.adapt.engines.woodbury import moment_decrease, rows_and_sample
from zeroshift.adapt.statistics import bank_term, class_means
from zeroshift.arrays import Array
from zeroshift.zero_shot import zero_shot_stats

if TYPE_CHECKING:
    from zeroshift.adapt.engines.streaming import StreamingEngine

__all__ = ["RecordedStep"]

RANK = 4
"""Scatter rows per insertion."""

SIGNS = np.array([1.0, 1.0, -1.0, -1.0])
"""Their signs."""

NEW_ROW = 1
"""Index of the row x - mu'."""

INSERTION_FIELDS = ("class", "slot in the whole bank", "entries held", "mean moves", "an entry is replaced")
"""What the host sends about an insertion, followed by which slots of the class are used."""

RECORDING = threading.Lock()
"""One thread records at a time: torch has one stream for recordings, and reuses streams."""

WARM_UPS = 2
"""Runs before a recording, because libraries initialise themselves in the first run."""

SUMS = ("weighted_sums", "weights", "totals", "means", "direction")
"""Arrays of `ClassSums` that the graphs use."""


class RecordedStep:
    """The graphs of one engine. They are neither copied nor pickled; a copy of the engine records its own."""

    def __init__(self, engine: StreamingEngine) -> None:
        self._engine = engine
        self._torch = sys.modules["torch"]
        backend = engine._backend
        classes, d = engine._prototypes.shape
        self.degree = q = self._precision.degree
        width = RANK + 1
        zeros = backend.zeros
        self.x, self.log_y, self.scores = zeros((1, d)), zeros((1, classes)), zeros((1, classes))
        self.term, self.zero_shot = zeros((1, classes)), zeros((2,))
        self.slots = int(engine._bank.weights.shape[1])
        self.insertion = zeros((len(INSERTION_FIELDS) + self.slots,))
        self.k = zeros((1,), backend.xp.int64)
        self.old, self.old_weight = zeros((1, d)), zeros((1,))
        self.rows, self.powers = zeros((RANK, d)), zeros((q * width, d))
        self.inner = zeros((width * width * (q + 1) + 1,))
        self.ridge = zeros((q + 1,))
        """Scale and polynomial of the present ridge."""
        sizes = (RANK * RANK, (q * RANK) ** 2, q * width, q, 1, q + 1)
        self.update = zeros((sum(sizes),))
        self._parts = np.cumsum((0, *sizes))
        self._to_device = {name: self._pinned(getattr(self, name)) for name in ("insertion", "update", "ridge")}
        self._to_host = {name: self._pinned(getattr(self, name)) for name in ("zero_shot", "inner")}
        self._arrays: dict[str, Array] = {}
        self._bind_arrays()
        self._score_graph = self._record(self._score_sample)
        self._insert_graph = self._record(self._insert_sample)
        self._update_graph = self._record(self._update_precision)
        self._send_ridge()

    def __deepcopy__(self, memo: Any) -> None:
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()

    def _pinned(self, array: Array) -> Any:
        return self._torch.empty(array.shape, dtype=array.dtype, pin_memory=True)

    def _record(self, work: Callable[[], None]) -> Any:
        """Record `work` as a graph and undo what it did to the arrays."""
        with RECORDING:
            return self._record_alone(work)

    def _record_alone(self, work: Callable[[], None]) -> Any:
        torch = self._torch
        kept = {name: array.clone() for name, array in self._arrays.items()}
        stream = torch.cuda.Stream(self._engine._backend.device)
        stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(stream):
                for _ in range(WARM_UPS):
                    work()
            torch.cuda.current_stream().wait_stream(stream)
            # Other threads may use the GPU meanwhile, with other methods.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                work()
        finally:
            for name, array in kept.items():
                self._arrays[name].copy_(array)
        return graph

    def is_valid(self) -> bool:
        """Whether the graphs still fit the sizes of the engine's arrays."""
        return self._engine._bank.weights.shape[1] == self.slots and self._precision.degree == self.degree

    def _bind_arrays(self) -> None:
        """Make the recorded arrays the engine's arrays again, with the present content."""
        engine, precision = self._engine, self._precision
        places: list[tuple[Any, str]] = [(engine._bank, "features"), (engine._bank, "weights")]
        places += [(engine._sums, name) for name in SUMS]
        places += [(precision, "contraction"), (precision, "moments"), (precision, "_quadratic")]
        replaced_any = False
        for owner, name in places:
            current, own = getattr(owner, name), self._arrays.get(f"{type(owner).__name__}.{name}")
            if own is None:
                own = self._arrays[f"{type(owner).__name__}.{name}"] = self._engine._backend.copy(current)
            if current is not own:
                own.copy_(current)
                setattr(owner, name, own)
                replaced_any = True
        for name in ("across", "along"):
            current, own = getattr(engine._sums.cones, name), self._arrays.get(name)
            if own is None:
                own = self._arrays[name] = self._engine._backend.copy(current)
            if current is not own:
                own.copy_(current)
                engine._sums.cones = engine._sums.cones._replace(**{name: own})
        if replaced_any:
            self._send_ridge()

    def _send_ridge(self) -> None:
        self._send("ridge", np.append(self._precision._scale, self._precision._coefficients))

    @property
    def _precision(self) -> PrimalPrecision:
        precision = self._engine._precision
        assert isinstance(precision, PrimalPrecision)
        return precision

    def _send(self, name: str, values: Any) -> None:
        """Copy to the device without waiting. The stream was synchronised since the last copy: the buffer is free."""
        buffer = self._to_device[name]
        buffer.numpy()[...] = values
        getattr(self, name).copy_(buffer, non_blocking=True)

    def _receive(self, name: str) -> np.ndarray:
        """Copy to the host and wait for it."""
        buffer = self._to_host[name]
        buffer.copy_(getattr(self, name), non_blocking=True)
        self._torch.cuda.current_stream().synchronize()
        received: np.ndarray = buffer.numpy()
        return received

    def step(self, features: Array) -> Array | None:
        """`StreamingEngine.step` for one row. Returns None, with nothing changed, if the ordinary step is needed."""
        engine, precision = self._engine, self._precision
        bank, sums = engine._bank, engine._sums
        self._bind_arrays()
        self.x.copy_(features)
        self._score_graph.replay()
        k, confidence = self._receive("zero_shot").tolist()
        plan = bank.plan(np.array([int(k)]), np.array([confidence]))
        if len(plan) == 0:
            engine._idle += 1
            return self.scores.clone()
        size = sums.size + int(plan.replaced[0] < HELD)
        cones_due = engine._settings.use_bank_term and size.bit_length() != sums._cones_fitted_at
        if plan.slots[0] >= self.slots or cones_due or precision._had_no_spread:
            return None
        self._prepare_insertion(plan, confidence)
        self._insert_graph.replay()
        precision._waiting.append((self.rows.clone(), SIGNS))
        inner = self._receive("inner")
        grams, largest = inner[:-1].reshape(RANK + 1, -1), float(inner[-1])
        update = precision.prepare_update(grams, SIGNS, NEW_ROW, largest)
        if update is not None:
            ridge = np.append(precision._scale, precision._coefficients)
            parts = (update.inverse, update.spread, update.sample_coefficients, update.own_moments)
            numbers = [*(part.ravel() for part in parts), np.array([update.own_cross]), ridge]
            self._send("update", np.concatenate(numbers))
            self._update_graph.replay()
            precision.count_update(self.x[0])
            scores = self.scores.clone()
        else:
            # The ridge had changed too much: everything was recomputed, and the sample is scored with that.
            scores = engine._fuse(self.x, self.log_y, precision.cross(self.x))
        engine._mark_changed()
        return scores

    def _prepare_insertion(self, plan: InsertionPlan, confidence: float) -> None:
        """Update the bank's bookkeeping on the host and send the insertion to the device."""
        bank, sums = self._engine._bank, self._engine._sums
        k, slot, replaced = int(plan.classes[0]), int(plan.slots[0]), int(plan.replaced[0])
        held = int(sums.counts[k])
        self.old.copy_(bank.features[k, slot])
        self.old_weight.copy_(bank.weights[k, slot])
        bank.confidences[k, slot] = confidence
        bank.sample_counts[k] = max(bank.sample_counts[k], slot - bank.pinned + 1)
        sums.counts = bank.counts
        moves = held > 0 and self._engine._settings.update_mean
        insertion = (k, k * self.slots + slot, held, moves, replaced >= HELD)
        self._send("insertion", np.append(insertion, bank.occupied_in(np.array([k]))[0]))

    def _score_sample(self) -> None:
        """First graph: zero-shot prediction and scores with the present statistics."""
        engine, precision, torch = self._engine, self._precision, self._torch
        log_y, classes, confidences = zero_shot_stats(self.x, engine._prototypes, engine._logit_scale)
        self.log_y.copy_(log_y)
        self.zero_shot.copy_(torch.cat([classes.to(confidences.dtype), confidences]))
        # Matrix-vector products: with matrices of one row they take several times as long.
        chain = [precision.contraction @ self.x[0]]
        for _ in range(self.degree - 1):
            chain.append(precision.contraction @ chain[-1])
        contracted = self.ridge[1:] @ torch.stack(chain)
        if engine._settings.use_bank_term:
            cosines = (engine._bank.features.view(-1, self.x.shape[1]) @ self.x[0]).view(engine._bank.weights.shape)
            self.term.copy_((torch.clamp(cosines, min=0.0) * engine._bank.weights).sum(dim=1))
        self._write_scores(self.ridge[0] * (engine._sums.means @ contracted))

    def _write_scores(self, cross: Array) -> None:
        self.scores.copy_(self.log_y + cross - 0.5 * self._precision._quadratic + self.term)

    def _insert_sample(self) -> None:
        """Second graph: insert the sample, update its class, and compute the products for `compute_update`."""
        engine, torch = self._engine, self._torch
        bank, sums, settings = engine._bank, engine._sums, engine._settings
        d = self.x.shape[1]
        k, flat = self.k, self.insertion[1:2].to(self.k.dtype)
        k.copy_(self.insertion[:1])
        entries, weights = bank.features.view(-1, d), bank.weights.view(-1)
        entries.index_copy_(0, flat, self.x)
        weights.index_copy_(0, flat, torch.exp(self.log_y[0].index_select(0, k)))
        held, moved, replaces = self.insertion[2], self.insertion[3], self.insertion[4]
        centre = sums.totals.index_select(0, k) / torch.clamp(held, min=1.0)
        before = sums.means.index_select(0, k)
        own, own_weights = bank.features.index_select(0, k), bank.weights.index_select(0, k)
        weighted_sum, weight = torch.matmul(own_weights[:, None, :], own)[:, 0, :], own_weights.sum(dim=1)
        if settings.use_bank_term:
            # Only the bank term of this class has changed since the sample was scored.
            self.term.index_copy_(1, k, bank_term(self.x, own, own_weights))
        after = before
        if settings.update_mean:
            prototype = engine._prototypes.index_select(0, k)
            after = class_means(weighted_sum, weight, prototype, settings.alpha, settings.beta)
            sums.means.index_copy_(0, k, after)
        sums.weighted_sums.index_copy_(0, k, weighted_sum)
        sums.weights.index_copy_(0, k, weight)
        sums.totals.index_copy_(0, k, own.sum(dim=1))
        across, along = fit_cones(
            own, self.insertion[None, len(INSERTION_FIELDS) :], weighted_sum, weight, sums.direction
        )
        sums.cones.across.index_copy_(0, k, across)
        sums.cones.along.index_copy_(0, k, along)
        root = moved * torch.sqrt(held)
        rows = [root * (centre - after), self.x - after, root * (centre - before), replaces * (self.old - after)]
        self.rows.copy_(torch.cat(rows))
        chain = [torch.cat([self.rows, self.x])]
        for _ in range(self.degree):
            chain.append(chain[-1] @ self._precision.contraction)
        self.powers.copy_(torch.cat(chain[1:]))
        inner = chain[0] @ torch.cat(chain).T
        self.inner.copy_(torch.cat([inner.reshape(-1), self._precision.moments[0].max()[None]]))

    def _update_precision(self) -> None:
        """Third graph: apply the update to inverse and moments, and score the sample."""
        engine, precision = self._engine, self._precision
        q, r = self.degree, RANK
        inverse, spread, coefficients, own_moments, own_cross, ridge = (
            self.update[start:stop] for start, stop in zip(self._parts[:-1], self._parts[1:], strict=True)
        )
        self.ridge.copy_(ridge)
        onto = rows_and_sample(self.powers, coefficients, r) @ engine._sums.means.T
        cross = onto[-1].index_copy_(0, self.k, own_cross)
        precision.moments -= moment_decrease(onto[:-1], spread.view(q * r, q * r), q)
        precision.moments.index_copy_(1, self.k, own_moments[:, None])
        first = self.powers[:r]
        precision.contraction.addmm_(first.T @ inverse.view(r, r), first, alpha=-1.0)
        precision._quadratic.copy_(self.ridge[0] * (self.ridge[1:] @ precision.moments))
        self._write_scores(self.ridge[0] * cross)
