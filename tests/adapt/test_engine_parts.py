"""The parts of the fast engines, each compared with the float64 matrices it replaces."""

from __future__ import annotations

import numpy as np
import pytest

from matrices import contraction, positive
from zeroshift.adapt.engines.class_statistics import BankInsertion, scatter_rows
from zeroshift.adapt.engines.precision_primal import node_error, node_weights, nodes, polynomial, polynomial_error
from zeroshift.adapt.engines.woodbury import compute_update, moment_decrease
from zeroshift.linalg import ldl_inverse, positive_inverse

EIGENVALUES = np.concatenate([[0.0], np.geomspace(1e-6, 1e6, 400)])
"""Eigenvalues of a scatter matrix; errors of C depend on nothing else."""


class TestRidge:
    @pytest.mark.parametrize("degree", [1, 3, 5])
    @pytest.mark.parametrize("e", [-0.9, -0.3, -0.01, 1e-6, 0.02, 0.5, 4.0])
    def test_polynomial_stays_within_its_bound(self, e, degree):
        """For the eigenvalues c of C0: the error relative to c, as quadratic forms need it."""
        c = 1 / (1 + EIGENVALUES)
        exact = (1 + e) * c / (1 + e * c)
        approximate = np.polyval(np.append(polynomial(e, degree)[::-1], 0.0), c)
        error = np.abs(approximate - exact) / c
        assert error.max() <= polynomial_error(e, degree) + 1e-13

    @pytest.mark.parametrize("e", [-0.3, 0.02, 0.5])
    def test_polynomial_bound_is_tight(self, e):
        """At most twenty times the real error: with a loose bound every insertion would factorise."""
        c = np.linspace(0, 1, 1000)[1:]
        error = np.abs(np.polyval(np.append(polynomial(e, 4)[::-1], 0.0), c) / c - (1 + e) / (1 + e * c)).max()
        assert polynomial_error(e, 4) <= 20 * error

    def test_polynomial_error_at_the_limits(self):
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


class TestFactors:
    @pytest.mark.parametrize("n", [1, 2, 16, 17, 33, 70])
    @pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
    @pytest.mark.parametrize("library", ["numpy", "torch"])
    def test_positive_inverse_and_ldl(self, n, lead, library):
        rng = np.random.default_rng(n)
        matrix = positive(rng, *lead, n) + np.eye(n)
        # Additions, then removals small enough that no leading minor vanishes, as in the engines.
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

    def test_leading_parts_factorise_leading_matrices(self):
        """This is why the factorisation does not pivot."""
        matrix = positive(np.random.default_rng(5), 40) + np.eye(40)
        inverse, pivots = ldl_inverse(matrix)
        for n in (1, 7, 16, 20, 33):
            first, some = ldl_inverse(matrix[:n, :n])
            np.testing.assert_allclose(inverse[:n, :n], first, atol=1e-12)
            np.testing.assert_allclose(pivots[:n], some)

    def test_arguments_are_not_changed(self):
        matrix = positive(np.random.default_rng(6), 40) + np.eye(40)
        before = matrix.copy()
        positive_inverse(matrix), ldl_inverse(matrix), ldl_inverse(matrix[:9, :9])
        np.testing.assert_array_equal(matrix, before)


@pytest.mark.parametrize("signs", [[1.0], [1.0, -1.0], [1.0, 1.0, -1.0], [1.0, 1.0, -1.0, -1.0]], ids=str)
def test_update_equals_powers_of_the_updated_matrix(signs):
    rng = np.random.default_rng(7)
    d, q, rho0 = 6, 5, 0.7
    signs = np.array(signs)
    r, new_row = len(signs), int((signs > 0).sum()) - 1
    scatter = positive(rng, d)
    # Removed rows are small: S must stay positive definite.
    rows = rng.normal(size=(r, d)) * np.where(signs > 0, 1.0, 0.1)[:, None]
    mean, own_mean = rng.normal(size=d), rng.normal(size=d)
    x = rows[new_row] + own_mean
    before, after = contraction(scatter, rho0), contraction(scatter + rows.T @ np.diag(signs) @ rows, rho0)
    vectors = np.concatenate([rows, x[None]])
    power = np.linalg.matrix_power
    inner = np.concatenate([vectors @ power(before, t) @ vectors.T for t in range(q + 1)], axis=1)
    coefficients = polynomial(0.1, q)
    update = compute_update(inner, signs, new_row, rho0, coefficients)

    first = before @ rows.T
    np.testing.assert_allclose(before - first @ update.inverse @ first.T, after, atol=1e-12)
    moments = [own_mean @ power(after, t) @ own_mean for t in range(1, q + 1)]
    np.testing.assert_allclose(update.own_moments, moments, atol=1e-10)
    at_ridge = sum(c * power(after, t) for t, c in enumerate(coefficients, start=1))
    np.testing.assert_allclose(update.own_cross, own_mean @ at_ridge @ x, atol=1e-10)
    onto = np.concatenate([mean @ power(before, t) @ vectors.T for t in range(1, q + 1)])
    np.testing.assert_allclose(onto @ update.sample_coefficients, mean @ at_ridge @ x, atol=1e-10)
    steps = onto.reshape(q, r + 1)[:, :r].ravel()
    fall = moment_decrease(steps[:, None], update.spread, q)[:, 0]
    expected = [mean @ (power(before, t) - power(after, t)) @ mean for t in range(1, q + 1)]
    np.testing.assert_allclose(fall, expected, atol=1e-10)


@pytest.mark.parametrize("moved", [True, False], ids=["mean moves", "mean stays"])
@pytest.mark.parametrize("replaces", [True, False], ids=["replaces", "joins"])
@pytest.mark.parametrize("count", [0, 1, 4])
def test_scatter_rows_give_the_change_of_the_scatter(count, replaces, moved):
    if replaces and count == 0:
        pytest.skip("nothing to replace")
    rng = np.random.default_rng(8)
    held, x, means = rng.normal(size=(count, 5)), rng.normal(size=5), rng.normal(size=(2, 5))
    if not moved:
        means[1] = means[0]
    after = np.concatenate([held[1:] if replaces else held, x[None]])
    centre = held.mean(axis=0) if count else np.zeros(5)
    change = BankInsertion(0, count, x, held[0] if replaces else None, centre, means[0], means[1], moved)
    rows, signs, new_row = scatter_rows(change)
    np.testing.assert_array_equal(rows[new_row], x - means[1])
    expected = (after - means[1]).T @ (after - means[1]) - (held - means[0]).T @ (held - means[0])
    np.testing.assert_allclose((rows * signs[:, None]).T @ rows, expected, atol=1e-12)
    assert (np.diff(signs) <= 0).all(), "additions come first"
    assert len(rows) <= 4
