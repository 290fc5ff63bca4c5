"""The parts of replay (schedule, blocks, solving a block), each compared with the float64 matrices it replaces."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matrices import contraction, positive
from zeroshift.adapt import bank_term_bounds as bounds
from zeroshift.adapt.bank import KnowledgeBank
from zeroshift.adapt.engines import replay_blocks as blocks
from zeroshift.adapt.engines.class_statistics import ClassSums
from zeroshift.adapt.engines.insertion_schedule import build_schedule
from zeroshift.adapt.engines.precision_primal import node_error, node_weights, nodes
from zeroshift.adapt.engines.replay_blocks import solve
from zeroshift.adapt.statistics import AdaptSettings
from zeroshift.arrays import Backend
from zeroshift.testing import make_problem
from zeroshift.zero_shot import confidence, log_posterior, pseudo_class


class BankAndRows:
    """A bank that already holds samples, and more rows to offer."""

    def __init__(self, *, update_mean=True, beta=None, capacity=3, cone=0.0):
        problem = make_problem(5, 8, 90, seed=61, cone=cone)
        self.prototypes = problem.prototypes
        self.backend = Backend.of(problem.prototypes)
        self.bank = KnowledgeBank(self.backend, 5, 8, capacity)
        self.adapt_settings = AdaptSettings(
            alpha=0.9, beta=beta, use_bank_term=True, update_mean=update_mean, update_covariance=True, per_class=False
        )
        self.log_y = log_posterior(problem.features, problem.prototypes, 20.0)
        self.bank.offer(problem.features[:30], self.log_y[:30])
        self.features, self.log_y = problem.features[30:], self.log_y[30:]
        self.sums = ClassSums(self.prototypes, self.adapt_settings, self.bank)
        self.confidences = confidence(self.log_y)
        self.plan = self.bank.plan(pseudo_class(self.log_y), self.confidences)
        self.scatter = self.bank.scatter(self.sums.means)

    def schedule(self):
        trace = float(np.trace(self.scatter))
        arguments = (self.features, self.log_y, self.bank, self.sums, trace, self.prototypes, self.adapt_settings)
        return build_schedule(self.plan, *arguments)

    def insert(self, e):
        weights = self.bank.inserted_weights(self.plan, self.log_y)
        part = self.plan.part(e, e + 1)
        self.bank.insert(part, self.features, weights[e : e + 1], self.confidences[part.rows])


SETTINGS = [{}, {"update_mean": False}, {"beta": 1.5, "capacity": 6}, {"capacity": 1}]


class TestSchedule:
    @pytest.mark.parametrize("settings", SETTINGS, ids=str)
    def test_schedule_equals_the_statistics_after_each_insertion(self, settings):
        problem = BankAndRows(**settings)
        schedule, plan = problem.schedule(), problem.plan
        assert len(plan) > 4
        assert (plan.replaced >= 0).any(), "some inserted rows must be replaced again"
        scatter, start = problem.scatter, 0
        for e in range(len(plan)):
            problem.insert(e)
            now = ClassSums(problem.prototypes, problem.adapt_settings, problem.bank)
            k = plan.classes[e]
            np.testing.assert_allclose(schedule.weighted_sums[e], now.weighted_sums[k], atol=1e-12)
            np.testing.assert_allclose(schedule.weights[e], now.weights[k])
            np.testing.assert_allclose(schedule.means[e], now.means[k], atol=1e-12)
            rows = schedule.rows[start : schedule.row_ends[e]]
            signs = schedule.signs[start : schedule.row_ends[e]]
            start = schedule.row_ends[e]
            scatter = scatter + (rows * signs[:, None]).T @ rows
            np.testing.assert_allclose(scatter, problem.bank.scatter(now.means), atol=1e-12)
            np.testing.assert_allclose(schedule.traces[e], np.trace(scatter))
            assert schedule.sizes[e] == problem.bank.size
        np.testing.assert_allclose(schedule.accumulated, (schedule.rows**2).sum())

    @pytest.mark.parametrize("settings", [{}, {"capacity": 6}, {"capacity": 1}], ids=str)
    def test_scheduled_cones_contain_the_exact_cones(self, settings):
        """The scheduled cone is at least as wide as the exact one about the same direction."""
        problem = BankAndRows(**settings)
        schedule, m = problem.schedule(), problem.sums.direction
        for e, k in enumerate(problem.plan.classes.tolist()):
            problem.insert(e)
            now = ClassSums(problem.prototypes, problem.adapt_settings, problem.bank)
            held = problem.bank.features[[k]], problem.bank.occupied[[k]], now.weighted_sums[[k]], now.weights[[k]]
            exact = bounds.fit_cones(*held, m)
            assert schedule.cone_across[e] >= exact.across[0] - 1e-12
            assert schedule.cone_along[e] >= exact.along[0] - 1e-12


class TestBlocks:
    @settings(max_examples=60, deadline=None)
    @given(
        st.integers(0, 12),
        st.integers(1, 40),
        st.lists(st.integers(0, 51), max_size=40),
        st.integers(1, 9),
    )
    def test_rows_of_a_segment_follow_the_same_insertions(self, first_batch, rows, entered, batch_size):
        first = first_batch * batch_size
        rows += first
        entered = np.array(sorted({min(first + row, rows - 1) for row in entered}), dtype=np.int64)
        segments = blocks.find_segments(first, rows, entered, batch_size)
        assert segments.starts[0] == first
        assert segments.starts[-1] == rows
        assert (np.diff(segments.starts) > 0).all()
        insertions_before = np.repeat(segments.events, np.diff(segments.starts))
        for row in range(first, rows):
            whole_batch = min((row // batch_size + 1) * batch_size, rows)
            assert insertions_before[row - first] == (entered < whole_batch).sum()

    @pytest.mark.parametrize("dimension", [4, 64, 512])
    def test_blocks_are_consecutive_and_within_the_tolerance(self, dimension):
        rng = np.random.default_rng(9)
        entered = np.sort(rng.choice(900, size=700, replace=False))
        ranks = rng.integers(1, 5, size=700)
        sizes = 50 + np.cumsum(rng.integers(0, 2, size=700))
        traces = sizes * 0.5 * np.exp(np.cumsum(rng.normal(scale=0.003, size=700)))
        schedule = SimpleNamespace(sizes=sizes, traces=traces, row_ends=np.cumsum(ranks))
        segments = blocks.find_segments(0, 900, entered, 1)
        parts = blocks.cut_blocks(schedule, segments, 50, 25.0, dimension, 100)
        assert parts[0].first == 0
        assert parts[-1].last == len(segments.events) - 1
        all_sizes, all_traces = np.append(50, sizes), np.append(25.0, traces)
        ends = np.append(0, schedule.row_ends)
        for part, following in zip(parts, [*parts[1:], None], strict=True):
            if following is not None:
                assert following.first == part.last + 1
            events = segments.events[part.first : part.last + 1]
            assert ends[events[-1]] - ends[events[0]] <= blocks.RANK_LIMIT
            ridges = (all_traces / (all_sizes - 1))[events]
            scale = (dimension * all_sizes / all_traces)[events].max()
            error = node_error(ridges.min(), ridges.max(), len(part.ridges))
            if len(events) == 1:
                np.testing.assert_allclose(part.ridges, ridges)
            else:
                assert error * scale * blocks.MAX_LENGTHS <= 1.001 * blocks.SCORE_TOLERANCE
            assert part.ridges.min() >= ridges.min() * (1 - 1e-12)
            assert part.ridges.max() <= ridges.max() * (1 + 1e-12)
        if dimension == 512:
            assert len(parts) < len(segments.events) / 2, "blocks save no work"

    def test_groups_are_consecutive_with_the_same_number_of_ridges(self):
        parts = [blocks.Block(i, i, np.ones(q)) for i, q in enumerate([1, 1, 1, 2, 2, 1])]
        grouped = [[part.first for part in group] for group in blocks.group_blocks(parts, 2)]
        assert grouped == [[0, 1], [2], [3, 4], [5]]


@pytest.mark.parametrize("lead", [(), (3,)], ids=str)
@pytest.mark.parametrize("changes", [0, 5, 21])
def test_solve_equals_the_matrix_at_every_row(lead, changes):
    """Each row with its own number of changes and its own ridge."""
    rng = np.random.default_rng(10)
    d, n, classes = 7, 9, 4
    scatter = positive(rng, *lead, d)
    signs = np.broadcast_to(np.where(np.arange(changes) % 4 < 2, 1.0, -1.0), (*lead, changes)).copy()
    rows = rng.normal(size=(*lead, changes, d)) * np.where(signs > 0, 0.4, 0.2)[..., None]
    x, means = rng.normal(size=(*lead, n, d)), rng.normal(size=(*lead, classes, d))
    n_changes = np.sort(rng.integers(0, changes + 1, size=n))
    at = nodes(0.9, 1.1, 6)
    rho = np.linspace(0.9, 1.1, n)
    mask = np.broadcast_to((np.arange(changes) < n_changes[:, None]).astype(float), (*lead, n, changes))
    weights = np.broadcast_to(node_weights(rho, at), (*lead, n, 6))
    ridges = np.broadcast_to(at, (*lead, 6))
    cross, quadratic = solve(scatter, ridges, rows, signs, weights, mask, x, means)
    assert cross.shape == quadratic.shape == (*lead, n, classes)
    for block in np.ndindex(*lead):
        for i in range(n):
            part = rows[block][: n_changes[i]]
            now = scatter[block] + (part * signs[block][: n_changes[i], None]).T @ part
            c, mu = contraction(now, rho[i]), means[block]
            np.testing.assert_allclose(cross[block][i], mu @ c @ x[block][i], atol=1e-6)
            np.testing.assert_allclose(quadratic[block][i], np.einsum("kd,de,ke->k", mu, c, mu), atol=1e-6)
