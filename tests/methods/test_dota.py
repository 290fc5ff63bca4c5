"""DOTA against the authors' code, a plain version of it, and its own rules."""

import numpy as np
import pytest
import torch

from goldens import assert_golden, golden, problem, views
from plain import dota as plain
from zeroshift.methods import DOTA
from zeroshift.testing import CHECKS, Case, make_problem
from zeroshift.zero_shot import logits

SETTINGS = {
    "logits": ({}, 2e-4),
    "clipinit_logits": ({"initial_means": "text"}, 2e-3),
    "alt_logits": (DOTA.preset("imagenet"), 2e-4),
}


@pytest.mark.parametrize("array", SETTINGS)
def test_the_authors_logits(array):
    given, (setting, tolerance) = problem(), SETTINGS[array]
    assert_golden(
        DOTA(given["prototypes"], **setting).adapt_scores(given["features"]), golden("dota")[array], tolerance
    )


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


def test_the_authors_gaussians():
    given, expected = problem(), golden("dota")
    method = DOTA(given["prototypes"])
    method.adapt(given["features"])
    np.testing.assert_allclose(method.means, expected["final_mu"], rtol=0, atol=2e-6)
    np.testing.assert_allclose(method.counts, expected["final_c"], rtol=0, atol=3e-4)
    np.testing.assert_allclose(method.covariance, expected["final_overall_sigma"], rtol=0, atol=2e-8)
    np.testing.assert_allclose(method.precision_matrix, expected["final_precision"], rtol=0, atol=2e-3)  # of up to 496


def test_the_authors_logits_of_views():
    given, expected = views(), golden("dota_views")
    method = DOTA(given["prototypes"], **DOTA.preset("imagenet_a"))
    assert_golden(method.adapt_views_scores(given["views"]), expected["logits"], 1e-4)
    np.testing.assert_allclose(method.means, expected["final_mu"], rtol=0, atol=2e-6)
    np.testing.assert_allclose(method.counts, expected["final_c"], rtol=0, atol=3e-4)


@pytest.mark.parametrize("initial_means", ["constant", "text"])
def test_the_plain_version_agrees(initial_means):
    given = make_problem(classes=9, dimension=24, samples=150, seed=1)
    features, prototypes = torch.tensor(given.features), torch.tensor(given.prototypes)
    setting = {"logit_scale": 20.0, "epsilon": 0.01, "sigma": 0.05, "eta": 0.7, "rho": 0.04}
    ours = DOTA(given.prototypes, initial_means=initial_means, **setting)
    start = prototypes if initial_means == "text" else None
    details = {}
    expected = plain.scores(features, prototypes, initial_means=start, details=details, **setting)
    np.testing.assert_allclose(ours.adapt_scores(given.features), expected, rtol=0, atol=1e-9)
    np.testing.assert_allclose(ours.covariance, details["final_overall_sigma"], rtol=0, atol=1e-12)


def test_the_axes_do_not_matter_if_the_means_start_at_the_prototypes():
    CHECKS["axes_do_not_matter"](Case(DOTA, {"initial_means": "text"}))
