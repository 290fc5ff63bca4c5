"""Cutting a known timeline into blocks that can be worked on as matrices, each with the ridges to factorise at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np

from zeroshift.adapt.bank import InsertionPlan, KnowledgeBank
from zeroshift.adapt.bank_term_bounds import Cones, add_excess, doubtful
from zeroshift.adapt.engines.class_statistics import ClassSums
from zeroshift.adapt.engines.insertion_schedule import InsertionSchedule, insertion_schedule
from zeroshift.adapt.engines.precision_primal import node_error, node_weights, nodes
from zeroshift.adapt.statistics import AdaptSettings, bank_term
from zeroshift.arrays import Array, Home, to_numpy
from zeroshift.linalg import ldl_inverse, positive_inverse

__all__ = [
    "GPU_RANK_LIMIT",
    "RANK_LIMIT",
    "SMALLEST_RANK_LIMIT",
    "Block",
    "BlockProblem",
    "ReplayBlocks",
    "Segments",
    "cut",
    "groups",
    "segments",
    "solve",
    "solve_all",
]

RANK_LIMIT, SMALLEST_RANK_LIMIT, GPU_RANK_LIMIT = 448, 64, 1024
"""Scatter changes worked on together, at most (d of them, within these limits): beyond, their own small factorisation
outweighs what they share. A GPU would rather multiply more than be asked more often."""

NODES_LIMIT = 6
"""Ridges factorised at in one block, at most."""

SCORE_TOLERANCE = 5e-7
"""Bound on the error of a score by interpolating between ridges."""

LENGTHS = 1.6
"""|mu| |x| + |mu|^2 / 2 is at most this for unit vectors (which may be 1% longer)."""


class Segments(NamedTuple):
    """Runs of rows with the same statistics. Segment s: rows starts[s] .. starts[s + 1], after events[s] insertions."""

    starts: np.ndarray
    events: np.ndarray


def segments(first_row: int, rows: int, entered_at: np.ndarray, batch_size: int) -> Segments:
    """`entered_at`: offered row of every insertion. A batch is predicted after all of it was learned."""
    begins = np.maximum(entered_at // batch_size * batch_size, first_row)
    starts = np.unique(np.concatenate([[first_row], begins]))
    events = np.searchsorted(begins, starts, side="right")
    return Segments(np.append(starts, rows), events)


class Block(NamedTuple):
    """Segments first .. last: the statistics of the first are factorised, the others' changes are followed."""

    first: int
    last: int
    ridges: np.ndarray


def cut(
    line: InsertionSchedule,
    runs: Segments,
    size: int,
    trace: float,
    dimension: int,
    classes: int,
    rank_limit: int = RANK_LIMIT,
) -> list[Block]:
    """Greedy blocks of least work an insertion. `size` and `trace` are the bank's before the first insertion."""
    sizes, traces = np.append(size, line.sizes)[runs.events], np.append(trace, line.traces)[runs.events]
    ranks = np.append(0, line.row_ends)[runs.events]
    ridges = traces / np.maximum(sizes - 1, 1)
    scales = dimension * sizes / traces
    blocks, first, count = [], 0, len(runs.events)
    while first < count:
        last = min(count, int(np.searchsorted(ranks, ranks[first] + rank_limit, side="right")))
        low = np.minimum.accumulate(ridges[first:last])
        high = np.maximum.accumulate(ridges[first:last])
        allowed = SCORE_TOLERANCE / (LENGTHS * np.maximum.accumulate(scales[first:last]))
        best: tuple[float, int, int] | None = None
        for q in range(1, NODES_LIMIT + 1):
            bounds = _errors(low, high, q)
            fits = int(np.searchsorted(bounds > allowed, True)) if (bounds > allowed).any() else len(bounds)
            fits = max(fits, 1)
            rank = int(ranks[first + fits - 1] - ranks[first])
            cost = q * _work(rank, dimension, classes) / (1 + fits)
            if best is None or cost < best[0]:
                best = (cost, q, fits)
        assert best is not None
        _, q, fits = best
        ends = (float(low[fits - 1]), float(high[fits - 1]))
        blocks.append(Block(first, first + fits - 1, nodes(*ends, q if ends[1] > ends[0] else 1)))
        first += fits
    return blocks


def _errors(low: np.ndarray, high: np.ndarray, q: int) -> np.ndarray:
    """`ridge.node_error` for growing intervals; it grows with them."""
    unit = node_error(1.0, 3.0, q)
    errors: np.ndarray = unit * (((high - low) / 2) / low) ** q
    return errors


def _work(rank: int, d: int, classes: int) -> float:
    """Multiplications at one ridge: inverse and quadratic terms once, then what every scatter change costs."""
    return d**3 + classes * d**2 + rank * (d**2 + 2 * rank * d + d * classes + rank * rank / 3)


def groups(blocks: list[Block], together: int) -> Iterator[list[Block]]:
    """Neighbouring blocks with equally many ridges, at most `together` at a time."""
    for _, alike in groupby(blocks, key=lambda block: len(block.ridges)):
        run = list(alike)
        for start in range(0, len(run), together):
            yield run[start : start + together]


# A timeline done block by block: sums, bank and scatter advance with it, and each block becomes a problem to solve.


@dataclass(frozen=True)
class BlockProblem:
    """One block: n rows of features, K + m means (those at the block's start, then one for each of its insertions)."""

    scatter: Array
    ridges: np.ndarray
    rows: Array
    signs: np.ndarray
    counted: np.ndarray
    """(n,): how many of the scatter's changes are in force at each row."""
    weights: np.ndarray
    """(n, q): weights of the ridges' answers."""
    x: Array
    means: Array
    scale: np.ndarray
    """(n,): d N / tr S."""
    events: tuple[int, int]
    seen: np.ndarray
    """(n,): how many of the block's insertions have happened at each row."""
    touched: Array
    index: Array
    """(t,) classes touched, and (n, t) which of the K + m means they have at each row."""

    def in_force(self, values: Array) -> Array:
        """(n, K + m) to (n, K): every class by the mean it has at the row."""
        home = Home.of(values)
        classes = values.shape[1] - (self.events[1] - self.events[0])
        chosen = home.copy(values[:, :classes])
        if len(self.touched):
            rows = home.xp.arange(values.shape[0], device=home.device)
            chosen[:, self.touched] = values[rows[:, None], self.index]
        return chosen


class ReplayBlocks:
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
        rule: AdaptSettings,
    ) -> None:
        self._plan = plan
        self._features = features
        self._confidences = confidences
        self._bank = bank
        self._sums = sums
        self._home = Home.of(prototypes)
        self.scatter = scatter
        self._size = sums.size
        self._trace = float(self._home.xp.linalg.trace(scatter))
        sums.expect(plan)
        self.line = insertion_schedule(plan, features, log_y, bank, sums, self._trace, prototypes, rule)
        self._advanced_to = 0

    @property
    def accumulated(self) -> float:
        """Squares that come and go in the scatter matrix."""
        return self.line.accumulated

    @property
    def smallest_ridge(self) -> float:
        sizes, traces = np.append(self._size, self.line.sizes), np.append(self._trace, self.line.traces)
        return float((traces / np.maximum(sizes - 1, 1)).min())

    def cut(self, runs: Segments) -> list[Block]:
        classes, d = self._sums.means.shape
        rank_limit = GPU_RANK_LIMIT if self._home.on_gpu else min(RANK_LIMIT, max(SMALLEST_RANK_LIMIT, d))
        return cut(self.line, runs, self._size, self._trace, d, classes, rank_limit)

    def advance(self, event: int) -> None:
        """Let everything up to the insertion numbered `event` have happened."""
        if event == self._advanced_to:
            return
        line, home = self.line, self._home
        done, self._advanced_to = self._advanced_to, event
        some = self._plan.between(done, event)
        rows, signs = self._changes(done, event)
        self.scatter = self.scatter + (rows * home.bring(signs)[:, None]).T @ rows
        self._bank.enter(some, self._features, line.entered_weights[done:event], self._confidences[some.rows])
        # Of several insertions into a class the last one counts.
        classes, last = np.unique(some.classes[::-1], return_index=True)
        e, k = home.index(event - 1 - last), home.index(classes)
        sums = self._sums
        sums.weighted_sums[k], sums.weights[k], sums.means[k] = line.weighted_sums[e], line.weights[e], line.means[e]
        sums.cones.across[k], sums.cones.along[k] = line.cone_across[e], line.cone_along[e]

    def _changes(self, done: int, event: int) -> tuple[Array, np.ndarray]:
        """The scatter's changes by the insertions done .. event."""
        ends = np.append(0, self.line.row_ends)
        return self.line.rows[ends[done] : ends[event]], self.line.signs[ends[done] : ends[event]]

    def problem(self, runs: Segments, block: Block) -> BlockProblem:
        """The block whose first segment everything has advanced to."""
        line = self.line
        at = np.repeat(runs.events[block.first : block.last + 1], np.diff(runs.starts[block.first : block.last + 2]))
        start, stop = int(runs.events[block.first]), int(runs.events[block.last])
        sizes, traces = np.append(self._size, line.sizes)[at], np.append(self._trace, line.traces)[at]
        ends = np.append(0, line.row_ends)
        rows, signs = self._changes(start, stop)
        touched, index = _touched(line.classes[start:stop], at - start, int(self._sums.means.shape[0]))
        d = int(self._features.shape[1])
        return BlockProblem(
            scatter=self.scatter,
            ridges=block.ridges,
            rows=rows,
            signs=signs,
            counted=ends[at] - ends[start],
            weights=node_weights(traces / (sizes - 1), block.ridges),
            x=self._features[int(runs.starts[block.first]) : int(runs.starts[block.last + 1])],
            means=self._home.xp.concat([self._sums.means, line.means[start:stop]]),
            scale=d * sizes / traces,
            events=(start, stop),
            seen=at - start,
            touched=self._home.index(touched),
            index=self._home.index(index),
        )

    def bank_term(self, problem: BlockProblem) -> Array:
        """r_k (n, K) with the banks as they are at each row."""
        xp, line, sums = self._home.xp, self.line, self._sums
        own = slice(*problem.events)
        x = problem.x
        term = x @ xp.concat([sums.weighted_sums, line.weighted_sums[own]]).T
        across = xp.concat([sums.cones.across, line.cone_across[own]])
        along = xp.concat([sums.cones.along, line.cone_along[own]])
        weights = xp.concat([sums.weights, line.weights[own]])
        if sums.few:
            return bank_term(x, self._bank.features, self._bank.weights) + self._since(problem, x)
        doubt = problem.in_force(doubtful(term, x, sums.direction, Cones(across, along), weights))
        term = problem.in_force(term)
        if not self._home.on_gpu:
            self._refine_doubtful(doubt, x)
        if not bool(xp.any(doubt)):
            return term
        # The excess with the bank as it was at the block's start, and what has changed since: that of -x's bank term.
        excess = self._since(problem, -x)
        add_excess(excess, x, self._bank.features, self._bank.weights, doubt)
        return xp.where(doubt, term + excess, term)

    def _refine_doubtful(self, doubt: Array, x: Array) -> None:
        """Clear doubts by single entries: those held when the replay began, and all that enter in its course."""
        held = self._home.copy(doubt)
        self._sums.refine_doubtful(held, x)
        new = to_numpy(self._sums.new_in_doubt(x, self.line.entered))
        for e in np.flatnonzero(new.any(axis=0)).tolist():
            held[:, int(self.line.classes[e])] |= self._home.index(new[:, e])
        doubt &= held

    def _since(self, problem: BlockProblem, x: Array) -> Array:
        """What the block's own insertions, so far, add to the bank terms of `x`."""
        home, xp, line = self._home, self._home.xp, self.line
        own = slice(*problem.events)
        gained = xp.clip(x @ line.entered[own].T, min=0.0) * line.entered_weights[own]
        lost = xp.clip(x @ line.left[own].T, min=0.0) * line.left_weights[own]
        happened = np.arange(own.stop - own.start) < problem.seen[:, None]
        classes = np.zeros((own.stop - own.start, int(self._sums.means.shape[0])))
        classes[np.arange(len(classes)), line.classes[own]] = 1.0
        return ((gained - lost) * home.bring(happened.astype(np.float64))) @ home.bring(classes)


def _touched(classes: np.ndarray, seen: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The classes insertions touch, and for each row which of the count + m means each of them has."""
    touched, column = np.unique(classes, return_inverse=True)
    index = np.broadcast_to(touched, (len(seen), len(touched))).copy()
    for e, place in enumerate(column.tolist()):
        # Rows come in order, so those that have seen insertion e are the last ones.
        index[np.searchsorted(seen, e + 1) :, place] = count + e
    return touched, index


# Many moments of the precision at once, as matrix products.
#
# Within a block the scatter is S + the first r_i of the block's changes U^T diag(s) U. At a ridge rho, with
# C = rho (S + rho I)^-1 and H = rho diag(1/s) + U C U^T = L D L^T without pivoting, the leading parts of L and D
# belong
# to the earlier moments, so
#
# C_i = C - Q_i^T D_i^-1 Q_i,   Q = L^-1 U C,  of which the first r_i rows count.
#
# Each row of features has its own r_i and its own ridge between the nodes; both become a mask and weights in one
# product.
# Arrays may carry leading dimensions: several blocks at once, which is what a GPU wants.


def solve_all(problems: Sequence[BlockProblem]) -> list[tuple[Array, Array]]:
    """`solve` for several blocks with equally many ridges at once, made equally large by changes and rows of zeros."""
    home = Home.of(problems[0].scatter)
    bring, stack = home.bring, home.xp.stack
    n, r = max(len(p.counted) for p in problems), max(len(p.signs) for p in problems)
    k = max(p.means.shape[0] for p in problems)
    counted = home.index(np.stack([np.pad(p.counted, (0, n - len(p.counted))) for p in problems]))
    cross, quadratic = solve(
        stack([p.scatter for p in problems]),
        bring(np.stack([p.ridges for p in problems])),
        stack([_padded(p.rows, r) for p in problems]),
        bring(np.stack([np.pad(p.signs, (0, r - len(p.signs)), constant_values=1.0) for p in problems])),
        bring(np.stack([np.pad(p.weights, ((0, n - len(p.weights)), (0, 0))) for p in problems])),
        home.xp.astype(home.xp.arange(r, device=home.device) < counted[:, :, None], home.xp.float64),
        stack([_padded(p.x, n) for p in problems]),
        stack([_padded(p.means, k) for p in problems]),
    )
    return [
        (cross[i, : len(p.counted), : p.means.shape[0]], quadratic[i, : len(p.counted), : p.means.shape[0]])
        for i, p in enumerate(problems)
    ]


def _padded(rows: Array, count: int) -> Array:
    if rows.shape[0] == count:
        return rows
    home = Home.of(rows)
    return home.xp.concat([rows, home.zeros((count - rows.shape[0], rows.shape[1]))])


def solve(
    scatter: Array, ridges: Array, rows: Array, signs: Array, weights: Array, in_force: Array, x: Array, means: Array
) -> tuple[Array, Array]:
    """mu^T C_i x_i and mu^T C_i mu, both (..., n, K').

    scatter (..., d, d); ridges (..., q); rows (..., r, d), signs (..., r); the ridges' weights (..., n, q) and in_force
    (..., n, r) of 0 and 1; x (..., n, d); means (..., K', d).
    """
    home = Home.of(scatter)
    xp = home.xp
    transpose = xp.matrix_transpose
    d, r, n, q = scatter.shape[-1], rows.shape[-2], x.shape[-2], ridges.shape[-1]
    lead = tuple(scatter.shape[:-2])
    identity = xp.eye(d, dtype=xp.float64, device=home.device)
    ridge = ridges[..., None, None]
    contraction = ridge * positive_inverse(scatter[..., None, :, :] + ridge * identity)
    # At the nodes first, (..., q, *, *); the plain parts.
    turned = xp.matmul(means[..., None, :, :], contraction)
    quadratic = xp.matmul(weights, xp.sum(turned * means[..., None, :, :], axis=-1))
    turned_x = xp.matmul(x[..., None, :, :], contraction)
    solved = xp.sum(transpose(weights)[..., None] * turned_x, axis=-3)
    if r == 0:
        return xp.matmul(solved, transpose(means)), quadratic
    onto = xp.matmul(rows[..., None, :, :], contraction)
    diagonal = xp.eye(r, dtype=xp.float64, device=home.device) * (ridge / signs[..., None, None, :])
    inverse, pivots = ldl_inverse(xp.matmul(onto, transpose(rows)[..., None, :, :]) + diagonal)
    reduced = xp.reshape(xp.matmul(inverse, onto), (*lead, q * r, d))
    # ... then all nodes in one product: node weights, mask and pivots make one (n, q r) matrix.
    share = weights[..., :, :, None] * in_force[..., :, None, :] / pivots[..., None, :, :]
    share = xp.reshape(share, (*lead, n, q * r))
    along_means = xp.matmul(reduced, transpose(means))
    solved = solved - xp.matmul(share * transpose(xp.matmul(reduced, transpose(x))), reduced)
    along_means *= along_means
    quadratic = quadratic - xp.matmul(share, along_means)
    return xp.matmul(solved, transpose(means)), quadratic
