"""Replays an insertion schedule in blocks: many states of the precision, as matrix products.

`cut_blocks` divides the schedule into blocks and selects the ridges at which each block is factorised. `ReplayBlocks`
advances sums, bank and scatter from block to block and turns each block into a `BlockProblem`, which `solve_block`
solves. A GPU solves many blocks together (`replay_gpu`).

Within a block, the scatter at row i is S plus the first r_i of the block's changes U^T diag(s) U. At a ridge rho, let F
be triangular with F^T F = (S + rho I)^-1, and H = diag(s) + (U F^T)(U F^T)^T = L D L^T without pivoting. The leading
parts of L and D belong to the earlier states, so

    (S_i + rho I)^-1 = F^T (I - Q_i^T D_i^-1 Q_i) F,   Q = L^-1 U F^T,   where Q_i are the first r_i rows of Q.

Rows between two insertions form a segment with one r_i and one ridge, between the nodes; they become a mask and weights
in one product. Means, changes and features are multiplied by F together. A quadratic term is then a sum of squares, so
that float32 products do not cancel.

Features and means are centred: with mu = m + nu and x = m + v, mu^T P x - mu^T P mu / 2 is nu^T P v - nu^T P nu / 2
plus m^T P v + m^T P m / 2, which is the same for all classes and far larger than the differences between them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from zeroshift.adapt.bank import InsertionPlan, KnowledgeBank
from zeroshift.adapt.bank_term_bounds import add_excess, bounding_coordinates, can_matter, coordinates
from zeroshift.adapt.engines.class_statistics import BOUND_SLACK, ClassSums
from zeroshift.adapt.engines.insertion_schedule import InsertionSchedule, build_schedule
from zeroshift.adapt.engines.precision_primal import node_error, node_weights, nodes
from zeroshift.adapt.statistics import AdaptSettings, bank_term
from zeroshift.arrays import Array, Backend, to_numpy
from zeroshift.linalg import inverse_factor, ldl_reduce
from zeroshift.threads import Threads

__all__ = [
    "FLOAT32_SCORE_TOLERANCE",
    "RANK_LIMIT",
    "SCORE_TOLERANCE",
    "SMALLEST_RANK_LIMIT",
    "Accuracy",
    "Block",
    "BlockProblem",
    "ReplayBlocks",
    "SegmentStates",
    "Segments",
    "cut_blocks",
    "find_segments",
    "rounding_error",
    "solve",
    "solve_block",
]

RANK_LIMIT, SMALLEST_RANK_LIMIT = 448, 64
"""Scatter changes per block, at most (d, within these limits): for more, the factorisation of H costs more than the
block saves."""

NODES_LIMIT = 6
"""Ridges at which one block is factorised, at most."""

SCORE_TOLERANCE, FLOAT32_SCORE_TOLERANCE = 5e-7, 1e-5
"""Bound on the error of a score caused by interpolating between ridges, with float64 and with float32 products."""

FLOAT32_ROUNDOFF = 2.0**-24

ROUNDING_GROWTH = 0.25
"""The rounding error of a float32 product of d terms is taken as this times sqrt(d) times the unit roundoff, relative
to the lengths of the two vectors: several times what products of features show."""

CONE_ROUNDING = 1e-12
"""Slack of the cone bound, relative to the weight of the class."""

FLOAT32_SLACK = 1e-5
"""The same for float32 products, and slack of cosines in float32: far above rounding."""

DENSE_SHARE = 0.25
"""From this share of uncertain pairs, the bank terms of all pairs are computed from the bank."""

BANDS, SMALLEST_BAND = 8, 64
"""A product with a triangular matrix is computed in this many bands of columns, none smaller than that."""

COSINES = 1_000_000
"""Cosines with bank entries computed together on a CPU: they should stay in the caches."""


class Segments(NamedTuple):
    """Runs of rows with the same statistics. Segment s: rows starts[s] to starts[s + 1], after events[s] insertions."""

    starts: np.ndarray
    events: np.ndarray


def find_segments(first_row: int, rows: int, entered_at: np.ndarray, batch_size: int) -> Segments:
    """`entered_at` holds the row of every insertion. A batch is predicted after all of its rows were learned."""
    begins = np.maximum(entered_at // batch_size * batch_size, first_row)
    starts = np.unique(np.concatenate([[first_row], begins]))
    events = np.searchsorted(begins, starts, side="right")
    return Segments(np.append(starts, rows), events)


class Block(NamedTuple):
    """Segments `first` to `last`: the statistics of the first are factorised at `ridges`, the others updated."""

    first: int
    last: int
    interval: tuple[float, float]
    """The smallest and the largest ridge."""
    ridges: np.ndarray


class SegmentStates(NamedTuple):
    """Per segment: bank size, trace of the scatter, and the number of changes of the scatter before it."""

    sizes: np.ndarray
    traces: np.ndarray
    ranks: np.ndarray

    @classmethod
    def of(cls, schedule: InsertionSchedule, segments: Segments, size: int, trace: float) -> SegmentStates:
        """`size`, `trace`: bank and scatter before the first insertion."""
        after = ((size, schedule.sizes), (trace, schedule.traces), (0, schedule.row_ends))
        return cls(*(np.append(first, values)[segments.events] for first, values in after))

    @property
    def ridges(self) -> np.ndarray:
        return self.traces / np.maximum(self.sizes - 1, 1)


class Accuracy(NamedTuple):
    """What the interpolation between ridges must satisfy."""

    tolerance: float
    """Largest error of a score."""
    lengths: float
    """Bound on |nu| |v| + |nu|^2 / 2 for all centred means nu and features v."""
    score_size: float = math.inf
    """Bound on |nu^T P v| + nu^T P nu / 2, if known."""


def cut_blocks(
    states: SegmentStates,
    first: int,
    count: int,
    accuracy: Accuracy,
    dimension: int,
    classes: int,
    rank_limit: int,
    block_work: float = 0.0,
) -> list[Block]:
    """At most `count` blocks from segment `first`, with the same number of ridges and the least work per insertion.

    `block_work` is what a block costs in addition to its products, in multiplications.
    """
    ridges = states.ridges
    scales = dimension * states.sizes / states.traces
    blocks: list[Block] = []
    while first < len(ridges) and len(blocks) < count:
        stop = int(np.searchsorted(states.ranks, states.ranks[first] + rank_limit, side="right"))
        low = np.minimum.accumulate(ridges[first:stop])
        high = np.maximum.accumulate(ridges[first:stop])
        largest_scale = np.maximum.accumulate(scales[first:stop])
        best: tuple[float, int, int] | None = None
        for q in range(1, NODES_LIMIT + 1):
            exceeds = _score_errors(low, high, q, largest_scale, accuracy) > accuracy.tolerance
            length = max(int(exceeds.argmax()) if exceeds.any() else len(exceeds), 1)
            rank = int(states.ranks[first + length - 1] - states.ranks[first])
            cost = (block_work + q * _count_work(rank, dimension, classes)) / (1 + length)
            if best is None or cost < best[0]:
                best = (cost, q, length)
            if length == len(exceeds):
                break
        assert best is not None
        _, q, length = best
        interval = (float(low[length - 1]), float(high[length - 1]))
        block = Block(first, first + length - 1, interval, nodes(*interval, q if interval[1] > interval[0] else 1))
        if blocks and len(block.ridges) != len(blocks[0].ridges):
            break
        blocks.append(block)
        first += length
    return blocks


def _score_errors(low: np.ndarray, high: np.ndarray, q: int, scale: np.ndarray, accuracy: Accuracy) -> np.ndarray:
    """Bounds on the error of a score by interpolation at q ridges, for growing intervals.

    Two bounds on the error of C: as an operator (`node_error`), and relative to C. By the derivation there, the second
    is the largest l / (l + rho)^q over all l > 0, times rho^(q - 1), instead of the largest l / (l + rho)^(q + 1).
    """
    half = (high - low) / 2 / low
    errors: np.ndarray = node_error(1.0, 3.0, q) * half**q * scale * accuracy.lengths
    if accuracy.score_size < math.inf:
        largest = 1.0 if q == 1 else (1 / (q - 1)) / (1 + 1 / (q - 1)) ** q
        errors = np.minimum(errors, 2 * (half / 2) ** q * largest * accuracy.score_size)
    return errors


def _count_work(rank: int, d: int, classes: int) -> float:
    """Multiplications at one ridge: factor and quadratic terms once, plus the cost of every scatter change."""
    return d**3 + classes * d**2 + rank * (d**2 + 2 * rank * d + d * classes + rank * rank / 3)


@dataclass(frozen=True)
class BlockProblem:
    """One block: n rows of features in s segments, and K + m means (K at the start, then one per insertion).

    All arrays are float64.
    """

    scatter: Array
    """(d, d): scatter at the start of the block."""
    ridges: np.ndarray
    """(q,): ridges at which to factorise."""
    changes: Array
    """(r, d): vectors u of the scatter's changes +- u u^T."""
    signs: np.ndarray
    """(r,): their signs."""
    n_changes: np.ndarray
    """(s,): how many of the scatter's changes precede each segment."""
    weights: np.ndarray
    """(s, q): interpolation weights of the ridges, times ridge and scale: P is the weighted sum of (S + ridge I)^-1."""
    segment: np.ndarray
    """(n,): the segment of each row."""
    rows: slice
    """The rows among all rows that are replayed."""
    centre: Array
    """(d,): m, about which features and means are centred."""
    x: Array
    """(n, d): features."""
    means: Array
    """(K + m, d): means."""
    events: tuple[int, int]
    """Range of the block's insertions in the schedule."""
    n_insertions: np.ndarray
    """(s,): how many of the block's insertions precede each segment."""
    changed_classes: np.ndarray
    """(t,): classes with an insertion in the block."""
    mean_index: np.ndarray
    """(s, t): which of the K + m means each of these classes has in each segment."""

    def part(self, rows: slice) -> BlockProblem:
        """The problem for some of the rows."""
        first = self.rows.start
        return replace(
            self, rows=slice(first + rows.start, first + rows.stop), segment=self.segment[rows], x=self.x[rows]
        )

    def select_means(self, values: Array, segment: np.ndarray) -> Array:
        """(n, K + m) to (n, K): for every class, the value of the mean it has in the segment of the row.

        Overwrites `values` and returns a part of it.
        """
        backend = Backend.of(values)
        if len(self.changed_classes):
            rows = backend.xp.arange(values.shape[0], device=backend.device)
            index = backend.index(self.mean_index[segment])
            values[:, backend.index(self.changed_classes)] = values[rows[:, None], index]
        return values[:, : values.shape[1] - (self.events[1] - self.events[0])]

    def discriminants(self, cross: Array, quadratic: Array) -> Array:
        """mu^T P x - mu^T P mu / 2 (n, K) from the answers of `solve`; overwrites `cross`."""
        segment = Backend.of(cross).index(self.segment)
        constant = cross[:, 0] + quadratic[segment, 0]
        answer = self.select_means(cross[:, 1:], self.segment)
        answer -= self.select_means(quadratic[:, 1:], np.arange(len(self.weights)))[segment]
        answer += constant[:, None]
        return answer


class ReplayBlocks:
    """Advances bank, sums and scatter along the schedule of a plan, block by block.

    Everything is float64, except for bank terms, which are computed in `dtype`.
    """

    def __init__(
        self,
        plan: InsertionPlan,
        segments: Segments,
        features: Array,
        log_y: Array,
        confidences: np.ndarray,
        bank: KnowledgeBank,
        sums: ClassSums,
        scatter: Array,
        prototypes: Array,
        settings: AdaptSettings,
        dtype: Any,
        threads: Threads,
    ) -> None:
        self._plan = plan
        self._segments = segments
        self._features = features
        self._confidences = confidences
        self._bank = bank
        self._sums = sums
        self._backend = Backend.of(prototypes)
        self._dtype = dtype
        self._threads = threads
        self.scatter = scatter
        self._size, trace = sums.size, float(self._backend.xp.linalg.trace(scatter))
        self._trace = trace
        sums.prepare_for(plan)
        self.schedule = build_schedule(plan, features, log_y, bank, sums, trace, prototypes, settings, threads)
        self._states = SegmentStates.of(self.schedule, segments, sums.size, trace)
        self._advanced_to = 0
        self._centre = self._backend.xp.mean(features, axis=0)

    def _narrow(self, values: Array) -> Array:
        """The values in the precision of the products."""
        return self._backend.asarray(values, self._dtype)

    @property
    def _is_float32(self) -> bool:
        return self._dtype == self._backend.xp.float32

    @property
    def accumulated(self) -> float:
        """Accumulated size of the changes of the scatter matrix."""
        return self.schedule.accumulated

    @property
    def smallest_ridge(self) -> float:
        """The smallest ridge between the first and the last insertion."""
        sizes, traces = np.append(self._size, self.schedule.sizes), np.append(self._trace, self.schedule.traces)
        return float((traces / np.maximum(sizes - 1, 1)).min())

    def cut_block(self, first: int, score_size: float) -> Block:
        """The block that begins with segment `first`; `score_size` as in `Accuracy`."""
        classes, d = self._sums.means.shape
        tolerance = FLOAT32_SCORE_TOLERANCE if self._is_float32 else SCORE_TOLERANCE
        accuracy = Accuracy(tolerance, self._lengths, score_size)
        rank_limit = min(RANK_LIMIT, max(SMALLEST_RANK_LIMIT, d))
        return cut_blocks(self._states, first, 1, accuracy, d, classes, rank_limit)[0]

    @cached_property
    def _lengths(self) -> float:
        of_rows, of_means, of_new = (
            self._largest_distance(rows) for rows in (self._features, self._sums.means, self.schedule.means)
        )
        longest = max(of_means, of_new)
        return longest * of_rows + longest * longest / 2

    def _largest_distance(self, rows: Array) -> float:
        """The largest distance of a row from the centre."""
        xp, centre = self._backend.xp, self._centre
        squares = xp.sum(rows * rows, axis=1) - 2 * (rows @ centre) + centre @ centre
        return float(np.sqrt(max(float(xp.max(squares)), 0.0)))

    def advance(self, event: int) -> None:
        """Apply all insertions up to number `event`."""
        if event == self._advanced_to:
            return
        schedule, backend = self.schedule, self._backend
        start, self._advanced_to = self._advanced_to, event
        part = self._plan.part(start, event)
        rows, signs = schedule.changes(start, event)
        self._add_to_scatter(rows, rows * backend.asarray(signs)[:, None])
        self._bank.insert(part, self._features, schedule.entered_weights[start:event], self._confidences[part.rows])
        # Of several insertions into a class, only the last one matters.
        classes, last = np.unique(part.classes[::-1], return_index=True)
        e, k = backend.index(event - 1 - last), backend.index(classes)
        sums = self._sums
        sums.weighted_sums[k], sums.weights[k] = schedule.weighted_sums[e], schedule.weights[e]
        sums.means[k] = schedule.means[e]
        sums.cones.across[k], sums.cones.along[k] = schedule.cone_across[e], schedule.cone_along[e]

    def _add_to_scatter(self, rows: Array, signed: Array) -> None:
        """Add the symmetric matrix rows^T signed to the scatter; `BlockProblem`s hold the old one."""
        xp, half = self._backend.xp, rows.shape[1] // 2
        scatter = xp.empty_like(self.scatter)

        def add(part: tuple[slice, slice]) -> None:
            scatter[part] = self.scatter[part] + rows[:, part[0]].T @ signed[:, part[1]]

        first, second = slice(0, half), slice(half, rows.shape[1])
        self._threads.map(add, [(first, second), (first, first), (second, second)])
        scatter[second, first] = scatter[first, second].T
        self.scatter = scatter

    def problem(self, block: Block) -> BlockProblem:
        """The problem for a block; advances to its first segment."""
        schedule, segments = self.schedule, self._segments
        events = segments.events[block.first : block.last + 1]
        starts = segments.starts[block.first : block.last + 2]
        start, stop = int(events[0]), int(events[-1])
        self.advance(start)
        ranks = self._states.ranks[block.first : block.last + 1]
        changes, signs = schedule.changes(start, stop)
        classes = int(self._sums.means.shape[0])
        changed_classes, mean_index = _changed_classes(schedule.classes[start:stop], events - start, classes)
        rows = slice(int(starts[0]), int(starts[-1]))
        return BlockProblem(
            scatter=self.scatter,
            ridges=block.ridges,
            changes=changes,
            signs=signs,
            n_changes=ranks - ranks[0],
            weights=self._ridge_weights(block),
            segment=np.repeat(np.arange(len(events)), np.diff(starts)),
            rows=rows,
            centre=self._centre,
            x=self._features[rows],
            means=self._backend.xp.concat([self._sums.means, schedule.means[start:stop]]),
            events=(start, stop),
            n_insertions=events - start,
            changed_classes=changed_classes,
            mean_index=mean_index,
        )

    def _ridge_weights(self, block: Block) -> np.ndarray:
        """(s, q): `BlockProblem.weights`."""
        sizes, traces, _ = (values[block.first : block.last + 1] for values in self._states)
        scale = int(self._features.shape[1]) * sizes / traces
        return node_weights(traces / (sizes - 1), block.ridges) * block.ridges * scale[:, None]

    def with_another_ridge(self, problem: BlockProblem, block: Block) -> BlockProblem:
        """The problem with one ridge more, and so a far smaller error of interpolation."""
        low, high = block.interval
        ridges = nodes(low, max(high, low * (1 + 1e-6)), len(block.ridges) + 1)
        return replace(problem, ridges=ridges, weights=self._ridge_weights(block._replace(ridges=ridges)))

    def bank_term(self, problem: BlockProblem, scores: Array | None = None) -> Array:
        """r_k (n, K) with the bank at each row.

        With `scores` (n, K), lacking only the bank term, that of classes with a negligible probability may be too low.
        """
        vectors = self._backend.xp.concat(
            [self._sums.weighted_sums, self.schedule.weighted_sums[slice(*problem.events)]]
        )
        vectors, cones = self._narrow(vectors), self._widest_cones(problem.events)
        threads = self._threads
        parts = threads.map(
            lambda rows: self._bank_term(problem.part(rows), vectors, cones, None if scores is None else scores[rows]),
            threads.split(len(problem.segment)),
        )
        return parts[0] if len(parts) == 1 else self._backend.xp.concat(parts)

    def _bank_term(self, problem: BlockProblem, vectors: Array, cones: Array, scores: Array | None) -> Array:
        """The bank term, from sum p x of all classes (K + m, d) and their cones."""
        xp = self._backend.xp
        x = self._narrow(self._features[problem.rows])
        if self._sums.is_small:
            term = bank_term(x, self._narrow(self._bank.features), self._narrow(self._bank.weights))
            return term + self._bank_term_change(problem, x)
        term = problem.select_means(x @ vectors.T, problem.segment)
        limits = self._cone_limits(x, cones)
        uncertain = term < limits
        if scores is not None and bool(xp.any(uncertain)):
            limits -= term
            uncertain &= can_matter(scores + term, limits, cones[2])
        if not bool(xp.any(uncertain)):
            return term
        wide = self._features[problem.rows]
        self._refine_uncertain(uncertain, wide, problem.events[1])
        if not bool(xp.any(uncertain)):
            return term
        # The excess is the bank term of -x: with the bank at the start of the block, plus the changes since.
        excess = self._bank_term_change(problem, -x)
        if self._is_float32 and float(xp.mean(self._narrow(uncertain))) >= DENSE_SHARE:
            self._add_excess(excess, x)
        else:
            add_excess(excess, wide, self._bank.features, self._bank.weights, uncertain)
        excess *= uncertain
        term += excess
        return term

    def _widest_cones(self, events: tuple[int, int]) -> Array:
        """(3, K): the widest cone of every class between these insertions, across and along; its largest weight."""
        sums, schedule, own = self._sums, self.schedule, slice(*events)
        cones = np.stack([to_numpy(values) for values in (*sums.cones, sums.weights)])
        new = np.stack([to_numpy(v[own]) for v in (schedule.cone_across, schedule.cone_along, schedule.weights)])
        for widest, values in zip(cones, new, strict=True):
            np.maximum.at(widest, schedule.classes[own], values)
        return self._narrow(self._backend.asarray(cones))

    def _cone_limits(self, x: Array, cones: Array) -> Array:
        """(n, K): the product of a row with sum p x of a class is its bank term if it is at least this."""
        xp = self._backend.xp
        along = x @ self._narrow(self._sums.direction)
        across = xp.sqrt(xp.clip(xp.sum(x * x, axis=1) - along * along, min=0.0))
        slack = FLOAT32_SLACK if self._is_float32 else CONE_ROUNDING
        limits = xp.stack([across, along, xp.full_like(along, slack)], axis=1) @ cones
        # The bound holds for a row whose part along the shared direction is not negative.
        limits[along < 0] = xp.inf
        return limits

    def _refine_uncertain(self, uncertain: Array, x: Array, stop: int) -> None:
        """Clear pairs in `uncertain` by bounds on single entries: those held at the start of this replay, and those
        that entered since, up to insertion `stop`. `x` is float64."""
        xp, index = self._backend.xp, self._backend.index
        slack = FLOAT32_SLACK if self._is_float32 else BOUND_SLACK
        extended = self._narrow(bounding_coordinates(x, self._sums.basis))
        is_uncertain = np.any(to_numpy(uncertain), axis=0)
        chosen = np.flatnonzero(is_uncertain)
        entries = self._held_coordinates
        if 2 * len(chosen) < len(is_uncertain):
            columns, entries = index(chosen), entries[:, :, index(chosen)]
        else:
            columns = slice(None)
        m, slots, count = entries.shape
        flat = xp.reshape(entries, (m, slots * count))
        events = np.flatnonzero(is_uncertain[self.schedule.classes[:stop]])
        events = events[np.argsort(self.schedule.classes[events], kind="stable")]
        present, starts = np.unique(self.schedule.classes[events], return_index=True)
        new_entries = self._entered_coordinates[index(events)].T
        block_rows = max(1, COSINES // flat.shape[1])
        for start in range(0, x.shape[0], block_rows):
            rows = slice(start, start + block_rows)
            bounds = xp.reshape(extended[rows] @ flat, (-1, slots, count))
            held = xp.zeros_like(uncertain[rows])
            held[:, columns] = xp.min(bounds, axis=1) < slack
            if len(events):
                new = to_numpy(extended[rows] @ new_entries < slack)
                held[:, index(present)] |= index(np.logical_or.reduceat(new, starts, axis=1))
            uncertain[rows] &= held

    @cached_property
    def _held_coordinates(self) -> Array:
        """(m, slots, K): the coordinates of the entries at the start of this replay."""
        return self._narrow(self._backend.xp.permute_dims(self._sums.entry_coordinates, (2, 1, 0)))

    @cached_property
    def _entered_coordinates(self) -> Array:
        """(E, m): the coordinates of the samples that enter."""
        return self._narrow(coordinates(self.schedule.entered, self._sums.basis))

    def _add_excess(self, excess: Array, x: Array) -> None:
        """Add sum_j max(0, -x.x_j) p_j of all pairs, a group of classes at a time."""
        xp = self._backend.xp
        classes, slots, d = self._bank.features.shape
        group = max(1, COSINES // (x.shape[0] * slots))
        for start in range(0, classes, group):
            part = slice(start, start + group)
            entries = self._narrow(xp.permute_dims(self._bank.features[part], (1, 0, 2)))
            cosines = x @ xp.reshape(entries, (-1, d)).T
            cosines = xp.clip(cosines, max=0.0, out=cosines)
            cosines *= self._narrow(xp.reshape(self._bank.weights[part].T, (-1,)))
            excess[:, part] -= xp.sum(xp.reshape(cosines, (x.shape[0], slots, -1)), axis=1)

    def _bank_term_change(self, problem: BlockProblem, x: Array) -> Array:
        """What the block's insertions before each row add to the bank terms of `x`."""
        backend, xp, schedule = self._backend, self._backend.xp, self.schedule
        own = slice(*problem.events)
        narrow = self._narrow
        change = xp.clip(x @ narrow(schedule.entered[own]).T, min=0.0) * narrow(schedule.entered_weights[own])
        change -= xp.clip(x @ narrow(schedule.replaced[own]).T, min=0.0) * narrow(schedule.replaced_weights[own])
        applied = np.arange(own.stop - own.start) < problem.n_insertions[problem.segment][:, None]
        classes = np.zeros((own.stop - own.start, int(self._sums.means.shape[0])))
        classes[np.arange(len(classes)), schedule.classes[own]] = 1.0
        change *= backend.index(applied)
        return change @ narrow(backend.asarray(classes))


def _changed_classes(classes: np.ndarray, n_insertions: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The classes with insertions, and which of the count + m means each of them has in each segment."""
    changed_classes, column = np.unique(classes, return_inverse=True)
    mean_index = np.broadcast_to(changed_classes, (len(n_insertions), len(changed_classes))).copy()
    # Segments are in order, so those after insertion e are the last ones.
    firsts = np.searchsorted(n_insertions, np.arange(1, len(classes) + 1))
    for e, (place, first) in enumerate(zip(column.tolist(), firsts.tolist(), strict=True)):
        mean_index[first:, place] = count + e
    return changed_classes, mean_index


def solve_block(problem: BlockProblem, dtype: Any, threads: Threads) -> tuple[Array, Array]:
    """mu_k^T P x - mu_k^T P mu_k / 2 (n, K) for the rows of a block, and the size of the scores (see `solve`).

    Products are of type `dtype`.
    """
    backend = Backend.of(problem.scatter)
    mask = np.arange(len(problem.signs)) < problem.n_changes[:, None]
    classes, d = problem.means.shape
    means = backend.xp.empty((1 + classes, d), dtype=dtype, device=backend.device)
    means[0], means[1:] = problem.centre, problem.means - problem.centre
    cross, quadratic, size = solve(
        threads,
        problem.scatter,
        backend.asarray(problem.ridges),
        backend.asarray(problem.changes, dtype),
        backend.asarray(problem.signs),
        backend.asarray(problem.weights, dtype),
        backend.asarray(mask.astype(np.float32), dtype),
        backend.index(problem.segment),
        backend.asarray(problem.x - problem.centre, dtype),
        means,
    )
    return problem.discriminants(cross, quadratic), size


def solve(
    threads: Threads,
    scatter: Array,
    ridges: Array,
    changes: Array,
    signs: Array,
    weights: Array,
    mask: Array,
    segment: Array,
    x: Array,
    means: Array,
) -> tuple[Array, Array, Array]:
    """mu^T P x (..., n, K') of every row, mu^T P mu / 2 (..., s, K') of every segment, and the size of the scores.

    scatter (..., d, d) and ridges (..., q) are float64. changes (..., r, d), signs (..., r); weights of the ridges
    (..., s, q); mask (..., s, r) of 0 and 1; segment (..., n) of each row; x (..., n, d); means (..., K', d), of which
    the first is the centre. The products have the type of `x`, factorisations are float64. The size of the scores is a
    bound on |nu^T P v| + nu^T P nu / 2 for all centred means nu and rows v, by the lengths of the vectors multiplied.
    """
    backend = Backend.of(scatter)
    xp = backend.xp
    transpose, matmul, wide = xp.matrix_transpose, xp.matmul, xp.float64
    dtype = x.dtype
    d, r, k = scatter.shape[-1], changes.shape[-2], means.shape[-2]
    rows = xp.concat([changes, means, x], axis=-2)

    def solve_at(j: int) -> tuple[Array, Array, Array, Array]:
        """Part of mu^T P mu / 2, x times the square root of part of P, means times that of the base, and squares."""
        identity = xp.eye(d, dtype=wide, device=backend.device)
        factor = inverse_factor(scatter + ridges[..., j, None, None] * identity)
        whitened = _times_triangular(rows, xp.astype(factor, dtype, copy=False))
        u, mu, v = whitened[..., :r, :], whitened[..., r : r + k, :], whitened[..., r + k :, :]
        weight = weights[..., j]
        base = xp.sum(mu * mu, axis=-1)
        largest = xp.stack([xp.max(base[..., 1:]), xp.max(xp.sum(v * v, axis=-1))])
        quadratic = 0.5 * weight[..., :, None] * base[..., None, :]
        solved = _rows_of(weight, segment)[..., None] * v
        if r:
            gram = xp.astype(matmul(u, transpose(u)), wide, copy=False)
            gram = gram + xp.eye(r, dtype=wide, device=backend.device) * signs[..., None, :]
            reduced, pivots = ldl_reduce(gram, u)
            along = matmul(reduced, transpose(whitened[..., r:, :]))
            share = mask * (weight[..., :, None] / xp.astype(pivots, dtype, copy=False)[..., None, :])
            solved -= matmul(_rows_of(share, segment) * transpose(along[..., k:]), reduced)
            squares = along[..., :k]
            squares *= squares
            share *= 0.5
            quadratic -= matmul(share, squares)
        return quadratic, solved, mu, largest

    of_ridges = threads.map(solve_at, range(ridges.shape[-1]))
    quadratic = of_ridges[0][0]
    for part, *_ in of_ridges[1:]:
        quadratic += part
    solved = xp.concat([part for _, part, _, _ in of_ridges], axis=-1)
    whitened_means = xp.concat([part for _, _, part, _ in of_ridges], axis=-1)
    cross = xp.empty((*x.shape[:-1], k), dtype=dtype, device=backend.device)

    def multiply(part: slice) -> None:
        cross[..., part, :] = matmul(solved[..., part, :], transpose(whitened_means))

    threads.map(multiply, threads.split(x.shape[-2]))
    largest = xp.stack([part for *_, part in of_ridges])
    mean_square, row_square = xp.max(largest[:, 0]), xp.max(largest[:, 1])
    scale = xp.max(xp.sum(xp.abs(weights), axis=-1))
    return cross, quadratic, scale * (xp.sqrt(mean_square * row_square) + 0.5 * mean_square)


def _times_triangular(rows: Array, factor: Array) -> Array:
    """rows @ factor^T for a lower triangular matrix, without most of its zeros."""
    backend = Backend.of(rows)
    xp = backend.xp
    d = factor.shape[-1]
    band = max(-(-d // BANDS), SMALLEST_BAND)
    product = xp.empty(rows.shape, dtype=rows.dtype, device=backend.device)
    for start in range(0, d, band):
        stop = min(start + band, d)
        product[..., start:stop] = xp.matmul(rows[..., :stop], xp.matrix_transpose(factor[..., start:stop, :stop]))
    return product


def _rows_of(values: Array, segment: Array) -> Array:
    """(..., s) or (..., s, c) by segment to the same by row."""
    if segment.ndim == 1:
        return values[segment]
    xp = Backend.of(values).xp
    return values[xp.arange(segment.shape[0], device=Backend.of(values).device)[:, None], segment]


def rounding_error(size: float, dimension: int) -> float:
    """Estimate of the rounding error of scores of this size with float32 products of vectors of this dimension."""
    return ROUNDING_GROWTH * float(np.sqrt(dimension)) * FLOAT32_ROUNDOFF * size
