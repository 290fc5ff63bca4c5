"""CMA-ES against the tutorial's equations written out plainly, on functions whose minimum is known, and saved."""

import math
import re

import numpy as np
import pytest

from zeroshift.methods._shared.cma_es import CMAES


def sphere(x):
    return float((x**2).sum())


def ellipsoid(x):
    """Axes of lengths a thousand times apart."""
    return float((1e6 ** (np.arange(len(x)) / (len(x) - 1)) * x**2).sum())


def rosenbrock(x):
    return float((100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum())


def lowest(function, search, generations):
    for _ in range(generations):
        candidates = search.ask()
        losses = np.array([function(x) for x in candidates])
        search.tell(candidates, losses)
    return losses.min()


@pytest.mark.parametrize(
    ("function", "start", "sigma", "generations"),
    [(sphere, 3.0, 1.0, 160), (ellipsoid, 1.0, 1.0, 420), (rosenbrock, 0.0, 0.5, 500)],
)
def test_the_minimum_is_found(function, start, sigma, generations):
    search = CMAES(np.full(8, start), sigma=sigma, population=10, seed=1)
    assert lowest(function, search, generations) < 1e-8
    np.testing.assert_allclose(search.mean, 1.0 if function is rosenbrock else 0.0, atol=1e-3)


def test_constants_worked_by_hand():
    """n = 10 and a population of 10: the tutorial's Table 1 computed by hand."""
    k = CMAES(np.zeros(10), sigma=1.0, population=10)
    assert k.parents == 5
    # ln 5.5 - ln i for i = 1 to 5 is 1.7047, 1.0116, 0.6061, 0.3185, 0.0953; their sum 3.7362.
    np.testing.assert_allclose(k.weights[:5], np.array([1.7047, 1.0116, 0.6061, 0.3185, 0.0953]) / 3.7362, atol=2e-5)
    assert k.mu_eff == pytest.approx(3.1673, abs=1e-4)
    assert k.c_sigma == pytest.approx(5.1673 / 18.1673, abs=1e-5)
    assert k.d_sigma == pytest.approx(1 + 5.1673 / 18.1673, abs=1e-5)
    assert k.c_c == pytest.approx(4.31673 / 14.63346, abs=1e-5)
    assert k.c_1 == pytest.approx(2 / (127.69 + 3.1673), abs=1e-7)
    assert k.c_mu == pytest.approx(2 * (0.25 + 3.1673 + 0.31573 - 2) / (144 + 3.1673), abs=1e-6)
    assert k.expected == pytest.approx(3.0847, abs=1e-4)
    # The negative weights' sum is the least of 1 + c_1 / c_mu = 1.649, 1 + 2 x 3.989 / 5.1673 = 2.544 and 4.08.
    assert -k.weights[5:].sum() == pytest.approx(1 + 0.0152838 / 0.0235518, abs=1e-4)


def test_a_large_population_damps_the_scale():
    k = CMAES(np.zeros(2), sigma=1.0, population=100)
    assert k.d_sigma == pytest.approx(1 + 2 * (math.sqrt((k.mu_eff - 1) / 3) - 1) + k.c_sigma)
    assert k.c_mu <= 1 - k.c_1


def plain_generation(state, candidates, losses, constants, generation):
    """The tutorial's equations one by one, with C^(-1/2) as a matrix and sums as loops."""
    mean, sigma, covariance, path_sigma, path_c = state
    n, k = len(mean), constants
    values, vectors = np.linalg.eigh(covariance)
    root = vectors @ np.diag(values**-0.5) @ vectors.T
    y = [(candidates[i] - mean) / sigma for i in sorted(range(len(losses)), key=lambda i: losses[i])]
    step = sum(k.weights[i] * y[i] for i in range(k.parents))
    path_sigma = (1 - k.c_sigma) * path_sigma + (k.c_sigma * (2 - k.c_sigma) * k.mu_eff) ** 0.5 * root @ step
    length = (path_sigma @ path_sigma) ** 0.5
    limit = (1.4 + 2 / (n + 1)) * k.expected * (1 - (1 - k.c_sigma) ** (2 * (generation + 1))) ** 0.5
    h = 1 if length < limit else 0
    path_c = (1 - k.c_c) * path_c + h * (k.c_c * (2 - k.c_c) * k.mu_eff) ** 0.5 * step
    total = (1 + k.c_1 * (1 - h) * k.c_c * (2 - k.c_c) - k.c_1 - k.c_mu * sum(k.weights)) * covariance
    total = total + k.c_1 * np.outer(path_c, path_c)
    for weight, one in zip(k.weights, y, strict=True):
        whitened = root @ one
        total = total + k.c_mu * (weight if weight >= 0 else weight * n / (whitened @ whitened)) * np.outer(one, one)
    new_sigma = sigma * math.exp(k.c_sigma / k.d_sigma * (length / k.expected - 1))
    return (mean + sigma * step, new_sigma, total, path_sigma, path_c), h


@pytest.mark.parametrize("far", [1.0, 30.0])  # from far away, the second path is not updated
def test_generations_agree_with_the_equations(far):
    draw, search = np.random.default_rng(3), CMAES(np.zeros(4), sigma=0.7, population=7)
    state, stalled = (search.mean, search.sigma, search.covariance, search.path_sigma, search.path_c), False
    for generation in range(6):
        candidates = state[0] + far * draw.normal(size=(7, 4)) * 0.7 + (far > 1) * 5
        losses = np.array([ellipsoid(x) for x in candidates])
        search.tell(candidates, losses)
        state, h = plain_generation(state, candidates, losses, search, generation)
        stalled |= h == 0
        actual = (search.mean, search.sigma, search.covariance, search.path_sigma, search.path_c)
        for one, other in zip(actual, state, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-10)
    assert stalled == (far > 1)


def test_candidates_have_the_search_s_mean_and_covariance():
    search = CMAES(np.array([1.0, -2.0]), sigma=0.5, population=20000)
    arrays, values = search.state()
    search.restore({**arrays, "covariance": np.array([[4.0, 1.0], [1.0, 2.0]])}, values)
    drawn = search.ask()
    np.testing.assert_allclose(drawn.mean(axis=0), search.mean, atol=0.03)
    np.testing.assert_allclose(np.cov(drawn.T), 0.25 * search.covariance, atol=0.03)


def test_a_restored_search_continues_bit_for_bit():
    one = CMAES(np.ones(30), sigma=1.0, population=8, seed=5)
    lowest(ellipsoid, one, 5)
    other = CMAES(np.zeros(30), sigma=2.0, population=8, seed=5)
    other.restore(*one.state())
    lowest(ellipsoid, one, 5)
    lowest(ellipsoid, other, 5)
    for name, array in one.state()[0].items():
        np.testing.assert_array_equal(array, other.state()[0][name], err_msg=name)
    assert one.state()[1] == other.state()[1]
    with pytest.raises(ValueError, match=r"the array 'mean' has the shape \(30,\), not \(3,\)"):
        CMAES(np.zeros(3), sigma=1.0, population=8).restore(*one.state())


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("mean", 1e160, "mean must be from"),
        ("covariance", 0.0, "sigma and the variances must be from"),
        ("covariance", 1e160, "covariance must be from"),
        ("path_sigma", 1e6, "path_sigma must be no longer than"),
    ],
)
def test_states_that_no_search_leads_to_are_refused(name, changed, message):
    search = CMAES(np.ones(4), sigma=1.0, population=8)
    lowest(ellipsoid, search, 5)
    arrays, values = search.state()
    arrays[name] = arrays[name].copy()
    arrays[name].flat[0] = changed
    with pytest.raises(ValueError, match=re.escape(message)):
        CMAES(np.ones(4), sigma=1.0, population=8).restore(arrays, values)


def test_candidates_that_are_all_the_mean_leave_the_search_finite():
    search = CMAES(np.ones(4), sigma=1e-30, population=8)
    candidates = search.ask()
    assert (candidates == 1).all()
    search.tell(candidates, np.arange(8.0))
    assert all(np.isfinite(array).all() for array in search.state()[0].values())
