"""DOTA against the authors' code, a plain version of it, and its own rules."""

import numpy as np
import pytest
import torch

from goldens import golden, problem, views
from plain import dota as plain
from zeroshift.methods import DOTA
from zeroshift.testing import check_method, make_problem
from zeroshift.testing.case import Case
from zeroshift.testing.symmetry import axes_do_not_matter
from zeroshift.zero_shot import logits

SETTINGS = {
    "logits": ({}, 2e-4),
    "clipinit_logits": ({"initial_means": "text"}, 2e-3),
    "alt_logits": (DOTA.preset("imagenet"), 2e-4),
}


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.parametrize("array", SETTINGS)
def test_the_authors_logits(array, dtype):
    given, (setting, tolerance) = problem(dtype), SETTINGS[array]
    scores = DOTA(given["prototypes"], **setting).adapt_scores(given["features"])
    np.testing.assert_allclose(scores, golden("dota")[array], rtol=0, atol=tolerance)
    np.testing.assert_array_equal(scores.argmax(axis=1), golden("dota")[array].argmax(axis=1))


@pytest.mark.parametrize("array", ["dota_logits", "clipinit_dota_logits"])
def test_the_authors_discriminant(array):
    # The scores without the zero-shot logits and the weight; up to 27 and 763.
    given, expected = problem("float64"), golden("dota")[array]
    method = DOTA(given["prototypes"], initial_means="text" if "clipinit" in array else "constant")
    scores = method.adapt_scores(given["features"]) - logits(given["features"], given["prototypes"], 100.0)
    weights = np.minimum(0.02 * (1 + np.arange(600) / 12), 0.3)
    np.testing.assert_allclose(scores / weights[:, None], expected, rtol=1e-5, atol=6e-4)
    # The first sample is the same for every class if all means are equal.
    np.testing.assert_array_equal(scores.argmax(axis=1)[1:], expected.argmax(axis=1)[1:])


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_the_authors_gaussians(dtype):
    given, expected = problem(dtype), golden("dota")
    method = DOTA(given["prototypes"])
    method.adapt(given["features"])
    np.testing.assert_allclose(method.means, expected["final_mu"], rtol=0, atol=2e-6)
    np.testing.assert_allclose(method.counts, expected["final_c"], rtol=0, atol=3e-4)
    np.testing.assert_allclose(method.covariance, expected["final_overall_sigma"], rtol=0, atol=2e-8)
    np.testing.assert_allclose(method.precision_matrix, expected["final_precision"], rtol=0, atol=2e-3)  # of up to 496


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_the_authors_logits_of_views(dtype):
    given, expected = views(dtype), golden("dota_views")
    method = DOTA(given["prototypes"], **DOTA.preset("imagenet_a"))
    scores = method.adapt_views_scores(given["views"])
    np.testing.assert_allclose(scores, expected["logits"], rtol=0, atol=1e-4)
    np.testing.assert_array_equal(scores.argmax(axis=1), expected["logits"].argmax(axis=1))
    np.testing.assert_allclose(method.means, expected["final_mu"], rtol=0, atol=2e-6)
    np.testing.assert_allclose(method.counts, expected["final_c"], rtol=0, atol=3e-4)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_the_authors_logits_with_torch(dtype):
    given, images = problem(dtype), views(dtype)
    scores = DOTA(torch.tensor(given["prototypes"])).adapt_scores(torch.tensor(given["features"]))
    np.testing.assert_allclose(scores.numpy(), golden("dota")["logits"], rtol=0, atol=2e-4)
    method = DOTA(torch.tensor(given["prototypes"]), **DOTA.preset("imagenet_a"))
    scores = method.adapt_views_scores(torch.tensor(images["views"]))
    np.testing.assert_allclose(scores.numpy(), golden("dota_views")["logits"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("initial_means", ["constant", "text"])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_plain_version_agrees(seed, initial_means):
    given = make_problem(classes=9, dimension=24, samples=150, seed=seed)
    features, prototypes = torch.tensor(given.features), torch.tensor(given.prototypes)
    setting = {"logit_scale": 20.0, "epsilon": 0.01, "sigma": 0.05, "eta": 0.7, "rho": 0.04}
    ours = DOTA(given.prototypes, initial_means=initial_means, **setting)
    start = prototypes if initial_means == "text" else None
    details = {}
    expected = plain.scores(features, prototypes, initial_means=start, details=details, **setting)
    np.testing.assert_allclose(ours.adapt_scores(given.features), expected.numpy(), rtol=0, atol=1e-9)
    np.testing.assert_allclose(ours.covariance, details["final_overall_sigma"].numpy(), rtol=0, atol=1e-12)


def test_the_worked_example():
    method = DOTA(np.eye(2), logit_scale=5.0, epsilon=0.1, sigma=0.5, eta=1.0, rho=0.1, constant=0.0)
    method.adapt(np.array([0.8, 0.6]))
    np.testing.assert_allclose(method.means, [[0.337855, 0.253391], [0.169553, 0.127165]], atol=1e-6)
    np.testing.assert_allclose(method.counts, [1.731059, 1.268941], atol=1e-6)
    np.testing.assert_allclose(method.covariance, [[0.544398, 0.152222], [0.152222, 0.455602]], atol=1e-6)
    np.testing.assert_allclose(method.precision_matrix, [[1.807797, -0.485585], [-0.485585, 2.091056]], atol=1e-6)
    np.testing.assert_allclose(method.adapt_scores(np.array([0.6, 0.8])), [3.068481, 4.039195], atol=1e-6)


@pytest.mark.slow  # tests/common does the same, bit by bit
def test_the_common_checks():
    check_method(DOTA)


def test_the_axes_do_not_matter_if_the_means_start_at_the_prototypes():
    assert list(DOTA.check_exceptions) == ["axes_do_not_matter"]
    axes_do_not_matter(Case(DOTA, {"initial_means": "text"}))


def test_the_first_sample_is_predicted_zero_shot():
    given = problem("float64")
    method = DOTA(given["prototypes"], rho=0.1, eta=0.4)
    first = method.adapt_scores(given["features"][0]) - logits(given["features"][:1], given["prototypes"], 100.0)[0]
    assert np.ptp(first) < 1e-12


def test_presets_are_the_authors():
    assert DOTA.preset("eurosat") == {"epsilon": 1e-4, "eta": 3.0, "rho": 0.05}
    assert len(DOTA.presets) == 15


def test_a_state_of_another_shape_raises():
    method = DOTA(np.eye(3))
    arrays, values = method._state()
    with pytest.raises(ValueError, match="sums"):
        method._restore({**arrays, "sums": np.zeros((3, 2, 2))}, values)


def test_sums_that_no_samples_lead_to_raise():
    """With them the covariance could not be inverted."""
    method = DOTA(np.eye(3))
    arrays, values = method._state()
    with pytest.raises(ValueError, match="sums / counts must be from"):
        method._restore({**arrays, "sums": np.full((3, 3, 3), 1e30)}, values)
