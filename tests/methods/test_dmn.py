"""DMN against the authors' code, a plain version of it, and its own rules."""

import numpy as np
import pytest
import torch

from goldens import golden, problem, views
from plain import dmn as plain
from zeroshift.methods import DMN
from zeroshift.testing import check_method, make_problem
from zeroshift.zero_shot import posterior

TOLERANCE = 2e-5
"""The authors' float32 is 4.6e-6 away from float64; ours may be as far on the other side."""

SETTINGS = {
    "text_probs": {"memory_weight": 0.0},
    "memory_probs": {"text_weight": 0.0},
    "fused1_probs": {},
    "mem8_memory_probs": {"text_weight": 0.0, "memory_size": 8},
}


def assert_authors_result(scores, expected):
    np.testing.assert_allclose(scores, expected, rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(scores.argmax(axis=1), expected.argmax(axis=1))


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.parametrize("array", SETTINGS)
def test_the_authors_posteriors(array, dtype):
    given = problem(dtype)
    method = DMN(given["prototypes"], **SETTINGS[array])
    assert_authors_result(method.adapt_scores(given["features"]), golden("dmn")[array])
    if method.memory_size == 50:
        np.testing.assert_array_equal(method.bank_counts, golden("dmn")["memory_count"][:, 0])


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.parametrize("array", ["text_probs", "memory_probs", "fused1_probs"])
def test_the_authors_posteriors_of_views(array, dtype):
    given = views(dtype)
    method = DMN(given["prototypes"], **SETTINGS[array])
    assert_authors_result(method.adapt_views_scores(given["views"][:, :32]), golden("dmn_views")[array])


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_the_authors_posteriors_with_torch(dtype):
    given, images = problem(dtype), views(dtype)
    method = DMN(torch.tensor(given["prototypes"]), text_weight=0.0)
    assert_authors_result(method.adapt(torch.tensor(given["features"])).numpy(), golden("dmn")["memory_probs"])
    method.reset()
    answer = method.adapt_views(torch.tensor(images["views"][:, :32]))
    assert_authors_result(answer.numpy(), golden("dmn_views")["memory_probs"])


@pytest.mark.parametrize(("seed", "memory_size"), [(1, 50), (2, 3), (3, 1)])
def test_the_plain_version_agrees(seed, memory_size):
    given = make_problem(classes=7, dimension=24, samples=600, seed=seed)
    ours = DMN(given.prototypes, logit_scale=20.0, memory_size=memory_size, beta=4.0, memory_weight=3.0)
    expected = plain.scores(
        torch.tensor(given.features),
        torch.tensor(given.prototypes),
        logit_scale=20.0,
        capacity=memory_size,
        beta=4.0,
        memory_weight=3.0,
    )
    np.testing.assert_allclose(ours.adapt_scores(given.features), expected.numpy() / 4.0, rtol=0, atol=1e-10)


def test_an_empty_memory_predicts_like_the_prototypes():
    given = make_problem()
    method = DMN(given.prototypes, text_weight=0.0)
    expected = posterior(given.features, given.prototypes, 100.0)
    np.testing.assert_allclose(method.predict(given.features), expected, rtol=0, atol=1e-12)


def test_views_determine_the_class_and_the_image_is_stored():
    """The image is nearer to class 1, its confident view to class 0: it is stored there and predicted itself."""
    image, confident = np.array([0.6, 0.8]), np.array([1.0, 0.0])
    views = np.stack([image, confident])
    method = DMN(np.eye(2), logit_scale=5.0, view_ratio=0.5)
    answer = method.adapt_views_scores(views)
    assert method.bank_counts.tolist() == [1, 0]
    w = np.exp(-5.5 * 0.4)
    v = image + w * np.array([1.0, 0.0])
    memory = np.exp(5.0 * np.array([v @ image / np.linalg.norm(v), 0.8]))
    expected = (posterior(image[None], np.eye(2), 5.0)[0] + memory / memory.sum()) / 2
    np.testing.assert_allclose(answer, expected, atol=1e-12)


def test_two_zero_weights_raise():
    with pytest.raises(ValueError, match=r"text_weight and memory_weight are both 0.*Fix"):
        DMN(np.eye(2), text_weight=0.0, memory_weight=0.0)


def test_a_saved_torch_method_continues(tmp_path):
    given = make_problem()
    method = DMN(torch.tensor(given.prototypes), logit_scale=20.0)
    method.adapt(torch.tensor(given.features[:40]))
    method.save(tmp_path / "dmn.safetensors")
    loaded = DMN.load(tmp_path / "dmn.safetensors")
    rest = torch.tensor(given.features[40:])
    assert torch.equal(loaded.adapt(rest), method.adapt(rest))


@pytest.mark.slow  # tests/common does the same, bit by bit
@pytest.mark.parametrize("parameters", [{}, {"memory_size": 2, "text_weight": 0.0}])
def test_common_checks(parameters):
    check_method(DMN, parameters=parameters)
