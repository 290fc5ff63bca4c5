"""BCA against a reconstruction (no official code was seen), a plain version of it, and its own rules."""

import math

import numpy as np
import pytest
import torch

from goldens import golden, problem, views
from plain import bca as plain
from zeroshift.methods import BCA
from zeroshift.testing import check_method, make_problem
from zeroshift.views import average_views
from zeroshift.zero_shot import posterior

TOLERANCE = 2e-5

SETTINGS = {
    "probs": {},
    "alt10_probs": {"likelihood_count": 10},
    "alt1_probs": {"likelihood_threshold": 0.5, "likelihood_count": 1, "prior_threshold": 0.9, "prior_count": 1},
}


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.parametrize("array", SETTINGS)
def test_the_reconstructed_probabilities(array, dtype):
    given = problem(dtype)
    scores = BCA(given["prototypes"], **SETTINGS[array]).adapt_scores(given["features"])
    np.testing.assert_allclose(scores, golden("bca")[array], rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(scores.argmax(axis=1), golden("bca")[array].argmax(axis=1))


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_the_reconstructed_embeddings_and_priors(dtype):
    given, expected = problem(dtype), golden("bca")
    method = BCA(given["prototypes"])
    method.adapt(given["features"])
    np.testing.assert_allclose(method.means, expected["final_mu"], rtol=0, atol=2e-6)
    np.testing.assert_allclose(method.prior, expected["final_prior"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("array", SETTINGS)
def test_the_reconstructed_probabilities_with_torch(array):
    given = problem("float32")
    method = BCA(torch.tensor(given["prototypes"]), **SETTINGS[array])
    scores = method.adapt_scores(torch.tensor(given["features"]))
    np.testing.assert_allclose(scores.numpy(), golden("bca")[array], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("likelihood_count", [0, 3])
def test_the_plain_version_agrees(likelihood_count, seed):
    given = make_problem(classes=9, dimension=24, samples=300, seed=seed)
    setting = {"logit_scale": 20.0, "likelihood_threshold": 0.3, "prior_threshold": 0.4, "prior_count": 2}
    ours = BCA(given.prototypes, likelihood_count=likelihood_count, **setting)
    expected = plain.scores(
        torch.tensor(given.features), torch.tensor(given.prototypes), likelihood_count=likelihood_count, **setting
    )
    np.testing.assert_allclose(ours.adapt_scores(given.features), expected.numpy(), rtol=0, atol=1e-11)
    assert np.abs(ours.prior - np.eye(9)).max() > 0.1


def test_the_worked_example():
    method = BCA(np.eye(2), logit_scale=5.0, likelihood_count=2, likelihood_threshold=0, prior_threshold=0)
    method.adapt(np.array([[0.8, 0.6]]))
    np.testing.assert_allclose(method.means, [[0.977802, 0.209529], [0, 1]], atol=1e-6)
    np.testing.assert_allclose(method.prior, [[0.865529, 0.134471], [0, 1]], atol=1e-6)
    np.testing.assert_allclose(method.adapt(np.array([0.6, 0.8])), [0.383540, 0.616460], atol=1e-6)


@pytest.mark.slow  # tests/common does the same, bit by bit
def test_the_common_checks():
    assert check_method(BCA).declared == {}
    check_method(BCA, parameters={"likelihood_count": 1, "prior_threshold": 0.2, "view_ratio": 1.0})


def test_it_is_marked_as_reconstructed():
    assert "code is not available" in BCA.reconstructed


def test_thresholds_of_one_leave_zero_shot():
    given = problem("float64")
    method = BCA(given["prototypes"], likelihood_threshold=1, prior_threshold=1)
    expected = posterior(given["features"], given["prototypes"], 100.0)
    np.testing.assert_allclose(method.adapt(given["features"]), expected, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(method.means, given["prototypes"])


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize(("threshold", "still"), [("likelihood_threshold", "means"), ("prior_threshold", "prior")])
def test_a_posterior_must_be_above_the_threshold_not_at_it(threshold, still, rows):
    x = np.array([[0.8, 0.6, 0.0], [0.6, 0.5, math.sqrt(0.39)]])[:rows]  # the second is less confident
    setting = {"logit_scale": 5.0, "likelihood_threshold": 1.0, "likelihood_count": 2, "prior_threshold": 1.0}
    fixed = BCA(np.eye(3), **setting)
    highest = float(fixed.adapt_scores(x)[0].max())
    np.testing.assert_array_equal(getattr(fixed, still), np.eye(3))

    at = BCA(np.eye(3), **{**setting, threshold: highest})
    at.adapt(x)
    np.testing.assert_array_equal(getattr(at, still), np.eye(3))
    below = BCA(np.eye(3), **{**setting, threshold: math.nextafter(highest, 0.0)})
    below.adapt(x)
    assert np.abs(getattr(below, still)[0] - np.eye(3)[0]).max() > 0.05
    np.testing.assert_array_equal(getattr(below, still)[1:], np.eye(3)[1:])


@pytest.mark.parametrize(("parameter", "still"), [("likelihood_count", "means"), ("prior_count", "prior")])
def test_a_very_large_count_keeps_the_initial_value(parameter, still):
    given = problem("float64")
    method = BCA(given["prototypes"], **{parameter: 1e15})
    before = getattr(method, still)
    method.adapt(given["features"])
    np.testing.assert_allclose(getattr(method, still), before, rtol=0, atol=1e-7)


def test_priors_stay_distributions_and_embeddings_units():
    given = problem("float64")
    method = BCA(given["prototypes"], likelihood_count=5)
    method.adapt(given["features"])
    np.testing.assert_allclose(method.prior.sum(axis=1), 1, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(method.means, axis=1), 1, atol=1e-12)
    assert (np.diag(method.prior) < 1).any()


def test_the_row_of_the_predicted_label_moves_not_that_of_the_nearest_embedding():
    method = BCA(np.eye(2), logit_scale=1.0, likelihood_threshold=0, likelihood_count=1, prior_threshold=0.6)
    method._prior = np.array([[0.1, 0.9], [0.0, 1.0]])
    method.adapt(np.array([0.8, 0.6]))  # nearest to embedding 0, whose prior favours label 1
    np.testing.assert_array_equal(method.means[0], [1, 0])
    np.testing.assert_allclose(method.means[1], np.array([0.8, 1.6]) / np.hypot(0.8, 1.6))


def test_views_are_selected_with_the_present_embeddings_and_averaged():
    given = views("float64")
    method = BCA(given["prototypes"], likelihood_count=3)
    for image in given["views"][:20]:
        average = average_views(image, method.means, 100.0)
        expected = np.exp(average.logits - average.logits.max())
        expected = expected / expected.sum() @ method.prior
        k = int(expected.argmax())
        before = method.means[k]
        np.testing.assert_allclose(method.adapt_views_scores(image), expected, rtol=0, atol=1e-12)
        if expected[k] > 0.05:
            weight = method._moves[k] + 2
            moved = weight * before + average.features
            np.testing.assert_allclose(method.means[k], moved / np.linalg.norm(moved), atol=1e-12)
    assert method.n_seen == 20


def test_a_state_of_another_shape_raises():
    method = BCA(np.eye(3))
    arrays, values = method._state()
    with pytest.raises(ValueError, match="prior"):
        method._restore({**arrays, "prior": np.eye(2)}, values)
