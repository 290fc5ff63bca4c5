"""StatA against its authors' output, and against the plain version on other problems."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from goldens import assert_golden, golden, problem
from plain import stata as plain
from zeroshift import normalize
from zeroshift.methods import StatA, stata
from zeroshift.testing import make_problem
from zeroshift.zero_shot import posterior

TOLERANCE = 4e-5
"""An independent float64 version is 8.7e-6 from the authors' float32."""

GOLDEN = {
    "probs": {},
    "softbeta_probs": {"soft_counts": True},
    "nolap_probs": {"neighbour_weight": 0.0},
    "batch100_probs": {"batch_size": 100},
}


@pytest.mark.parametrize("key", GOLDEN)
def test_golden(key):
    given = problem()
    scores = StatA(given["prototypes"], **GOLDEN[key]).adapt_scores(given["features"])
    assert_golden(scores, golden("stata")[key], TOLERANCE)


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"anchor": 20.0, "text_weight": 0.6},
        {"soft_counts": True, "neighbours": 5, "neighbour_weight": 2.0},
        {"batch_size": 64, "iterations": 3, "inner_iterations": 2},
    ],
    ids=str,
)
def test_plain(parameters):
    made = make_problem(classes=8, dimension=24, samples=160, seed=12)
    features, prototypes = torch.tensor(made.features), torch.tensor(made.prototypes)
    expected = plain.scores(features, prototypes, logit_scale=30.0, **parameters)
    actual = StatA(made.prototypes, logit_scale=30.0, **parameters).adapt(made.features)
    np.testing.assert_allclose(actual, expected.numpy(), rtol=0, atol=1e-11)


def test_released_equals_plain(monkeypatch):
    """With blocks of 60 rows instead of 2500, to save time."""
    monkeypatch.setattr(plain, "CHUNK", 60)
    monkeypatch.setattr(stata, "RELEASED_BLOCK_ROWS", 60)
    made = make_problem(classes=5, dimension=16, samples=150, seed=2)
    features, prototypes = torch.tensor(made.features), torch.tensor(made.prototypes)
    for released in (False, True):
        expected = plain.scores(features, prototypes, logit_scale=30.0, released=released).numpy()
        actual = StatA(made.prototypes, logit_scale=30.0, released=released).adapt(made.features)
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-10)


def test_a_class_without_samples_stays_at_its_anchor():
    made = make_problem(classes=6, samples=80, noise=0.5)
    kept = made.features[made.labels != 2]
    method = StatA(made.prototypes, logit_scale=60.0)
    winners = method.adapt(kept).argmax(axis=1)
    assert 2 not in winners
    np.testing.assert_allclose(method.means[2], made.prototypes[2], rtol=0, atol=1e-15)
    start = StatA(made.prototypes, logit_scale=60.0, iterations=0)
    start.adapt(kept)
    np.testing.assert_allclose(method.variances[2], start.variances[2], rtol=1e-12)
    assert np.abs(method.means[winners[0]] - made.prototypes[winners[0]]).max() > 0.01


def test_batches_are_independent():
    made = make_problem(samples=50)
    method = StatA(made.prototypes, batch_size=20)
    expected = [StatA(made.prototypes).adapt(made.features[start : start + 20]) for start in (0, 20, 40)]
    np.testing.assert_array_equal(method.adapt(made.features), np.concatenate(expected))
    last = StatA(made.prototypes)
    last.adapt(made.features[40:])
    np.testing.assert_array_equal(method.means, last.means)


def test_predict_combines_text_and_likelihood():
    made = make_problem(samples=120)
    method = StatA(made.prototypes, logit_scale=30.0, text_weight=0.5, temperature=20.0)
    method.adapt(made.features[:80])
    others = made.features[80:]
    distances = ((others[:, None, :] - method.means) ** 2 / method.variances).sum(axis=2)
    energies = -0.5 * distances - 0.5 * np.log(method.variances).sum(axis=1)
    weights = posterior(others, made.prototypes, 30.0) ** 0.5 * np.exp(energies / 20.0)
    expected = weights / weights.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(method.predict(others), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("anchor", [0.0, 1.0])
def test_only_variances_below_the_floor_are_raised(anchor):
    """Samples of two classes differ from their prototypes in the fourth dimension only."""
    prototypes = np.eye(3, 8)
    features = np.concatenate([0.8 * prototypes[:2] + [[0, 0, 0, way, 0, 0, 0, 0]] for way in (-0.6, 0.6)])
    method = StatA(prototypes, anchor=anchor)
    method.adapt(features)
    np.testing.assert_allclose(method.variances[:, 4:], 1e-6 / 8, rtol=1e-12)
    assert (method.variances[:2, 3] > 0.1).all()


def test_the_authors_initial_variance_also_has_the_floor(monkeypatch):
    monkeypatch.setattr(stata, "RELEASED_BLOCK_ROWS", 4)
    prototypes = np.eye(3, 8)
    method = StatA(prototypes, released=True, iterations=0)
    np.testing.assert_allclose(method.adapt(prototypes[[0, 1, 2] * 3]), np.eye(3)[[0, 1, 2] * 3], rtol=0, atol=1e-12)
    np.testing.assert_allclose(method.variances, np.full((3, 8), 1e-6 / 8), rtol=1e-12)


@pytest.mark.parametrize("anchor", [0.0, 1.0])
@pytest.mark.parametrize("soft_counts", [False, True])
def test_a_class_whose_posterior_underflows(soft_counts, anchor):
    made = make_problem(samples=100)
    prototypes = made.prototypes.copy()
    prototypes[4] = -normalize(made.features.mean(axis=0))
    features = made.features
    assert not posterior(features, prototypes, 1000.0)[:, 4].any()
    method = StatA(prototypes, logit_scale=1000.0, soft_counts=soft_counts, anchor=anchor)
    for answer in (method.adapt(features), method.predict(features)):
        np.testing.assert_allclose(answer.sum(axis=1), 1.0, rtol=0, atol=1e-6)
    np.testing.assert_allclose(method.means[4], prototypes[4], rtol=0, atol=1e-7)
    assert np.isfinite(method.variances).all()
