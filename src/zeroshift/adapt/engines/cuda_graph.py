"""One streaming step on a GPU as three recorded CUDA graphs.

A step is some hundred small kernels, and launching them one by one takes longer than running them. Recorded once, they
are three launches: look at the sample and score it, follow the insertion up to the small numbers the host works on, and
carry the update out. Recordings are bound to the memory they were made with, so the engine's arrays are adopted:
whatever other code put in their place since the last step is copied back to where the recording expects it.

The mathematics is that of `sums` and `primal`, written for fixed shapes: four scatter rows always, of which some may be
zero. The bank term is summed exactly, which on a GPU costs less than a certificate.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from zeroshift.adapt.bank import HELD, InsertionPlan
from zeroshift.adapt.bank_term_bounds import cones
from zeroshift.adapt.engines.precision_primal import PrimalPrecision
from zeroshift.adapt.engines.woodbury import moments_lost, rows_and_sample
from zeroshift.adapt.statistics import bank_term, class_means
from zeroshift.arrays import Array
from zeroshift.zero_shot import zero_shot_stats

if TYPE_CHECKING:
    from zeroshift.adapt.engines.streaming import StreamingEngine

__all__ = ["RecordedStep"]

RANK = 4
SIGNS = np.array([1.0, 1.0, -1.0, -1.0])
NEWCOMER = 1
"""Which of the four rows is x - mu'."""

FACTS = ("class", "slot in the whole bank", "entries held", "mean moves", "an entry is replaced")
"""What the host says of an insertion, before which of the class's slots are in use."""

WARM_UPS = 2
"""Runs before a recording: libraries set themselves up in the first."""

SUMS = ("weighted_sums", "weights", "totals", "means", "direction")
"""Arrays of `ClassSums` a recording works on."""


class RecordedStep:
    """The recordings of one engine. A copy of the engine goes without, and makes its own when it needs them."""

    def __init__(self, engine: StreamingEngine) -> None:
        self._engine = engine
        self._torch = sys.modules["torch"]
        home = engine._home
        classes, d = engine._prototypes.shape
        self.degree = q = self._precision.degree
        width = RANK + 1
        zeros = home.zeros
        self.x, self.log_y, self.scores = zeros((1, d)), zeros((1, classes)), zeros((1, classes))
        self.term, self.seen = zeros((1, classes)), zeros((2,))
        self.slots = int(engine._bank.weights.shape[1])
        self.facts = zeros((len(FACTS) + self.slots,))
        self.k = zeros((1,), home.xp.int64)
        self.old, self.old_weight = zeros((1, d)), zeros((1,))
        self.rows, self.powers = zeros((RANK, d)), zeros((q * width, d))
        self.inner = zeros((width * width * (q + 1) + 1,))
        self.ridge = zeros((q + 1,))
        """Scale and polynomial of the present ridge."""
        sizes = (RANK * RANK, (q * RANK) ** 2, q * width, q, 1, q + 1)
        self.update = zeros((sum(sizes),))
        self._parts = np.cumsum((0, *sizes))
        self._to_device = {name: self._pinned(getattr(self, name)) for name in ("facts", "update", "ridge")}
        self._to_host = {name: self._pinned(getattr(self, name)) for name in ("seen", "inner")}
        self._mine: dict[str, Array] = {}
        self._adopt()
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
        """Capture `work`; what it did to the engine while warming up is undone."""
        torch = self._torch
        kept = {name: array.clone() for name, array in self._mine.items()}
        stream = torch.cuda.Stream(self._engine._home.device)
        stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(stream):
                for _ in range(WARM_UPS):
                    work()
            torch.cuda.current_stream().wait_stream(stream)
            with torch.cuda.graph(graph):
                work()
        finally:
            for name, array in kept.items():
                self._mine[name].copy_(array)
        return graph

    def fits(self) -> bool:
        """Whether the recordings still are of arrays this large."""
        return self._engine._bank.weights.shape[1] == self.slots and self._precision.degree == self.degree

    def _adopt(self) -> None:
        """Make the recorded arrays the engine's own again, with what the engine holds now."""
        engine, precision = self._engine, self._precision
        places: list[tuple[Any, str]] = [(engine._bank, "features"), (engine._bank, "weights")]
        places += [(engine._sums, name) for name in SUMS]
        places += [(precision, "contraction"), (precision, "moments"), (precision, "_quadratic")]
        fresh = False
        for owner, name in places:
            current, mine = getattr(owner, name), self._mine.get(f"{type(owner).__name__}.{name}")
            if mine is None:
                mine = self._mine[f"{type(owner).__name__}.{name}"] = self._engine._home.copy(current)
            if current is not mine:
                mine.copy_(current)
                setattr(owner, name, mine)
                fresh = True
        for name in ("across", "along"):
            current, mine = getattr(engine._sums.cones, name), self._mine.get(name)
            if mine is None:
                mine = self._mine[name] = self._engine._home.copy(current)
            if current is not mine:
                mine.copy_(current)
                engine._sums.cones = engine._sums.cones._replace(**{name: mine})
        if fresh:
            self._send_ridge()

    def _send_ridge(self) -> None:
        self._send("ridge", np.append(self._precision._scale, self._precision._coefficients))

    @property
    def _precision(self) -> PrimalPrecision:
        precision = self._engine._precision
        assert isinstance(precision, PrimalPrecision)
        return precision

    def _send(self, name: str, values: Any) -> None:
        """To the device, without waiting. The stream was waited for since the last time, so the buffer is free."""
        buffer = self._to_device[name]
        buffer.numpy()[...] = values
        getattr(self, name).copy_(buffer, non_blocking=True)

    def _receive(self, name: str) -> np.ndarray:
        buffer = self._to_host[name]
        buffer.copy_(getattr(self, name), non_blocking=True)
        self._torch.cuda.current_stream().synchronize()
        received: np.ndarray = buffer.numpy()
        return received

    def step(self, features: Array) -> Array | None:
        """`StreamingEngine.step` for one row. None, with nothing changed, where the ordinary way has to be taken."""
        engine, precision = self._engine, self._precision
        bank, sums = engine._bank, engine._sums
        self._adopt()
        self.x.copy_(features)
        self._score_graph.replay()
        k, sureness = self._receive("seen").tolist()
        plan = bank.plan(np.array([int(k)]), np.array([sureness]))
        if len(plan) == 0:
            engine._idle += 1
            return self.scores.clone()
        size = sums.size + int(plan.replaced[0] < HELD)
        cones_due = engine._rule.use_bank_term and size.bit_length() != sums._cones_fitted_at
        if plan.slots[0] >= self.slots or cones_due or precision._flat_at_start:
            return None
        self._enter(plan, sureness)
        self._insert_graph.replay()
        precision._waiting.append((self.rows.clone(), SIGNS))
        inner = self._receive("inner")
        grams, largest = inner[:-1].reshape(RANK + 1, -1), float(inner[-1])
        update = precision.prepare(grams, SIGNS, NEWCOMER, largest)
        if update is not None:
            ridge = np.append(precision._scale, precision._coefficients)
            parts = (update.inverse, update.spread, update.sample_coefficients, update.own_moments)
            numbers = [*(part.ravel() for part in parts), np.array([update.own_cross]), ridge]
            self._send("update", np.concatenate(numbers))
            self._update_graph.replay()
            precision.applied(self.x[0])
            scores = self.scores.clone()
        else:
            # The ridge had moved too far: everything was made anew, and the sample is scored with that.
            scores = engine._fused(self.x, self.log_y, precision.cross(self.x))
        engine._changed()
        return scores

    def _enter(self, plan: InsertionPlan, sureness: float) -> None:
        """What the host knows of the insertion, and the bank's own books."""
        bank, sums = self._engine._bank, self._engine._sums
        k, slot, replaced = int(plan.classes[0]), int(plan.slots[0]), int(plan.replaced[0])
        held = int(sums.counts[k])
        self.old.copy_(bank.features[k, slot])
        self.old_weight.copy_(bank.weights[k, slot])
        bank.confidences[k, slot] = sureness
        bank.sample_counts[k] = max(bank.sample_counts[k], slot - bank.pinned + 1)
        sums.counts = bank.counts
        moves = held > 0 and self._engine._rule.update_mean
        facts = (k, k * self.slots + slot, held, moves, replaced >= HELD)
        self._send("facts", np.append(facts, bank.occupied_in(np.array([k]))[0]))

    def _score_sample(self) -> None:
        engine, precision, torch = self._engine, self._precision, self._torch
        log_y, classes, confidences = zero_shot_stats(self.x, engine._prototypes, engine._logit_scale)
        self.log_y.copy_(log_y)
        self.seen.copy_(torch.cat([classes.to(confidences.dtype), confidences]))
        # Products with vectors, not with matrices of one row, which take several times as long.
        chain = [precision.contraction @ self.x[0]]
        for _ in range(self.degree - 1):
            chain.append(precision.contraction @ chain[-1])
        contracted = self.ridge[1:] @ torch.stack(chain)
        if engine._rule.use_bank_term:
            cosines = (engine._bank.features.view(-1, self.x.shape[1]) @ self.x[0]).view(engine._bank.weights.shape)
            self.term.copy_((torch.clamp(cosines, min=0.0) * engine._bank.weights).sum(dim=1))
        self._write_scores(self.ridge[0] * (engine._sums.means @ contracted))

    def _write_scores(self, cross: Array) -> None:
        self.scores.copy_(self.log_y + cross - 0.5 * self._precision._quadratic + self.term)

    def _insert_sample(self) -> None:
        engine, torch = self._engine, self._torch
        bank, sums, rule = engine._bank, engine._sums, engine._rule
        d = self.x.shape[1]
        k, flat = self.k, self.facts[1:2].to(self.k.dtype)
        k.copy_(self.facts[:1])
        entries, weights = bank.features.view(-1, d), bank.weights.view(-1)
        entries.index_copy_(0, flat, self.x)
        weights.index_copy_(0, flat, torch.exp(self.log_y[0].index_select(0, k)))
        held, moved, replaces = self.facts[2], self.facts[3], self.facts[4]
        centre = sums.totals.index_select(0, k) / torch.clamp(held, min=1.0)
        before = sums.means.index_select(0, k)
        own, own_weights = bank.features.index_select(0, k), bank.weights.index_select(0, k)
        weighted_sum, weight = torch.matmul(own_weights[:, None, :], own)[:, 0, :], own_weights.sum(dim=1)
        if rule.use_bank_term:
            # Of all classes' bank terms only this one's has changed since the look.
            self.term.index_copy_(1, k, bank_term(self.x, own, own_weights))
        after = before
        if rule.update_mean:
            prototype = engine._prototypes.index_select(0, k)
            after = class_means(weighted_sum, weight, prototype, rule.alpha, rule.beta)
            sums.means.index_copy_(0, k, after)
        sums.weighted_sums.index_copy_(0, k, weighted_sum)
        sums.weights.index_copy_(0, k, weight)
        sums.totals.index_copy_(0, k, own.sum(dim=1))
        across, along = cones(own, self.facts[None, len(FACTS) :], weighted_sum, weight, sums.direction)
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
        engine, precision = self._engine, self._precision
        q, r = self.degree, RANK
        inverse, spread, coefficients, own_moments, own_cross, ridge = (
            self.update[start:stop] for start, stop in zip(self._parts[:-1], self._parts[1:], strict=True)
        )
        self.ridge.copy_(ridge)
        onto = rows_and_sample(self.powers, coefficients, r) @ engine._sums.means.T
        cross = onto[-1].index_copy_(0, self.k, own_cross)
        precision.moments -= moments_lost(onto[:-1], spread.view(q * r, q * r), q)
        precision.moments.index_copy_(1, self.k, own_moments[:, None])
        first = self.powers[:r]
        precision.contraction.addmm_(first.T @ inverse.view(r, r), first, alpha=-1.0)
        precision._quadratic.copy_(self.ridge[0] * (self.ridge[1:] @ precision.moments))
        self._write_scores(self.ridge[0] * cross)
