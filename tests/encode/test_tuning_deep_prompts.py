"""Prompts of PromptSRC in CLIP against a plain implementation, and its training against a plain loop in torch."""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from encode.deep_clip import LAYERS, load_deep_clip  # noqa: E402
from encode.numpy_encoder import NumpyEncoder, adapt_images, noise  # noqa: E402
from zeroshift.encode import Prompts, deep_prompts, encode_classes, make_method  # noqa: E402
from zeroshift.methods import PromptSRC, load  # noqa: E402
from zeroshift.methods._shared.towers import LayerOutput  # noqa: E402

NAMES = ["cat", "dog", "frog", "horse"]
DEPTH, WORDS, IMAGE_WIDTH = 3, 2, 48


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return load_deep_clip(tmp_path_factory.mktemp("models") / "tiny-deep", IMAGE_WIDTH)


@pytest.fixture(scope="module")
def towers(encoder):
    return deep_prompts(encoder, NAMES, depth=DEPTH, words=WORDS, chunk_size=3, image_chunk_size=2)


@pytest.fixture(scope="module")
def images(encoder):
    return np.stack([encoder.preprocessing(noise(20 + i, 40, 50))[0] for i in range(12)])


LABELS = np.arange(12) % 4


def ensemble(encoder):
    return encode_classes(encoder, Prompts.named("ensemble").for_classes(NAMES)).prototypes


class Plain:
    """Both encoders layer by layer, without hooks, in one graph over the prompts of both sides."""

    def __init__(self, encoder, parameters):
        self.encoder, self.model = encoder, copy.deepcopy(encoder.model).requires_grad_(False)
        cut = DEPTH * WORDS * self.model.text_model.final_layer_norm.weight.shape[0]
        text, image = torch.tensor(np.array(parameters)).double().split([cut, len(parameters) - cut])
        self.prompts = [part.reshape(DEPTH, WORDS, -1).clone().requires_grad_() for part in (text, image)]

    def flat(self):
        return torch.cat([part.detach().reshape(-1) for part in self.prompts])

    def text(self):
        text, prompts = self.model.text_model, self.prompts[0]
        ids = self.encoder._tokens([f"a photo of a {name}." for name in NAMES])["input_ids"]
        hidden = text.embeddings.token_embedding(ids)
        positions = text.embeddings.position_embedding.weight[: ids.shape[1]]
        mask = torch.full((ids.shape[1],) * 2, -torch.inf, dtype=hidden.dtype).triu(1)[None, None]
        for number, layer in enumerate(text.encoder.layers):
            if number < DEPTH:
                own = prompts[number].expand(len(ids), -1, -1)
                hidden = torch.cat([hidden[:, :1], own, hidden[:, 1 + WORDS :]], dim=1)
            hidden = layer(hidden + positions if number == 0 else hidden, mask)
        ends = (ids == self.encoder.tokenizer.eos_token_id).int().argmax(dim=1)
        pooled = text.final_layer_norm(hidden)[torch.arange(len(ids)), ends]
        return torch.nn.functional.normalize(self.model.text_projection(pooled), dim=-1)

    def images(self, images, *, prompted=True):
        vision, prompts = self.model.vision_model, self.prompts[1]
        hidden = vision.embeddings(torch.tensor(self.encoder.preprocessing.values(images)).double())
        if prompted:
            hidden = torch.cat([hidden, prompts[0].expand(len(hidden), -1, -1)], dim=1)
        hidden = vision.pre_layrnorm(hidden)
        for number, layer in enumerate(vision.encoder.layers):
            if prompted and 0 < number < DEPTH:
                hidden = torch.cat([hidden[:, :-WORDS], prompts[number].expand(len(hidden), -1, -1)], dim=1)
            hidden = layer(hidden, None)
        return torch.nn.functional.normalize(self.model.visual_projection(vision.post_layernorm(hidden[:, 0])), dim=-1)


def test_features_equal_a_plain_implementation(encoder, towers, images):
    plain, wide = Plain(encoder, towers.parameters), towers.parameters.astype(np.float64)
    np.testing.assert_allclose(towers.text(wide), plain.text().detach(), atol=1e-10)
    np.testing.assert_allclose(towers.encode_images(images, wide).features, plain.images(images).detach(), atol=1e-10)
    without = plain.images(images, prompted=False).detach().numpy()
    np.testing.assert_allclose(towers.encode_without_prompts(images), without, atol=1e-10)
    assert np.abs(without - plain.images(images).detach().numpy()).max() > 1e-3


def test_prompts_start_with_the_words_and_small_random_numbers(encoder, towers):
    table = encoder.model.text_model.embeddings.token_embedding.weight
    ids = encoder._tokens(["a photo of a cat."])["input_ids"][0, 1 : 1 + WORDS]
    cut = WORDS * table.shape[1]
    np.testing.assert_allclose(towers.parameters[:cut], table[ids].detach().reshape(-1), atol=1e-7)
    assert towers.parameters[cut:].std() == pytest.approx(0.02, rel=0.1)
    assert towers.parameters.shape == (DEPTH * WORDS * (table.shape[1] + IMAGE_WIDTH),)
    again, other = (deep_prompts(encoder, NAMES, depth=DEPTH, words=WORDS, seed=seed).parameters for seed in (0, 1))
    np.testing.assert_array_equal(again, towers.parameters)
    assert np.abs(other - towers.parameters).max() > 1e-2


def test_gradients_are_those_of_one_graph(encoder, towers, images):
    plain, wide, draw = (
        Plain(encoder, towers.parameters),
        towers.parameters.astype(np.float64),
        np.random.default_rng(1),
    )
    to_text, to_features = draw.normal(size=(4, towers.dimension)), draw.normal(size=(5, towers.dimension))

    def gradient(total):
        parts = torch.autograd.grad(total, plain.prompts, allow_unused=True, materialize_grads=True)
        return torch.cat([part.reshape(-1) for part in parts])

    np.testing.assert_allclose(
        towers.pull_back_text(wide, to_text), gradient((plain.text() * torch.tensor(to_text)).sum()), atol=1e-9
    )
    found = towers.pull_back_images(images[:5], wide, LayerOutput(to_features, np.zeros((5, 0, *towers.token_shape))))
    expected = gradient((plain.images(images[:5]) * torch.tensor(to_features)).sum())
    np.testing.assert_allclose(found, expected, atol=1e-9)
    assert np.abs(found).max() > 1e-3
    # Against a difference quotient, too.
    direction = draw.normal(size=wide.shape)
    ends = [
        (towers.encode_images(images[:5], wide + s * direction).features * to_features).sum() for s in (1e-5, -1e-5)
    ]
    assert found @ direction == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5)


@pytest.mark.parametrize("fails", ["nothing", "forward", "backward"])
def test_one_graph_gives_the_same_as_chunks(encoder, towers, images, fails, monkeypatch):
    """Also where memory runs out."""
    whole = deep_prompts(encoder, NAMES, depth=DEPTH, words=WORDS)
    wide, draw, grad = towers.parameters.astype(np.float64), np.random.default_rng(5), torch.autograd.grad
    above = draw.normal(size=(4, towers.dimension)), draw.normal(size=(12, towers.dimension))
    encode, graphs = whole._encode_images, []

    def limited_encode(given, prompts, layers):
        if fails == "forward" and torch.is_grad_enabled() and len(given) == 12:
            raise MemoryError("none left")
        return encode(given, prompts, layers)

    def limited_grad(outputs, *arguments, **options):
        graphs.append(len(outputs))
        if fails == "backward" and len(outputs) == 2:
            raise RuntimeError("CUDA error: out of memory")
        return grad(outputs, *arguments, **options)

    monkeypatch.setattr(whole, "_encode_images", limited_encode)
    monkeypatch.setattr(torch.autograd, "grad", limited_grad)
    text, features, pull_back = whole.linearize(images, wide)
    found = pull_back(*above)
    assert graphs.count(2) == (fails != "forward")
    expected_text, expected_features, expected = towers.linearize(images, wide)
    np.testing.assert_allclose(text, expected_text, atol=1e-12)
    np.testing.assert_allclose(features, expected_features, atol=1e-12)
    for gradient in (found, pull_back(*above)):
        np.testing.assert_allclose(gradient, expected(*above), atol=1e-10)
    assert np.abs(found).max() > 1e-3


def plain_training(encoder, start, prototypes, images, order, *, size, rate, average, weights=(25.0, 10.0, 1.0)):
    """The specification's loop with torch's gradients and SGD: the averaged prompts, the losses, the classifier."""
    from torch.nn.functional import cross_entropy, kl_div, l1_loss

    plain, scale = Plain(encoder, start), encoder.logit_scale
    t0, y = torch.tensor(np.array(prototypes)).double(), torch.tensor(LABELS)
    optimiser = torch.optim.SGD(plain.prompts, lr=1.0, momentum=0.9, weight_decay=5e-4)
    total, losses = 0.0, []
    for epoch, numbers in enumerate(order):
        cosine = rate * (1 + np.cos(np.pi * (epoch - 1) / len(order))) / 2
        optimiser.param_groups[0]["lr"] = cosine if epoch else 1e-5
        for first in range(0, len(numbers) // size * size, size):
            rows = numbers[first : first + size]
            with torch.no_grad():
                f0 = plain.images(images[rows], prompted=False)
            f, t = plain.images(images[rows]), plain.text()
            z, z0 = scale * f @ t.T, scale * f0 @ t0.T
            kl = kl_div(z.log_softmax(1), z0.log_softmax(1), reduction="sum", log_target=True) / z.numel()
            loss = (
                cross_entropy(z, y[rows]) + weights[0] * l1_loss(t, t0) + weights[1] * l1_loss(f, f0) + weights[2] * kl
            )
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        total = total + average[epoch] * plain.flat()
    averaged = Plain(encoder, total.numpy())
    with torch.no_grad():
        return total.numpy(), losses, (scale * averaged.images(images) @ averaged.text().T).numpy()


@pytest.mark.parametrize(
    ("settings", "average"),
    [
        ({"average": (3.0, 1.0)}, np.exp(-((np.arange(1, 5) - 3.0) ** 2) / 2)),
        ({"average": None}, np.array([0.0, 0, 0, 1])),
        ({"average": None, "text_weight": 0.0, "image_weight": 0.0, "logit_weight": 0.0}, np.array([0.0, 0, 0, 1])),
    ],
    ids=["averaged", "last", "plain deep prompts"],
)
def test_training_is_the_specification(encoder, towers, images, settings, average):
    prototypes = ensemble(encoder)
    order = np.stack([np.random.default_rng(i).permutation(12) for i in range(4)])
    if settings == {"average": None}:
        towers = deep_prompts(encoder, NAMES, depth=DEPTH, words=WORDS)  # one graph per step, instead of chunks
    method = PromptSRC(
        prototypes, towers=towers, support=(images, LABELS), epochs=4, order=order, batch_size=5, rate=0.02,
        logit_scale=encoder.logit_scale, **settings,
    )  # fmt: skip
    names = ("text_weight", "image_weight", "logit_weight")
    weights = [settings.get(name, usual) for name, usual in zip(names, (25.0, 10.0, 1.0), strict=True)]
    expected, losses, scores = plain_training(
        encoder, towers.parameters, prototypes, images, order, size=5, rate=0.02, average=average / average.sum(),
        weights=weights,
    )  # fmt: skip
    np.testing.assert_allclose(method.losses, losses, atol=1e-8)
    np.testing.assert_allclose(method.prompts, expected, atol=1e-8)
    np.testing.assert_allclose(
        method.predict_scores(images), scores, atol=2e-5
    )  # answered in float32, as bytes were given
    assert np.abs(method.prompts - towers.parameters).max() > 1e-3
    np.testing.assert_array_equal(towers.parameters, deep_prompts(encoder, NAMES, depth=DEPTH, words=WORDS).parameters)


def test_a_saved_method_is_loaded_without_training(encoder, towers, images, tmp_path, monkeypatch):
    method = make_method("promptsrc", encoder, NAMES, towers=towers, support=(images, LABELS), epochs=1, average=None)
    method.adapt(images[:2])
    method.save(tmp_path / "promptsrc.safetensors")
    monkeypatch.setattr(type(towers), "pull_back_text", None)
    again = load(tmp_path / "promptsrc.safetensors", towers=towers)
    np.testing.assert_array_equal(again.predict(images), method.predict(images))
    np.testing.assert_array_equal(again.prompts, method.prompts)
    assert again.n_seen == 2
    with pytest.raises(ValueError, match="was saved with"):
        load(tmp_path / "promptsrc.safetensors", towers=deep_prompts(encoder, NAMES, depth=2, words=WORDS))


def test_make_method_makes_towers_and_prototypes(encoder, images):
    with pytest.raises(ValueError, match=rf"depth must be at most the {LAYERS} layers of the encoder; got 9"):
        make_method("promptsrc", encoder, NAMES, support=(images, LABELS))
    towers = deep_prompts(encoder, NAMES, depth=2)
    method = make_method("promptsrc", encoder, NAMES, towers=towers, support=(images, LABELS), epochs=0)
    np.testing.assert_array_equal(method.prototypes, ensemble(encoder))
    np.testing.assert_array_equal(method.prompts, towers.parameters)


def test_pictures_are_predicted_as_their_pixels(encoder, towers, images):
    method = make_method("promptsrc", encoder, NAMES, towers=towers, support=(images, LABELS), epochs=1, average=None)
    pictures = [noise(20 + i, 40, 50) for i in range(3)]
    np.testing.assert_allclose(
        np.stack(list(adapt_images(method, encoder, pictures))), method.predict(images[:3]), atol=1e-6
    )


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"support": None}, TypeError, r"support must be a pair \(images, labels\); got NoneType"),
        ({"support": (np.zeros((3, 5)), np.arange(3))}, ValueError, r"support images must have the shape \(B, 3, "),
        ({"initial": np.zeros(3)}, ValueError, r"initial must have the shape \(\d+,\); got \(3,\)"),
        ({"average": (1.0, 0.0)}, ValueError, "average must be None or a pair .*spread: a number greater than 0"),
        ({"towers": None}, TypeError, r"towers must be an IndependentPrompts, as zeroshift.encode.deep_prompts"),
    ],
)
def test_parameters_that_do_not_fit_raise(encoder, towers, images, changes, kind, message):
    prototypes = ensemble(encoder)
    given = {"towers": towers, "support": (images, LABELS), "epochs": 1, **changes}
    with pytest.raises(kind, match=message):
        PromptSRC(prototypes, **given)


def test_labels_and_classes_that_do_not_fit_raise(encoder, towers, images):
    prototypes = ensemble(encoder)
    with pytest.raises(ValueError, match="support labels"):
        PromptSRC(prototypes, towers=towers, support=(images, np.full(12, 4)), epochs=1)
    with pytest.raises(ValueError, match="towers has 4 classes"):
        PromptSRC(prototypes[:3], towers=towers, support=(images, LABELS % 3), epochs=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"words": 0}, "words must be an integer of at least 1"),
        (
            {"words": 30},
            r"template must have at least 30 tokens before \{\}, which are tuned; 'a photo of a \{\}.' has",
        ),
        ({"seed": -1}, "seed must be an integer of at least 0"),
        ({"template": "a photo"}, "template"),
    ],
)
def test_prompts_that_do_not_fit_raise(encoder, changes, message):
    with pytest.raises(ValueError, match=message):
        deep_prompts(encoder, NAMES, **{"depth": 2, **changes})


def test_other_encoders_are_refused():
    with pytest.raises(TypeError, match=r"CLIP's vision transformer; got .* of the family 'plain'"):
        deep_prompts(NumpyEncoder(), NAMES)
