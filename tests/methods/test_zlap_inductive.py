"""Inductive ZLaP against its authors' output, the plain version, and one solved system per sample."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from goldens import assert_golden, golden, problem
from plain import zlap as plain
from zeroshift import normalize
from zeroshift.methods import ZLaPInductive, create
from zeroshift.testing import make_problem

TOLERANCE = 3e-6
"""An independent float64 version is 3.6e-7 from the authors; scores of up to 10 in float32 add rounding errors."""


@pytest.mark.parametrize("key", ["inductive_scores", "sparse_inductive_scores"])
def test_golden(key):
    given, sparse = problem(), key.startswith("sparse")
    method = ZLaPInductive(given["prototypes"], unlabelled=given["unlabeled_features"], sparse=sparse)
    assert_golden(method.adapt_scores(given["features"]), golden("zlap")[key], TOLERANCE)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({}, {}),
        ({"neighbours": 20, "gamma": 2.5, "alpha": 0.9}, {"n_neighbors": 20, "gamma": 2.5, "alpha": 0.9}),
        ({"scale_similarities": True, "gamma": 4.0}, {"scale_similarities": True, "gamma": 4.0}),
    ],
    ids=str,
)
@pytest.mark.parametrize("sparse", [False, True])
def test_plain(theirs, ours, sparse):
    """Also with one system per sample, solved exactly: the K solutions of the texts give the same."""
    given = make_problem(classes=7, samples=90, seed=12)
    unlabelled, features = given.features[:60], given.features[60:]
    plain_scores = plain.sparse_inductive_scores if sparse else plain.inductive_scores
    expected = plain_scores(
        torch.tensor(features),
        torch.tensor(given.prototypes),
        unlabelled=torch.tensor(unlabelled),
        exact=True,
        **theirs,
    )
    method = ZLaPInductive(given.prototypes, unlabelled=unlabelled, sparse=sparse, **ours)
    np.testing.assert_allclose(method.adapt_scores(features), expected.numpy(), rtol=0, atol=1e-8)


@pytest.mark.parametrize("sparse", [False, True])
def test_similarities_below_zero_count_as_zero_before_they_are_scaled(sparse):
    """If the graph has negative similarities, a similarity of 0 has a weight, and no weight of a sample is smaller."""
    prototypes, unlabelled, features = np.split(normalize(np.random.default_rng(3).normal(size=(65, 8))), [5, 45])
    setting = {"scale_similarities": True, "gamma": 2.0}
    method = ZLaPInductive(prototypes, unlabelled=unlabelled, sparse=sparse, n_neighbors=40, **setting)
    assert (features @ prototypes.T).min() < -0.5
    plain_scores = plain.sparse_inductive_scores if sparse else plain.inductive_scores
    tensors = torch.tensor(features), torch.tensor(prototypes)
    expected = plain_scores(*tensors, unlabelled=torch.tensor(unlabelled), exact=True, neighbours=40, **setting)
    np.testing.assert_allclose(method.adapt_scores(features), expected.numpy(), rtol=0, atol=1e-8)


def test_adapt_only_counts():
    given = make_problem(samples=90, seed=13)
    method = ZLaPInductive(given.prototypes, unlabelled=given.features[:60])
    before = method.predict(given.features)
    np.testing.assert_array_equal(method.adapt(given.features), before)
    np.testing.assert_array_equal(method.predict(given.features), before)


def test_a_similarity_below_all_of_the_graph():
    """Scaled by the limits of the graph, such a sample would get negative weights, and odd powers of them."""
    given = make_problem(samples=40, seed=15)
    method = ZLaPInductive(given.prototypes, unlabelled=given.features, scale_similarities=True, gamma=2.5)
    far = normalize(-given.features.mean(axis=0) + 0.1 * np.random.default_rng(0).normal(size=(20, 16)))
    scores = method.predict_scores(far)
    assert np.isfinite(scores).all()
    assert (scores >= 0).all()


@pytest.mark.parametrize(("features", "unlabelled"), [("float32", "float64"), ("float64", "float32")])
def test_precisions_may_be_mixed(features, unlabelled):
    given = make_problem(samples=90, seed=16)
    expected = ZLaPInductive(given.prototypes, unlabelled=given.features[:60]).predict(given.features[60:])
    known, new = given.features[:60].astype(unlabelled), given.features[60:].astype(features)
    answer = ZLaPInductive(given.prototypes, unlabelled=known).predict(new)
    np.testing.assert_allclose(answer, expected, rtol=0, atol=1e-5)


def test_wrong_unlabelled_raises():
    prototypes, good = np.eye(3, 8), np.eye(3, 8)
    with pytest.raises(TypeError, match="unlabelled must be a NumPy array"):
        ZLaPInductive(prototypes, unlabelled=None)
    with pytest.raises(ValueError, match="unlabelled has d = 7 columns"):
        ZLaPInductive(prototypes, unlabelled=np.eye(3, 7))
    with pytest.raises(ValueError, match=r"unlabelled row 0 has length 2.*Fix: zeroshift.normalize\(unlabelled\)"):
        ZLaPInductive(prototypes, unlabelled=2 * good)
    with pytest.raises(ValueError, match="unlabelled is empty"):
        ZLaPInductive(prototypes, unlabelled=good[:0])
    broken = good.copy()
    broken[1, 1] = np.nan
    with pytest.raises(ValueError, match="unlabelled row 1 holds NaN"):
        ZLaPInductive(prototypes, unlabelled=broken)
    with pytest.raises(TypeError, match="ZLaPInductive needs unlabelled"):
        create("zlap_inductive", prototypes)


def test_unlabelled_is_copied():
    given = make_problem(samples=60)
    unlabelled = given.features.copy()
    method = ZLaPInductive(given.prototypes, unlabelled=unlabelled)
    before = method.predict(given.features)
    unlabelled[:] = 0
    np.testing.assert_array_equal(method.predict(given.features), before)
