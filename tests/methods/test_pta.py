"""PTA: the authors' logits, a plain version, and its rules."""

import numpy as np
import pytest
import torch

from goldens import golden, problem, views
from plain import pta as plain
from zeroshift import ZeroShot
from zeroshift.arrays import to_numpy
from zeroshift.methods import PTA
from zeroshift.testing import check_method, make_problem

TOLERANCE = 6e-4
"""Three times the difference between a float64 version and the authors' float32 one; logits are up to 189."""

SETTINGS = {"logits": {}, "alt_logits": {"temperature": 50.0}, "mix_logits": {"alpha": 0.5}}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("convert", [np.asarray, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("array", SETTINGS)
def test_authors_logits(array, convert, dtype):
    given = problem(dtype)
    method = PTA(convert(given["prototypes"]), **SETTINGS[array])
    scores = to_numpy(method.adapt_scores(convert(given["features"])))
    np.testing.assert_allclose(scores, golden("pta")[array], rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(scores.argmax(axis=1), golden("pta")[array].argmax(axis=1))
    if array == "logits":
        np.testing.assert_allclose(to_numpy(method.refined), golden("pta")["final_refined"], rtol=0, atol=1e-6)
        np.testing.assert_allclose(to_numpy(method.averages), golden("pta")["final_prototype"], rtol=0, atol=1e-6)
    if array == "mix_logits":
        np.testing.assert_allclose(to_numpy(method.refined), golden("pta")["mix_final_refined"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("convert", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_authors_logits_with_views(convert, dtype):
    given, want = views(dtype), golden("pta_views")
    method = PTA(convert(given["prototypes"]))
    scores = to_numpy(method.adapt_views_scores(convert(given["views"])))
    np.testing.assert_allclose(scores, want["logits"], rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(scores.argmax(axis=1), want["logits"].argmax(axis=1))
    np.testing.assert_allclose(to_numpy(method.refined), want["final_refined"], rtol=0, atol=1e-6)
    np.testing.assert_allclose(to_numpy(method.averages), want["final_prototype"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("alpha", [0.01, 0.7, 1.0])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_plain_version_agrees(alpha, seed):
    given = make_problem(classes=9, dimension=24, samples=300, seed=seed)
    setting = {"logit_scale": 20.0, "alpha": alpha, "temperature": 3.0, "threshold": 0.2}
    expected = plain.scores(torch.tensor(given.features), torch.tensor(given.prototypes), **setting)
    ours = PTA(given.prototypes, **setting).adapt_scores(given.features)
    np.testing.assert_allclose(ours, expected.numpy(), rtol=0, atol=1e-10)


def test_a_threshold_that_nothing_reaches_leaves_the_text():
    given = problem("float64")
    method = PTA(given["prototypes"], threshold=1.5)
    expected = 2 * ZeroShot(given["prototypes"]).predict_scores(given["features"])
    np.testing.assert_allclose(
        method.adapt_scores(given["features"]), expected, rtol=0, atol=1e-5
    )  # lengths are 1 within 1e-7
    np.testing.assert_allclose(method.refined, given["prototypes"], rtol=0, atol=1e-7)


def test_a_class_that_never_learns_stays_at_its_prototype():
    method = PTA(np.eye(3), logit_scale=20.0)
    method.adapt(np.array([[0.96, 0.28, 0.0], [0.8, 0.6, 0.0]]))
    np.testing.assert_array_equal(method.averages[2], 0)
    np.testing.assert_array_equal(method.refined[2], [0, 0, 1])
    np.testing.assert_allclose(np.linalg.norm(method.refined, axis=1), 1, atol=1e-12)
    assert (np.linalg.norm(method.averages, axis=1) <= 1).all()


@pytest.mark.slow  # tests/common runs the same checks one by one
def test_common_checks():
    assert not check_method(PTA, parameters={"alpha": 0.5, "threshold": 0.3}).failed
