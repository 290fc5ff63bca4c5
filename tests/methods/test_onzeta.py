"""OnZeta: the authors' probabilities, a plain version, and its rules."""

import numpy as np
import pytest
import torch

from goldens import golden, problem
from plain import onzeta as plain
from zeroshift.arrays import to_numpy
from zeroshift.methods import OnZeta
from zeroshift.testing import check_method, make_problem
from zeroshift.zero_shot import posterior

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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("convert", [np.asarray, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("array", SETTINGS)
def test_authors_probabilities(array, convert, dtype):
    given, want = problem(dtype), golden("onzeta")
    method = OnZeta(convert(given["prototypes"]), stream_length=600, **SETTINGS[array])
    scores = to_numpy(method.adapt_scores(convert(given["features"])))
    np.testing.assert_allclose(scores, want[array], rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(scores.argmax(axis=1), want[array].argmax(axis=1))
    if array in STATES:
        np.testing.assert_allclose(to_numpy(method.proxies), want[f"{STATES[array]}_w"], rtol=0, atol=5e-6)
        np.testing.assert_allclose(method.dual, want[f"{STATES[array]}_rho"], rtol=0, atol=TOLERANCE)


def test_the_released_step_on_the_rows_before_rounding_errors_grow():
    given = problem("float64")
    scores = OnZeta(given["prototypes"], stream_length=600).adapt_scores(given["features"][:30])
    np.testing.assert_allclose(scores, golden("onzeta")["default_probs_first30"], rtol=0, atol=2e-4)


@pytest.mark.parametrize("length", [None, 100])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_plain_version_agrees(length, seed):
    given = make_problem(classes=9, dimension=24, samples=300, seed=seed)
    setting = {"logit_scale": 20.0, "proxy_step": 0.1, "stream_length": length, "dual_step": 3.0}
    expected = plain.scores(torch.tensor(given.features), torch.tensor(given.prototypes), **setting)
    ours = OnZeta(given.prototypes, **setting).adapt_scores(given.features)
    np.testing.assert_allclose(ours, expected.numpy(), rtol=0, atol=1e-9)


def test_the_length_is_that_of_the_stream_not_of_a_call():
    given = problem("float64")
    setting = {"stream_length": 600, "proxy_step": 0.1}
    whole = OnZeta(given["prototypes"], **setting).adapt(given["features"])
    pieces = OnZeta(given["prototypes"], **setting)
    parts = [pieces.adapt(given["features"][i : i + 50]) for i in range(0, 600, 50)]
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=0, atol=1e-9)


def test_an_unknown_length_is_fifty_samples_per_class():
    given = problem("float64")
    unknown = OnZeta(given["prototypes"], proxy_step=0.1).adapt(given["features"])
    known = OnZeta(given["prototypes"], proxy_step=0.1, stream_length=50 * 12).adapt(given["features"])
    np.testing.assert_array_equal(unknown, known)


def test_without_steps_and_proxies_it_is_zero_shot():
    given = problem("float64")
    method = OnZeta(given["prototypes"], dual_step=0, proxy_step=0, proxy_weight=0)
    expected = posterior(given["features"], given["prototypes"], 100.0)
    np.testing.assert_allclose(method.adapt(given["features"]), expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(method.proxies, given["prototypes"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("convert", [np.asarray, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("repeats", [1, 2], ids=["one sample", "a block"])
def test_a_proxy_that_the_sample_would_cancel_stays(repeats, convert):
    """The prototypes of two classes are the sample, and the third is far away: v - q is 1/6, 1/6 and -1/3. With a step
    of 6, times the temperature, the sample is subtracted once from the first two proxies."""
    setting = {"logit_scale": 1e-13, "proxy_temperature": 0.005, "proxy_step": 0.03, "dual_step": 0.0}
    prototypes, samples = np.eye(3)[[0, 0, 1]], np.eye(3)[[0] * repeats]
    method = OnZeta(convert(prototypes), **setting)
    method.adapt(convert(samples))
    np.testing.assert_allclose(to_numpy(method.proxies)[:2], [[1, 0, 0]] * 2, rtol=0, atol=1e-9)
    np.testing.assert_allclose(np.linalg.norm(to_numpy(method.proxies), axis=1), 1, rtol=0, atol=1e-12)


@pytest.mark.slow  # tests/common runs the same checks one by one
def test_common_checks():
    assert not check_method(OnZeta, parameters={"stream_length": 40, "minimal_share": 0.5}).failed
