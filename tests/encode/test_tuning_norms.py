"""Features and gradients of a tiny CLIP under other layer norms, and of noise on the pixels."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from plain.towers import image_features, norm_parameters, text_features  # noqa: E402

from goldens import golden  # noqa: E402
from tiny_clip import exact_clip, exact_text, tiny_clip, tiny_pixels, tiny_text, tiny_vision  # noqa: E402
from zeroshift.encode.tuning import ContextText  # noqa: E402

IMAGES = golden("tiny_clip_tower")["images"][:12]
IDS = torch.tensor(golden("tiny_clip_prompt_tuning")["input_ids"])


def in_torch(side):
    """Features, and the gradient of their sum with some weights for the layer norms; and these weights."""
    model = copy.deepcopy(exact_clip())
    parameters = norm_parameters(model.text_model if side == "text" else model.vision_model)
    features = text_features(model, IDS) if side == "text" else image_features(model, tiny_pixels(IMAGES))
    above = np.random.default_rng(5).normal(size=tuple(features.shape))
    gradients = torch.autograd.grad((features * torch.tensor(above)).sum(), parameters)
    return features.detach().numpy(), torch.cat([part.reshape(-1) for part in gradients]).numpy(), above


@pytest.mark.parametrize("chunk_size", [5, 12, 64])
@pytest.mark.parametrize("side", ["text", "vision"])
def test_gradients_are_torch_s_and_chunks_do_not_matter(side, chunk_size, monkeypatch):
    """Activations of the first chunk are kept: used once, and computed again if they are gone."""
    features, expected, above = in_torch(side)
    tower, inputs = (exact_text(), ()) if side == "text" else (tiny_vision("float64"), (IMAGES,))
    monkeypatch.setattr(tower, "chunk_size", chunk_size)
    encode = tower.features_with_norms if side == "text" else tower.encode_with_norms
    np.testing.assert_allclose(encode(*inputs, tower.norms), features, atol=1e-12)
    np.testing.assert_allclose(tower.pull_back_norms(*inputs, tower.norms, above), expected, atol=1e-11)
    found, pull_back = tower.linearize_norms(*inputs, tower.norms)
    np.testing.assert_allclose(found, features, atol=1e-12)
    for _ in range(2):
        np.testing.assert_allclose(pull_back(above), expected, atol=1e-11)


@pytest.mark.parametrize("place", ["forward", "backward"])
def test_activations_that_do_not_fit_are_not_kept(monkeypatch, place):
    vision, above = tiny_vision("float64", 12), np.random.default_rng(2).normal(size=(12, 32))
    expected = vision.pull_back_norms(IMAGES, vision.norms, above)
    grad, forward = torch.autograd.grad, vision._raw_features

    def no_room(*arguments):
        if len(arguments[0] if place == "forward" else arguments[2]) == 12 and torch.is_grad_enabled():
            raise torch.OutOfMemoryError("CUDA out of memory")
        return (forward if place == "forward" else grad)(*arguments)

    monkeypatch.setattr(vision, "chunk_size", 12)
    if place == "forward":
        monkeypatch.setattr(vision, "_raw_features", no_room)
    else:
        monkeypatch.setattr(torch.autograd, "grad", no_room)
    features, pull_back = vision.linearize_norms(IMAGES, vision.norms)
    np.testing.assert_allclose(pull_back(above), expected, atol=1e-10 * np.abs(expected).max())
    assert vision.chunk_size == 6
    assert features.shape == (12, 32)


def test_only_layer_norms_of_the_text_side_are_its_own():
    """The model that is given to the text side has the image side, too."""
    norms = tiny_text().norms
    assert (len(norms), len(tiny_vision().norms)) == (640, 768)
    np.testing.assert_array_equal(norms[-128:-64], tiny_clip().text_model.final_layer_norm.weight.detach())


def test_a_text_side_without_modules_has_no_layer_norms():
    encode = lambda tokens: tiny_clip().get_text_features(**tokens).pooler_output  # noqa: E731
    text = ContextText(encode, tiny_clip().text_model.embeddings.token_embedding, {"input_ids": IDS}, start=1, words=4)
    assert text.norms is None
    with pytest.raises(TypeError, match="has no layer norms that can be tuned"):
        text.features_with_norms(np.zeros(3))
    with pytest.raises(ValueError, match=r"norms must have the shape \(640,\), like text\.norms; got \(3,\)"):
        tiny_text().features_with_norms(np.zeros(3))


def test_the_gradient_of_the_noise_is_a_difference_quotient():
    vision, draw = tiny_vision("float64"), np.random.default_rng(3)
    above, (noise, direction) = draw.normal(size=(12, 32)), draw.normal(0, 1e-3, size=(2, 3, 16, 16))
    gradient = vision.pull_back_noise(IMAGES, noise, above)
    up, down = ((above * vision.encode_with_noise(IMAGES, noise + h * direction)).sum() for h in (1e-4, -1e-4))
    assert (gradient * direction).sum() == pytest.approx((up - down) / 2e-4, rel=1e-4)
    np.testing.assert_allclose(tiny_vision("float64", 5).pull_back_noise(IMAGES, noise, above), gradient, atol=1e-10)


def test_brightness_is_cut_off():
    """Noise has no effect on, and no gradient from, pixels that it moves below black or above white."""
    vision, images = tiny_vision("float64"), np.zeros((2, 3, 16, 16), np.uint8)
    images[1] = 255
    plain = vision.encode(images, None).features
    for i, noise in enumerate((-np.ones((3, 16, 16)) / 255, np.ones((3, 16, 16)) / 255)):
        np.testing.assert_allclose(vision.encode_with_noise(images[i : i + 1], noise), plain[i : i + 1], atol=1e-6)
        gradient = vision.pull_back_noise(images[i : i + 1], noise, np.ones((1, 32)))
        np.testing.assert_array_equal(gradient, np.zeros((3, 16, 16)))
        assert np.abs(vision.pull_back_noise(images[i : i + 1], -noise, np.ones((1, 32)))).max() > 0


def test_noise_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"noise must have the shape \(3, 16, 16\), that of an image; got \(3, 4, 4\)"):
        tiny_vision().encode_with_noise(IMAGES, np.zeros((3, 4, 4)))
