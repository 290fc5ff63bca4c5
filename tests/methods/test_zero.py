"""ZERO against the authors' votes and ties, a plain loop, and its properties."""

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


def plain(views, prototypes, *, scale, ratio=0.3, inverse_temperature=None):
    """One image, written from the specification: votes, tied classes, winner."""
    cosines = views @ prototypes.T
    p = np.exp(scale * cosines - (scale * cosines).max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    entropies = -(p * np.log(np.where(p > 0, p, 1))).sum(axis=1)
    order = np.argsort(entropies, kind="stable")
    kept, rest = np.split(order, [max(int(len(views) * ratio), 1)])
    votes = np.zeros(len(prototypes))
    for v in kept:
        if inverse_temperature is None:
            votes[cosines[v].argmax()] += 1
        else:
            e = np.exp(inverse_temperature * (cosines[v] - cosines[v].max()))
            votes += e / e.sum()
    tied = np.flatnonzero(votes == votes.max()).tolist()
    if len(tied) > 1 and len(rest):
        deciding = [k for k in cosines[rest].argmax(axis=1) if k in tied]
        winner = deciding[0] if deciding else max(tied, key=lambda k: cosines[rest[0], k])
        votes[winner] += 1
    return votes, tied, int(votes.argmax())


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.parametrize("convert", [np.asarray, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_the_authors_votes(setting, convert, dtype):
    """Exactly, tie-breaking votes included."""
    given, expected = golden("problem_views"), golden("zero")
    ratio, n_views = SETTINGS[setting]
    method = ZERO(convert(given["prototypes"].astype(dtype)), logit_scale=SCALE, view_ratio=ratio)
    votes = to_numpy(method.adapt_views_scores(convert(given["views"][:, :n_views].astype(dtype))))
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


@pytest.mark.parametrize("vote", ["hard", "soft"])
@pytest.mark.parametrize(("n_views", "ratio"), [(20, 0.3), (9, 0.5), (4, 0.5), (3, 0.1), (6, 1.0), (1, 0.3)])
def test_the_plain_version_agrees(n_views, ratio, vote):
    views, prototypes = make_views(n_views)
    method_parameters = {"logit_scale": 20.0, "view_ratio": ratio, "vote": vote, "inverse_temperature": 30.0}
    method = ZERO(prototypes, **method_parameters)
    temperature = 30.0 if vote == "soft" else None
    answers = [plain(v, prototypes, scale=20.0, ratio=ratio, inverse_temperature=temperature) for v in views]
    votes = method.adapt_views_scores(views)
    np.testing.assert_allclose(votes, [answer[0] for answer in answers], rtol=0, atol=1e-10)
    np.testing.assert_array_equal(votes.argmax(axis=1), [answer[2] for answer in answers])
    ties = sum(len(tied) > 1 for _, tied, _ in answers)
    assert ties > 3 or vote == "soft" or int(n_views * ratio) <= 1
    in_torch = ZERO(torch.tensor(prototypes), **method_parameters).adapt_views_scores(torch.tensor(views))
    np.testing.assert_allclose(in_torch.numpy(), votes, rtol=0, atol=1e-10)


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


@pytest.mark.parametrize("parameters", [{}, {"vote": "soft"}])
def test_common_checks(parameters):
    check_method(ZERO, parameters=parameters)
