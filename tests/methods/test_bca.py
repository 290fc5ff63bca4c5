"""BCA against a reconstruction (no official code was seen), a plain version of it, and its own rules."""

import math

import numpy as np
import pytest
import torch

from goldens import assert_golden, golden, problem, views
from plain import bca as plain
from zeroshift.methods import BCA
from zeroshift.testing import make_problem
from zeroshift.views import average_views

SETTINGS = {
    "probs": {},
    "alt10_probs": {"likelihood_count": 10},
    "alt1_probs": {"likelihood_threshold": 0.5, "likelihood_count": 1, "prior_threshold": 0.9, "prior_count": 1},
}


@pytest.mark.parametrize("array", SETTINGS)
def test_the_reconstructed_probabilities(array):
    given, expected = problem(), golden("bca")
    method = BCA(given["prototypes"], **SETTINGS[array])
    assert_golden(method.adapt_scores(given["features"]), expected[array], 2e-5)
    if array == "probs":
        np.testing.assert_allclose(method.means, expected["final_mu"], rtol=0, atol=2e-6)
        np.testing.assert_allclose(method.prior, expected["final_prior"], rtol=0, atol=1e-5)
    assert "code is not available" in BCA.reconstructed


@pytest.mark.parametrize("likelihood_count", [0, 3])
def test_the_plain_version_agrees(likelihood_count):
    given = make_problem(classes=9, dimension=24, samples=300, seed=1)
    setting = {"logit_scale": 20.0, "likelihood_threshold": 0.3, "prior_threshold": 0.4, "prior_count": 2}
    setting |= {"likelihood_count": likelihood_count}
    ours = BCA(given.prototypes, **setting)
    expected = plain.scores(torch.tensor(given.features), torch.tensor(given.prototypes), **setting)
    np.testing.assert_allclose(ours.adapt_scores(given.features), expected, rtol=0, atol=1e-11)
    assert np.abs(ours.prior - np.eye(9)).max() > 0.1


@pytest.mark.parametrize(("threshold", "still"), [("likelihood_threshold", "means"), ("prior_threshold", "prior")])
def test_a_posterior_must_be_above_the_threshold_not_at_it(threshold, still):
    x = np.array([[0.8, 0.6, 0.0], [0.6, 0.5, math.sqrt(0.39)]])  # the second is less confident
    setting = {"logit_scale": 5.0, "likelihood_threshold": 1.0, "likelihood_count": 2, "prior_threshold": 1.0}
    highest = float(BCA(np.eye(3), **setting).adapt_scores(x)[0].max())
    for given, moves in ((highest, False), (math.nextafter(highest, 0.0), True)):
        method = BCA(np.eye(3), **{**setting, threshold: given})
        method.adapt(x)
        assert (np.abs(getattr(method, still)[0] - np.eye(3)[0]).max() > 0.05) == moves
        np.testing.assert_array_equal(getattr(method, still)[1:], np.eye(3)[1:])


@pytest.mark.parametrize(("parameter", "still"), [("likelihood_count", "means"), ("prior_count", "prior")])
def test_a_very_large_count_keeps_the_initial_value(parameter, still):
    given = problem("float64")
    method = BCA(given["prototypes"], **{parameter: 1e15})
    before = getattr(method, still)
    method.adapt(given["features"])
    np.testing.assert_allclose(getattr(method, still), before, rtol=0, atol=1e-7)


def test_views_are_selected_with_the_present_embeddings_and_averaged():
    given = views("float64")
    method, moves = BCA(given["prototypes"], likelihood_count=3), np.zeros(len(given["prototypes"]))
    for image in given["views"][:20]:
        average = average_views(image, method.means, 100.0)
        expected = np.exp(average.logits - average.logits.max())
        expected = expected / expected.sum() @ method.prior
        k = int(expected.argmax())
        before = method.means[k]
        np.testing.assert_allclose(method.adapt_views_scores(image), expected, rtol=0, atol=1e-12)
        if expected[k] > 0.05:
            moved = (moves[k] + 3) * before + average.features
            moves[k] += 1
            np.testing.assert_allclose(method.means[k], moved / np.linalg.norm(moved), atol=1e-12)
