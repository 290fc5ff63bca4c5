"""Replay on a GPU: the mathematics of `replay_blocks`, for many blocks in each call.

A GPU needs few and large operations. So the host decides everything that depends on the schedule and sends it as index
arrays; the blocks of a group are solved together, with their ridges, as batched products; and the bank terms of all
rows are computed at once, from all entries that are in the bank at any time, with a mask of when each of them is there.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from zeroshift.adapt.bank import InsertionPlan, KnowledgeBank
from zeroshift.adapt.engines.class_statistics import ClassSums
from zeroshift.adapt.engines.insertion_schedule import build_schedule
from zeroshift.adapt.engines.precision_primal import node_weights, nodes
from zeroshift.adapt.engines.replay_blocks import (
    FLOAT32_SCORE_TOLERANCE,
    SCORE_TOLERANCE,
    Accuracy,
    Block,
    Segments,
    SegmentStates,
    cut_blocks,
)
from zeroshift.adapt.statistics import AdaptSettings
from zeroshift.arrays import Array, Backend, to_numpy
from zeroshift.linalg import Float32Factor, inverse_factor
from zeroshift.threads import Threads

__all__ = ["GpuReplay", "GroupStart", "SolvedGroup", "received"]

RANK_LIMIT, SMALLEST_RANK_LIMIT = 1.5, 64
"""Scatter changes per block, at most, as a multiple of d: many more would lose digits."""

BLOCK_WORK = 2e10
"""What a block costs in addition to its products, in multiplications: launches, and factorisations that do not fill the
device. It makes blocks long."""

BLOCKS = 64
"""Blocks cut at a time, with the size of the scores that the last ones had."""

GROUP_NUMBERS = 250_000_000
"""Numbers in the blocks solved together, at most. Not the free memory: answers would depend on it."""

COSINES = 64_000_000
"""Cosines of rows with bank entries computed together: 256 MB in float32."""

NEVER = np.iinfo(np.int64).max


class SolvedGroup(NamedTuple):
    rows: slice
    """The rows of the group's blocks."""
    discriminants: Array
    """mu^T P x - mu^T P mu / 2, (n, K)."""
    size: Array
    """Size of the scores, on the device: a bound on |nu^T P v| + nu^T P nu / 2 for all centred means nu and rows v."""


class GroupStart(NamedTuple):
    """The state before the first block of a group."""

    event: int
    """How many insertions precede it."""
    scatter: Array
    mean_rows: np.ndarray
    """(K,): the row of `GpuReplay._means` that each class has."""


class GpuReplay:
    """The insertions of a plan, and the rows that are scored between them."""

    def __init__(
        self,
        plan: InsertionPlan,
        segments: Segments,
        features: Array,
        log_y: Array,
        bank: KnowledgeBank,
        sums: ClassSums,
        scatter: Array,
        prototypes: Array,
        settings: AdaptSettings,
        dtype: Any,
    ) -> None:
        self._plan = plan
        self._segments = segments
        self._features = features
        self._bank = bank
        self._sums = sums
        self._backend = Backend.of(prototypes)
        self._dtype = dtype
        xp = self._backend.xp
        trace = float(xp.linalg.trace(scatter))
        sums.prepare_for(plan)
        self.schedule = build_schedule(plan, features, log_y, bank, sums, trace, prototypes, settings, Threads())
        self.states = SegmentStates.of(self.schedule, segments, sums.size, trace)
        changes, self._signs = self.schedule.changes(0, len(plan))
        self._signs_on_device = self._backend.asarray(self._signs)
        self._changes = xp.concat([changes, self._backend.zeros((1, changes.shape[1]))])
        """(R + 1, d): all changes of the scatter, and a zero for padding."""
        self._rank_ends = np.append(0, self.schedule.row_ends)
        self._centre = xp.mean(features, axis=0)
        means = xp.concat([sums.means, self.schedule.means]) - self._centre
        self._means = xp.concat([self._centre[None, :], means])
        """(1 + K + E, d): the centre, and about it the means at the start and after each insertion."""
        self._x = features - self._centre
        longest = [math.sqrt(float(xp.max(xp.sum(rows * rows, axis=1)))) for rows in (means, self._x)]
        self._lengths = longest[0] * longest[1] + longest[0] ** 2 / 2
        self.start = GroupStart(0, scatter, np.arange(1, 1 + sums.means.shape[0]))
        """Of the next group."""
        self._advance_to(int(segments.events[0]))

    @property
    def _is_float32(self) -> bool:
        return bool(self._dtype == self._backend.xp.float32)

    @property
    def smallest_ridge(self) -> float:
        """The smallest ridge between the first and the last insertion."""
        return float(self.states.ridges.min())

    @property
    def _rank_limit(self) -> int:
        return max(SMALLEST_RANK_LIMIT, int(RANK_LIMIT * self._features.shape[1]))

    def cut_blocks(self, first: int, score_size: float) -> list[Block]:
        """Blocks from segment `first` that can be solved together; `score_size` as in `Accuracy`."""
        classes, d = self._sums.means.shape
        tolerance = FLOAT32_SCORE_TOLERANCE if self._is_float32 else SCORE_TOLERANCE
        accuracy = Accuracy(tolerance, self._lengths, score_size)
        return cut_blocks(self.states, first, BLOCKS, accuracy, d, classes, self._rank_limit, BLOCK_WORK)

    def with_another_ridge(self, blocks: Sequence[Block]) -> list[Block]:
        """The blocks with one ridge more, and so a far smaller error of interpolation."""
        return [
            block._replace(ridges=nodes(low, max(high, low * (1 + 1e-6)), len(block.ridges) + 1))
            for block in blocks
            for low, high in (block.interval,)
        ]

    def groups(self, blocks: Sequence[Block]) -> list[list[Block]]:
        """The blocks in groups that fit into memory, padded to the same size."""
        classes, d = self._sums.means.shape
        groups: list[list[Block]] = [[]]
        for block in blocks:
            q, rank = len(block.ridges), self._ranks(block)[1]
            rows = int(self._segments.starts[block.last + 1] - self._segments.starts[block.first])
            columns = rank + classes + rank // 3 + rows
            numbers = q * (4 * d * d + 2 * columns * d + 5 * rank * rank + 3 * rank * columns)
            if groups[-1] and (len(groups[-1]) + 1) * numbers > GROUP_NUMBERS:
                groups.append([])
            groups[-1].append(block)
        return groups

    def _ranks(self, block: Block) -> tuple[int, int]:
        """First change of the block, and how many there are up to the next block."""
        first = int(self._rank_ends[self._segments.events[block.first]])
        return first, int(self._rank_ends[self._next_event(block)]) - first

    def solve(self, blocks: Sequence[Block], dtype: Any, start: GroupStart) -> SolvedGroup:
        """Discriminants of the rows of consecutive blocks with the same number of ridges, with products of this type.

        Does not advance, and does not wait for the device.
        """
        backend, xp, asarray = self._backend, self._backend.xp, self._backend.asarray
        group = _GroupIndices.of(blocks, self._segments, self._plan.classes, start.mean_rows, self)
        signs, weights, ridges = _sent(backend, [group.signs, group.weights, group.ridges], np.float64)
        indices = (group.changes, group.n_changes, group.segment, group.rows, group.valid, group.means, group.changed)
        of_changes, n_changes, segment, rows, valid, means, changed, places, numbers = _sent(
            backend, [*indices, group.places, group.numbers], np.int64
        )
        # In which column each of the changed means is in each segment: later means have larger numbers.
        columns = backend.zeros((*n_changes.shape, changed.shape[1]), xp.int64)
        columns[:, 0] = changed
        columns.view(-1).scatter_reduce_(0, places, numbers, "amax")
        columns = columns.cummax(1).values
        changes = self._changes[of_changes]
        cross, quadratic, size = solve_group(
            start.scatter + self._steps_before(changes, signs),
            ridges,
            asarray(changes, dtype),
            signs,
            asarray(weights, dtype),
            n_changes,
            segment,
            asarray(self._x[rows], dtype),
            asarray(self._means[means], dtype),
        )
        segment, changed = segment[:, :, None], changed[:, None, :]
        of_rows = columns.gather(1, segment.expand(-1, -1, columns.shape[2]))
        for values, own in ((quadratic, columns), (cross, of_rows)):
            # Every class gets the value of the mean that it has in the segment.
            values.scatter_(2, changed.expand(own.shape), values.gather(2, own))
        classes = self._sums.means.shape[0]
        by_row = quadratic[:, :, : 1 + classes].gather(1, segment.expand(-1, -1, 1 + classes))
        answer = cross[:, :, 1 : 1 + classes] - by_row[:, :, 1:] + (cross[:, :, :1] + by_row[:, :, :1])
        flat = xp.reshape(answer, (-1, classes))[valid]
        first, last = int(self._segments.starts[blocks[0].first]), int(self._segments.starts[blocks[-1].last + 1])
        return SolvedGroup(slice(first, last), flat, size)

    def _steps_before(self, changes: Array, signs: Array) -> Array:
        """(B, d, d): what the blocks before each block change the scatter by."""
        xp = self._backend.xp
        steps = xp.matmul(xp.matrix_transpose(changes * signs[:, :, None]), changes)
        return xp.cumulative_sum(steps, axis=0, include_initial=True)[:-1]

    def advance(self, blocks: Sequence[Block]) -> None:
        """Go to the end of these blocks."""
        self._advance_to(self._next_event(blocks[-1]))

    def _advance_to(self, event: int) -> None:
        first, scatter, mean_rows = self.start
        own = slice(int(self._rank_ends[first]), int(self._rank_ends[event]))
        changes = self._changes[own]
        mean_rows = mean_rows.copy()
        mean_rows[self._plan.classes[first:event]] = 1 + len(mean_rows) + np.arange(first, event)
        scatter = scatter + (changes * self._signs_on_device[own][:, None]).T @ changes
        self.start = GroupStart(event, scatter, mean_rows)

    def _next_event(self, block: Block) -> int:
        """How many insertions precede the block after this one."""
        events = self._segments.events
        return int(events[block.last + 1]) if block.last + 1 < len(events) else len(self._plan)

    def add_bank_terms(self, scores: Array) -> None:
        """Add r_k to the scores of all rows, with the bank at each of them."""
        backend, xp, schedule, plan = self._backend, self._backend.xp, self.schedule, self._plan
        classes, slots, d = self._bank.features.shape
        # When entries leave: at which insertion those held at the start, and those that enter, are replaced.
        held_until = np.full(slots * classes, NEVER)
        entered_until = np.full(len(plan), NEVER)
        place = plan.slots * classes + plan.classes
        order = np.argsort(place, kind="stable")
        same = place[order][1:] == place[order][:-1]
        entered_until[order[:-1][same]] = order[1:][same]
        is_first = np.append(True, ~same) if len(order) else np.empty(0, dtype=bool)
        held_until[place[order[is_first]]] = order[is_first]
        weights = xp.reshape(self._bank.weights.T, (-1, 1))
        held = xp.reshape(xp.permute_dims(self._bank.features, (1, 0, 2)), (-1, d)) * weights
        entries = xp.concat([held, schedule.entered * schedule.entered_weights[:, None]])
        until = backend.index(np.concatenate([held_until, entered_until]))
        since = backend.index(np.concatenate([np.full(len(held_until), -1), np.arange(len(plan))]))
        own_class = backend.zeros((len(plan), classes), self._dtype)
        own_class[xp.arange(len(plan), device=backend.device), backend.index(plan.classes)] = 1.0
        segments = self._segments
        applied = backend.index(np.repeat(segments.events, np.diff(segments.starts)))[:, None]
        factor = Float32Factor(entries) if self._is_float32 else None
        first, rows_at_once = int(segments.starts[0]), max(1, COSINES // entries.shape[0])
        for start in range(0, applied.shape[0], rows_at_once):
            part = slice(start, start + rows_at_once)
            rows = slice(first + start, first + start + applied[part].shape[0])
            x = self._features[rows]
            cosines = x @ entries.T if factor is None else factor.product(factor.rows(x))
            cosines = xp.clip(cosines, min=0.0, out=cosines)
            cosines *= (since < applied[part]) & (applied[part] <= until)
            new = cosines[:, slots * classes :] @ own_class
            new += xp.sum(xp.reshape(cosines[:, : slots * classes], (-1, slots, classes)), axis=1)
            scores[rows] += new


class _GroupIndices(NamedTuple):
    """What the blocks of a group take from the arrays of a replay, padded to the same sizes."""

    changes: np.ndarray
    """(B, r) rows of the changes of the scatter, up to the next block."""
    signs: np.ndarray
    """(B, r)"""
    n_changes: np.ndarray
    """(B, s): how many of them precede each segment."""
    weights: np.ndarray
    """(B, s, q): interpolation weights of the ridges, times ridge and scale."""
    ridges: np.ndarray
    """(B, q)"""
    segment: np.ndarray
    """(B, n): the segment of each row."""
    rows: np.ndarray
    """(B, n): rows of the features."""
    valid: np.ndarray
    """Positions in (B, n) that are not padding."""
    means: np.ndarray
    """(B, 1 + K + m): rows of the means."""
    changed: np.ndarray
    """(B, t): columns of the classes whose mean changes in the block."""
    places: np.ndarray
    """(m,): places in (B, s, t) of the first segment after each insertion and its class."""
    numbers: np.ndarray
    """(m,): the column of the mean after it."""

    @classmethod
    def of(
        cls,
        blocks: Sequence[Block],
        segments: Segments,
        classes: np.ndarray,
        mean_rows: np.ndarray,
        replay: GpuReplay,
    ) -> _GroupIndices:
        count = len(mean_rows)
        mean_rows = mean_rows.copy()
        d = int(replay._features.shape[1])
        parts: list[tuple[np.ndarray, ...]] = []
        done = int(segments.events[blocks[0].first])
        for block in blocks:
            own = slice(block.first, block.last + 1)
            events, starts = segments.events[own], segments.starts[block.first : block.last + 2]
            start, stop = int(events[0]), int(events[-1])
            mean_rows[classes[done:start]] = 1 + count + np.arange(done, start)
            done = start
            first_change, n_changes = replay._ranks(block)
            sizes, traces, ranks = (values[own] for values in replay.states)
            scale = d * sizes / traces
            changed, place = np.unique(classes[start:stop], return_inverse=True)
            firsts = np.searchsorted(events - start, np.arange(1, stop - start + 1))
            parts.append(
                (
                    np.arange(first_change, first_change + n_changes),
                    replay._signs[first_change : first_change + n_changes],
                    ranks - ranks[0],
                    node_weights(traces / (sizes - 1), block.ridges) * block.ridges * scale[:, None],
                    np.repeat(np.arange(len(events)), np.diff(starts)),
                    np.arange(starts[0], starts[-1]),
                    np.concatenate([[0], mean_rows, 1 + count + np.arange(start, stop)]),
                    1 + changed,
                    firsts,
                    place,
                )
            )
        changes, signs, ranks, weights, segment, rows, means, changed_all, firsts_all, place_all = zip(
            *parts, strict=True
        )
        padded_rows, padded_ranks = _stack(rows, 0), _stack(ranks, 0)
        lengths = np.array([len(own_rows) for own_rows in rows])
        valid = np.flatnonzero(np.arange(padded_rows.shape[1]) < lengths[:, None])
        # Padding names the centre, column 0, which no class writes to; one column at least.
        changed_padded = _stack([*changed_all, np.zeros(1, dtype=np.int64)], 0)[:-1]
        segments_before = np.arange(len(blocks)) * padded_ranks.shape[1]
        at = [first + before for first, before in zip(firsts_all, segments_before, strict=True)]
        return cls(
            changes=_stack(changes, len(replay._changes) - 1),
            signs=_stack(signs, 1.0),
            n_changes=padded_ranks,
            weights=_stack(weights, 0.0),
            ridges=np.stack([block.ridges for block in blocks]),
            segment=_stack(segment, 0),
            rows=padded_rows,
            valid=valid,
            means=_stack(means, 0),
            changed=changed_padded,
            places=np.concatenate(at) * changed_padded.shape[1] + np.concatenate(place_all),
            numbers=np.concatenate([1 + count + np.arange(len(first)) for first in firsts_all]),
        )


def received(array: Array) -> Callable[[], np.ndarray]:
    """A function that returns the array on the host. The copy is started now and waits for nothing started later."""
    torch: Any = sys.modules["torch"]
    if array.device.type != "cuda":
        return lambda: to_numpy(array)
    host = torch.empty(array.shape, dtype=array.dtype, pin_memory=True)
    host.copy_(array, non_blocking=True)
    copied = torch.cuda.current_stream(array.device).record_event()

    def wait() -> np.ndarray:
        copied.synchronize()
        return np.array(host.numpy())

    return wait


def _sent(backend: Backend, arrays: Sequence[np.ndarray], dtype: Any) -> list[Array]:
    """The arrays on the device in this type, with one copy, for which the host does not wait."""
    torch: Any = sys.modules["torch"]
    sizes = [array.size for array in arrays]
    joined = torch.empty(
        sum(sizes), dtype=getattr(torch, np.dtype(dtype).name), pin_memory=backend.device.type == "cuda"
    )
    np.concatenate([array.ravel() for array in arrays], out=joined.numpy())
    parts = joined.to(backend.device, non_blocking=True).split(sizes)
    return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]


def _stack(arrays: Sequence[np.ndarray], value: float) -> np.ndarray:
    """The arrays, with `value` after their rows so that all have the same number, as one."""
    stacked = np.full((len(arrays), max(map(len, arrays)), *arrays[0].shape[1:]), value, dtype=arrays[0].dtype)
    for row, array in zip(stacked, arrays, strict=True):
        row[: len(array)] = array
    return stacked


def solve_group(
    scatters: Array,
    ridges: Array,
    changes: Array,
    signs: Array,
    weights: Array,
    n_changes: Array,
    segment: Array,
    x: Array,
    means: Array,
) -> tuple[Array, Array, Array]:
    """`replay_blocks.solve` for B blocks at q ridges: mu^T P x (B, n, C), mu^T P mu / 2 (B, s, C), size of the scores.

    scatters (B, d, d), ridges (B, q) and signs (B, r) are float64; changes (B, r, d), weights (B, s, q), x (B, n, d)
    and means (B, C, d) have the precision of the products. The first mean is the centre.
    """
    backend = Backend.of(scatters)
    xp = backend.xp
    transpose, matmul, wide = xp.matrix_transpose, xp.matmul, xp.float64
    dtype = x.dtype
    (blocks, q), d = ridges.shape, scatters.shape[-1]
    r, n_means = changes.shape[1], means.shape[1]
    torch = sys.modules["torch"]
    identity = xp.eye(d, dtype=wide, device=backend.device)
    factor = inverse_factor(scatters[:, None] + ridges[:, :, None, None] * identity)
    # All ridges side by side: (B, d, q d).
    side_by_side = xp.reshape(xp.permute_dims(xp.astype(factor, dtype), (0, 3, 1, 2)), (blocks, d, q * d))
    whitened = matmul(xp.concat([changes, means, x], axis=1), side_by_side)
    by_ridge = xp.permute_dims(xp.reshape(whitened, (blocks, -1, q, d)), (0, 2, 1, 3))
    u, mu, v = by_ridge[:, :, :r], by_ridge[:, :, r : r + n_means], by_ridge[:, :, r + n_means :]
    mu_side, v_side = whitened[:, r : r + n_means], whitened[:, r + n_means :]
    base = xp.sum(mu * mu, axis=-1)
    largest = xp.max(base[:, :, 1:]), xp.max(xp.sum(v * v, axis=-1))
    by_row = weights.gather(1, segment[:, :, None].expand(-1, -1, q))
    solved = xp.reshape(v_side, (blocks, -1, q, d)) * by_row[..., None]
    quadratic = 0.5 * matmul(weights, base)
    if r:
        gram = xp.astype(matmul(u, transpose(u)), wide)
        lu, _, _ = torch.linalg.lu_factor_ex(gram + torch.diag_embed(signs)[:, None], pivot=False)
        pivots = xp.astype(torch.diagonal(lu, dim1=-2, dim2=-1), dtype)
        reduced = xp.astype(
            torch.linalg.solve_triangular(lu, xp.astype(u, wide), upper=False, unitriangular=True), dtype
        )
        applied = xp.arange(r, device=backend.device) < n_changes[:, :, None]
        share = applied[:, None] * (transpose(weights)[..., None] / pivots[:, :, None, :])
        along = matmul(reduced, transpose(mu))
        along *= along
        flat_share = xp.reshape(xp.permute_dims(share, (0, 2, 1, 3)), (blocks, -1, q * r))
        quadratic -= 0.5 * matmul(flat_share, xp.reshape(along, (blocks, q * r, n_means)))
        of_rows = share.gather(2, segment[:, None, :, None].expand(-1, q, -1, r))
        of_rows *= matmul(v, transpose(reduced))
        solved = solved - xp.permute_dims(matmul(of_rows, reduced), (0, 2, 1, 3))
    cross = matmul(xp.reshape(solved, (blocks, -1, q * d)), transpose(mu_side))
    scale = xp.max(xp.sum(xp.abs(weights), axis=-1))
    return cross, quadratic, scale * (xp.sqrt(largest[0] * largest[1]) + 0.5 * largest[0])
