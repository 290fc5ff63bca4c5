"""BoostAdapter: the authors' logits and caches, a plain version, and its rules."""

import json

import numpy as np
import pytest
import torch

from goldens import assert_golden, golden, problem, views
from plain import boostadapter as plain
from prompt_loops import noisy_views
from zeroshift.methods import TDA, BoostAdapter
from zeroshift.views import select_lowest_entropy

FEATURES = {
    "logits": {},
    "pos_only_logits": {"negative_capacity": 0},
    "neg_only_logits": {"positive_capacity": 0},
}
IMAGE = {"view_feature": "image"}
VIEWS = {
    "logits": {},
    "delta0_logits": {"delta": 0},
    "noboost_logits": {"delta": None},
    "pos_only_logits": {"negative_capacity": 0},
    "ori_logits": IMAGE,
    "ori_noboost_logits": {"delta": None, **IMAGE},
    "eurosat_logits": BoostAdapter.preset("eurosat"),
}


def assert_counts(method, expected, prefix=""):
    np.testing.assert_array_equal(method.positive_counts, expected[f"{prefix}final_pos_count"])
    np.testing.assert_array_equal(method.negative_counts, expected[f"{prefix}final_neg_count"])


@pytest.mark.parametrize("array", FEATURES)
def test_the_authors_logits(array):
    given, expected = problem(), golden("boostadapter")
    method = BoostAdapter(given["prototypes"], released=True, **FEATURES[array])
    assert_golden(method.adapt_scores(given["features"]), expected[array], 2e-4)
    if array == "logits":
        assert_counts(method, expected)


@pytest.mark.parametrize("array", VIEWS)
def test_the_authors_logits_of_views(array):
    given, expected = views(), golden("boostadapter_views")
    method = BoostAdapter(given["prototypes"], released=True, **VIEWS[array])
    assert_golden(method.adapt_views_scores(given["views"]), expected[array], 1e-4)
    if array in ("logits", "ori_logits"):
        assert_counts(method, expected, array.removesuffix("logits"))


def test_the_authors_parameters_and_views_of_lowest_entropy():
    given, expected = views(), golden("boostadapter_views")
    method = BoostAdapter(given["prototypes"])
    scores = 100 * given["views"] @ given["prototypes"].T
    np.testing.assert_array_equal(select_lowest_entropy(scores, method.view_ratio), expected["boost_views"])
    theirs = json.loads(str(expected["hyperparameters_json"]))
    ours = (method.positive_capacity, method.delta, method.negative_capacity)
    assert ours == (theirs["positive"]["shot_capacity"], theirs["delta"], theirs["negative"]["shot_capacity"])


@pytest.mark.parametrize(
    "setting",
    [{}, {"delta": 0}, {"view_feature": "image", "positive_capacity": 1, "delta": 1}, {"view_ratio": 0.5, "delta": 2}],
)
def test_the_plain_version_agrees(setting):
    prototypes, images = noisy_views(60, views=20)
    found = BoostAdapter(prototypes, logit_scale=20.0, **setting).adapt_views_scores(images)
    expected = plain.scores(torch.tensor(images), torch.tensor(prototypes), logit_scale=20.0, **setting)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("n_views", "boosts"), [(20, True), (9, False)])
def test_views_are_forgotten_after_each_image(n_views, boosts):
    """A tenth of nine views is none: nothing joins."""
    prototypes, images = noisy_views(60, views=n_views)
    boosted, others = (BoostAdapter(prototypes, logit_scale=20.0, delta=delta) for delta in (3, None))
    assert (np.abs(boosted.adapt_views(images) - others.adapt_views(images)).max() > 0.01) == boosts
    np.testing.assert_array_equal(boosted.predict(images[:, 0]), others.predict(images[:, 0]))
    assert boosted.positive_counts.max() <= boosted.positive_capacity


def test_without_negatives_and_views_it_is_tda():
    given = problem()
    ours, theirs = (cls(given["prototypes"], negative_capacity=0) for cls in (BoostAdapter, TDA))
    np.testing.assert_array_equal(ours.adapt_scores(given["features"]), theirs.adapt_scores(given["features"]))
