"""Tent against the outputs of the authors' loop on a tiny CLIP (tests/golden/README.md), and its properties."""

import copy

import numpy as np
import pytest

from goldens import golden
from zeroshift.methods.tent import Tent
from zeroshift.testing import make_problem
from zeroshift.testing.examples import ExampleVision
from zeroshift.zero_shot import posterior

RUNS = {
    "tent_adam": {},
    "tent_sgd": {"optimizer": "sgd", "rate": 2.5e-4},
    "tent_episodic3": {"steps": 3, "episodic": True},
}


def make_method(precision="float32", **settings):
    pytest.importorskip("transformers")
    from tiny_clip import exact_text, tiny_scale, tiny_text, tiny_vision

    text = exact_text() if precision == "float64" else tiny_text()
    return Tent(
        text.features(text.context),
        vision=tiny_vision(precision),
        logit_scale=tiny_scale(),
        **{"batch_size": 24, **settings},
    )


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("run", RUNS)
def test_agrees_with_the_golden(run, precision):
    expected = golden("tiny_clip_tower")
    method = make_method(precision, **RUNS[run])
    found = method.adapt_scores(expected["images"])
    # The goldens are float32; the specification states these differences for an independent version.
    np.testing.assert_allclose(found, expected[f"{run}_logits"], atol=5e-4)
    np.testing.assert_array_equal(found.argmax(axis=1), expected[f"{run}_logits"].argmax(axis=1))
    if not method.episodic:
        np.testing.assert_allclose(method._norms, expected[f"{run}_norm_params"], atol=5e-6)
        assert np.abs(method._norms - method.vision.norms).max() > 1e-4


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_an_episode_leads_to_the_golden_norms(precision):
    """Those of the last batch, which an episodic method forgets."""
    expected = golden("tiny_clip_tower")
    method = make_method(precision, steps=3)
    method.adapt(expected["images"][-24:])
    np.testing.assert_allclose(method._norms, expected["tent_episodic3_norm_params"], atol=5e-6)


def test_agrees_with_a_plain_loop():
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from plain import towers
    from tiny_clip import exact_clip, tiny_pixels, tiny_scale

    method, images = make_method("float64"), golden("tiny_clip_tower")["images"][:72]
    expected = towers.tent(
        copy.deepcopy(exact_clip()), tiny_pixels(images), torch.tensor(method.prototypes),
        logit_scale=tiny_scale(), batch=24, rate=1e-3,
    )  # fmt: skip
    np.testing.assert_allclose(method.adapt_scores(images.astype(np.float64)), expected, atol=1e-10)


def test_a_rate_of_zero_and_one_episodic_step_are_zero_shot():
    expected = golden("tiny_clip_tower")
    for settings in ({"rate": 0.0}, {"episodic": True}):
        found = make_method(**settings).adapt_scores(expected["images"])
        np.testing.assert_allclose(found, expected["zeroshot_logits"], atol=1e-4)


def test_the_size_of_chunks_does_not_matter():
    pytest.importorskip("transformers")
    from tiny_clip import tiny_vision

    images, above = golden("tiny_clip_tower")["images"][:12], np.random.default_rng(2).normal(size=(12, 32))
    norms = tiny_vision("float64").norms
    whole = tiny_vision("float64", 64).pull_back_norms(images, norms, above)
    parts = tiny_vision("float64", 5).pull_back_norms(images, norms, above)
    np.testing.assert_allclose(parts, whole, atol=1e-10 * np.abs(whole).max())


def test_gradients_are_differences_quotients():
    pytest.importorskip("transformers")
    from tiny_clip import tiny_vision

    vision, draw = tiny_vision("float64"), np.random.default_rng(3)
    images, above = golden("tiny_clip_tower")["images"][:6], draw.normal(size=(6, 32))
    gradient, direction = vision.pull_back_norms(images, vision.norms, above), draw.normal(size=vision.norms.shape)
    up, down = (
        (above * vision.encode_with_norms(images, vision.norms + step * direction)).sum() for step in (1e-5, -1e-5)
    )
    assert gradient @ direction == pytest.approx((up - down) / 2e-5, rel=1e-6)


def test_the_encoder_is_not_changed_and_reset_forgets():
    expected = golden("tiny_clip_tower")
    method, images = make_method(), expected["images"][:48]
    first = method.adapt_scores(images)
    assert np.abs(method.predict_scores(images[:24]) - first[:24]).max() > 1e-3
    method.reset()
    np.testing.assert_array_equal(method.adapt_scores(images), first)


def test_the_first_batch_is_zero_shot_and_entropy_falls():
    problem = make_problem(classes=5, dimension=12, samples=60, seed=3)
    method = Tent(problem.prototypes, vision=ExampleVision(problem.prototypes), logit_scale=20.0, steps=20, rate=1e-2)
    before = posterior(problem.features, problem.prototypes, 20.0)
    np.testing.assert_allclose(method.predict(problem.features), before, atol=1e-12)
    method.adapt(problem.features)
    after = method.predict(problem.features)
    assert -(after * np.log(after)).sum() < -(before * np.log(before)).sum()


@pytest.mark.parametrize("chunk_size", [5, 12, 64])
def test_features_and_gradient_together_are_those_apart(chunk_size):
    """Activations of the first chunk are kept: used once, and computed again if they are gone."""
    pytest.importorskip("transformers")
    from tiny_clip import tiny_vision

    images, above = golden("tiny_clip_tower")["images"][:12], np.random.default_rng(2).normal(size=(12, 32))
    vision = tiny_vision("float64", chunk_size)
    norms = vision.norms + 0.01
    features, pull_back = vision.linearize_norms(images, norms)
    np.testing.assert_allclose(features, vision.encode_with_norms(images, norms), atol=1e-12)
    expected = vision.pull_back_norms(images, norms, above)
    for _ in range(2):
        np.testing.assert_allclose(pull_back(above), expected, atol=1e-10 * np.abs(expected).max())


@pytest.mark.parametrize("place", ["forward", "backward"])
def test_activations_that_do_not_fit_are_not_kept(monkeypatch, place):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tiny_clip import tiny_vision

    images, above = golden("tiny_clip_tower")["images"][:12], np.random.default_rng(2).normal(size=(12, 32))
    vision = tiny_vision("float64", 12)
    expected = vision.pull_back_norms(images, vision.norms, above)
    full = torch.OutOfMemoryError("CUDA out of memory")
    grad, forward = torch.autograd.grad, vision._raw_features

    def no_room(*arguments):
        if len(arguments[0] if place == "forward" else arguments[2]) == 12 and torch.is_grad_enabled():
            raise full
        return (forward if place == "forward" else grad)(*arguments)

    monkeypatch.setattr(vision, "chunk_size", 12)
    if place == "forward":
        monkeypatch.setattr(vision, "_raw_features", no_room)
    else:
        monkeypatch.setattr(torch.autograd, "grad", no_room)
    features, pull_back = vision.linearize_norms(images, vision.norms)
    np.testing.assert_allclose(pull_back(above), expected, atol=1e-10 * np.abs(expected).max())
    assert vision.chunk_size == 6
    assert features.shape == (12, 32)


def test_an_encoder_without_layer_norms_is_refused():
    problem = make_problem(classes=5, dimension=12, samples=6, seed=3)
    vision = ExampleVision(problem.prototypes)
    vision.norms = None
    with pytest.raises(ValueError, match=r"vision has no layer norms that can be tuned; got <example vision"):
        Tent(problem.prototypes, vision=vision)
