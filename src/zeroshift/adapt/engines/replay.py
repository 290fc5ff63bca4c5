"""Many rows at once: first the whole schedule of insertions, then all predictions as blocks of matrix products.

The same numbers as `streaming`. Between calls the statistics are streaming's, so the two can take turns at any sample.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from zeroshift.adapt.bank import InsertionPlan
from zeroshift.adapt.engines.precision_primal import PrimalPrecision, scatter_is_sound
from zeroshift.adapt.engines.replay_blocks import GPU_RANK_LIMIT, ReplayBlocks, groups, segments, solve_all
from zeroshift.adapt.engines.streaming import SMALLEST_PRIMAL, StreamingEngine
from zeroshift.arrays import Array

__all__ = ["AutoEngine", "ReplayEngine"]

GPU_NUMBERS = 250_000_000
"""Numbers the blocks solved together may hold on a GPU: 2 GB. Not by what is free: answers would depend on it."""

REPLAY_FROM = 128
"""Rows from which `auto` works on them together: fewer do not pay for a block's factorisations."""


class ReplayEngine(StreamingEngine):
    @property
    def block_rows(self) -> int:  # type: ignore[override]
        """Rows whose schedule is made, and whose posteriors are held, together."""
        return 8192 if self._home.on_gpu else 2048

    @property
    def _together(self) -> int:
        """Blocks solved at once: one fills a CPU, a GPU wants as many as its memory has room for."""
        if not self._home.on_gpu:
            return 1
        (classes, d), r = (int(n) for n in self._prototypes.shape), GPU_RANK_LIMIT
        return max(1, GPU_NUMBERS // (3 * (4 * d * d + (d + r) * (classes + r) + 4 * r * r)))

    @property
    def _single_until(self) -> int:
        """Bank entries up to which insertions are followed singly: blocks need some to begin with, and on a CPU the
        dual form is cheaper while it lasts."""
        return SMALLEST_PRIMAL if self._home.on_gpu else self._dual_until

    def run(self, features: Array, batch_size: int) -> Iterator[Array]:
        """Learn and score the rows: those given are all known ahead, so they are worked on together."""
        rows = max(1, self.block_rows // batch_size) * batch_size
        for start in range(0, features.shape[0], rows):
            yield self._replay(features[start : start + rows, :], batch_size)

    def _replay(self, features: Array, batch_size: int) -> Array:
        log_y, plan, confidences = self._plan_insertions(features)
        scores = self._home.xp.empty_like(log_y)
        until = self._single_until
        done, row = self._one_by_one(plan, 0, features, log_y, confidences, batch_size, scores, until)
        if row < features.shape[0]:
            rest = plan.between(done, len(plan))
            self._in_blocks(rest, row, features, log_y, confidences, batch_size, scores)
        return scores

    def _one_by_one(
        self,
        plan: InsertionPlan,
        first_row: int,
        features: Array,
        log_y: Array,
        confidences: np.ndarray,
        batch_size: int,
        scores: Array,
        until: int | None = None,
    ) -> tuple[int, int]:
        """Follow insertions singly, while the bank holds no more than `until` entries; (insertions, rows) done."""
        runs = segments(first_row, int(features.shape[0]), plan.rows, batch_size)
        done = 0
        for s, event in enumerate(runs.events.tolist()):
            if until is not None and self._sums.size > until and self._rule.update_covariance:
                return done, int(runs.starts[s])
            rows = slice(int(runs.starts[s]), int(runs.starts[s + 1]))
            if event > done:
                self._learn(plan.between(done, event), features, log_y, confidences)
                done = event
            else:
                self._idle += rows.stop - rows.start
            scores[rows] = self._score(features[rows], log_y[rows])
        return done, int(features.shape[0])

    def _in_blocks(
        self,
        plan: InsertionPlan,
        first_row: int,
        features: Array,
        log_y: Array,
        confidences: np.ndarray,
        batch_size: int,
        scores: Array,
    ) -> None:
        if len(plan) == 0:
            rows = slice(first_row, features.shape[0])
            self._idle += features.shape[0] - first_row
            scores[rows] = self._score(features[rows], log_y[rows])
            return
        runs = segments(first_row, int(features.shape[0]), plan.rows, batch_size)
        precision = self._precision
        scatter = precision.current_scatter()
        replay = ReplayBlocks(
            plan, features, log_y, confidences, self._bank, self._sums, scatter, self._prototypes, self._rule
        )
        if not scatter_is_sound(precision.accumulated + replay.accumulated, replay.smallest_ridge):
            # Hardly any spread is left, and rounding could show: the careful way, which sums the scatter anew.
            self._one_by_one(plan, first_row, features, log_y, confidences, batch_size, scores)
            return
        for group in groups(replay.cut(runs), self._together):
            problems = []
            for block in group:
                replay.advance(int(runs.events[block.first]))
                rows = slice(int(runs.starts[block.first]), int(runs.starts[block.last + 1]))
                problem = replay.problem(runs, block)
                scores[rows] = log_y[rows]
                if self._rule.use_bank_term:
                    scores[rows] += replay.bank_term(problem)
                problems.append((rows, problem))
                replay.advance(int(runs.events[block.last]))
            for (rows, problem), (cross, quadratic) in zip(problems, solve_all([p for _, p in problems]), strict=True):
                scale = self._home.bring(problem.scale)[:, None]
                scores[rows] += scale * problem.in_force(cross - 0.5 * quadratic)
        self._sums.renew(np.unique(plan.classes))
        if isinstance(precision, PrimalPrecision):
            precision.begin(replay.scatter, accumulated=precision.accumulated + replay.accumulated)
        else:
            self._precision = self._new_precision()
        self._changed()


class AutoEngine(ReplayEngine):
    """Streaming for a few rows, replay for many."""

    def run(self, features: Array, batch_size: int) -> Iterator[Array]:
        engine = ReplayEngine if features.shape[0] >= REPLAY_FROM else StreamingEngine
        return engine.run(self, features, batch_size)
