"""One streaming step on a GPU as one recorded CUDA graph.

A step consists of about a hundred small kernels, and launching them one by one takes longer than running them. Recorded
as a graph they are one launch, and the host waits once, for a few numbers at the end. So the device decides everything:
whether the row has unit length, the class, whether the sample enters and which entry it replaces. A sample that does
not enter runs through the same kernels with changes of zero.

A graph is bound to the memory it was recorded with. If other code has replaced an array of the engine since the last
step, `RecordedStep` copies its content back and makes its own array the engine's array again. Its arrays have one row
more than the engine sees: what a sample that does not enter would write is written there.

The mathematics is that of `class_statistics` and `precision_iterated`, for fixed shapes: always four scatter rows, some
of which may be zero. The bank term is summed exactly, which on a GPU is cheaper than bounds.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from zeroshift.adapt.engines.precision_iterated import IteratedPrecision
from zeroshift.adapt.statistics import class_means
from zeroshift.arrays import UNIT_NORM_TOLERANCE, Array
from zeroshift.linalg import SMALLEST_TRACE
from zeroshift.zero_shot import quantize, zero_shot_stats

if TYPE_CHECKING:
    from zeroshift.adapt.engines.streaming import StreamingEngine

__all__ = ["RecordedStep"]

SIGNS = (1.0, 1.0, -1.0, -1.0)
"""Signs of the scatter rows: those of the moved mean and the sample; of the mean before, and of the replaced entry."""

ROWS = np.zeros((4, 5, 3))
"""The scatter rows as combinations of (centre, mean after, mean before, sample, replaced entry), each coefficient a
combination of (root of the entries held if the mean moves, 1 if the sample enters, 1 if it replaces an entry)."""
ROWS[0, 0, 0], ROWS[0, 1, 0] = 1.0, -1.0
ROWS[1, 3, 1], ROWS[1, 1, 1] = 1.0, -1.0
ROWS[2, 0, 0], ROWS[2, 2, 0] = 1.0, -1.0
ROWS[3, 4, 2], ROWS[3, 1, 2] = 1.0, -1.0

BANK_BYTES = 512_000_000
"""A bank of up to this size gets all its slots when the step is recorded: every new width is a new recording."""

RECORDING = threading.Lock()
"""One thread records at a time: torch has one stream for recordings, and reuses streams."""

WARM_UPS = 2
"""Runs before a recording, because libraries initialise themselves in the first run."""


class StepResult(NamedTuple):
    """What the host learns about a step."""

    length: float
    """Length of the row."""
    k: float
    slot: float
    confidence: float
    lowest: float
    """Confidence of the entry in the slot before the step; minus infinity if it was empty."""
    enters: float
    trace: float
    accumulated: float
    ridge: float


class RecordedStep:
    """The graph of one engine. It is neither copied nor pickled; a copy of the engine records its own."""

    def __init__(self, engine: StreamingEngine) -> None:
        self._engine = engine
        self._torch = sys.modules["torch"]
        bank, backend = engine._bank, engine._backend
        classes, d = engine._prototypes.shape
        while bank.can_widen and 2 * 8 * bank.features.shape[0] * bank.features.shape[1] * d <= BANK_BYTES:
            bank.widen()
        self._slots = int(bank.weights.shape[1])
        zeros = backend.zeros
        self.x, self.scores = zeros((1, d)), zeros((1, classes))
        self.table = zeros((classes * self._slots + 1,))
        """Confidences, quantized for comparisons: minus infinity in empty slots, infinity in those of labelled samples.
        The slot to fill or to replace is always the first of the lowest."""
        self.counts = zeros((classes,))
        self.scalars = zeros((3,))
        """Bank entries; accumulated changes of the scatter; ridge of the inverse."""
        self.result = zeros((len(StepResult._fields),))
        self._signs, self._row_parts = backend.asarray(np.array(SIGNS)), backend.asarray(ROWS.reshape(-1, 3))
        self._units = backend.asarray(np.eye(4))
        self._on_host = self._pinned(self.result)
        self._extended: dict[str, Array] = {}
        self._arrays: dict[str, Array] = {}
        self.is_stale = True
        """Whether the engine learned something without this step since the last one."""
        self._bind_arrays()
        self._send_bookkeeping()
        self._graph = self._record(self._run)

    def __deepcopy__(self, memo: Any) -> None:
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()

    def _pinned(self, array: Array) -> Any:
        return self._torch.empty(array.shape, dtype=array.dtype, pin_memory=True)

    def _record(self, work: Callable[[], None]) -> Any:
        """Record `work` as a graph and undo what it did to the arrays."""
        torch = self._torch
        changing = [*self._arrays.values(), self.table, self.counts, self.scalars]
        with RECORDING:
            kept = [array.clone() for array in changing]
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
                for array, before in zip(changing, kept, strict=True):
                    array.copy_(before)
        return graph

    def is_valid(self) -> bool:
        """Whether the graph still fits the sizes of the engine's arrays."""
        return bool(self._engine._bank.weights.shape[1] == self._slots)

    @property
    def _precision(self) -> IteratedPrecision:
        precision = self._engine._precision
        assert isinstance(precision, IteratedPrecision)
        return precision

    def _bind_arrays(self) -> None:
        """Make the recorded arrays the engine's arrays again, with the present content."""
        engine, precision, bank = self._engine, self._precision, self._engine._bank
        places: list[tuple[str, Any, str]] = [("features", bank, "features"), ("weights", bank, "weights")]
        places += [(name, engine._sums, name) for name in ("weighted_sums", "totals", "means")]
        places += [("weights_of_classes", engine._sums, "weights")]
        places += [(name, precision, name) for name in ("scatter", "contraction", "quadratic_terms")]
        for name, owner, attribute in places:
            current, own = getattr(owner, attribute), self._arrays.get(name)
            if own is None:
                inner = tuple(current.shape[2:] if owner is bank else current.shape[1:])
                rows = current.numel() // int(np.prod(inner))
                self._extended[name] = engine._backend.zeros((rows + 1, *inner))
                own = self._arrays[name] = self._extended[name][:rows].view(current.shape)
            if current is not own:
                own.copy_(current)
                setattr(owner, attribute, own)

    def _send_bookkeeping(self) -> None:
        """Send what the host keeps about the bank."""
        bank, precision, asarray = self._engine._bank, self._precision, self._engine._backend.asarray
        table = np.where(bank.occupied_in(slice(None)), quantize(bank.confidences), -np.inf)
        table[:, : bank.pinned] = np.inf
        self.table[:-1].copy_(asarray(table.ravel()))
        self.counts.copy_(asarray(bank.counts.astype(np.float64)))
        self.scalars.copy_(asarray(np.array([bank.size, precision.accumulated, precision.rho])))
        self.is_stale = False

    def _receive(self) -> StepResult:
        """Wait for the result."""
        self._torch.cuda.current_stream().synchronize()
        return StepResult(*self._on_host.tolist())

    def step(self, features: Array) -> Array | None:
        """`StreamingEngine.step` for one row. Returns None, with nothing changed, if the ordinary step is needed."""
        engine, precision = self._engine, self._precision
        if precision.has_no_spread or not precision.is_sound:
            return None
        self._bind_arrays()
        if self.is_stale:
            self._send_bookkeeping()
        self.x.copy_(features)
        self._graph.replay()
        found = self._receive()
        if not found.enters:
            # If the bank of the class is full but may grow, the sample may enter after all.
            if found.lowest > -np.inf and engine._bank.can_widen:
                return None
            engine._idle += 1
            return self.scores
        self._note_insertion(found)
        before, precision.rho = precision.rho, found.ridge
        precision.trace, precision.accumulated = found.trace, found.accumulated
        changed_again = precision.correct(before, self.x[0])
        engine._mark_changed()
        self.is_stale = False
        if not changed_again:
            return self.scores
        log_y = zero_shot_stats(self.x, engine._prototypes, engine._logit_scale).log_y
        return engine._fuse(self.x, log_y, precision.cross(self.x))

    def _note_insertion(self, found: StepResult) -> None:
        """Update what the host keeps about the bank."""
        bank, sums = self._engine._bank, self._engine._sums
        k, slot = int(found.k), int(found.slot)
        bank.confidences[k, slot] = found.confidence
        bank.sample_counts[k] = max(bank.sample_counts[k], slot - bank.pinned + 1)
        sums.counts = bank.counts
        sums.forget_bounds()

    def _run(self) -> None:
        """The whole step."""
        torch, engine, precision = self._torch, self._engine, self._precision
        bank, sums, settings = engine._bank, engine._sums, engine._settings
        x, d = self.x, self.x.shape[1]
        length = torch.linalg.vector_norm(x, dim=1)
        log_y, k, confidence = zero_shot_stats(x, engine._prototypes, engine._logit_scale)

        # Whether the sample enters, and where.
        compared = quantize(confidence)
        of_class = self.table[:-1].view(-1, self._slots).index_select(0, k)
        slot = of_class.argmin(dim=1)
        lowest = of_class.gather(1, slot[:, None])[:, 0]
        is_new = lowest == -torch.inf
        enters = (compared > lowest) & ((length - 1.0).abs() <= UNIT_NORM_TOLERANCE)
        if bank.can_widen:
            enters &= is_new
        entered = enters.to(x.dtype)
        added = entered * is_new
        target = torch.where(enters, k, len(self.counts))  # a class, or the additional row
        place = torch.add(slot, k, alpha=self._slots)
        target_place = torch.where(enters, place, len(self.table) - 1)
        self.table.index_copy_(0, target_place, compared)

        # The bank, and the statistics of the class.
        extended = self._extended
        old = extended["features"].index_select(0, place)
        extended["features"].index_copy_(0, target_place, x)
        extended["weights"].index_copy_(0, target_place, log_y[0].index_select(0, k).exp())
        held = self.counts.index_select(0, k)
        self.counts.index_add_(0, k, added)
        centre = sums.totals.index_select(0, k) / torch.clamp(held, min=1.0)
        before = sums.means.index_select(0, k)
        own, own_weights = bank.features.index_select(0, k), bank.weights.index_select(0, k)
        weighted_sum, weight = torch.matmul(own_weights[:, None, :], own)[:, 0, :], own_weights.sum(dim=1)
        after = before
        if settings.update_mean:
            prototype = engine._prototypes.index_select(0, k)
            after = class_means(weighted_sum, weight, prototype, settings.alpha, settings.beta)
            extended["means"].index_copy_(0, target, after)
        extended["weighted_sums"].index_copy_(0, target, weighted_sum)
        extended["weights_of_classes"].index_copy_(0, target, weight)
        extended["totals"].index_copy_(0, target, own.sum(dim=1))

        # The scatter and its trace.
        moves = entered * torch.sqrt(held) if settings.update_mean else torch.zeros_like(entered)
        coefficients = self._row_parts @ torch.cat([moves, entered, entered - added])
        rows = coefficients.view(4, 5) @ torch.cat([centre, after, before, x, old])
        precision.scatter.addmm_((rows * self._signs[:, None]).T, rows)
        size, accumulated, ridge_before = self.scalars
        size += added[0]
        accumulated += (rows * rows).sum()
        trace = precision.scatter.diagonal().sum()
        bounded = torch.maximum(trace, SMALLEST_TRACE * size)
        ridge = bounded / (size - 1.0)

        # The inverse: Woodbury's formula, then the new ridge.
        products = rows @ precision.contraction
        system = torch.cat([products @ rows.T + torch.diag(ridge_before / self._signs), products], dim=1)
        for j in range(4):  # Gauss-Jordan without pivoting: additions come first, so no pivot is zero
            pivot_row = system[j] / system[j, j]
            system.addr_(system[:, j] - self._units[j], pivot_row, alpha=-1.0)
        updated = torch.addmm(precision.contraction, products.T, system[:, 4:], alpha=-1.0)
        first_order = torch.lerp(updated, updated @ updated, ridge_before / ridge - 1.0)
        product = torch.addcdiv(first_order, precision.scatter @ first_order, ridge)
        exact = torch.addmm(first_order, first_order, product, beta=2.0, alpha=-1.0)
        torch.where(enters, exact, precision.contraction, out=precision.contraction)
        ridge_before.copy_(ridge)

        # The scores.
        scale = d * size / bounded
        directions = sums.means @ precision.contraction
        precision.quadratic_terms.copy_(scale * (directions * sums.means).sum(dim=1))
        scores = torch.addcmul(log_y[0] - 0.5 * precision.quadratic_terms, scale, directions @ x[0])
        if settings.use_bank_term:
            cosines = (bank.features.view(-1, d) @ x[0]).clamp_(min=0.0).view(bank.weights.shape)
            scores = scores + (cosines * bank.weights).sum(dim=1)
        self.scores.copy_(scores[None, :])
        numbers = (length, k, slot, confidence, lowest, entered, trace[None], accumulated[None], ridge[None])
        self.result.copy_(torch.cat([number.to(x.dtype) for number in numbers]))
        self._on_host.copy_(self.result, non_blocking=True)
