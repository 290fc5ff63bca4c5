"""Processes many rows together: first all insertions, then all predictions as blocks of matrix products.

The numbers are those of `streaming`. Between calls the statistics are the same, so the two engines can alternate after
any sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from zeroshift.adapt.bank import InsertionPlan, KnowledgeBank
from zeroshift.adapt.engines.precision_primal import PrimalPrecision, scatter_is_sound
from zeroshift.adapt.engines.replay_blocks import (
    Block,
    BlockProblem,
    ReplayBlocks,
    find_segments,
    rounding_error,
    solve_block,
)
from zeroshift.adapt.engines.replay_gpu import GpuReplay, GroupStart, SolvedGroup, received
from zeroshift.adapt.engines.streaming import SMALLEST_PRIMAL, StreamingEngine
from zeroshift.arrays import Array, to_numpy
from zeroshift.precision import FLOAT32_TOLERANCE
from zeroshift.threads import Threads, own_threads
from zeroshift.zero_shot import zero_shot_stats

__all__ = ["AutoEngine", "ReplayEngine"]

POSTERIOR_ROWS = 256
"""Rows whose posteriors are computed together on a CPU: they should stay in the caches."""

CLASSES = 64
"""Classes whose sums are recomputed together on a CPU: their banks should stay in the caches."""

SIZE_MARGIN = 1.25
"""The size of the scores in a block is taken to be at most this times that in the block before; it is checked."""

REPLAY_FROM = 128
"""Rows per call from which `auto` replays: the factorisations of a block do not pay for fewer."""


class StartedGroup(NamedTuple):
    """Blocks that a GPU is solving."""

    blocks: list[Block]
    start: GroupStart
    assumed: float
    """The size of the scores for which they were cut."""
    dtype: Any
    """Of the products."""
    solved: SolvedGroup


class PlannedRows:
    """Rows and the plan for them, which is made when it is first requested: the bank must then be as before them."""

    def __init__(self, features: Array, log_y: Array, arrived: Callable[[], np.ndarray], bank: KnowledgeBank) -> None:
        self.features = features
        self._log_y = log_y
        self._arrived = arrived
        self._bank = bank
        self._plan: tuple[InsertionPlan, np.ndarray] | None = None

    def planned(self) -> tuple[Array, InsertionPlan, np.ndarray]:
        """As `StreamingEngine._plan_insertions`."""
        if self._plan is None:
            classes, confidences = self._arrived()
            self._plan = self._bank.plan(classes.astype(np.int64), confidences), confidences
        return self._log_y, *self._plan


def _are_same(planned: Array, rows: Array) -> bool:
    """Whether two arrays of torch are the same memory."""
    return bool(planned.data_ptr() == rows.data_ptr() and planned.shape == rows.shape and planned.dtype == rows.dtype)


class ReplayEngine(StreamingEngine):
    """Streaming for the start of a stream, then blocks of rows."""

    @property
    def block_rows(self) -> int:  # type: ignore[override]
        """Rows whose insertions are scheduled together; their posteriors are held in memory."""
        return 8192 if self._backend.on_gpu else 4096

    @property
    def _single_insertion_limit(self) -> int:
        """Bank entries up to which insertions are processed one by one: blocks need some entries to start with, and on
        a CPU the dual form is cheaper for small banks."""
        return SMALLEST_PRIMAL if self._backend.on_gpu else self._dual_limit

    def learns_aside(self, rows: int) -> bool:
        """Always on a CPU. On a GPU a block is fast, and the recorded step would be lost."""
        return not self._backend.on_gpu

    following: Array | None = None
    """The rows after those that are being learned, if they are known."""
    _ahead: PlannedRows | None = None
    """The plan for these rows."""

    @property
    def looks_ahead(self) -> bool:
        """Whether `following` makes the engine faster. On a GPU the host plans these rows while the device solves
        others."""
        return self._backend.on_gpu

    def refresh(self) -> None:
        self._ahead = None
        super().refresh()

    def finish(self) -> None:
        self.following = self._ahead = None
        super().finish()

    def run(self, features: Array, batch_size: int) -> Iterator[Array]:
        """Learn and score the rows in large blocks."""
        rows = max(1, self.block_rows // batch_size) * batch_size
        after = self.following
        for start in range(0, features.shape[0], rows):
            rest = features[start + rows : start + 2 * rows, :]
            self.following = rest if rest.shape[0] else after
            yield self._replay(features[start : start + rows, :], batch_size)

    def _replay(self, features: Array, batch_size: int) -> Array:
        """Learn and score one block of rows, (n, K)."""
        with own_threads(self._backend.library) as threads:
            return self._replay_in(threads, features, batch_size)

    def _replay_in(self, threads: Threads, features: Array, batch_size: int) -> Array:
        xp = self._backend.xp
        dtype = xp.float64 if self._float64_only else features.dtype
        self.diagnostics.products = "float32" if dtype == xp.float32 else "float64"
        ahead, self._ahead = self._ahead, None
        if ahead is not None and _are_same(ahead.features, features):
            log_y, plan, confidences = ahead.planned()
            features = self.widened(features)
        else:
            features = self.widened(features)
            log_y, plan, confidences = self._plan_rows(features, threads)
        scores = xp.empty(log_y.shape, dtype=dtype, device=self._backend.device)
        bank_limit = self._single_insertion_limit
        done, row = self._replay_singly(plan, 0, features, log_y, confidences, batch_size, scores, bank_limit)
        if row < features.shape[0]:
            rest = plan.part(done, len(plan))
            self._replay_in_blocks(rest, row, features, log_y, confidences, batch_size, scores, threads)
        return scores

    def _plan_rows(self, features: Array, threads: Threads) -> tuple[Array, InsertionPlan, np.ndarray]:
        """`_plan_insertions` for many rows; on a CPU the posteriors are computed a few rows at a time."""
        if self._backend.on_gpu:
            return self._plan_insertions(features)
        xp, count = self._backend.xp, features.shape[0]
        log_y = xp.empty((count, self._prototypes.shape[0]), dtype=xp.float64, device=self._backend.device)
        classes, confidences = np.empty(count, dtype=np.int64), np.empty(count)

        def compute(start: int) -> None:
            rows = slice(start, start + POSTERIOR_ROWS)
            log_y[rows], of_rows, confidence = zero_shot_stats(features[rows], self._prototypes, self._logit_scale)
            classes[rows], confidences[rows] = to_numpy(of_rows), to_numpy(confidence)

        threads.map(compute, range(0, count, POSTERIOR_ROWS))
        return log_y, self._bank.plan(classes, confidences), confidences

    def _replay_singly(
        self,
        plan: InsertionPlan,
        first_row: int,
        features: Array,
        log_y: Array,
        confidences: np.ndarray,
        batch_size: int,
        scores: Array,
        bank_limit: int | None = None,
    ) -> tuple[int, int]:
        """Process insertions singly while the bank holds at most `bank_limit` entries; (insertions, rows) done."""
        segments = find_segments(first_row, int(features.shape[0]), plan.rows, batch_size)
        done = 0
        for s, event in enumerate(segments.events.tolist()):
            if bank_limit is not None and self._sums.size > bank_limit and self._settings.update_covariance:
                return done, int(segments.starts[s])
            rows = slice(int(segments.starts[s]), int(segments.starts[s + 1]))
            if event > done:
                self._learn(plan.part(done, event), features, log_y, confidences)
                done = event
            else:
                self._idle += rows.stop - rows.start
            scores[rows] = self._score(features[rows], log_y[rows])
        return done, int(features.shape[0])

    def _replay_in_blocks(
        self,
        plan: InsertionPlan,
        first_row: int,
        features: Array,
        log_y: Array,
        confidences: np.ndarray,
        batch_size: int,
        scores: Array,
        threads: Threads,
    ) -> None:
        """Process the rows from `first_row` in blocks."""
        if len(plan) == 0:
            rows = slice(first_row, features.shape[0])
            self._idle += features.shape[0] - first_row
            scores[rows] = self._score(features[rows], log_y[rows])
            return
        if self._backend.on_gpu:
            self._replay_on_gpu(plan, first_row, features, log_y, confidences, batch_size, scores)
            return
        segments = find_segments(first_row, int(features.shape[0]), plan.rows, batch_size)
        precision = self._precision
        scatter = precision.current_scatter()
        replay = ReplayBlocks(
            plan,
            segments,
            features,
            log_y,
            confidences,
            self._bank,
            self._sums,
            scatter,
            self._prototypes,
            self._settings,
            scores.dtype,
            threads,
        )
        if not scatter_is_sound(precision.accumulated + replay.accumulated, replay.smallest_ridge):
            # Little spread is left and rounding could matter: single insertions recompute the scatter if needed.
            self._replay_singly(plan, first_row, features, log_y, confidences, batch_size, scores)
            return
        first, score_size = 0, math.inf
        while first < len(segments.events):
            assumed = SIZE_MARGIN * score_size
            block = replay.cut_block(first, assumed)
            problem = replay.problem(block)
            rows = problem.rows
            discriminants, score_size = self._solve(problem, scores.dtype, assumed, threads)
            if score_size > assumed and block.interval[0] < block.interval[1]:
                # The bound on the error of the interpolation assumed less.
                more = replay.with_another_ridge(problem, block)
                discriminants, _ = self._solve(more, scores.dtype, score_size, threads)
            discriminants += log_y[rows]
            if self._settings.use_bank_term:
                negligible = scores.dtype != self._backend.xp.float64 and not self._complete
                discriminants += replay.bank_term(problem, discriminants if negligible else None)
            scores[rows] = discriminants
            first = block.last + 1
        replay.advance(len(plan))
        changed = np.unique(plan.classes)
        at_once = len(changed) if self._backend.on_gpu else CLASSES
        for start in range(0, len(changed), at_once):
            self._sums.recompute(changed[start : start + at_once])
        if isinstance(precision, PrimalPrecision):
            precision.restart(replay.scatter, accumulated=precision.accumulated + replay.accumulated)
        else:
            self._precision = self._new_precision()
        self._mark_changed()
        if scores.dtype == self._backend.xp.float32:
            self._compare_with_float64(features[-1:], log_y[-1:], scores[-1:])

    def _replay_on_gpu(
        self,
        plan: InsertionPlan,
        first_row: int,
        features: Array,
        log_y: Array,
        confidences: np.ndarray,
        batch_size: int,
        scores: Array,
    ) -> None:
        """`_replay_in_blocks`, with many blocks together."""
        segments = find_segments(first_row, int(features.shape[0]), plan.rows, batch_size)
        precision, wide = self._precision, self._backend.xp.float64
        arguments = (plan, segments, features, log_y, self._bank, self._sums, precision.current_scatter())
        replay = GpuReplay(*arguments, self._prototypes, self._settings, scores.dtype)
        if not scatter_is_sound(precision.accumulated + replay.schedule.accumulated, replay.smallest_ridge):
            self._replay_singly(plan, first_row, features, log_y, confidences, batch_size, scores)
            return
        self._look_ahead()
        rows = slice(first_row, features.shape[0])
        scores[rows] = log_y[rows]
        if self._settings.use_bank_term:
            replay.add_bank_terms(scores)
        self._bank.insert(plan, features, replay.schedule.entered_weights, confidences[plan.rows])
        first, score_size = 0, math.inf
        started: list[list[StartedGroup]] = []
        while first < len(segments.events) or started:
            if first < len(segments.events):
                blocks = replay.cut_blocks(first, SIZE_MARGIN * score_size)
                started.append(self._start_groups(replay, blocks, SIZE_MARGIN * score_size, scores.dtype))
                first = blocks[-1].last + 1
                if score_size < math.inf and len(started) == 1:
                    continue  # so that the device has work while the host waits for the sizes of the blocks before
            if self._ahead is not None:
                self._ahead.planned()  # while the device is busy
            score_size = self._finish_groups(replay, started.pop(0), scores)
        self._sums.recompute(np.unique(plan.classes))
        self._precision = self._new_precision()
        self._mark_changed()
        if scores.dtype != wide:
            self._compare_with_float64(features[-1:], log_y[-1:], scores[-1:])

    def _look_ahead(self) -> None:
        """Let the device compute what the plan for the next rows needs."""
        if self.following is not None:
            log_y, classes, confidences = zero_shot_stats(
                self.widened(self.following), self._prototypes, self._logit_scale
            )
            arrived = received(self._backend.xp.stack([classes.to(confidences.dtype), confidences]))
            self._ahead = PlannedRows(self.following, log_y, arrived, self._bank)

    def _start_groups(
        self, replay: GpuReplay, blocks: Sequence[Block], assumed: float, dtype: Any
    ) -> list[StartedGroup]:
        """Solve the blocks, without waiting for the device."""
        wide, d = self._backend.xp.float64, int(self._prototypes.shape[1])
        if dtype != wide and assumed < math.inf and rounding_error(assumed, d) > 4 * FLOAT32_TOLERANCE:
            self.diagnostics.float64_fallbacks += 1
            dtype = wide  # the blocks before were far above the limit: these will be too
        started = []
        for group in replay.groups(blocks):
            start = replay.start
            started.append(StartedGroup(group, start, assumed, dtype, replay.solve(group, dtype, start)))
            replay.advance(group)
        return started

    def _finish_groups(self, replay: GpuReplay, groups: Sequence[StartedGroup], scores: Array) -> float:
        """Add the discriminants to the scores once they are certain. Returns the size of the last scores."""
        xp, d = self._backend.xp, int(self._prototypes.shape[1])
        sizes = to_numpy(xp.stack([xp.astype(group.solved.size, xp.float64) for group in groups])).tolist()
        for (group, start, assumed, dtype, solved), size in zip(groups, sizes, strict=True):
            if size > assumed and any(low < high for low, high in (block.interval for block in group)):
                # The bound on the error of the interpolation assumed less.
                group = replay.with_another_ridge(group)
                solved = replay.solve(group, dtype, start)
                size = float(solved.size)
            if dtype != xp.float64 and rounding_error(size, d) > 2 * FLOAT32_TOLERANCE:
                self.diagnostics.float64_fallbacks += 1
                solved = replay.solve(group, xp.float64, start)
            scores[solved.rows] += solved.discriminants
        return float(sizes[-1])

    def _solve(self, problem: BlockProblem, dtype: Any, expected_size: float, threads: Threads) -> tuple[Array, float]:
        """`solve_block`, in float64 if float32 products could change a probability by more than the tolerance."""
        wide, d = self._backend.xp.float64, int(problem.x.shape[1])
        if dtype != wide:
            limit = 2 * FLOAT32_TOLERANCE  # a probability changes by at most half as much as the scores
            # Not if the block before was far above the limit: this one will be too.
            if expected_size == math.inf or rounding_error(expected_size, d) <= 2 * limit:
                discriminants, size = solve_block(problem, dtype, threads)
                if rounding_error(float(size), d) <= limit:
                    return discriminants, float(size)
            self.diagnostics.float64_fallbacks += 1
        discriminants, size = solve_block(problem, wide, threads)
        return discriminants, float(size)


class AutoEngine(ReplayEngine):
    """Streaming for calls with few rows, replay for many."""

    def learns_aside(self, rows: int) -> bool:
        return rows >= REPLAY_FROM and super().learns_aside(rows)

    def run(self, features: Array, batch_size: int) -> Iterator[Array]:
        engine = ReplayEngine if features.shape[0] >= REPLAY_FROM else StreamingEngine
        return engine.run(self, features, batch_size)
