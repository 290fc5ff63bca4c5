"""The released variants compared with the outputs of the authors' code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from zeroshift import ReleasedOnlineADAPT, ReleasedTransductiveADAPT
from zeroshift.adapt.released import RELEASED_SCALES
from zeroshift.testing import make_problem

GOLDEN = Path(__file__).parents[1] / "golden"
TOLERANCE = 2e-3


@pytest.fixture(scope="module")
def problem():
    return np.load(GOLDEN / "problem.npz")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("bank_size", [4, 16])
@pytest.mark.parametrize("scale", [20, 60])
def test_online_reproduces_the_authors_code(problem, scale, bank_size, dtype):
    golden = np.load(GOLDEN / "adapt_released_online.npz")
    method = ReleasedOnlineADAPT(problem["prototypes"], scale=scale, bank_size=bank_size)
    scores = method.adapt_scores(problem["features"].astype(dtype))
    np.testing.assert_allclose(scores, golden[f"scores_s{scale}_L{bank_size}"], rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(scores.argmax(axis=1), golden[f"pred_s{scale}_L{bank_size}"])
    np.testing.assert_allclose(method.means, golden[f"final_mu_L{bank_size}"], atol=1e-6)
    np.testing.assert_allclose(method.precision_matrix @ method.means.T, golden[f"final_W_L{bank_size}"], atol=2e-3)
    assert method.bank_counts.sum() == golden[f"bank_rows_L{bank_size}"][-1]


def test_online_bank_slots_equal_the_authors(problem):
    """The first least confident entry is replaced in place: the same slots hold the same samples."""
    golden = np.load(GOLDEN / "adapt_released_online.npz")
    method = ReleasedOnlineADAPT(problem["prototypes"], scale=20, bank_size=4)
    method.adapt(problem["features"])
    np.testing.assert_allclose(method._bank.features.reshape(-1, 64), golden["bank_features_L4"], atol=1e-7)
    np.testing.assert_allclose(-method._bank.confidences.reshape(-1), golden["bank_entropy_L4"], atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scale", [20, 60])
def test_transductive_reproduces_the_authors_code(problem, scale, dtype):
    golden = np.load(GOLDEN / "adapt_released_transductive.npz")
    method = ReleasedTransductiveADAPT(problem["prototypes"], scale=scale, bank_size=6, chunk_size=100)
    scores = method.adapt_scores(problem["features"].astype(dtype))
    np.testing.assert_allclose(scores, golden[f"scores_s{scale}_L6"], rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(scores.argmax(axis=1), golden[f"pred_s{scale}_L6"])
    np.testing.assert_allclose(method.means, golden["mu"], atol=1e-6)


def test_a_sample_that_enters_no_bank_is_scored_with_the_last_similarities():
    """Known behaviour of the released script; `adapt` reproduces it, `predict` does not."""
    problem = make_problem(4, 8, 200, seed=1)
    method = ReleasedOnlineADAPT(problem.prototypes, scale=20.0, logit_scale=20.0, bank_size=2)
    for x in problem.features:
        banks = method._bank.features.copy()
        score = method.adapt_scores(x)
        predicted = method.predict_scores(x)
        if np.array_equal(banks, method._bank.features):
            assert not np.allclose(score, predicted)
            break
        np.testing.assert_allclose(score, predicted)
    else:
        pytest.fail("every sample entered a bank; the case was not exercised")


@pytest.mark.parametrize("seed", range(12))
def test_a_repeated_first_sample_has_finite_scores(seed):
    """The bank has no spread except rounding noise, which must not be inverted."""
    problem = make_problem(4, 8, 1, seed=seed)
    method = ReleasedOnlineADAPT(problem.prototypes, scale=20.0, logit_scale=20.0)
    scores = method.adapt_scores(np.repeat(problem.features, 6, axis=0))
    assert (np.abs(scores[1:]) > 1e-3).any(axis=1).all()
    assert (np.count_nonzero(np.abs(scores[1:]) > 1e-6, axis=1) == 4).all()


def test_transductive_leaves_a_class_with_an_empty_bank_at_its_prototype():
    problem = make_problem(6, 16, 80)
    features = problem.features[
        ReleasedTransductiveADAPT(problem.prototypes, scale=20.0).predict(problem.features).argmax(1) != 2
    ]
    method = ReleasedTransductiveADAPT(problem.prototypes, scale=20.0, logit_scale=20.0)
    method.adapt(features)
    assert method.bank_counts[2] == 0
    np.testing.assert_array_equal(method.means[2], problem.prototypes[2])
    assert not np.allclose(method.means[1], problem.prototypes[1])


def test_first_sample_by_hand():
    """N = 1: identity precision; the sample is counted twice, which leaves its mean at itself; then alpha mixes."""
    prototypes, x = np.eye(2), np.array([0.8, 0.6])
    method = ReleasedOnlineADAPT(prototypes, scale=10.0, logit_scale=5.0)
    scores = method.adapt_scores(x)
    mean = 0.9 * x + 0.1 * prototypes[0]
    np.testing.assert_allclose(method.means, [mean, prototypes[1]])
    np.testing.assert_array_equal(method.precision_matrix, np.eye(2))
    g = np.array([mean @ x - mean @ mean / 2, 0.6 - 0.5])
    log_g = g - np.log(np.exp(g).sum())
    p = np.exp(4) / (np.exp(4) + np.exp(3))
    total = log_g + 10.0 / 2 * np.array([p, 0.0])
    np.testing.assert_allclose(scores, np.array([4.0, 3.0]) * np.exp((total - total.max()) / 10.0))


def test_scale_must_be_given_and_presets_are_named():
    with pytest.raises(TypeError, match="scale"):
        ReleasedOnlineADAPT(np.eye(2))
    assert ReleasedTransductiveADAPT.preset("imagenet_c") == {"scale": 10}
    assert len(RELEASED_SCALES) == 16
    with pytest.raises(ValueError, match=r"dataset must be one of caltech101, .*got 'mnist'"):
        ReleasedOnlineADAPT.preset("mnist")
