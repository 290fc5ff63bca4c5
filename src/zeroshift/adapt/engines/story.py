"""A timeline told block by block: sums, bank and scatter advance with it, and each block becomes a problem to solve."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zeroshift.adapt.bank import KnowledgeBank, Plan
from zeroshift.adapt.cone import Cones, doubtful
from zeroshift.adapt.engines.blocks import GPU_RANK_LIMIT, RANK_LIMIT, SMALLEST_RANK_LIMIT, Block, Segments, cut
from zeroshift.adapt.engines.ridge import node_weights
from zeroshift.adapt.engines.sums import ClassSums
from zeroshift.adapt.engines.timeline import timeline
from zeroshift.adapt.excess import add_excess
from zeroshift.adapt.gaussians import Rule
from zeroshift.adapt.statistics import bank_term
from zeroshift.arrays import Array, Home, to_numpy

__all__ = ["Problem", "Story"]


@dataclass(frozen=True)
class Problem:
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


class Story:
    def __init__(
        self,
        plan: Plan,
        features: Array,
        log_y: Array,
        confidences: np.ndarray,
        bank: KnowledgeBank,
        sums: ClassSums,
        scatter: Array,
        prototypes: Array,
        rule: Rule,
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
        self.line = timeline(plan, features, log_y, bank, sums, self._trace, prototypes, rule)
        self._told = 0

    @property
    def gathered(self) -> float:
        """Squares that come and go in the scatter matrix."""
        return self.line.gathered

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
        if event == self._told:
            return
        line, home = self.line, self._home
        told, self._told = self._told, event
        some = self._plan.between(told, event)
        rows, signs = self._changes(told, event)
        self.scatter = self.scatter + (rows * home.bring(signs)[:, None]).T @ rows
        self._bank.enter(some, self._features, line.entered_weights[told:event], self._confidences[some.rows])
        # Of several insertions into a class the last one counts.
        classes, last = np.unique(some.classes[::-1], return_index=True)
        e, k = home.index(event - 1 - last), home.index(classes)
        sums = self._sums
        sums.weighted_sums[k], sums.weights[k], sums.means[k] = line.weighted_sums[e], line.weights[e], line.means[e]
        sums.cones.across[k], sums.cones.along[k] = line.cone_across[e], line.cone_along[e]

    def _changes(self, told: int, event: int) -> tuple[Array, np.ndarray]:
        """The scatter's changes by the insertions told .. event."""
        ends = np.append(0, self.line.row_ends)
        return self.line.rows[ends[told] : ends[event]], self.line.signs[ends[told] : ends[event]]

    def problem(self, runs: Segments, block: Block) -> Problem:
        """The block whose first segment everything has advanced to."""
        line = self.line
        at = np.repeat(runs.events[block.first : block.last + 1], np.diff(runs.starts[block.first : block.last + 2]))
        start, stop = int(runs.events[block.first]), int(runs.events[block.last])
        sizes, traces = np.append(self._size, line.sizes)[at], np.append(self._trace, line.traces)[at]
        ends = np.append(0, line.row_ends)
        rows, signs = self._changes(start, stop)
        touched, index = _touched(line.classes[start:stop], at - start, int(self._sums.means.shape[0]))
        d = int(self._features.shape[1])
        return Problem(
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

    def bank_term(self, problem: Problem) -> Array:
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
            self._look_closer(doubt, x)
        if not bool(xp.any(doubt)):
            return term
        # The excess with the bank as it was at the block's start, and what has changed since: that of -x's bank term.
        excess = self._since(problem, -x)
        add_excess(excess, x, self._bank.features, self._bank.weights, doubt)
        return xp.where(doubt, term + excess, term)

    def _look_closer(self, doubt: Array, x: Array) -> None:
        """Clear doubts by single entries: those held when the story began, and all that enter in its course."""
        held = self._home.copy(doubt)
        self._sums.look_closer(held, x)
        new = to_numpy(self._sums.new_in_doubt(x, self.line.entered))
        for e in np.flatnonzero(new.any(axis=0)).tolist():
            held[:, int(self.line.classes[e])] |= self._home.index(new[:, e])
        doubt &= held

    def _since(self, problem: Problem, x: Array) -> Array:
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
