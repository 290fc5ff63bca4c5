"""FreeTTA against its reconstruction (no official code was found), a plain version, and its rules."""

import numpy as np
import pytest
import torch

from goldens import assert_golden, golden, problem
from plain import freetta as plain
from zeroshift import ZeroShot
from zeroshift.methods import FreeTTA
from zeroshift.testing import make_problem

SETTINGS = {
    "logits": {},
    "literal_logits": {"covariance": "literal"},
    "fused_logits": {"responsibilities": "fused"},
}


@pytest.mark.parametrize("array", SETTINGS)
def test_the_reconstructed_logits(array):
    given, expected = problem("float64"), golden("freetta")
    method = FreeTTA(given["prototypes"], **SETTINGS[array])
    scores = method.adapt_scores(given["features"])
    assert_golden(scores, expected[array], 1e-9)
    if array == "logits":
        for name, value in (("mu", method.means), ("counts", method.counts), ("sigma", method.covariance_matrix)):
            np.testing.assert_allclose(value, expected[f"final_{name}"], rtol=0, atol=1e-9)
        zero_shot = ZeroShot(given["prototypes"]).predict_scores(given["features"])
        np.testing.assert_allclose((scores - zero_shot) / method.alpha, expected["gda_scores"], rtol=0, atol=1e-8)
    assert "no official code" in FreeTTA.reconstructed


def test_a_large_weight_is_the_reading_without_a_temperature():
    given = problem("float64")
    scores = FreeTTA(given["prototypes"], alpha=20.0).adapt_scores(given["features"]) / 100
    np.testing.assert_allclose(scores, golden("freetta")["raw_logits"], rtol=0, atol=1e-9)


@pytest.mark.parametrize("covariance", ["mean", "literal"])
@pytest.mark.parametrize("responsibilities", ["gaussian", "fused"])
def test_the_plain_version_agrees(covariance, responsibilities):
    given = make_problem(classes=9, dimension=24, samples=200, seed=3)
    setting = {"logit_scale": 20.0, "covariance": covariance, "responsibilities": responsibilities, "beta": 2.0}
    expected = plain.scores(torch.tensor(given.features), torch.tensor(given.prototypes), **setting)
    ours = FreeTTA(given.prototypes, **setting).adapt_scores(given.features)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-9)


def test_a_weight_of_zero_learns_nothing():
    method = FreeTTA(np.eye(3), logit_scale=1e-3, beta=1e4)  # exp(-1e4 ln 3) is 0
    method.adapt(np.array([[0.8, 0.6, 0.0]]))
    np.testing.assert_array_equal(method.means, np.eye(3))
    np.testing.assert_array_equal(method.covariance_matrix, np.eye(3))
