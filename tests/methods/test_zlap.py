"""ZLaP on a set against its authors' output, the plain version, and properties of the graph."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from goldens import assert_golden, golden, problem
from plain import zlap as plain
from zeroshift.methods import ZLaP, ZLaPInductive
from zeroshift.testing import make_problem

TOLERANCE = 4e-7
"""The authors stop at a relative residual of 1e-6; an independent float64 version is 3.7e-8 from them."""

GOLDEN = {
    "scores": {},
    "exact_solve_scores": {},
    "k10_g3_scores": {"n_neighbors": 10, "gamma": 3.0},
    "scaled_scores": {"scale_similarities": True},
}


@pytest.mark.parametrize("key", GOLDEN)
def test_golden(key):
    given = problem()
    scores = ZLaP(given["prototypes"], **GOLDEN[key]).adapt_scores(given["features"])
    assert_golden(scores, golden("zlap")[key], TOLERANCE)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({}, {}),
        ({"neighbours": 3, "alpha": 0.9}, {"n_neighbors": 3, "alpha": 0.9}),
        ({"neighbours": 20, "gamma": 2.5}, {"n_neighbors": 20, "gamma": 2.5}),
        ({"scale_similarities": True}, {"scale_similarities": True}),
    ],
    ids=str,
)
@pytest.mark.parametrize("cone", [2.0, 0.0])
def test_plain(theirs, ours, cone):
    given = make_problem(classes=7, samples=150, cone=cone, seed=11)
    features, prototypes = torch.tensor(given.features), torch.tensor(given.prototypes)
    expected = plain.scores(features, prototypes, exact=True, **theirs).numpy()
    np.testing.assert_allclose(ZLaP(given.prototypes, **ours).adapt_scores(given.features), expected, atol=1e-9)


def test_alpha_zero_propagates_nothing():
    given = make_problem(samples=30)
    method = ZLaP(given.prototypes, alpha=0.0)
    assert (method.adapt_scores(given.features) == 0).all()
    np.testing.assert_allclose(method.adapt(given.features), 1 / 6)


@pytest.mark.parametrize("n_neighbors", [4, 5, 100])
def test_more_neighbours_than_there_are(n_neighbors):
    """Four images and three classes: all nodes are linked, however many neighbours are requested."""
    given = make_problem(classes=3, samples=4)
    answer = ZLaP(given.prototypes, n_neighbors=n_neighbors).adapt_scores(given.features)
    np.testing.assert_array_equal(answer, ZLaP(given.prototypes, n_neighbors=4).adapt_scores(given.features))


@pytest.mark.parametrize("scale", [False, True])
def test_new_samples_are_predicted_inductively(scale):
    """`predict` after `adapt` agrees with the inductive method with the set as its unlabelled samples."""
    given = make_problem(samples=120, seed=5)
    known, new = given.features[:100], given.features[100:]
    method = ZLaP(given.prototypes, scale_similarities=scale)
    method.adapt(known)
    inductive = ZLaPInductive(given.prototypes, unlabelled=known, scale_similarities=scale)
    np.testing.assert_array_equal(method.predict(new), inductive.predict(new))
