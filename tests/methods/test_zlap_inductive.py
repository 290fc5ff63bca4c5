"""Inductive ZLaP against its authors' output, the plain version, and one solved system per sample."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from goldens import golden, problem
from plain import zlap as plain
from zeroshift import normalize
from zeroshift.methods import ZLaPInductive, create
from zeroshift.testing import check_method, make_problem

TOLERANCE = {"float32": 3e-6, "float64": 2e-6}
"""An independent float64 version is 3.6e-7 from the authors; scores of up to 10 in float32 add rounding errors."""


@pytest.mark.parametrize("library", [np.asarray, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.parametrize("key", ["inductive_scores", "sparse_inductive_scores"])
def test_golden(key, dtype, library):
    given, expected = problem(dtype), golden("zlap")[key]
    unlabelled = library(given["unlabeled_features"])
    method = ZLaPInductive(library(given["prototypes"]), unlabelled=unlabelled, sparse=key.startswith("sparse"))
    actual = np.asarray(method.adapt_scores(library(given["features"])))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=TOLERANCE[dtype])
    np.testing.assert_array_equal(actual.argmax(axis=1), expected.argmax(axis=1))


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
    assert method._graph.limits[0] < -0.5
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
    assert method.n_seen == 90
    one_by_one = np.array([method.adapt(x) for x in given.features])
    np.testing.assert_allclose(one_by_one, before, rtol=0, atol=1e-14)


def test_predictions_depend_on_the_unlabelled_samples():
    given = make_problem(samples=90, seed=13)
    one, other = (
        ZLaPInductive(given.prototypes, unlabelled=given.features[part]) for part in (slice(30), slice(30, 60))
    )
    assert np.abs(one.predict(given.features[60:]) - other.predict(given.features[60:])).max() > 1e-3


def test_sparse_keeps_one_class_per_node():
    given = make_problem(samples=60, seed=14)
    method = ZLaPInductive(given.prototypes, unlabelled=given.features, sparse=True)
    assert ((method._graph.labels > 0).sum(axis=1) <= 1).all()
    assert (method._graph.labels[:6].argmax(axis=1) == np.arange(6)).all()


def test_a_similarity_below_all_of_the_graph():
    """Scaled by the limits of the graph, such a sample would get negative weights, and odd powers of them."""
    given = make_problem(samples=40, seed=15)
    method = ZLaPInductive(given.prototypes, unlabelled=given.features, scale_similarities=True, gamma=2.5)
    far = normalize(-given.features.mean(axis=0) + 0.1 * np.random.default_rng(0).normal(size=(20, 16)))
    scores = method.predict_scores(far)
    assert np.isfinite(scores).all()
    assert (scores >= 0).all()


@pytest.mark.parametrize(
    ("features", "unlabelled"), [("float32", "float64"), ("float64", "float32"), ("float32", "float32")]
)
@pytest.mark.parametrize("library", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_precisions_may_be_mixed(features, unlabelled, library):
    given = make_problem(samples=90, seed=16)
    expected = ZLaPInductive(given.prototypes, unlabelled=given.features[:60]).predict(given.features[60:])
    known, new = library(given.features[:60].astype(unlabelled)), library(given.features[60:].astype(features))
    for prototypes in (given.prototypes, given.prototypes.astype("float32")):
        answer = ZLaPInductive(library(prototypes), unlabelled=known).predict(new)
        np.testing.assert_allclose(np.asarray(answer), expected, rtol=0, atol=1e-5)


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


@pytest.mark.slow  # tests/common runs the same checks one by one
def test_check_method_with_other_parameters():
    assert not check_method(ZLaPInductive, parameters={"sparse": True, "scale_similarities": True}).failed
