"""Replays an insertion schedule in blocks: many states of the precision, as matrix products.

`cut_blocks` divides the schedule into blocks and selects the ridges at which each block is factorised. `ReplayBlocks`
advances sums, bank and scatter from block to block and turns each block into a `BlockProblem`. `solve_all` solves
several problems together, which suits a GPU.

Within a block, the scatter at row i is S plus the first r_i of the block's changes U^T diag(s) U. At a ridge rho, with
C = rho (S + rho I)^-1 and H = rho diag(1/s) + U C U^T = L D L^T without pivoting, the leading parts of L and D belong
to the earlier states, so

    C_i = C - Q_i^T D_i^-1 Q_i,   Q = L^-1 U C,   where Q_i are the first r_i rows of Q.

Each row of features has its own r_i and its own ridge between the nodes; they become a mask and weights in one product.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np

from zeroshift.adapt.bank import InsertionPlan, KnowledgeBank
from zeroshift.adapt.bank_term_bounds import Cones, add_excess, uncertain_pairs
from zeroshift.adapt.engines.class_statistics import ClassSums
from zeroshift.adapt.engines.insertion_schedule import InsertionSchedule, build_schedule
from zeroshift.adapt.engines.precision_primal import MAX_LENGTHS, node_error, node_weights, nodes
from zeroshift.adapt.statistics import AdaptSettings, bank_term
from zeroshift.arrays import Array, Backend, to_numpy
from zeroshift.linalg import ldl_inverse, positive_inverse

__all__ = [
    "GPU_RANK_LIMIT",
    "RANK_LIMIT",
    "SMALLEST_RANK_LIMIT",
    "Block",
    "BlockProblem",
    "ReplayBlocks",
    "Segments",
    "cut_blocks",
    "find_segments",
    "group_blocks",
    "solve",
    "solve_all",
]

RANK_LIMIT, SMALLEST_RANK_LIMIT, GPU_RANK_LIMIT = 448, 64, 1024
"""Scatter changes per block, at most (d, within these limits): for more, the factorisation of H costs more than the
block saves. A GPU prefers fewer and larger blocks."""

NODES_LIMIT = 6
"""Ridges at which one block is factorised, at most."""

SCORE_TOLERANCE = 5e-7
"""Bound on the error of a score caused by interpolating between ridges."""


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
    ridges: np.ndarray


def cut_blocks(
    schedule: InsertionSchedule,
    segments: Segments,
    size: int,
    trace: float,
    dimension: int,
    classes: int,
    rank_limit: int = RANK_LIMIT,
) -> list[Block]:
    """Greedy blocks with the least work per insertion. `size`, `trace`: bank and scatter before the first insertion."""
    sizes, traces = np.append(size, schedule.sizes)[segments.events], np.append(trace, schedule.traces)[segments.events]
    ranks = np.append(0, schedule.row_ends)[segments.events]
    ridges = traces / np.maximum(sizes - 1, 1)
    scales = dimension * sizes / traces
    blocks, first, count = [], 0, len(segments.events)
    while first < count:
        last = min(count, int(np.searchsorted(ranks, ranks[first] + rank_limit, side="right")))
        low = np.minimum.accumulate(ridges[first:last])
        high = np.maximum.accumulate(ridges[first:last])
        allowed = SCORE_TOLERANCE / (MAX_LENGTHS * np.maximum.accumulate(scales[first:last]))
        best: tuple[float, int, int] | None = None
        for q in range(1, NODES_LIMIT + 1):
            bounds = _node_errors(low, high, q)
            length = int(np.searchsorted(bounds > allowed, True)) if (bounds > allowed).any() else len(bounds)
            length = max(length, 1)
            rank = int(ranks[first + length - 1] - ranks[first])
            cost = q * _count_work(rank, dimension, classes) / (1 + length)
            if best is None or cost < best[0]:
                best = (cost, q, length)
        assert best is not None
        _, q, length = best
        ends = (float(low[length - 1]), float(high[length - 1]))
        blocks.append(Block(first, first + length - 1, nodes(*ends, q if ends[1] > ends[0] else 1)))
        first += length
    return blocks


def _node_errors(low: np.ndarray, high: np.ndarray, q: int) -> np.ndarray:
    """`node_error` for growing intervals, for which it increases."""
    unit = node_error(1.0, 3.0, q)
    errors: np.ndarray = unit * (((high - low) / 2) / low) ** q
    return errors


def _count_work(rank: int, d: int, classes: int) -> float:
    """Multiplications at one ridge: inverse and quadratic terms once, plus the cost of every scatter change."""
    return d**3 + classes * d**2 + rank * (d**2 + 2 * rank * d + d * classes + rank * rank / 3)


def group_blocks(blocks: list[Block], per_group: int) -> Iterator[list[Block]]:
    """Groups of at most `per_group` consecutive blocks with the same number of ridges."""
    for _, same_ridges in groupby(blocks, key=lambda block: len(block.ridges)):
        run = list(same_ridges)
        for start in range(0, len(run), per_group):
            yield run[start : start + per_group]


@dataclass(frozen=True)
class BlockProblem:
    """One block: n rows of features and K + m means (K at the start of the block, then one per insertion)."""

    scatter: Array
    """(d, d): scatter at the start of the block."""
    ridges: np.ndarray
    """(q,): ridges at which to factorise."""
    rows: Array
    """(r, d): vectors u of the scatter's changes s u u^T."""
    signs: np.ndarray
    """(r,): the signs s."""
    n_changes: np.ndarray
    """(n,): how many of the scatter's changes precede each row."""
    weights: np.ndarray
    """(n, q): interpolation weights of the ridges."""
    x: Array
    means: Array
    scale: np.ndarray
    """(n,): d N / tr S."""
    events: tuple[int, int]
    """Range of the block's insertions in the schedule."""
    n_insertions: np.ndarray
    """(n,): how many of the block's insertions precede each row."""
    changed_classes: Array
    """(t,): classes with an insertion in the block."""
    mean_index: Array
    """(n, t): which of the K + m means each of these classes has at each row."""

    def select_means(self, values: Array) -> Array:
        """(n, K + m) to (n, K): for every class, the value of the mean it has at the row."""
        backend = Backend.of(values)
        classes = values.shape[1] - (self.events[1] - self.events[0])
        chosen = backend.copy(values[:, :classes])
        if len(self.changed_classes):
            rows = backend.xp.arange(values.shape[0], device=backend.device)
            chosen[:, self.changed_classes] = values[rows[:, None], self.mean_index]
        return chosen


class ReplayBlocks:
    """Advances bank, sums and scatter along the schedule of a plan, block by block."""

    def __init__(
        self,
        plan: InsertionPlan,
        features: Array,
        log_y: Array,
        confidences: np.ndarray,
        bank: KnowledgeBank,
        sums: ClassSums,
        scatter: Array,
        prototypes: Array,
        settings: AdaptSettings,
    ) -> None:
        self._plan = plan
        self._features = features
        self._confidences = confidences
        self._bank = bank
        self._sums = sums
        self._backend = Backend.of(prototypes)
        self.scatter = scatter
        self._size = sums.size
        self._trace = float(self._backend.xp.linalg.trace(scatter))
        sums.prepare_for(plan)
        self.schedule = build_schedule(plan, features, log_y, bank, sums, self._trace, prototypes, settings)
        self._advanced_to = 0

    @property
    def accumulated(self) -> float:
        """Accumulated size of the changes of the scatter matrix."""
        return self.schedule.accumulated

    @property
    def smallest_ridge(self) -> float:
        """The smallest ridge between the first and the last insertion."""
        sizes, traces = np.append(self._size, self.schedule.sizes), np.append(self._trace, self.schedule.traces)
        return float((traces / np.maximum(sizes - 1, 1)).min())

    def cut_blocks(self, segments: Segments) -> list[Block]:
        """Divide the segments into blocks."""
        classes, d = self._sums.means.shape
        rank_limit = GPU_RANK_LIMIT if self._backend.on_gpu else min(RANK_LIMIT, max(SMALLEST_RANK_LIMIT, d))
        return cut_blocks(self.schedule, segments, self._size, self._trace, d, classes, rank_limit)

    def advance(self, event: int) -> None:
        """Apply all insertions up to number `event`."""
        if event == self._advanced_to:
            return
        schedule, backend = self.schedule, self._backend
        start, self._advanced_to = self._advanced_to, event
        part = self._plan.part(start, event)
        rows, signs = self._changes(start, event)
        self.scatter = self.scatter + (rows * backend.asarray(signs)[:, None]).T @ rows
        self._bank.insert(part, self._features, schedule.entered_weights[start:event], self._confidences[part.rows])
        # Of several insertions into a class, only the last one matters.
        classes, last = np.unique(part.classes[::-1], return_index=True)
        e, k = backend.index(event - 1 - last), backend.index(classes)
        sums = self._sums
        sums.weighted_sums[k], sums.weights[k] = schedule.weighted_sums[e], schedule.weights[e]
        sums.means[k] = schedule.means[e]
        sums.cones.across[k], sums.cones.along[k] = schedule.cone_across[e], schedule.cone_along[e]

    def _changes(self, start: int, event: int) -> tuple[Array, np.ndarray]:
        """The changes of the scatter by insertions `start` to `event`."""
        ends = np.append(0, self.schedule.row_ends)
        return self.schedule.rows[ends[start] : ends[event]], self.schedule.signs[ends[start] : ends[event]]

    def problem(self, segments: Segments, block: Block) -> BlockProblem:
        """The problem for a block; call after advancing to its first segment."""
        schedule = self.schedule
        at = np.repeat(
            segments.events[block.first : block.last + 1], np.diff(segments.starts[block.first : block.last + 2])
        )
        start, stop = int(segments.events[block.first]), int(segments.events[block.last])
        sizes, traces = np.append(self._size, schedule.sizes)[at], np.append(self._trace, schedule.traces)[at]
        ends = np.append(0, schedule.row_ends)
        rows, signs = self._changes(start, stop)
        changed_classes, mean_index = _changed_classes(
            schedule.classes[start:stop], at - start, int(self._sums.means.shape[0])
        )
        d = int(self._features.shape[1])
        return BlockProblem(
            scatter=self.scatter,
            ridges=block.ridges,
            rows=rows,
            signs=signs,
            n_changes=ends[at] - ends[start],
            weights=node_weights(traces / (sizes - 1), block.ridges),
            x=self._features[int(segments.starts[block.first]) : int(segments.starts[block.last + 1])],
            means=self._backend.xp.concat([self._sums.means, schedule.means[start:stop]]),
            scale=d * sizes / traces,
            events=(start, stop),
            n_insertions=at - start,
            changed_classes=self._backend.index(changed_classes),
            mean_index=self._backend.index(mean_index),
        )

    def bank_term(self, problem: BlockProblem) -> Array:
        """r_k (n, K) with the bank at each row."""
        xp, schedule, sums = self._backend.xp, self.schedule, self._sums
        own = slice(*problem.events)
        x = problem.x
        term = x @ xp.concat([sums.weighted_sums, schedule.weighted_sums[own]]).T
        across = xp.concat([sums.cones.across, schedule.cone_across[own]])
        along = xp.concat([sums.cones.along, schedule.cone_along[own]])
        weights = xp.concat([sums.weights, schedule.weights[own]])
        if sums.is_small:
            return bank_term(x, self._bank.features, self._bank.weights) + self._bank_term_change(problem, x)
        uncertain = problem.select_means(uncertain_pairs(term, x, sums.direction, Cones(across, along), weights))
        term = problem.select_means(term)
        if not self._backend.on_gpu:
            self._refine_uncertain(uncertain, x)
        if not bool(xp.any(uncertain)):
            return term
        # The excess is the bank term of -x: with the bank at the start of the block, plus the changes since.
        excess = self._bank_term_change(problem, -x)
        add_excess(excess, x, self._bank.features, self._bank.weights, uncertain)
        return xp.where(uncertain, term + excess, term)

    def _refine_uncertain(self, uncertain: Array, x: Array) -> None:
        """Clear pairs in `uncertain` by bounds on single entries: those held now, and all that enter in this replay."""
        held = self._backend.copy(uncertain)
        self._sums.refine_uncertain(held, x)
        new = to_numpy(self._sums.uncertain_insertions(x, self.schedule.entered))
        for e in np.flatnonzero(new.any(axis=0)).tolist():
            held[:, int(self.schedule.classes[e])] |= self._backend.index(new[:, e])
        uncertain &= held

    def _bank_term_change(self, problem: BlockProblem, x: Array) -> Array:
        """What the block's insertions before each row add to the bank terms of `x`."""
        backend, xp, schedule = self._backend, self._backend.xp, self.schedule
        own = slice(*problem.events)
        gained = xp.clip(x @ schedule.entered[own].T, min=0.0) * schedule.entered_weights[own]
        lost = xp.clip(x @ schedule.replaced[own].T, min=0.0) * schedule.replaced_weights[own]
        applied = np.arange(own.stop - own.start) < problem.n_insertions[:, None]
        classes = np.zeros((own.stop - own.start, int(self._sums.means.shape[0])))
        classes[np.arange(len(classes)), schedule.classes[own]] = 1.0
        return ((gained - lost) * backend.asarray(applied.astype(np.float64))) @ backend.asarray(classes)


def _changed_classes(classes: np.ndarray, n_insertions: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The classes with insertions, and which of the count + m means each of them has at each row."""
    changed_classes, column = np.unique(classes, return_inverse=True)
    mean_index = np.broadcast_to(changed_classes, (len(n_insertions), len(changed_classes))).copy()
    for e, place in enumerate(column.tolist()):
        # Rows are in order, so the rows after insertion e are the last ones.
        mean_index[np.searchsorted(n_insertions, e + 1) :, place] = count + e
    return changed_classes, mean_index


def solve_all(problems: Sequence[BlockProblem]) -> list[tuple[Array, Array]]:
    """`solve` for several blocks with the same number of ridges, padded with zeros to the same size."""
    backend = Backend.of(problems[0].scatter)
    bring, stack = backend.asarray, backend.xp.stack
    n, r = max(len(p.n_changes) for p in problems), max(len(p.signs) for p in problems)
    k = max(p.means.shape[0] for p in problems)
    n_changes = backend.index(np.stack([np.pad(p.n_changes, (0, n - len(p.n_changes))) for p in problems]))
    cross, quadratic = solve(
        stack([p.scatter for p in problems]),
        bring(np.stack([p.ridges for p in problems])),
        stack([_padded(p.rows, r) for p in problems]),
        bring(np.stack([np.pad(p.signs, (0, r - len(p.signs)), constant_values=1.0) for p in problems])),
        bring(np.stack([np.pad(p.weights, ((0, n - len(p.weights)), (0, 0))) for p in problems])),
        backend.xp.astype(backend.xp.arange(r, device=backend.device) < n_changes[:, :, None], backend.xp.float64),
        stack([_padded(p.x, n) for p in problems]),
        stack([_padded(p.means, k) for p in problems]),
    )
    return [
        (cross[i, : len(p.n_changes), : p.means.shape[0]], quadratic[i, : len(p.n_changes), : p.means.shape[0]])
        for i, p in enumerate(problems)
    ]


def _padded(rows: Array, count: int) -> Array:
    if rows.shape[0] == count:
        return rows
    backend = Backend.of(rows)
    return backend.xp.concat([rows, backend.zeros((count - rows.shape[0], rows.shape[1]))])


def solve(
    scatter: Array,
    ridges: Array,
    rows: Array,
    signs: Array,
    weights: Array,
    mask: Array,
    x: Array,
    means: Array,
) -> tuple[Array, Array]:
    """mu^T C_i x_i and mu^T C_i mu, both (..., n, K').

    scatter (..., d, d); ridges (..., q); rows (..., r, d), signs (..., r); weights of the ridges (..., n, q); mask
    (..., n, r) of 0 and 1; x (..., n, d); means (..., K', d).
    """
    backend = Backend.of(scatter)
    xp = backend.xp
    transpose = xp.matrix_transpose
    d, r, n, q = scatter.shape[-1], rows.shape[-2], x.shape[-2], ridges.shape[-1]
    lead = tuple(scatter.shape[:-2])
    identity = xp.eye(d, dtype=xp.float64, device=backend.device)
    ridge = ridges[..., None, None]
    contraction = ridge * positive_inverse(scatter[..., None, :, :] + ridge * identity)
    # First the terms without changes, at every node: (..., q, *, *).
    contracted_means = xp.matmul(means[..., None, :, :], contraction)
    quadratic = xp.matmul(weights, xp.sum(contracted_means * means[..., None, :, :], axis=-1))
    contracted_x = xp.matmul(x[..., None, :, :], contraction)
    solved = xp.sum(transpose(weights)[..., None] * contracted_x, axis=-3)
    if r == 0:
        return xp.matmul(solved, transpose(means)), quadratic
    contracted_rows = xp.matmul(rows[..., None, :, :], contraction)
    diagonal = xp.eye(r, dtype=xp.float64, device=backend.device) * (ridge / signs[..., None, None, :])
    inverse, pivots = ldl_inverse(xp.matmul(contracted_rows, transpose(rows)[..., None, :, :]) + diagonal)
    reduced = xp.reshape(xp.matmul(inverse, contracted_rows), (*lead, q * r, d))
    # Then the changes, for all nodes in one product: node weights, mask and pivots form one (n, q r) matrix.
    share = weights[..., :, :, None] * mask[..., :, None, :] / pivots[..., None, :, :]
    share = xp.reshape(share, (*lead, n, q * r))
    along_means = xp.matmul(reduced, transpose(means))
    solved = solved - xp.matmul(share * transpose(xp.matmul(reduced, transpose(x))), reduced)
    along_means *= along_means
    quadratic = quadratic - xp.matmul(share, along_means)
    return xp.matmul(solved, transpose(means)), quadratic
