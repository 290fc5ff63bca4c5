"""Mint against the outputs of the authors' code on a tiny CLIP (tests/golden/README.md), and what is particular to
it. Further tests of it are in test_tent.py."""

import copy

import numpy as np
import pytest
import torch

from goldens import golden
from plain import towers
from saved import saved_state
from tiny_clip import exact_clip, tiny_method, tiny_pixels
from zeroshift.files import FileFormatError
from zeroshift.methods.mint import ClassSums, Mint, variance_gradient
from zeroshift.serialization import KIND, STATE_SCHEMA
from zeroshift.tensor_files import read_tensors, write_tensors
from zeroshift.testing import make_problem
from zeroshift.testing.examples import ExampleVision
from zeroshift.zero_shot import posterior

AUTHORS = golden("tiny_clip_tower")
IMAGES = AUTHORS["images"]
RUNS = {"mint": {}, "mint_prior100": {"prior": 100.0}, "mint_lr15": {"rate": 1.5e-2}}


def make_method(precision="float32", **settings):
    return tiny_method(Mint, precision, logit_scale=100.0, **settings)


def example(**settings):
    problem = make_problem(classes=5, dimension=12, samples=60, seed=3)
    settings = {"logit_scale": 20.0, **settings}
    return problem, Mint(problem.prototypes, vision=ExampleVision(problem.prototypes), **settings)


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("run", RUNS)
def test_the_authors_logits_and_sums(run, precision, tmp_path):
    method = make_method(precision, **RUNS[run])
    found = method.adapt_scores(IMAGES)
    # The goldens are float32, logits have the scale 100, and steps follow the signs of gradients, also of small ones.
    # A plain loop in float64 differs from them by up to 6.5e-4, too, and from the method by 1e-10.
    np.testing.assert_allclose(found, AUTHORS[f"{run}_logits"], atol=8e-4)
    np.testing.assert_array_equal(found.argmax(axis=1), AUTHORS[f"{run}_logits"].argmax(axis=1))
    saved = saved_state(method, tmp_path)
    np.testing.assert_allclose(saved["after_sums"], AUTHORS[f"{run}_class_sums"], atol=2e-5)
    np.testing.assert_array_equal(saved["after_counts"], AUTHORS[f"{run}_class_n"])
    np.testing.assert_allclose(saved["before_sums"], AUTHORS[f"{run}_pre_class_sums"], atol=2e-5)
    np.testing.assert_allclose(saved["gradient_mean"], AUTHORS[f"{run}_gradient_mean"], atol=1e-6)


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_the_authors_logits_of_single_images(precision):
    found = make_method(precision, batch_size=1, prior=100.0).adapt_scores(IMAGES[:60])
    np.testing.assert_allclose(found, AUTHORS["mint_bs1_logits"], atol=5.4e-4)
    np.testing.assert_array_equal(found.argmax(axis=1), AUTHORS["mint_bs1_logits"].argmax(axis=1))


@pytest.mark.parametrize(("batch", "settings"), [(24, {}), (24, {"prior": 10.0, "rate": 1.5e-2}), (7, {}), (1, {})])
def test_a_plain_loop_agrees(batch, settings, tmp_path):
    method, details = make_method("float64", batch_size=batch, **settings), {}
    images = IMAGES[: 60 if batch > 1 else 12]
    expected = towers.mint(
        copy.deepcopy(exact_clip()), tiny_pixels(images), torch.tensor(method.prototypes),
        batch=batch, details=details, **settings,
    )  # fmt: skip
    np.testing.assert_allclose(method.adapt_scores(images.astype(np.float64)), expected, atol=1e-8)
    np.testing.assert_allclose(saved_state(method, tmp_path)["gradient_mean"], details["gradient_mean"], atol=1e-12)


def test_the_gradient_is_torch_s():
    draw = np.random.default_rng(4)
    features = torch.tensor(draw.normal(size=(8, 5)), requires_grad=True)
    classes = np.array([0, 0, 2, 0, 3, 2, 0, 3])
    seen = ClassSums(draw.normal(size=(4, 5)), np.array([3.0, 1.0, 4.0, 2.0]))
    means, mean = torch.tensor(seen.means()), torch.tensor(seen.sums.sum(axis=0) / 10)
    weights = torch.tensor([1 / (3 * (classes == k).sum()) for k in classes])
    assert float(weights.sum()) == pytest.approx(1.0)
    total, within = ((features - centre).square().sum(1) for centre in (mean, means[classes]))
    (expected,) = torch.autograd.grad((weights * (within - total)).sum(), features)
    np.testing.assert_allclose(variance_gradient(np.eye(4)[classes], seen), expected, atol=1e-12)


def test_without_a_step_and_without_class_means_it_is_zero_shot():
    method = make_method(rate=0.0, prior=1e15)
    features = method.vision.encode(IMAGES, None).features
    expected = posterior(features, method.prototypes, method.logit_scale)
    np.testing.assert_allclose(method.adapt(IMAGES), expected, atol=1e-5)


def test_no_step_while_all_features_are_of_one_class(tmp_path):
    problem, method = example(rate=0.1, prior=1e15)
    same = np.repeat(problem.features[:1], 4, axis=0)
    np.testing.assert_allclose(method.adapt(same), posterior(same, problem.prototypes, 20.0), atol=1e-12)
    assert not saved_state(method, tmp_path)["gradient_mean"].any()
    method.adapt(problem.features)
    assert saved_state(method, tmp_path)["gradient_mean"].any()


def test_a_step_leaves_the_gradients_and_features_of_later_batches(tmp_path):
    """Layer norms are restored: the size of the first step shows only in the features after it."""
    one, other = (make_method(rate=rate) for rate in (7e-3, 1.4e-2))
    one.adapt(IMAGES[:24])
    other.adapt(IMAGES[:24])
    first, second = saved_state(one, tmp_path), saved_state(other, tmp_path)
    for name in ("gradient_mean", "before_sums"):
        np.testing.assert_array_equal(first[name], second[name])
    assert np.abs(first["after_sums"] - second["after_sums"]).max() > 1e-3


def test_predict_uses_the_last_step_and_the_class_means():
    problem, method = example(rate=0.05, prior=5.0)
    expected = posterior(problem.features, problem.prototypes, 20.0)
    np.testing.assert_allclose(method.predict(problem.features), expected, atol=1e-12)
    found = method.adapt(problem.features)
    np.testing.assert_allclose(method.predict(problem.features[-20:]), found[-20:], atol=1e-12)
    assert np.abs(method.predict(problem.features) - expected).max() > 0.01


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("state/after_counts", lambda array: array + 100),
        ("state/before_counts", lambda array: array - 100),
        ("state/before_sums", lambda array: array * 10),
        ("state/gradient_mean", lambda array: array[:-1]),
    ],
)
def test_a_state_that_no_images_lead_to_is_refused(tmp_path, name, change):
    problem, method = example()
    method.adapt(problem.features)
    method.save(tmp_path / "mint.safetensors")
    arrays, header = read_tensors(tmp_path / "mint.safetensors", kind=KIND, schema=STATE_SCHEMA)
    arrays[name] = np.ascontiguousarray(change(arrays[name]))
    write_tensors(tmp_path / "other.safetensors", arrays, header)
    with pytest.raises(FileFormatError, match="does not contain the state"):
        Mint.load(tmp_path / "other.safetensors", vision=method.vision)
