"""MTA against the authors' outputs, and its properties."""

import numpy as np
import pytest
import torch

from goldens import golden
from zeroshift.arrays import normalize, to_numpy
from zeroshift.methods.mta import MTA, squared_bandwidths
from zeroshift.testing import check_method, make_problem

SCALE = 100.00000762939453
TOLERANCE = 2e-3

SETTINGS = {
    "default": ({}, 64),
    "lq0": ({"affinity_weight": 0}, 64),
    "lq1_ly05": ({"affinity_weight": 1, "inlier_temperature": 0.5}, 64),
    "v32": ({}, 32),
}


def images(n_views=12, n_images=9, *, classes=7, dimension=10, seed=0, spread=0.6):
    """Views scattered about each image, view 0 the image itself; and prototypes."""
    given = make_problem(classes, dimension, n_images, seed=seed)
    noise = np.random.default_rng(seed).normal(size=(n_images, n_views, dimension)) * spread / dimension**0.5
    noise[:, 0] = 0
    return normalize((given.features[:, None, :] + noise).reshape(-1, dimension)).reshape(noise.shape), given.prototypes


@pytest.mark.parametrize("convert", [np.asarray, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_the_authors_logits(setting, convert):
    given, expected = golden("problem_views"), golden("mta")
    parameters, n_views = SETTINGS[setting]
    method = MTA(convert(given["prototypes"]), logit_scale=SCALE, **parameters)
    scores = to_numpy(method.adapt_views_scores(convert(given["views"][:, :n_views])))
    np.testing.assert_allclose(scores, expected[f"logits_{setting}"], rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(scores.argmax(axis=1), expected[f"pred_{setting}"])


@pytest.mark.parametrize("parameters", [{"iterations": 2, "tolerance": 0.05}, {"iterations": 12, "tolerance": 1e-4}])
def test_each_image_stops_by_itself(parameters):
    """With a tolerance that some images reach and others do not."""
    views, prototypes = images(n_images=30)
    method = MTA(prototypes, logit_scale=20.0, **parameters)
    one_by_one = [method.predict_views_scores(image) for image in views]
    np.testing.assert_allclose(method.predict_views_scores(views), one_by_one, rtol=0, atol=1e-12)
    other = MTA(prototypes, logit_scale=20.0, **{**parameters, "tolerance": 0.0}).predict_views_scores(views)
    assert (np.abs(other - one_by_one).max(axis=1) > 1e-9).sum() > 0


def test_without_predictions_one_round_is_mean_shift():
    """A large temperature makes all views inliers: they are weighted by the density at the image alone."""
    views, prototypes = images(15)
    once = MTA(prototypes, logit_scale=20.0, inlier_temperature=1e9, affinity_weight=0, iterations=1)
    weights = np.exp(-((views - views[:, :1]) ** 2).sum(axis=2) / (2 * squared_bandwidths(views, 0.3)))
    mode = normalize((weights[:, :, None] * views).sum(axis=1))
    np.testing.assert_allclose(once.adapt_views_scores(views), 20.0 * mode @ prototypes.T, rtol=0, atol=1e-9)


def test_bandwidths_by_hand():
    """Five views: one neighbour each. The squared distance of two orthogonal views is 2, of equal ones 0."""
    views = np.array([[[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-1.0, 0.0], [-1.0, 0.0]]])
    expected = np.array([[0.2, 0.2, 0.4, 1e-12, 1e-12]])
    np.testing.assert_allclose(squared_bandwidths(views, 0.3), expected, atol=1e-15)
    np.testing.assert_allclose(squared_bandwidths(views, 0.5)[0, 0], (0.2 + 1.0) / 2)


def test_the_order_of_the_other_views_does_not_matter():
    views, prototypes = images(20)
    shuffled = np.concatenate([views[:, :1], views[:, 1:][:, np.random.default_rng(1).permutation(19)]], axis=1)
    method = MTA(prototypes, logit_scale=20.0)
    expected = method.adapt_views_scores(views)
    np.testing.assert_allclose(method.adapt_views_scores(shuffled), expected, rtol=0, atol=1e-9)
    order = np.array([3, 1, 0, 2, 6, 5, 4])
    permuted = MTA(prototypes[order], logit_scale=20.0).adapt_views_scores(views)
    np.testing.assert_allclose(permuted, expected[:, order], rtol=0, atol=1e-9)


@pytest.mark.parametrize("n_views", [2, 3, 4])
def test_few_views_have_one_neighbour_each(n_views):
    """The authors' code returns NaN here."""
    views, prototypes = images(n_views)
    scores = MTA(prototypes, logit_scale=20.0).adapt_views_scores(views)
    one_neighbour = MTA(prototypes, logit_scale=20.0, neighbour_share=1.01 / (n_views - 1) if n_views > 2 else 1.0)
    np.testing.assert_array_equal(scores, one_neighbour.adapt_views_scores(views))
    assert np.isfinite(scores).all()


@pytest.mark.parametrize("n_views", [1, 2, 64])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_equal_views_are_one_view(n_views, dtype):
    """All distances are 0. In half precision the lengths of unit vectors are off by up to 1e-2."""
    given = make_problem()
    features = torch.tensor(given.features).to(dtype)
    method = MTA(torch.tensor(given.prototypes), logit_scale=20.0)
    answer = method.adapt_views(features[:, None, :].expand(-1, n_views, -1))
    expected = method.adapt(torch.tensor(normalize(to_numpy(features.double()))) if n_views > 1 else features)
    np.testing.assert_allclose(answer.numpy(), expected.numpy(), rtol=0, atol=1e-6)


def test_equal_views_among_others_do_not_underflow():
    """Nine equal crops far from the image: their kernel is very narrow, and the image is its own mode."""
    image, crop = np.array([1.0, 0.0, 0.0]), np.array([0.0, 0.6, 0.8])
    views = np.stack([image, *[crop] * 9])
    scores = MTA(np.eye(3), logit_scale=5.0).adapt_views_scores(views)
    np.testing.assert_allclose(scores, 5 * image, atol=1e-12)
    opposite = np.stack([image, -image])
    assert np.isfinite(MTA(np.eye(3), logit_scale=5.0).adapt_views(opposite)).all()


def test_common_checks_without_predictions():
    check_method(MTA, parameters={"affinity_weight": 0.0, "tolerance": 0.0})
