"""The parts of the fast engines, each against the plain float64 matrices it stands for."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zeroshift.adapt import cone
from zeroshift.adapt.bank import KnowledgeBank
from zeroshift.adapt.engines import blocks
from zeroshift.adapt.engines.changes import Change, scatter_rows
from zeroshift.adapt.engines.factors import ldl_inverse, positive_inverse
from zeroshift.adapt.engines.ridge import node_error, node_weights, nodes, polynomial, polynomial_error
from zeroshift.adapt.engines.series import moments_lost, update_series
from zeroshift.adapt.engines.solve import solve
from zeroshift.adapt.engines.sums import ClassSums
from zeroshift.adapt.engines.timeline import timeline
from zeroshift.adapt.excess import add_excess
from zeroshift.adapt.gaussians import Rule
from zeroshift.adapt.statistics import bank_term
from zeroshift.arrays import Home
from zeroshift.testing import make_problem
from zeroshift.zero_shot import confidence, log_posterior, pseudo_class

EIGENVALUES = np.concatenate([[0.0], np.geomspace(1e-6, 1e6, 400)])
"""Of a scatter matrix: everything C depends on, as far as its size is concerned."""


class TestRidge:
    @pytest.mark.parametrize("degree", [1, 3, 5])
    @pytest.mark.parametrize("e", [-0.9, -0.3, -0.01, 1e-6, 0.02, 0.5, 4.0])
    def test_polynomial_stays_within_its_bound(self, e, degree):
        """On the eigenvalues c of C0: p(c) c against C(rho), relative to c, the way quadratic forms need it."""
        c = 1 / (1 + EIGENVALUES)
        exact = (1 + e) * c / (1 + e * c)
        approximate = np.polyval(np.append(polynomial(e, degree)[::-1], 0.0), c)
        error = np.abs(approximate - exact) / c
        assert error.max() <= polynomial_error(e, degree) + 1e-13

    @pytest.mark.parametrize("e", [-0.3, 0.02, 0.5])
    def test_polynomial_bound_is_not_idle(self, e):
        """Within twenty times of what happens: a bound of 1 would hold too, and every insertion would factorise."""
        c = np.linspace(0, 1, 1000)[1:]
        error = np.abs(np.polyval(np.append(polynomial(e, 4)[::-1], 0.0), c) / c - (1 + e) / (1 + e * c)).max()
        assert polynomial_error(e, 4) <= 20 * error

    def test_no_ridge_beyond_reach(self):
        assert polynomial_error(-1.0, 5) == polynomial_error(-1.5, 5) == np.inf
        assert polynomial_error(0.0, 5) == 0.0
        np.testing.assert_array_equal(polynomial(0.0, 4), [1, 0, 0, 0])

    @pytest.mark.parametrize("count", [1, 2, 4, 6])
    @pytest.mark.parametrize(("low", "high"), [(1.0, 1.001), (0.5, 0.9), (1e-5, 3e-5)])
    def test_nodes_interpolate_within_their_bound(self, low, high, count):
        at = nodes(low, high, count)
        assert ((low <= at) & (at <= high)).all()
        rho = np.linspace(low, high, 50)
        spectrum = low * EIGENVALUES
        exact = rho[:, None] / (rho[:, None] + spectrum)
        approximate = node_weights(rho, at) @ (at[:, None] / (at[:, None] + spectrum))
        error = np.abs(approximate - exact).max()
        bound = node_error(low, high, count)
        assert error <= bound + 1e-14
        assert bound <= 50 * error or error < 1e-12

    def test_weights_sum_to_one_and_reproduce_the_nodes(self):
        at = nodes(2.0, 5.0, 4)
        np.testing.assert_allclose(node_weights(np.linspace(2, 5, 9), at).sum(axis=1), 1.0)
        np.testing.assert_allclose(node_weights(at, at), np.eye(4), atol=1e-14)
        np.testing.assert_array_equal(node_weights(np.array([7.0]), np.array([3.0])), [[1.0]])
        assert node_error(2.0, 2.0, 1) == 0.0


def positive(rng, *shape):
    rows = rng.normal(size=(*shape, shape[-1] + 3))
    return rows @ np.swapaxes(rows, -1, -2)


class TestFactors:
    @pytest.mark.parametrize("n", [1, 2, 16, 17, 33, 70])
    @pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
    @pytest.mark.parametrize("library", ["numpy", "torch"])
    def test_both(self, n, lead, library):
        rng = np.random.default_rng(n)
        matrix = positive(rng, *lead, n) + np.eye(n)
        # Additions, then removals small enough that no leading minor vanishes: as the engines meet them.
        flip = np.diag(np.where(np.arange(n) % 3 == 2, -1.0, 1.0)) * 100 * n
        given, indefinite = matrix, matrix + flip
        if library == "torch":
            torch = pytest.importorskip("torch", reason="torch is not installed")
            given, indefinite = torch.tensor(matrix), torch.tensor(indefinite)
        identity = np.broadcast_to(np.eye(n), matrix.shape)
        np.testing.assert_allclose(np.asarray(positive_inverse(given)) @ matrix, identity, atol=1e-9)
        inverse, pivots = (np.asarray(part) for part in ldl_inverse(indefinite))
        assert inverse.shape == matrix.shape
        assert pivots.shape == matrix.shape[:-1]
        np.testing.assert_array_equal(np.triu(inverse, 1), np.zeros_like(matrix))
        np.testing.assert_allclose(np.diagonal(inverse, axis1=-2, axis2=-1), 1.0)
        reduced = inverse @ (matrix + flip) @ np.swapaxes(inverse, -1, -2)
        np.testing.assert_allclose(reduced, pivots[..., None] * identity, atol=1e-9 * n)

    def test_leading_parts_belong_to_leading_parts(self):
        """The point of not pivoting."""
        matrix = positive(np.random.default_rng(5), 40) + np.eye(40)
        inverse, pivots = ldl_inverse(matrix)
        for n in (1, 7, 16, 20, 33):
            first, some = ldl_inverse(matrix[:n, :n])
            np.testing.assert_allclose(inverse[:n, :n], first, atol=1e-12)
            np.testing.assert_allclose(pivots[:n], some)

    def test_what_is_given_stays_as_it_is(self):
        matrix = positive(np.random.default_rng(6), 40) + np.eye(40)
        before = matrix.copy()
        positive_inverse(matrix), ldl_inverse(matrix), ldl_inverse(matrix[:9, :9])
        np.testing.assert_array_equal(matrix, before)


def contraction(scatter, rho):
    return rho * np.linalg.inv(scatter + rho * np.eye(len(scatter)))


@pytest.mark.parametrize("signs", [[1.0], [1.0, -1.0], [1.0, 1.0, -1.0], [1.0, 1.0, -1.0, -1.0]], ids=str)
def test_update_series_against_powers_of_the_matrix(signs):
    rng = np.random.default_rng(7)
    d, q, rho0 = 6, 5, 0.7
    signs = np.array(signs)
    r, newcomer = len(signs), int((signs > 0).sum()) - 1
    scatter = positive(rng, d)
    # What leaves must have been there.
    rows = rng.normal(size=(r, d)) * np.where(signs > 0, 1.0, 0.1)[:, None]
    mean, own_mean = rng.normal(size=d), rng.normal(size=d)
    x = rows[newcomer] + own_mean
    before, after = contraction(scatter, rho0), contraction(scatter + rows.T @ np.diag(signs) @ rows, rho0)
    vectors = np.concatenate([rows, x[None]])
    power = np.linalg.matrix_power
    inner = np.concatenate([vectors @ power(before, t) @ vectors.T for t in range(q + 1)], axis=1)
    coefficients = polynomial(0.1, q)
    update = update_series(inner, signs, newcomer, rho0, coefficients)

    first = before @ rows.T
    np.testing.assert_allclose(before - first @ update.inverse @ first.T, after, atol=1e-12)
    moments = [own_mean @ power(after, t) @ own_mean for t in range(1, q + 1)]
    np.testing.assert_allclose(update.own_moments, moments, atol=1e-10)
    at_ridge = sum(c * power(after, t) for t, c in enumerate(coefficients, start=1))
    np.testing.assert_allclose(update.own_cross, own_mean @ at_ridge @ x, atol=1e-10)
    onto = np.concatenate([mean @ power(before, t) @ vectors.T for t in range(1, q + 1)])
    np.testing.assert_allclose(onto @ update.sample_coefficients, mean @ at_ridge @ x, atol=1e-10)
    steps = onto.reshape(q, r + 1)[:, :r].ravel()
    fall = moments_lost(steps[:, None], update.spread, q)[:, 0]
    expected = [mean @ (power(before, t) - power(after, t)) @ mean for t in range(1, q + 1)]
    np.testing.assert_allclose(fall, expected, atol=1e-10)


@pytest.mark.parametrize("moved", [True, False], ids=["mean moves", "mean stays"])
@pytest.mark.parametrize("replaces", [True, False], ids=["replaces", "joins"])
@pytest.mark.parametrize("count", [0, 1, 4])
def test_scatter_rows_are_the_change_of_the_scatter(count, replaces, moved):
    if replaces and count == 0:
        pytest.skip("nothing to replace")
    rng = np.random.default_rng(8)
    held, x, means = rng.normal(size=(count, 5)), rng.normal(size=5), rng.normal(size=(2, 5))
    if not moved:
        means[1] = means[0]
    after = np.concatenate([held[1:] if replaces else held, x[None]])
    centre = held.mean(axis=0) if count else np.zeros(5)
    change = Change(0, count, x, held[0] if replaces else None, centre, means[0], means[1], moved)
    rows, signs, newcomer = scatter_rows(change)
    np.testing.assert_array_equal(rows[newcomer], x - means[1])
    expected = (after - means[1]).T @ (after - means[1]) - (held - means[0]).T @ (held - means[0])
    np.testing.assert_allclose((rows * signs[:, None]).T @ rows, expected, atol=1e-12)
    assert (np.diff(signs) <= 0).all(), "additions come first"
    assert len(rows) <= 4


class Offered:
    """A bank some samples have entered, and others to come."""

    def __init__(self, *, update_mean=True, beta=None, capacity=3, cone=0.0):
        problem = make_problem(5, 8, 90, seed=61, cone=cone)
        self.prototypes = problem.prototypes
        self.home = Home.of(problem.prototypes)
        self.bank = KnowledgeBank(self.home, 5, 8, capacity)
        self.rule = Rule(
            alpha=0.9, beta=beta, use_bank_term=True, update_mean=update_mean, update_covariance=True, per_class=False
        )
        self.log_y = log_posterior(problem.features, problem.prototypes, 20.0)
        self.bank.offer(problem.features[:30], self.log_y[:30])
        self.features, self.log_y = problem.features[30:], self.log_y[30:]
        self.sums = ClassSums(self.prototypes, self.rule, self.bank)
        self.sureness = confidence(self.log_y)
        self.plan = self.bank.plan(pseudo_class(self.log_y), self.sureness)
        self.scatter = self.bank.scatter(self.sums.means)

    def line(self):
        trace = float(np.trace(self.scatter))
        arguments = (self.features, self.log_y, self.bank, self.sums, trace, self.prototypes, self.rule)
        return timeline(self.plan, *arguments)

    def enter(self, e):
        weights = self.bank.entrants(self.plan, self.log_y)
        some = self.plan.between(e, e + 1)
        self.bank.enter(some, self.features, weights[e : e + 1], self.sureness[some.rows])


RULES = [{}, {"update_mean": False}, {"beta": 1.5, "capacity": 6}, {"capacity": 1}]


class TestTimeline:
    @pytest.mark.parametrize("settings", RULES, ids=str)
    def test_every_insertion_is_known_before_it_happens(self, settings):
        offered = Offered(**settings)
        line, plan = offered.line(), offered.plan
        assert len(plan) > 4
        assert (plan.replaced >= 0).any(), "some that enter must leave again"
        scatter, start = offered.scatter, 0
        for e in range(len(plan)):
            offered.enter(e)
            now = ClassSums(offered.prototypes, offered.rule, offered.bank)
            k = plan.classes[e]
            np.testing.assert_allclose(line.weighted_sums[e], now.weighted_sums[k], atol=1e-12)
            np.testing.assert_allclose(line.weights[e], now.weights[k])
            np.testing.assert_allclose(line.means[e], now.means[k], atol=1e-12)
            rows = line.rows[start : line.row_ends[e]]
            signs = line.signs[start : line.row_ends[e]]
            start = line.row_ends[e]
            scatter = scatter + (rows * signs[:, None]).T @ rows
            np.testing.assert_allclose(scatter, offered.bank.scatter(now.means), atol=1e-12)
            np.testing.assert_allclose(line.traces[e], np.trace(scatter))
            assert line.sizes[e] == offered.bank.size
        np.testing.assert_allclose(line.gathered, (line.rows**2).sum())

    @pytest.mark.parametrize("settings", [{}, {"capacity": 6}, {"capacity": 1}], ids=str)
    def test_cones_never_certify_what_is_not_so(self, settings):
        """The cone told ahead is at least as wide as the class's true one about the same direction."""
        offered = Offered(**settings)
        line, m = offered.line(), offered.sums.direction
        for e, k in enumerate(offered.plan.classes.tolist()):
            offered.enter(e)
            now = ClassSums(offered.prototypes, offered.rule, offered.bank)
            held = offered.bank.features[[k]], offered.bank.occupied[[k]], now.weighted_sums[[k]], now.weights[[k]]
            true = cone.cones(*held, m)
            assert line.cone_across[e] >= true.across[0] - 1e-12
            assert line.cone_along[e] >= true.along[0] - 1e-12


class TestBlocks:
    @settings(max_examples=60, deadline=None)
    @given(
        st.integers(0, 12),
        st.integers(1, 40),
        st.lists(st.integers(0, 51), max_size=40),
        st.integers(1, 9),
    )
    def test_segments_are_runs_of_rows_that_have_seen_the_same(self, first_batch, rows, entered, batch_size):
        first = first_batch * batch_size
        rows += first
        entered = np.array(sorted({min(first + row, rows - 1) for row in entered}), dtype=np.int64)
        runs = blocks.segments(first, rows, entered, batch_size)
        assert runs.starts[0] == first
        assert runs.starts[-1] == rows
        assert (np.diff(runs.starts) > 0).all()
        seen = np.repeat(runs.events, np.diff(runs.starts))
        for row in range(first, rows):
            whole_batch = min((row // batch_size + 1) * batch_size, rows)
            assert seen[row - first] == (entered < whole_batch).sum()

    @pytest.mark.parametrize("dimension", [4, 64, 512])
    def test_blocks_follow_each_other_and_keep_the_tolerance(self, dimension):
        rng = np.random.default_rng(9)
        entered = np.sort(rng.choice(900, size=700, replace=False))
        ranks = rng.integers(1, 5, size=700)
        sizes = 50 + np.cumsum(rng.integers(0, 2, size=700))
        traces = sizes * 0.5 * np.exp(np.cumsum(rng.normal(scale=0.003, size=700)))
        line = SimpleNamespace(sizes=sizes, traces=traces, row_ends=np.cumsum(ranks))
        runs = blocks.segments(0, 900, entered, 1)
        parts = blocks.cut(line, runs, 50, 25.0, dimension, 100)
        assert parts[0].first == 0
        assert parts[-1].last == len(runs.events) - 1
        all_sizes, all_traces = np.append(50, sizes), np.append(25.0, traces)
        ends = np.append(0, line.row_ends)
        for part, following in zip(parts, [*parts[1:], None], strict=True):
            if following is not None:
                assert following.first == part.last + 1
            events = runs.events[part.first : part.last + 1]
            assert ends[events[-1]] - ends[events[0]] <= blocks.RANK_LIMIT
            ridges = (all_traces / (all_sizes - 1))[events]
            scale = (dimension * all_sizes / all_traces)[events].max()
            error = node_error(ridges.min(), ridges.max(), len(part.ridges))
            if len(events) == 1:
                np.testing.assert_allclose(part.ridges, ridges)
            else:
                assert error * scale * blocks.LENGTHS <= 1.001 * blocks.SCORE_TOLERANCE
            assert part.ridges.min() >= ridges.min() * (1 - 1e-12)
            assert part.ridges.max() <= ridges.max() * (1 + 1e-12)
        if dimension == 512:
            assert len(parts) < len(runs.events) / 2, "nothing is gained"

    def test_groups_are_neighbours_with_equally_many_ridges(self):
        parts = [blocks.Block(i, i, np.ones(q)) for i, q in enumerate([1, 1, 1, 2, 2, 1])]
        grouped = [[part.first for part in group] for group in blocks.groups(parts, 2)]
        assert grouped == [[0, 1], [2], [3, 4], [5]]


@pytest.mark.parametrize("lead", [(), (3,)], ids=str)
@pytest.mark.parametrize("changes", [0, 5, 21])
def test_solve_gives_every_moment_of_a_block(lead, changes):
    """Each row with as many changes in force, and at the ridge, that belong to it."""
    rng = np.random.default_rng(10)
    d, n, classes = 7, 9, 4
    scatter = positive(rng, *lead, d)
    signs = np.broadcast_to(np.where(np.arange(changes) % 4 < 2, 1.0, -1.0), (*lead, changes)).copy()
    rows = rng.normal(size=(*lead, changes, d)) * np.where(signs > 0, 0.4, 0.2)[..., None]
    x, means = rng.normal(size=(*lead, n, d)), rng.normal(size=(*lead, classes, d))
    counted = np.sort(rng.integers(0, changes + 1, size=n))
    at = nodes(0.9, 1.1, 6)
    rho = np.linspace(0.9, 1.1, n)
    in_force = np.broadcast_to((np.arange(changes) < counted[:, None]).astype(float), (*lead, n, changes))
    weights = np.broadcast_to(node_weights(rho, at), (*lead, n, 6))
    ridges = np.broadcast_to(at, (*lead, 6))
    cross, quadratic = solve(scatter, ridges, rows, signs, weights, in_force, x, means)
    assert cross.shape == quadratic.shape == (*lead, n, classes)
    for block in np.ndindex(*lead):
        for i in range(n):
            some = rows[block][: counted[i]]
            now = scatter[block] + (some * signs[block][: counted[i], None]).T @ some
            c, mu = contraction(now, rho[i]), means[block]
            np.testing.assert_allclose(cross[block][i], mu @ c @ x[block][i], atol=1e-6)
            np.testing.assert_allclose(quadratic[block][i], np.einsum("kd,de,ke->k", mu, c, mu), atol=1e-6)


class TestCones:
    def banks(self, seed, spread):
        rng = np.random.default_rng(seed)
        features = rng.normal(size=(6, 5, 4)) * spread + rng.normal(size=4)
        features /= np.linalg.norm(features, axis=-1, keepdims=True)
        occupied = (np.arange(5) < rng.integers(0, 6, size=6)[:, None]).astype(float)
        features *= occupied[..., None]
        weights = rng.uniform(0.2, 1.0, size=(6, 5)) * occupied
        x = rng.normal(size=(40, 4)) * spread + features.sum(axis=(0, 1)) / 10
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        return features, occupied, weights, x, rng

    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, 10_000), st.sampled_from([0.1, 0.4, 1.0, 5.0]), st.booleans())
    def test_what_is_certified_is_so(self, seed, spread, any_direction):
        """Whatever the direction: a good one only certifies more."""
        features, occupied, weights, x, rng = self.banks(seed, spread)
        sums, totals = np.einsum("kmd,km->kd", features, weights), weights.sum(axis=1)
        m = cone.shared_direction(sums)
        if any_direction:
            m = rng.normal(size=4)
            m /= np.linalg.norm(m)
        held = cone.cones(features, occupied, sums, totals, m)
        term, exact = x @ sums.T, bank_term(x, features, weights)
        doubt = cone.doubtful(term, x, m, held, totals)
        np.testing.assert_allclose(term[~doubt], exact[~doubt], atol=1e-12)
        add_excess(term, x, features, weights, doubt)
        np.testing.assert_allclose(term, exact, atol=1e-12)

    def test_a_narrow_cone_is_certified(self):
        features, occupied, weights, _, _ = self.banks(3, 0.1)
        sums, totals = np.einsum("kmd,km->kd", features, weights), weights.sum(axis=1)
        m = cone.shared_direction(sums)
        x = features[occupied > 0]
        doubt = cone.doubtful(x @ sums.T, x, m, cone.cones(features, occupied, sums, totals, m), totals)
        assert not doubt.any()

    @pytest.mark.parametrize("doubted", [0, 1, 3, 200])
    @pytest.mark.parametrize("rows", [1, 40])
    @pytest.mark.parametrize("library", ["numpy", "torch"])
    def test_exact_sums_however_few_or_many_are_in_doubt(self, doubted, rows, library):
        features, _, weights, x, rng = self.banks(4, 1.0)
        x = x[:rows]
        doubt = np.zeros((rows, 6), dtype=bool)
        doubt.flat[rng.permutation(doubt.size)[:doubted]] = True
        plain = x @ np.einsum("kmd,km->kd", features, weights).T
        arguments = [plain.copy(), x, features, weights, doubt]
        if library == "torch":
            torch = pytest.importorskip("torch", reason="torch is not installed")
            arguments = [torch.tensor(argument) for argument in arguments]
        add_excess(*arguments)
        exact = bank_term(x, features, weights)
        np.testing.assert_allclose(np.asarray(arguments[0])[doubt], exact[doubt], atol=1e-12)

    def test_empty_banks_have_no_direction_and_no_doubt(self):
        nothing = np.zeros((3, 2, 4))
        m = cone.shared_direction(nothing[:, 0])
        held = cone.cones(nothing, nothing[..., 0], nothing[:, 0], np.zeros(3), m)
        x = np.eye(2, 4)
        assert not cone.doubtful(np.zeros((2, 3)), x, m, held, np.zeros(3)).any()
        assert np.isfinite(held.across).all()
