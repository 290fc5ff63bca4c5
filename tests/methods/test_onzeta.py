"""OnZeta: the authors' probabilities, a plain version, and its rules."""

import numpy as np
import pytest
import torch

from goldens import assert_golden, golden, problem
from plain import onzeta as plain
from zeroshift.methods import OnZeta
from zeroshift.testing import make_problem

TOLERANCE = 2e-5

OTHER = {"proxy_step": 0.1, "minimal_share": 0.6, "dual_step": 5, "proxy_weight": 0.4}
SETTINGS = {
    "probs": {"proxy_step": 0.1},
    "label_probs": {"proxy_weight": 0.0},
    "alt_probs": OTHER,
    "alt_label_probs": {**OTHER, "proxy_weight": 0.0},
    "norho_probs": {"proxy_step": 0.1, "dual_step": 0.0},
}
STATES = {"probs": "final", "alt_probs": "alt_final"}


@pytest.mark.parametrize("length", [600, None])  # an unknown length is fifty samples for each of the twelve classes
@pytest.mark.parametrize("array", SETTINGS)
def test_authors_probabilities(array, length):
    given, expected = problem(), golden("onzeta")
    method = OnZeta(given["prototypes"], stream_length=length, **SETTINGS[array])
    assert_golden(method.adapt_scores(given["features"]), expected[array], TOLERANCE)
    if array in STATES:
        np.testing.assert_allclose(method.proxies, expected[f"{STATES[array]}_w"], rtol=0, atol=5e-6)
        np.testing.assert_allclose(method.dual, expected[f"{STATES[array]}_rho"], rtol=0, atol=TOLERANCE)


def test_the_released_step_on_the_rows_before_rounding_errors_grow():
    given = problem("float64")
    scores = OnZeta(given["prototypes"], stream_length=600).adapt_scores(given["features"][:30])
    np.testing.assert_allclose(scores, golden("onzeta")["default_probs_first30"], rtol=0, atol=2e-4)


@pytest.mark.parametrize("length", [None, 100])
def test_the_plain_version_agrees(length):
    given = make_problem(classes=9, dimension=24, samples=300, seed=1)
    setting = {"logit_scale": 20.0, "proxy_step": 0.1, "stream_length": length, "dual_step": 3.0}
    expected = plain.scores(torch.tensor(given.features), torch.tensor(given.prototypes), **setting)
    ours = OnZeta(given.prototypes, **setting).adapt_scores(given.features)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-9)


def test_a_proxy_that_the_sample_would_cancel_stays():
    """The prototypes of two classes are the sample, and the third is far away: v - q is 1/6, 1/6 and -1/3. With a step
    of 6, times the temperature, the sample is subtracted once from the first two proxies."""
    setting = {"logit_scale": 1e-13, "proxy_temperature": 0.005, "proxy_step": 0.03, "dual_step": 0.0}
    method = OnZeta(np.eye(3)[[0, 0, 1]], **setting)
    method.adapt(np.eye(3)[0])
    np.testing.assert_allclose(method.proxies, [[1, 0, 0], [1, 0, 0], np.array([2, 1, 0]) / 5**0.5], rtol=0, atol=1e-9)
