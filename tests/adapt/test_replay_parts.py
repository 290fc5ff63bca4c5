"""The parts of replay (schedule, blocks, solving a block), each compared with the float64 matrices it replaces."""

from __future__ import annotations

import math
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
from zeroshift.adapt.engines.precision_primal import node_weights, nodes
from zeroshift.adapt.engines.replay_blocks import solve
from zeroshift.adapt.statistics import AdaptSettings
from zeroshift.arrays import Backend
from zeroshift.testing import make_problem
from zeroshift.threads import Threads
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
        return build_schedule(self.plan, *arguments, Threads())

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
            rows, signs = schedule.changes(e, e + 1)
            start += len(signs)
            assert start == schedule.row_ends[e]
            scatter = scatter + (rows * signs[:, None]).T @ rows
            np.testing.assert_allclose(scatter, problem.bank.scatter(now.means), atol=1e-12)
            np.testing.assert_allclose(schedule.traces[e], np.trace(scatter))
            assert schedule.sizes[e] == problem.bank.size
        np.testing.assert_allclose(schedule.accumulated, (schedule.changes(0, len(plan))[0] ** 2).sum())

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

    @pytest.mark.parametrize("score_size", [math.inf, 30.0], ids=["size not known", "size known"])
    @pytest.mark.parametrize("dimension", [4, 64, 512])
    def test_blocks_are_consecutive_and_within_the_tolerance(self, dimension, score_size):
        rng = np.random.default_rng(9)
        entered = np.sort(rng.choice(900, size=700, replace=False))
        ranks = rng.integers(1, 5, size=700)
        sizes = 50 + np.cumsum(rng.integers(0, 2, size=700))
        traces = sizes * 0.5 * np.exp(np.cumsum(rng.normal(scale=0.003, size=700)))
        schedule = SimpleNamespace(sizes=sizes, traces=traces, row_ends=np.cumsum(ranks))
        segments = blocks.find_segments(0, 900, entered, 1)
        states = blocks.SegmentStates.of(schedule, segments, 50, 25.0)
        np.testing.assert_array_equal(states.sizes, np.append(50, sizes)[segments.events])
        np.testing.assert_array_equal(states.ranks, np.append(0, np.cumsum(ranks))[segments.events])
        accuracy = blocks.Accuracy(5e-7, 1.6, score_size)
        parts = []
        while not parts or parts[-1].last < len(segments.events) - 1:
            first = parts[-1].last + 1 if parts else 0
            group = blocks.cut_blocks(states, first, 3, accuracy, dimension, 100, 200)
            assert 1 <= len(group) <= 3
            assert len({len(part.ridges) for part in group}) == 1
            parts += group
        assert parts[0].first == 0
        for part, following in zip(parts, [*parts[1:], None], strict=True):
            if following is not None:
                assert following.first == part.last + 1
            own = slice(part.first, part.last + 1)
            assert np.ptp(states.ranks[own]) <= 200
            ridges = states.ridges[own]
            assert part.interval == (ridges.min(), ridges.max())
            if np.ptp(ridges) == 0:
                np.testing.assert_allclose(part.ridges, ridges[0])
            else:
                scales = dimension * states.sizes[own] / states.traces[own]
                assert largest_interpolation_error(part, scales, accuracy) <= 5e-7
            assert part.ridges.min() >= ridges.min() * (1 - 1e-12)
            assert part.ridges.max() <= ridges.max() * (1 + 1e-12)
        if dimension == 512:
            assert len(parts) < len(segments.events) / 2, "blocks save no work"

    def test_small_scores_need_fewer_ridges(self):
        states = blocks.SegmentStates(np.full(400, 1000), np.linspace(500, 520, 400), np.arange(400) * 3)
        of_any_size, of_small_size = (
            blocks.cut_blocks(states, 0, 1, blocks.Accuracy(5e-7, 1.6, size), 512, 100, 448)[0]
            for size in (math.inf, 5.0)
        )
        assert of_any_size.last == of_small_size.last
        assert len(of_any_size.ridges) > len(of_small_size.ridges)


def largest_interpolation_error(part, scales, accuracy):
    """The error of a score if the scatter has any one eigenvalue, over the block's ridges: the smaller of the error for
    vectors of the largest lengths, and for scores of the largest size."""
    eigenvalues = np.geomspace(1e-4, 1e4, 400) * part.ridges.mean()
    ridges = np.linspace(*part.interval, 101)
    exact = ridges[:, None] / (ridges[:, None] + eigenvalues)
    at_nodes = part.ridges[:, None] / (part.ridges[:, None] + eigenvalues)
    errors = np.abs(node_weights(ridges, part.ridges) @ at_nodes - exact)
    of_size = (errors / exact).max() * accuracy.score_size
    return np.minimum(errors.max() * scales.max() * accuracy.lengths, of_size)


@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("lead", [(), (3,)], ids=str)
@pytest.mark.parametrize("changes", [0, 5, 21])
def test_solve_equals_the_matrix_in_every_segment(lead, changes, dtype):
    """Each segment with its own number of changes and its own ridge; each row in a segment."""
    rng = np.random.default_rng(10)
    d, n, s, classes = 7, 9, 5, 4
    scatter = positive(rng, *lead, d)
    signs = np.broadcast_to(np.where(np.arange(changes) % 4 < 2, 1.0, -1.0), (*lead, changes)).copy()
    rows = rng.normal(size=(*lead, changes, d)) * np.where(signs > 0, 0.4, 0.2)[..., None]
    x, means = rng.normal(size=(*lead, n, d)), rng.normal(size=(*lead, classes, d))
    n_changes = np.sort(rng.integers(0, changes + 1, size=s))
    segment = np.sort(rng.integers(0, s, size=n))
    at = nodes(0.9, 1.1, 6)
    rho, scale = np.linspace(0.9, 1.1, s), np.linspace(2.0, 3.0, s)
    mask = np.broadcast_to((np.arange(changes) < n_changes[:, None]).astype(dtype), (*lead, s, changes))
    weights = np.broadcast_to(node_weights(rho, at) * at * scale[:, None], (*lead, s, 6))
    ridges = np.broadcast_to(at, (*lead, 6))
    cross, quadratic, size = solve(
        Threads(),
        scatter,
        ridges,
        rows.astype(dtype),
        signs,
        weights.astype(dtype),
        mask,
        np.broadcast_to(segment, (*lead, n)),
        x.astype(dtype),
        means.astype(dtype),
    )
    assert cross.dtype == quadratic.dtype == dtype
    assert cross.shape == (*lead, n, classes)
    assert quadratic.shape == (*lead, s, classes)
    tolerance = 1e-6 if dtype == np.float64 else 1e-4
    for block in np.ndindex(*lead):
        precisions = []
        for i in range(s):
            part = rows[block][: n_changes[i]]
            now = scatter[block] + (part * signs[block][: n_changes[i], None]).T @ part
            precisions.append(scale[i] * contraction(now, rho[i]))
            mu = means[block]
            expected = np.einsum("kd,de,ke->k", mu, precisions[i], mu) / 2
            np.testing.assert_allclose(quadratic[block][i], expected, atol=tolerance)
        for i in range(n):
            np.testing.assert_allclose(
                cross[block][i], means[block] @ precisions[segment[i]] @ x[block][i], atol=tolerance
            )
        if changes == 0:
            base = scale[0] * contraction(scatter[block], 0.9)
            products = np.abs(means[block][1:] @ base @ x[block].T)
            assert products.max() <= 1.1 * size
