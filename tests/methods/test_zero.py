"""ZERO against the authors' votes and ties, and its properties."""

import json

import numpy as np
import pytest
import torch

from goldens import golden
from zeroshift.arrays import to_numpy
from zeroshift.methods.zero import ZERO
from zeroshift.testing import check_method, make_problem

SCALE = 100.00000762939453

SETTINGS = {"fp32": (0.3, 64), "fp32_g01": (0.1, 64), "fp32_v16": (0.5, 16)}


@pytest.mark.parametrize("convert", [np.asarray, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_the_authors_votes(setting, convert):
    """Exactly, tie-breaking votes included."""
    given, expected = golden("problem_views"), golden("zero")
    ratio, n_views = SETTINGS[setting]
    method = ZERO(convert(given["prototypes"]), logit_scale=SCALE, view_ratio=ratio)
    votes = to_numpy(method.adapt_views_scores(convert(given["views"][:, :n_views])))
    np.testing.assert_array_equal(votes, expected[f"pbar_{setting}"])
    np.testing.assert_array_equal(votes.argmax(axis=1), expected[f"pred_{setting}"])


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_authors_ties(setting):
    """For a tie there is one vote more than voters; without it the tied classes are the authors'."""
    given, expected = golden("problem_views"), golden("zero")
    ratio, n_views = SETTINGS[setting]
    method = ZERO(given["prototypes"], logit_scale=SCALE, view_ratio=ratio)
    votes = method.adapt_views_scores(given["views"][:, :n_views])
    found = []
    for image in np.flatnonzero(votes.sum(axis=1) > int(n_views * ratio)):
        winner = int(votes[image].argmax())
        before = votes[image] - (np.arange(12) == winner)
        found.append([int(image), np.flatnonzero(before == before.max()).tolist(), winner])
    assert found == json.loads(str(expected[f"ties_{setting}"]))
    assert found


def test_the_soft_vote_is_what_the_released_code_computes():
    """Every prediction. Half precision also rounds entropies, so two views may be swapped and one vote may change."""
    given, expected = golden("problem_views"), golden("zero")
    votes = ZERO(given["prototypes"], logit_scale=SCALE, vote="soft").adapt_views_scores(given["views"])
    np.testing.assert_array_equal(votes.argmax(axis=1), expected["pred_fp16"])
    difference = np.abs(votes - expected["pbar_fp16"]).max(axis=1)
    assert (difference < 1e-4).sum() >= 38
    assert difference.max() < 1.001
    assert np.abs(votes - expected["pbar_fp32"]).max() > 0.9, "soft votes are hard votes"
    np.testing.assert_allclose(votes.sum(axis=1), 19, rtol=1e-6)


def make_views(n_views, n_images=60, seed=0):
    given = make_problem(5, 8, n_images * n_views, seed=seed, noise=2.0)
    return given.features.reshape(n_images, n_views, 8), given.prototypes


HIGH, LOW = 0.96, 0.28
"""A view with cosines 0.96 and 0.28 is more confident than one with 0.8 and 0.6."""


def test_ties_by_hand():
    """One vote for class 0, one for class 1; of the remaining views, one is for neither, the next for class 1."""
    zero = ZERO(np.eye(4), logit_scale=10.0, view_ratio=0.5)
    views = np.zeros((4, 4))
    views[0, [0, 3]], views[1, [1, 3]] = (1.0, 0.0), (1.0, 0.0)
    views[2, [2, 3]], views[3, [1, 2]] = (HIGH, LOW), (0.8, 0.6)
    np.testing.assert_array_equal(zero.adapt_views_scores(views), [1, 2, 0, 0])
    np.testing.assert_allclose(zero.adapt_views(views), [1 / 3, 2 / 3, 0, 0])
    # No remaining view is for class 0 or 1: the most confident chooses between the two (not class 2, its own).
    views[3] = [0.0, 0.0, 0.8, 0.6]
    views[2] = [0.1, 0.0, HIGH, (1 - 0.01 - HIGH**2) ** 0.5]
    np.testing.assert_array_equal(zero.adapt_views_scores(views), [2, 1, 0, 0])
    # No remaining view: the first class.
    everyone = ZERO(np.eye(4), logit_scale=10.0, view_ratio=1.0)
    np.testing.assert_array_equal(everyone.adapt_views_scores(views[[1, 0]]), [1, 1, 0, 0])


def test_one_voter_is_the_most_confident_view():
    views, prototypes = make_views(9)
    logits = 20.0 * views @ prototypes.T
    p = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
    most_confident = (-(p * np.log(p)).sum(axis=2)).argmin(axis=1)
    votes = ZERO(prototypes, logit_scale=20.0, view_ratio=0.1).adapt_views_scores(views)
    np.testing.assert_array_equal(votes.argmax(axis=1), logits[np.arange(60), most_confident].argmax(axis=1))
    np.testing.assert_array_equal(votes.sum(axis=1), 1)


def test_the_scale_only_orders_views():
    """If every view votes, the order does not matter."""
    views, prototypes = make_views(9)
    votes = [ZERO(prototypes, logit_scale=s, view_ratio=1.0).adapt_views_scores(views) for s in (0.5, 20.0, 100.0)]
    np.testing.assert_array_equal(votes[0], votes[1])
    np.testing.assert_array_equal(votes[0], votes[2])
    some = [ZERO(prototypes, logit_scale=s, view_ratio=0.3).adapt_views_scores(views) for s in (0.5, 100.0)]
    assert (some[0] != some[1]).any()


def test_the_first_of_equal_prototypes_gets_the_vote():
    """Their cosines are equal up to rounding, and the first always gets the vote."""
    views, prototypes = make_views(9)
    prototypes = np.concatenate([prototypes, prototypes[:2]])
    votes = ZERO(prototypes, logit_scale=20.0).adapt_views_scores(views)
    assert (votes[:, 5:] == 0).all()


def test_common_checks_of_soft_votes():
    check_method(ZERO, parameters={"vote": "soft"})
