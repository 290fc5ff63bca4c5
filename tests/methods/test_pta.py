"""PTA: the authors' logits, a plain version, and its rules."""

import numpy as np
import pytest
import torch

from goldens import assert_golden, golden, problem, views
from plain import pta as plain
from zeroshift import ZeroShot
from zeroshift.methods import PTA
from zeroshift.testing import make_problem

TOLERANCE = 6e-4
"""Three times the difference between a float64 version and the authors' float32 one; logits are up to 189."""

SETTINGS = {"logits": {}, "alt_logits": {"temperature": 50.0}, "mix_logits": {"alpha": 0.5}}


def assert_prototypes(method, expected, prefix=""):
    np.testing.assert_allclose(method.refined, expected[f"{prefix}final_refined"], rtol=0, atol=1e-6)
    if not prefix:
        np.testing.assert_allclose(method.averages, expected["final_prototype"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("array", SETTINGS)
def test_authors_logits(array):
    given, expected = problem(), golden("pta")
    method = PTA(given["prototypes"], **SETTINGS[array])
    assert_golden(method.adapt_scores(given["features"]), expected[array], TOLERANCE)
    if array != "alt_logits":
        assert_prototypes(method, expected, array.removesuffix("logits"))


def test_authors_logits_with_views():
    given, expected = views(), golden("pta_views")
    method = PTA(given["prototypes"])
    assert_golden(method.adapt_views_scores(given["views"]), expected["logits"], TOLERANCE)
    assert_prototypes(method, expected)


@pytest.mark.parametrize("alpha", [0.01, 0.7, 1.0])
def test_the_plain_version_agrees(alpha):
    given = make_problem(classes=9, dimension=24, samples=300, seed=1)
    setting = {"logit_scale": 20.0, "alpha": alpha, "temperature": 3.0, "threshold": 0.2}
    expected = plain.scores(torch.tensor(given.features), torch.tensor(given.prototypes), **setting)
    ours = PTA(given.prototypes, **setting).adapt_scores(given.features)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-10)


def test_a_threshold_that_nothing_reaches_leaves_the_text():
    given = make_problem()
    method = PTA(given.prototypes, threshold=1.5)
    expected = 2 * ZeroShot(given.prototypes).predict_scores(given.features)
    np.testing.assert_allclose(method.adapt_scores(given.features), expected, rtol=0, atol=1e-10)
    np.testing.assert_allclose(method.refined, given.prototypes, rtol=0, atol=1e-12)
