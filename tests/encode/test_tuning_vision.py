"""`prompted_vision`: against the model's layers and torch's gradients, and two methods end to end."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from zeroshift.arrays import to_numpy  # noqa: E402
from zeroshift.encode import Pipeline, Views, load_encoder, make_method  # noqa: E402
from zeroshift.encode.encoder import stack_pixels  # noqa: E402
from zeroshift.encode.pipeline import pipeline  # noqa: E402
from zeroshift.encode.tuning import prompted_text  # noqa: E402
from zeroshift.encode.tuning.vision import FAMILIES, prompted_vision  # noqa: E402
from zeroshift.methods._shared.source_statistics import (  # noqa: E402
    Moments,
    distance,
    moments,
    source_statistics,
)
from zeroshift.methods.b2tpt import B2TPT  # noqa: E402
from zeroshift.methods.dpcore import DPCore  # noqa: E402
from zeroshift.zero_shot import posterior  # noqa: E402

NAMES = ["cat", "dog", "horse", "frog"]


@pytest.fixture
def images():
    """(12, 3, 32, 32) bytes: smooth random images."""
    coarse = np.random.default_rng(0).integers(0, 256, size=(12, 3, 4, 4))
    return np.kron(coarse, np.ones((8, 8))).astype(np.uint8)


@pytest.fixture
def prompt():
    return np.random.default_rng(1).normal(0, 0.5, size=(3, 32)).astype(np.float32)


def walked(encoder, pixels, prompt, *, place):
    """The vision transformer layer by layer, the prompt put in at `place`; states, and features of any length."""
    vision = encoder.model.vision_model
    tokens = vision.embeddings(pixels)
    given = prompt.expand(len(tokens), -1, -1)
    tokens = vision.pre_layrnorm(torch.cat([tokens[:, :place], given, tokens[:, place:]], dim=1))
    for layer in vision.encoder.layers:
        found = layer(tokens, attention_mask=None)
        tokens = found[0] if isinstance(found, tuple) else found
    states = vision.post_layernorm(tokens[:, 0])
    return states, encoder.model.visual_projection(states)


@pytest.mark.parametrize("family", FAMILIES)
def test_without_a_prompt_it_is_the_encoder(tiny_encoder, family, images):
    encoder = tiny_encoder(family)
    glance = prompted_vision(encoder).encode(images, None)
    np.testing.assert_allclose(glance.features, encoder.encode_pixels((images,)), atol=1e-6)
    assert glance.states.shape == (12, 32)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_position_of_the_tokens_does_not_matter(tiny_encoder, family, images, prompt):
    """DPCore's place, after the class token, and B2TPT's, at the end, are one function."""
    encoder = tiny_encoder(family)
    glance = prompted_vision(encoder).encode(images, prompt)
    pixels = encoder._to_device(images, first=True)
    for place in (1, 5, 17):
        with torch.no_grad():
            states, features = walked(encoder, pixels, torch.tensor(prompt), place=place)
        np.testing.assert_allclose(glance.states, states, atol=2e-5)
        np.testing.assert_allclose(glance.features, features / features.norm(dim=1, keepdim=True), atol=2e-5)
    assert np.abs(glance.features - prompted_vision(encoder).encode(images, None).features).max() > 1e-3


def test_gradients_are_torch_s(tiny_encoder, images, prompt):
    encoder = tiny_encoder("clip")
    vision = prompted_vision(encoder)
    above = np.random.default_rng(2).normal(size=(12, 32)).astype(np.float32)
    given = torch.tensor(prompt, requires_grad=True)
    states, _ = walked(encoder, encoder._to_device(images, first=True), given, place=1)
    (expected,) = torch.autograd.grad((states * torch.tensor(above)).sum(), given)
    found = vision.pull_back(images, prompt, above)
    np.testing.assert_allclose(found, expected, atol=1e-4 * float(expected.abs().max()))


def test_chunks_do_not_show(tiny_encoder, images, prompt):
    encoder = tiny_encoder("clip")
    above = np.random.default_rng(2).normal(size=(12, 32))
    whole = prompted_vision(encoder, chunk_size=64)
    expected = whole.pull_back(images, prompt, above)
    scale = np.abs(expected).max()
    for chunk_size in (1, 5):
        vision = prompted_vision(encoder, chunk_size=chunk_size)
        vision.batch_size = chunk_size
        np.testing.assert_allclose(vision.pull_back(images, prompt, above), expected, atol=1e-5 * scale)
        for one, other in zip(vision.encode(images, prompt), whole.encode(images, prompt), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)


def test_only_the_activations_of_a_chunk_are_in_memory(tiny_encoder, images, prompt):
    """What torch saves for the way back, counted: no more for many images than for a chunk of them."""
    encoder, above = tiny_encoder("clip"), np.ones((48, 32))
    most = {}
    for chunk_size in (4, 48):
        vision, held = prompted_vision(encoder, chunk_size=chunk_size), [0, 0]

        class Held:
            def __init__(self, tensor, held=held):
                self.tensor, self.held = tensor, held
                held[0] += tensor.numel()
                held[1] = max(held)

            def __del__(self):
                self.held[0] -= self.tensor.numel()

        with torch.autograd.graph.saved_tensors_hooks(Held, lambda kept: kept.tensor):
            vision.pull_back(np.tile(images, (4, 1, 1, 1)), prompt, above)
        most[chunk_size] = held[1]
    assert most[4] < most[48] / 4


def test_results_have_the_library_of_the_prompt_and_the_encoder_is_unchanged(tiny_encoder, images, prompt):
    encoder = tiny_encoder("clip")
    vision, before = prompted_vision(encoder), encoder.encode_pixels((images,))
    with torch.inference_mode():
        glance = vision.encode(images, torch.tensor(prompt))
        gradient = vision.pull_back(torch.tensor(images), torch.tensor(prompt), torch.ones(12, 32))
    assert isinstance(glance.features, torch.Tensor)
    assert isinstance(gradient, torch.Tensor)
    assert not glance.features.requires_grad
    np.testing.assert_array_equal(encoder.encode_pixels((images,)), before)
    assert all(weights.requires_grad for weights in encoder.model.vision_model.parameters())
    assert all(weights.grad is None for weights in encoder.model.parameters())
    assert vision.identity == {"encoder": encoder.key()}


def test_what_new_tokens_are_drawn_after(tiny_encoder):
    encoder = tiny_encoder("clip")
    vision = prompted_vision(encoder)
    weights = encoder.model.vision_model.embeddings.patch_embedding.weight.detach().double()
    assert (vision.width, vision.dimension, vision.input_shape) == (32, 16, (3, 32, 32))
    assert vision.patches.inputs == 3 * 8 * 8
    assert vision.patches.mean == pytest.approx(float(weights.mean()))
    assert vision.patches.std == pytest.approx(float(weights.std()))


def test_bytes_and_their_numbers_are_the_same(tiny_encoder, images, prompt):
    vision = prompted_vision(tiny_encoder("clip"))
    vision.check("images", images.astype(np.float32))
    one, other = vision.encode(images, prompt), vision.encode(images.astype(np.float32), prompt)
    np.testing.assert_allclose(one.states, other.states, atol=2e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda images: images.tolist(),
            r"images must be a NumPy array or a torch tensor; got list\. Fix: encoder\.pre",
        ),
        (lambda images: images[:, :, :-1], r"images must have the shape \(B, 3, 32, 32\).*; got \(12, 3, 31, 32\)"),
        (lambda images: images[:0], "at least one image"),
        (
            lambda images: images.astype(np.int64),
            r"images must be bytes \(uint8\) or floating-point numbers; got int",
        ),
        (
            lambda images: images / 100 - 1.0,
            r"images\[0\] contains NaN, infinity or a number outside 0 to 255\. Fix: pass pixels",
        ),
        (lambda images: np.where(np.arange(12)[:, None, None, None] == 7, np.nan, images), r"images\[7\] contains NaN"),
    ],
    ids=["a list", "too low", "none", "integers", "scaled", "NaN"],
)
def test_invalid_images_are_refused(tiny_encoder, images, change, message):
    with pytest.raises((TypeError, ValueError), match=message):
        prompted_vision(tiny_encoder("clip")).check("images", change(images))


def test_a_prompt_of_another_width_is_refused(tiny_encoder, images):
    with pytest.raises(ValueError, match=r"prompt must have the shape \(n, 32\), one row per token; got \(3, 31\)"):
        prompted_vision(tiny_encoder("clip")).encode(images, np.ones((3, 31)))


@pytest.mark.parametrize("family", ["siglip", "blip", "align"])
def test_other_image_encoders_are_refused(tiny_encoder, family):
    with pytest.raises(TypeError, match=rf"CLIP's vision transformer.*family '{family}'.*families clip, metacl"):
        prompted_vision(tiny_encoder(family))


def test_what_is_no_encoder_is_refused():
    with pytest.raises(
        TypeError, match=r"encoder must be a loaded encoder; got str\. Fix: zeroshift\.encode\.load_enc"
    ):
        prompted_vision("clip")


def test_dpcore_end_to_end(tiny_encoder, images):
    """Darkened images: a prompt brings their statistics nearer, and the second batch of them is known."""
    encoder = tiny_encoder("clip")
    vision, prototypes = prompted_vision(encoder), encoder.encode_texts([f"a photo of a {name}." for name in NAMES])
    source = source_statistics(vision, images, prototypes, logit_scale=encoder.logit_scale, max_entropy=2.0)
    dark = (images // 3).astype(np.uint8)
    settings = {"logit_scale": encoder.logit_scale, "batch_size": 6, "steps_new": 15, "threshold": 0.95}
    method = DPCore(prototypes, vision=vision, source=source, **settings)
    expected = posterior(encoder.encode_pixels((dark,)), prototypes, encoder.logit_scale)
    np.testing.assert_allclose(method.predict(dark), expected, atol=1e-4)
    answer = method.adapt(dark[:6])
    assert answer.shape == (6, 4)
    assert answer.dtype == np.float32
    assert method.coreset_size == 1
    target, learned = Moments(*method.source), method._state()[0]["prompts"][0]
    before, after = (
        float(distance(moments(to_numpy(vision.encode(dark[:6], tokens).states)), target, 1.0))
        for tokens in (None, learned)
    )
    assert after < 0.95 * before
    again = method.adapt(torch.tensor(dark[:6]))
    assert isinstance(again, torch.Tensor)
    assert method.coreset_size == 1
    assert method.adapt(dark[7]).shape == (4,)
    assert method.n_seen == 13


@pytest.mark.parametrize("seeing", [True, False], ids=["both sides", "text alone"])
def test_b2tpt_end_to_end(tiny_encoder, images, seeing, tmp_path):
    encoder = tiny_encoder("clip")
    prototypes = encoder.encode_texts([f"a photo of a {name}." for name in NAMES])
    text = prompted_text(encoder, NAMES, words=B2TPT.context_words)
    assert text.context.shape == (8, 32)
    vision = prompted_vision(encoder) if seeing else None
    given = images if seeing else encoder.encode_pixels((images,))
    settings = {"logit_scale": encoder.logit_scale, "batch_size": 6, "population": 5, "generations": 2}
    settings |= {"text_latent": 10, "vision_latent": 10}
    method = B2TPT(prototypes, text=text, vision=vision, **settings)
    expected = posterior(encoder.encode_pixels((images,)), prototypes, encoder.logit_scale)
    np.testing.assert_allclose(method.predict(given), expected, atol=1e-4)
    answer = method.adapt(given[:6])
    np.testing.assert_allclose(answer, method.predict(given[:6]), atol=1e-5)
    assert np.abs(answer - expected[:6]).max() > 1e-3
    method.save(tmp_path / "b2tpt.safetensors")
    again = B2TPT.load(tmp_path / "b2tpt.safetensors", text=text, vision=vision)
    np.testing.assert_array_equal(again.adapt(given[6:]), method.adapt(given[6:]))


@pytest.mark.parametrize("name", ["tent", "batclip", "mint", "tnt"])
def test_a_pipeline_of_class_names_and_images(tiny_encoder, name, tmp_path):
    """What a user does: images in, labels out, and later resume."""
    encoder, draw = tiny_encoder("clip"), np.random.default_rng(7)
    pictures = list(draw.integers(0, 256, size=(8, 40, 50, 3), dtype=np.uint8))
    options = {"views": Views(4)} if name == "tnt" else {"rate": 0.01}
    pipe = pipeline(encoder, NAMES, name, batch_size=4, **options)
    before = pipe(pictures[:4], learn=False)
    answers = pipe(pictures)
    assert [sorted(found["label"] for found in answer) for answer in answers] == [sorted(NAMES)] * 8
    assert pipe.method.n_seen == 8
    changed = [one != other for one, other in zip(pipe(pictures[:4], learn=False), before, strict=True)]
    assert all(changed) == (name != "tnt")  # episodes leave nothing behind
    pipe.save(tmp_path / "saved.zeroshift")
    again = Pipeline.load(tmp_path / "saved.zeroshift", encoder, views=options.get("views"))
    assert again(pictures[:4]) == pipe(pictures[:4])


@pytest.mark.parametrize("family", FAMILIES)
def test_both_sides_of_every_family_have_layer_norms(tiny_encoder, family, images):
    encoder = tiny_encoder(family)
    vision, text = prompted_vision(encoder), prompted_text(encoder, NAMES)
    np.testing.assert_allclose(text.features_with_norms(text.norms), text.features(text.context), atol=1e-6)
    features = vision.encode_with_norms(images, vision.norms)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    np.testing.assert_allclose(features, encoder.encode_pixels((images,)), atol=1e-6)
    method = make_method("batclip", encoder, NAMES, rate=0.05, batch_size=6)
    before = method.predict(images)
    np.testing.assert_allclose(before, posterior(features, method.prototypes, encoder.logit_scale), atol=1e-4)
    method.adapt(images)
    assert np.abs(method.predict(images) - before).max() > 1e-3
    np.testing.assert_allclose(text.features(text.context), method.prototypes, atol=1e-6)  # restored


def test_noise_on_the_pixels_is_that_of_the_image(tiny_encoder, images):
    """Added to bytes, or to the pixels in the encoder: the same features."""
    encoder = tiny_encoder("clip")
    vision, draw = prompted_vision(encoder), np.random.default_rng(8)
    changes = draw.integers(-40, 41, size=(3, 32, 32))
    expected = encoder.encode_pixels(((images + changes).clip(0, 255).astype(np.uint8),))
    np.testing.assert_allclose(vision.encode_with_noise(images, changes / 255), expected, atol=2e-5)
    np.testing.assert_allclose(vision.encode_with_noise(images, 0.0 * changes), vision.encode(images, None).features,
                               atol=2e-5)  # fmt: skip


def test_prompts_cannot_be_given_to_a_method_with_a_text_side_of_its_own(tiny_encoder):
    with pytest.raises(ValueError, match=r"prompts cannot be given to batclip, which starts from a prompt of its own"):
        make_method("batclip", tiny_encoder("clip"), NAMES, prompts="ensemble")


def test_images_as_the_preprocessing_makes_them(tiny_encoder):
    from PIL import Image

    encoder = tiny_encoder("clip")
    pictures = [Image.new("RGB", size, colour) for size, colour in (((50, 40), "red"), ((33, 70), "blue"))]
    (pixels,) = stack_pixels([encoder.preprocessing(image) for image in pictures])
    vision = prompted_vision(encoder)
    vision.check("images", pixels)
    np.testing.assert_allclose(vision.encode(pixels, None).features, encoder.encode_images(pictures), atol=1e-6)


def test_gradients_of_layer_norms_and_noise_in_half_precision(tiny_encoder, tiny_folder, images):
    """They are those of float32 but for rounding, also for upstream gradients near the limit of the format."""
    exact, half = tiny_encoder("clip"), load_encoder(str(tiny_folder("clip")), device="cpu", dtype="bfloat16")
    above, above_text = np.random.default_rng(9).normal(size=(12, 16)), np.random.default_rng(9).normal(size=(4, 16))
    noise, found = np.zeros((3, 32, 32)), []
    for encoder, scale in ((exact, 1.0), (half, 1e-36)):
        vision, text = prompted_vision(encoder), prompted_text(encoder, NAMES)
        assert vision.norms.dtype == text.norms.dtype == np.float32
        gradients = [
            vision.linearize_norms(images, vision.norms.astype(np.float64))[1](scale * above),
            text.linearize_norms(text.norms.astype(np.float64))[1](scale * above_text),
            vision.pull_back_noise(images, noise, scale * above),
        ]
        found.append([gradient / scale for gradient in gradients])
    for expected, rounded in zip(*found, strict=True):
        np.testing.assert_allclose(rounded, expected, atol=0.15 * np.abs(expected).max())
