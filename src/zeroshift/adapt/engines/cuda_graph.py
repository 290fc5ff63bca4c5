"""One streaming step on a GPU as one recorded CUDA graph.

A step consists of about a hundred small kernels, and launching them one by one takes longer than running them. Recorded
as a graph they are one launch, and the host waits once, for a few numbers at the end. So the device decides everything:
whether the row has unit length, the class, whether the sample enters and which entry it replaces. A sample that does
not enter runs through the same kernels with changes of zero.

A graph is bound to the memory it was recorded with. If other code has replaced an array of the engine since the last
step, `RecordedStep` copies its content back and makes its own array the engine's array again. Its arrays have one row
more than the engine sees: what a sample that does not enter would write is written there.

The mathematics is that of `class_statistics` and `precision_iterated`, for fixed shapes: always four scatter rows, some
of which may be zero. The bank term is summed exactly, which on a GPU is cheaper than bounds. What the scores do not
wait for runs next to it, in other streams of the graph.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from zeroshift.adapt.engines.precision_iterated import IteratedPrecision
from zeroshift.arrays import UNIT_NORM_TOLERANCE, Array
from zeroshift.linalg import SMALLEST_TRACE
from zeroshift.recording import RECORDING
from zeroshift.zero_shot import TIE, quantize, softmax, zero_shot_stats

if TYPE_CHECKING:
    from zeroshift.adapt.engines.streaming import StreamingEngine

__all__ = ["RecordedStep"]

SIGNS = (1.0, 1.0, -1.0, -1.0)
"""Signs of the scatter rows: those of the moved mean and the sample; of the mean before, and of the replaced entry."""

SUM, AFTER, BEFORE, SAMPLE, OLD = range(5)
"""The vectors of an insertion: the sum of the entries before it, the mean after and before, sample, replaced entry."""

ROWS = np.zeros((4, 5, 4))
"""The scatter rows as combinations of these vectors. Each coefficient is a combination of (root of the number of
entries, divided by that number; root; 1; 1 if an entry is replaced)."""
ROWS[0, SUM, 0], ROWS[0, AFTER, 1] = 1.0, -1.0
ROWS[1, SAMPLE, 2], ROWS[1, AFTER, 2] = 1.0, -1.0
ROWS[2, SUM, 0], ROWS[2, BEFORE, 1] = 1.0, -1.0
ROWS[3, OLD, 3], ROWS[3, AFTER, 3] = 1.0, -1.0

LOWEST, SLOT, FACTORS, ADDS = 0, 1, slice(2, 6), 6
"""Columns of the table of the next insertions: the confidence that a sample of the class must exceed, the slot it gets,
the four numbers of `ROWS`, and 1 if the slot is empty."""

UNSETTLED, SETTLED = 192, 1024
"""Bank entries below which an insertion changes the ridge so much that the inverse needs a third or a second Newton
step."""

BANK_BYTES = 512_000_000
"""A bank of up to this size gets all its slots when the step is recorded: every new width is a new recording."""

WARM_UPS = 2
"""Runs before a recording, because libraries initialise themselves in the first run."""


class StepResult(NamedTuple):
    """What the host learns about a step."""

    length: float
    """Length of the row."""
    k: float
    confidence: float
    enters: float
    lowest: float
    """Confidence of the entry in the slot before the step; minus infinity if it was empty."""
    slot: float
    trace: float
    accumulated: float
    ridge: float


class RecordedStep:
    """The graph of one engine. It is neither copied nor pickled; a copy of the engine records its own."""

    def __init__(self, engine: StreamingEngine) -> None:
        self._engine = engine
        self._torch = sys.modules["torch"]
        bank, backend, settings = engine._bank, engine._backend, engine._settings
        classes, d = engine._prototypes.shape
        while bank.can_widen and 2 * 8 * bank.features.shape[0] * bank.features.shape[1] * d <= BANK_BYTES:
            bank.widen()
        self._slots = int(bank.weights.shape[1])
        zeros = backend.zeros
        self.vectors = zeros((5, d))
        self.x = self.vectors[SAMPLE : SAMPLE + 1]
        self.scores, self.probabilities = zeros((1, classes)), zeros((1, classes))
        self.confidences = zeros((classes * self._slots + 1,))
        """Quantized for comparisons: minus infinity in empty slots, infinity in those of labelled samples. The slot to
        fill or to replace is always the first of the lowest."""
        self.next_insertions = zeros((classes + 1, 7))
        self.counts = zeros((classes,))
        self.scalars = zeros((3,))
        """Bank entries; accumulated changes of the scatter; ridge of the inverse."""
        self.result = zeros((len(StepResult._fields),))
        self._weights_and_ones = 1.0 + zeros((2, self._slots))
        self._scaled_prototypes = engine._logit_scale * engine._prototypes
        self._anchors = engine._prototypes if settings.beta is not None else (1 - settings.alpha) * engine._prototypes
        self._signs, self._row_parts = backend.asarray(np.array(SIGNS)), backend.asarray(ROWS.reshape(-1, 4))
        self._zero = zeros(())
        self._last_class, self._last_place = (
            backend.index(np.array(classes)),
            backend.index(np.array(classes * self._slots)),
        )
        self._newton_steps = self._suitable_newton_steps
        self._on_host = self._pinned(self.result)
        self._extended: dict[str, Array] = {}
        self._arrays: dict[str, Array] = {}
        self.is_stale = True
        """Whether the engine learned something without this step since the last one."""
        self._bind_arrays()
        self._send_bookkeeping()
        self._graph = self._record()

    def __deepcopy__(self, memo: Any) -> None:
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()

    def _pinned(self, array: Array) -> Any:
        return self._torch.empty(array.shape, dtype=array.dtype, pin_memory=True)

    def _record(self) -> Any:
        """Record the step as a graph and undo what that did to the arrays."""
        torch = self._torch
        changing = [*self._arrays.values(), self.confidences, self.next_insertions, self.counts, self.scalars]
        with RECORDING, torch.cuda.device(self._engine._backend.device):
            kept = [array.clone() for array in changing]
            stream = torch.cuda.Stream(self._engine._backend.device)
            self._streams = [torch.cuda.Stream(self._engine._backend.device) for _ in range(2)]
            stream.wait_stream(torch.cuda.current_stream())
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.stream(stream):
                    for _ in range(WARM_UPS):
                        self._run()
                        stream.synchronize()
                torch.cuda.current_stream().wait_stream(stream)
                # Other threads may use the GPU meanwhile, with other methods.
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                    self._run()
            finally:
                for array, before in zip(changing, kept, strict=True):
                    array.copy_(before)
        return graph

    def _aside(self, number: int) -> AbstractContextManager[Any]:
        """What follows runs in another stream, after what the current stream has done so far."""
        self._streams[number].wait_stream(self._torch.cuda.current_stream())
        context: AbstractContextManager[Any] = self._torch.cuda.stream(self._streams[number])
        return context

    def _join(self, number: int) -> None:
        """The current stream waits for the other one."""
        self._torch.cuda.current_stream().wait_stream(self._streams[number])

    def is_valid(self) -> bool:
        """Whether the graph still fits the sizes of the engine's arrays."""
        return bool(
            self._engine._bank.weights.shape[1] == self._slots and self._newton_steps == self._suitable_newton_steps
        )

    @property
    def _suitable_newton_steps(self) -> int:
        size = self._engine._sums.size
        return 3 if size < UNSETTLED else 2 if size < SETTLED else 1

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
        confidences = np.where(bank.occupied_in(slice(None)), quantize(bank.confidences), -np.inf)
        confidences[:, : bank.pinned] = np.inf
        self.confidences[:-1].copy_(asarray(confidences.ravel()))
        slots, held = np.argmin(confidences, axis=1), bank.counts.astype(np.float64)
        lowest = np.take_along_axis(confidences, slots[:, None], axis=1)[:, 0]
        roots = np.sqrt(held) * self._engine._settings.update_mean
        adds = np.isneginf(lowest).astype(np.float64)
        columns = [lowest, slots, roots / np.maximum(held, 1), roots, np.ones_like(held), 1 - adds, adds]
        self.next_insertions[:-1].copy_(asarray(np.stack(columns, axis=1)))
        self.counts.copy_(asarray(held))
        self.scalars.copy_(asarray(np.array([bank.size, precision.accumulated, precision.rho])))
        self.is_stale = False

    def _receive(self) -> StepResult:
        """Copy the result to the host, and wait for it."""
        self._on_host.copy_(self.result)
        return StepResult(*self._on_host.tolist())

    def step(self, features: Array) -> bool:
        """`StreamingEngine.step` for one row: scores and probabilities are in the arrays of that name.

        Returns False, with nothing changed, if the ordinary step is needed, or if the row does not have unit length.
        """
        cuda, device = self._torch.cuda, self._engine._backend.device
        if cuda.current_device() == device.index:
            return self._step(features)
        with cuda.device(device):
            return self._step(features)

    def _step(self, features: Array) -> bool:
        engine, precision = self._engine, self._precision
        if precision.has_no_spread or not precision.is_sound:
            return False
        self._bind_arrays()
        if self.is_stale:
            self._send_bookkeeping()
        self.x.copy_(features)
        self._graph.replay()
        found = self._receive()
        if not found.enters:
            if not abs(found.length - 1.0) <= UNIT_NORM_TOLERANCE:
                return False
            # If the bank of the class is full but may grow, the sample may enter after all.
            if found.lowest > -np.inf and engine._bank.can_widen:
                return False
            engine._idle += 1
            return True
        self._note_insertion(found)
        before, precision.rho = precision.rho, found.ridge
        precision.trace, precision.accumulated = found.trace, found.accumulated
        changed_again = precision.correct(before, self.x[0], self._newton_steps)
        engine._mark_changed()
        self.is_stale = False
        if changed_again:
            log_y = zero_shot_stats(self.x, engine._prototypes, engine._logit_scale).log_y
            self.scores.copy_(engine._fuse(self.x, log_y, precision.cross(self.x)))
            self.probabilities.copy_(softmax(self.scores))
        return True

    def _note_insertion(self, found: StepResult) -> None:
        """Update what the host keeps about the bank."""
        bank, sums = self._engine._bank, self._engine._sums
        k, slot = int(found.k), int(found.slot)
        bank.confidences[k, slot] = found.confidence
        bank.sample_counts[k] = max(bank.sample_counts[k], slot - bank.pinned + 1)
        sums.counts = bank.counts
        sums.forget_bounds()

    def _run(self) -> None:
        """The whole step. Variables keep what both streams use until the end, so that no memory is reused too early."""
        torch, engine, precision = self._torch, self._engine, self._precision
        bank, sums, settings, extended = engine._bank, engine._sums, engine._settings, self._extended
        x, d = self.x[0], self.x.shape[1]
        size, accumulated, ridge_before = self.scalars
        log_y = torch.log_softmax(self._scaled_prototypes @ x, dim=0)
        with self._aside(1):
            if settings.use_bank_term:  # with the bank before the insertion
                cosines = (extended["features"][:-1] @ x).clamp_(min=0.0).view(bank.weights.shape)
                log_y_and_term = (cosines * bank.weights).sum(dim=1).add_(log_y)
            diagonal = torch.diag(ridge_before / self._signs)
        with self._aside(0):
            length = torch.linalg.vector_norm(x)
            has_unit_length = (length - 1.0).abs() <= UNIT_NORM_TOLERANCE
            y = log_y.exp()
            confidence = torch.dot(y, log_y)
            compared = quantize(confidence[None])

        # The class of the zero-shot prediction. Its confidence decides whether the sample enters.
        k = (log_y >= log_y.max() - TIE).view(torch.int8).argmax(dim=0, keepdim=True)
        plan = self.next_insertions.index_select(0, k)
        slot = plan[:, SLOT].to(k.dtype)
        with self._aside(0):
            enters = (compared > plan[:, LOWEST]) & has_unit_length
            if bank.can_widen:
                enters &= plan[:, LOWEST] == -torch.inf
            entered = enters.to(x.dtype)
            coefficients = (self._row_parts @ plan[0, FACTORS]).view(4, 5)

        # The mean of the class if the sample enters, and the change of the scatter.
        own = bank.features.index_select(0, k)[0]
        torch.index_select(own, 0, slot, out=self.vectors[OLD : OLD + 1])
        own.index_copy_(0, slot, self.x)
        torch.index_select(sums.totals, 0, k, out=self.vectors[SUM : SUM + 1])
        torch.index_select(sums.means, 0, k, out=self.vectors[BEFORE : BEFORE + 1])
        own_weights = self._weights_and_ones[0]
        torch.index_select(bank.weights, 0, k, out=self._weights_and_ones[:1])
        own_weights.index_copy_(0, slot, log_y.index_select(0, k).exp_())
        own_sums = self._weights_and_ones @ own
        weight = own_weights.sum(dim=0, keepdim=True)
        after = self.vectors[AFTER : AFTER + 1]
        if not settings.update_mean:
            after.copy_(self.vectors[BEFORE : BEFORE + 1])
        elif settings.beta is None:
            torch.addcdiv(self._anchors.index_select(0, k), own_sums[:1], weight, value=settings.alpha, out=after)
        else:
            mixing = weight / (weight + settings.beta)
            torch.lerp(self._anchors.index_select(0, k), own_sums[:1] / weight, mixing, out=after)
        self._join(0)
        # Not times zero if the sample does not enter: a row that is refused may hold NaN.
        rows = torch.where(enters, coefficients @ self.vectors, self._zero)

        with self._aside(0):
            precision.scatter.addmm_((rows * self._signs[:, None]).T, rows)
            added = plan[:, ADDS] * entered
            size += added[0]
            trace = precision.scatter.diagonal().sum()
            bounded = torch.maximum(trace, SMALLEST_TRACE * size)
            ridge = bounded / (size - 1.0)
            change = ridge_before / ridge - 1.0
            scale = d * size / bounded
            place = torch.add(slot, k, alpha=self._slots)
            target_place = torch.where(enters, place, self._last_place)
            target = torch.where(enters, k, self._last_class)  # a class, or the additional row
            if settings.update_mean:
                extended["means"].index_copy_(0, target, after)
            shifted = torch.add(x, sums.means, alpha=-0.5)
        self._join(1)
        with self._aside(1):  # after what the bank was used for above
            if settings.use_bank_term:  # only that of the class changes
                own_term = log_y.index_select(0, k) + torch.dot((own @ x).clamp_(min=0.0), own_weights)
                changed_term = torch.where(enters, own_term, log_y_and_term.index_select(0, k))
                log_y_and_term.index_copy_(0, k, changed_term)

        # The inverse: Woodbury's formula by L D L^T, without pivoting (additions come first, so no pivot is zero).
        products = rows @ precision.contraction
        system = torch.cat([torch.addmm(diagonal, products, rows.T), products], dim=1)
        for j in range(3):
            system[j + 1 :].addcdiv_(system[j + 1 :, j, None] * system[j], system[j, j], value=-1.0)
        reduced = system[:, 4:]
        scaled = reduced / system.diagonal()[:, None]
        updated = torch.addmm(precision.contraction, reduced.T, scaled, alpha=-1.0)
        self._join(0)
        with self._aside(1):
            extended["features"].index_copy_(0, target_place, self.x)
            extended["weights"].index_copy_(0, target_place, own_weights.index_select(0, slot))
            extended["weighted_sums"].index_copy_(0, target, own_sums[:1])
            extended["totals"].index_copy_(0, target, own_sums[1:])
            extended["weights_of_classes"].index_copy_(0, target, weight)
            self._plan_next_insertion(k, target, target_place, compared, added)
            accumulated += (rows * rows).sum()
            first = (length[None], k.to(x.dtype), confidence[None], entered, plan[0, : FACTORS.start])
            torch.cat([*first, trace[None], accumulated[None], ridge[None]], out=self.result)

        # The ridge: to first order, then Newton steps.
        inverse = torch.lerp(updated, updated @ updated, change)
        for _ in range(self._newton_steps):
            product = torch.addcdiv(inverse, precision.scatter @ inverse, ridge)
            inverse = torch.addmm(inverse, inverse, product, beta=2.0, alpha=-1.0)
        torch.where(enters, inverse, precision.contraction, out=precision.contraction)

        # The scores. mu^T C x - mu^T C mu / 2 = mu^T C (x - mu / 2).
        directions = sums.means @ precision.contraction
        with self._aside(0):
            torch.mul((directions * sums.means).sum(dim=1), scale, out=precision.quadratic_terms)
            ridge_before.copy_(ridge)
        halved = (directions * shifted).sum(dim=1)
        self._join(1)
        torch.addcmul(log_y_and_term if settings.use_bank_term else log_y, halved, scale, out=self.scores[0])
        torch.softmax(self.scores, dim=1, out=self.probabilities)
        self._join(0)

    def _plan_next_insertion(self, k: Array, target: Array, place: Array, compared: Array, added: Array) -> None:
        """Enter the confidence, and find out what the next sample of the class will replace."""
        torch = self._torch
        self.confidences.index_copy_(0, place, compared)
        self.counts.index_add_(0, k, added)
        of_class = self.confidences[:-1].view(-1, self._slots).index_select(0, k)
        slot = of_class.argmin(dim=1, keepdim=True)
        lowest = of_class.gather(1, slot)
        held = self.counts.index_select(0, k)[:, None]
        root = held.sqrt() * self._engine._settings.update_mean
        adds = (lowest == -torch.inf).to(held.dtype)
        columns = [lowest, slot.to(held.dtype), root / held.clamp(min=1.0), root, torch.ones_like(held), 1 - adds, adds]
        self.next_insertions.index_copy_(0, target, torch.cat(columns, dim=1))
