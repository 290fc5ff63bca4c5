"""BoostAdapter: the authors' logits and caches, a plain version, a case by hand, and its rules."""

import json

import numpy as np
import pytest
import torch

from goldens import golden, problem, views
from plain import boostadapter as plain
from zeroshift.arrays import to_numpy
from zeroshift.methods import TDA, BoostAdapter
from zeroshift.testing import check_method, make_problem
from zeroshift.views import select_lowest_entropy

TOLERANCE = 2e-4

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
    "eurosat_logits": {"preset": "eurosat"},
}


def make(prototypes, preset=None, **parameters):
    chosen = {} if preset is None else BoostAdapter.preset(preset)
    return BoostAdapter(prototypes, released=True, **chosen, **parameters)


def some_views(seed=0, samples=60, n_views=20):
    """Views of the samples of a problem: view 0 is the sample, the others are moved."""
    given = make_problem(classes=6, dimension=12, samples=samples, seed=seed)
    noise = np.random.default_rng(seed).normal(size=(samples, n_views, 12)) * 0.15
    noise[:, 0] = 0
    images = given.features[:, None, :] + noise
    return given.prototypes, images / np.linalg.norm(images, axis=2, keepdims=True)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("convert", [np.asarray, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("array", FEATURES)
def test_the_authors_logits(array, convert, dtype):
    given, expected = problem(dtype), golden("boostadapter")
    method = make(convert(given["prototypes"]), **FEATURES[array])
    scores = to_numpy(method.adapt_scores(convert(given["features"])))
    np.testing.assert_allclose(scores, expected[array], rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(scores.argmax(axis=1), expected[array].argmax(axis=1))
    if array == "logits":
        np.testing.assert_array_equal(to_numpy(method.positive_counts), expected["final_pos_count"])
        np.testing.assert_array_equal(to_numpy(method.negative_counts), expected["final_neg_count"])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("convert", [np.asarray, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("array", VIEWS)
def test_the_authors_logits_of_views(array, convert, dtype):
    given, expected = views(dtype), golden("boostadapter_views")
    method = make(convert(given["prototypes"]), **VIEWS[array])
    scores = to_numpy(method.adapt_views_scores(convert(given["views"])))
    np.testing.assert_allclose(scores, expected[array], rtol=0, atol=1e-4)
    np.testing.assert_array_equal(scores.argmax(axis=1), expected[array].argmax(axis=1))
    prefix = {"logits": "", "ori_logits": "ori_"}.get(array)
    if prefix is not None:
        np.testing.assert_array_equal(to_numpy(method.positive_counts), expected[f"{prefix}final_pos_count"])
        np.testing.assert_array_equal(to_numpy(method.negative_counts), expected[f"{prefix}final_neg_count"])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_authors_views_of_lowest_entropy(dtype):
    given = views(dtype)
    scores = 100 * given["views"] @ given["prototypes"].T
    kept = select_lowest_entropy(scores, BoostAdapter(given["prototypes"]).view_ratio)
    np.testing.assert_array_equal(kept, golden("boostadapter_views")["boost_views"])


def test_the_parameters_of_the_goldens():
    given = json.loads(str(golden("boostadapter_views")["hyperparameters_json"]))
    method = BoostAdapter(np.eye(2))
    assert given["positive"]["shot_capacity"] == method.positive_capacity
    assert given["delta"] == method.delta
    assert given["negative"]["shot_capacity"] == method.negative_capacity


@pytest.mark.parametrize(
    "setting",
    [{}, {"delta": 0}, {"view_feature": "image", "positive_capacity": 1, "delta": 1}, {"view_ratio": 0.5, "delta": 2}],
)
def test_the_plain_version_agrees(setting):
    prototypes, images = some_views(3)
    found = BoostAdapter(prototypes, logit_scale=20.0, **setting).adapt_views_scores(images)
    expected = plain.scores(torch.tensor(images), torch.tensor(prototypes), logit_scale=20.0, **setting)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


def test_a_case_by_hand():
    """The second view is the more confident one: it joins (0.8, 0.6) in class 0, with the weight exp(-5 * 0.064)."""
    method = BoostAdapter(np.eye(2), logit_scale=5.0, view_ratio=0.5, view_feature="image")
    answer = method.adapt_views_scores(np.array([[0.8, 0.6], [0.96, 0.28]]))
    np.testing.assert_allclose(answer, [4 + 2 + 2 * np.exp(-0.32), 3], rtol=0, atol=1e-12)
    # Without more places, the more confident view displaces the image itself.
    method = BoostAdapter(
        np.eye(2), logit_scale=5.0, view_ratio=0.5, view_feature="image", positive_capacity=1, delta=0
    )
    answer = method.adapt_views_scores(np.array([[0.8, 0.6], [0.96, 0.28]]))
    np.testing.assert_allclose(answer, [4 + 2 * np.exp(-0.32), 3], rtol=0, atol=1e-12)
    np.testing.assert_array_equal(method.positive_counts, [1, 0])


def test_views_are_forgotten_after_each_image():
    prototypes, images = some_views()
    boosted, others = (BoostAdapter(prototypes, logit_scale=20.0, delta=delta) for delta in (3, None))
    assert np.abs(boosted.adapt_views(images) - others.adapt_views(images)).max() > 0.01
    np.testing.assert_array_equal(boosted.predict(images[:, 0]), others.predict(images[:, 0]))
    assert boosted.positive_counts.max() <= boosted.positive_capacity


def test_without_negatives_and_views_it_is_tda():
    given = problem()
    ours, theirs = (cls(given["prototypes"], negative_capacity=0) for cls in (BoostAdapter, TDA))
    np.testing.assert_array_equal(ours.adapt_scores(given["features"]), theirs.adapt_scores(given["features"]))


@pytest.mark.parametrize("split", [1, 7])
def test_images_one_at_a_time_are_a_stream(split):
    prototypes, images = some_views(2)
    whole = BoostAdapter(prototypes, logit_scale=20.0).adapt_views(images)
    method = BoostAdapter(prototypes, logit_scale=20.0)
    parts = [method.adapt_views(images[start : start + split]) for start in range(0, len(images), split)]
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=0, atol=1e-12)


def test_few_views_do_not_boost():
    """A tenth of nine views is none: nothing joins, and the average is the most confident view."""
    prototypes, images = some_views(n_views=9)
    boosted, others = (BoostAdapter(prototypes, logit_scale=20.0, delta=delta) for delta in (3, None))
    np.testing.assert_array_equal(boosted.adapt_views(images), others.adapt_views(images))


def test_presets():
    assert BoostAdapter.preset("imagenet_a") == {**TDA.preset("imagenet_a"), "delta": 3, "view_feature": "average"}
    assert BoostAdapter.preset("eurosat") == {**TDA.preset("eurosat"), "delta": 0, "view_feature": "image"}
    assert BoostAdapter.preset("imagenet") == TDA.preset("imagenet")  # the authors use one view there
    assert BoostAdapter.presets.keys() == TDA.presets.keys()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"delta": -1}, "delta must be None or an integer of at least 0; got -1"),
        ({"delta": 1.5}, "delta must be None or an integer"),
        ({"view_feature": "mean"}, "view_feature must be one of 'average', 'image'; got 'mean'"),
    ],
)
def test_wrong_parameters(given, message):
    with pytest.raises(ValueError, match=message):
        BoostAdapter(np.eye(2), **given)


@pytest.mark.slow  # tests/common runs the same checks one by one
def test_common_checks():
    assert not check_method(BoostAdapter, parameters={"view_feature": "image", "delta": 1}).failed
