"""MaPLe's prompts in CLIP against a plain implementation; PromptAlign on images."""

from __future__ import annotations

import copy
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from encode import tiny  # noqa: E402
from encode.deep_clip import LAYERS, load_deep_clip  # noqa: E402
from encode.maple_checkpoint import DEPTH, IMAGE_WIDTH, WORDS, state, write_checkpoint  # noqa: E402
from encode.numpy_encoder import NumpyEncoder, adapt_images, noise  # noqa: E402
from zeroshift.encode import Views, load_maple, maple_statistics  # noqa: E402
from zeroshift.methods._shared.towers import LayerOutput  # noqa: E402
from zeroshift.methods.promptalign import PromptAlign  # noqa: E402

NAMES = ["cat", "dog", "frog", "horse"]
PROMPTS = [f"a photo of a {name}." for name in NAMES]
PATCHES = (tiny.SIDE // 8) ** 2
VIEWS = Views(10, seed=3)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return load_deep_clip(tmp_path_factory.mktemp("models") / "tiny-deep", IMAGE_WIDTH)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("maple") / "model.pth.tar-2")


@pytest.fixture(scope="module")
def maple(encoder, checkpoint):
    return load_maple(encoder, checkpoint, NAMES, chunk_size=3, image_chunk_size=2)


@pytest.fixture(scope="module")
def views(encoder):
    """(10, 3, H, W): one picture's."""
    return VIEWS(noise(3, 50, 60), encoder.preprocessing, b"key")[0]


@pytest.fixture(scope="module")
def source(encoder, maple):
    pictures = np.stack([encoder.preprocessing(noise(20 + i, 40, 50))[0] for i in range(7)])
    return maple_statistics(maple, pictures)


class Plain:
    """The two sides taken layer by layer, without hooks: one graph over `named`, the authors' parameters."""

    def __init__(self, encoder, named):
        self.encoder, self.model = encoder, copy.deepcopy(encoder.model).requires_grad_(False)
        self.named = {
            name.removeprefix("prompt_learner."): tensor.double().requires_grad_()
            for name, tensor in named.items()
            if name.startswith("prompt_learner.") and "token" not in name
        }

    def deep(self, layer):
        return self.named["ctx" if layer == 0 else f"compound_prompts_text.{layer - 1}"]

    def projected(self, layer):
        stem = "proj" if layer == 0 else f"compound_prompt_projections.{layer - 1}"
        return torch.nn.functional.linear(self.deep(layer), self.named[f"{stem}.weight"], self.named[f"{stem}.bias"])

    def text(self):
        text = self.model.text_model
        ids = self.encoder._tokens(PROMPTS)["input_ids"]
        hidden = text.embeddings.token_embedding(ids)
        hidden = torch.cat([hidden[:, :1], self.deep(0).expand(len(ids), -1, -1), hidden[:, 1 + WORDS :]], dim=1)
        hidden = hidden + text.embeddings.position_embedding.weight[: ids.shape[1]]
        mask = torch.full((ids.shape[1],) * 2, -torch.inf, dtype=hidden.dtype).triu(1)[None, None]
        for number, layer in enumerate(text.encoder.layers):
            if 0 < number < DEPTH:
                deep = self.deep(number).expand(len(ids), -1, -1)
                hidden = torch.cat([hidden[:, :1], deep, hidden[:, 1 + WORDS :]], dim=1)
            hidden = layer(hidden, mask)
        ends = (ids == self.encoder.tokenizer.eos_token_id).int().argmax(dim=1)
        pooled = text.final_layer_norm(hidden)[torch.arange(len(ids)), ends]
        return torch.nn.functional.normalize(self.model.text_projection(pooled), dim=-1)

    def look(self, images):
        vision = self.model.vision_model
        pixels = torch.tensor(self.encoder.preprocessing.values(images)).double()
        hidden = vision.embeddings(pixels)
        hidden = vision.pre_layrnorm(torch.cat([hidden, self.projected(0).expand(len(hidden), -1, -1)], dim=1))
        tokens = []
        for number, layer in enumerate(vision.encoder.layers):
            if 0 < number < DEPTH:
                deep = self.projected(number).expand(len(hidden), -1, -1)
                hidden = torch.cat([hidden[:, :-WORDS], deep], dim=1)
            tokens.append(hidden)
            hidden = layer(hidden, None)
        pooled = self.model.visual_projection(vision.post_layernorm(hidden[:, 0]))
        return torch.nn.functional.normalize(pooled, dim=-1), torch.stack(tokens, dim=1)

    def flat(self, tensors):
        """The authors' parameters in the order of `maple.parameters`."""
        layers = [("ctx", "proj")]
        layers += [(f"compound_prompts_text.{n}", f"compound_prompt_projections.{n}") for n in range(DEPTH - 1)]
        names = [name for deep, stem in layers for name in (deep, f"{stem}.weight", f"{stem}.bias")]
        return torch.cat([tensors[name].reshape(-1) for name in names]).detach().numpy()


@pytest.fixture
def plain(encoder):
    return Plain(encoder, state())


def test_features_equal_a_plain_implementation(maple, plain, views):
    assert maple.token_shape == (1 + PATCHES + WORDS, 48)
    assert (maple.depth, maple.words, maple.n_layers, maple.n_classes) == (DEPTH, WORDS, LAYERS, 4)
    np.testing.assert_array_equal(maple.parameters, plain.flat(plain.named).astype(np.float32))
    wide = maple.parameters.astype(np.float64)
    np.testing.assert_allclose(maple.text(wide), plain.text().detach(), atol=1e-10)
    features, tokens = plain.look(views)
    for layers in (0, 2, LAYERS):
        seen = maple.encode_images(views, wide, layers)
        np.testing.assert_allclose(seen.features, features.detach(), atol=1e-10)
        np.testing.assert_allclose(seen.tokens, tokens[:, :layers].detach(), atol=1e-10)


@pytest.mark.parametrize("layers", [0, 2, LAYERS])
def test_gradients_are_those_of_one_graph(maple, plain, views, layers):
    draw = np.random.default_rng(1)
    to_text, to_features = draw.normal(size=(4, maple.dimension)), draw.normal(size=(5, maple.dimension))
    to_tokens = 0.1 * draw.normal(size=(5, layers, *maple.token_shape))
    names = list(plain.named)

    def gradient(total):
        parts = torch.autograd.grad(total, list(plain.named.values()), allow_unused=True, materialize_grads=True)
        return plain.flat(dict(zip(names, parts, strict=True)))

    wide = maple.parameters.astype(np.float64)
    found = maple.pull_back_text(wide, to_text)
    np.testing.assert_allclose(found, gradient((plain.text() * torch.tensor(to_text)).sum()), atol=1e-9)
    features, tokens = plain.look(views[:5])
    total = (features * torch.tensor(to_features)).sum() + (tokens[:, :layers] * torch.tensor(to_tokens)).sum()
    found = maple.pull_back_images(views[:5], wide, LayerOutput(to_features, to_tokens))
    np.testing.assert_allclose(found, gradient(total), atol=1e-9)
    assert np.abs(found).max() > 1e-3


def plain_promptalign(plain, views, source, *, keep, rate=4e-2, weight=100 / 3, layers=2):
    """The specification's loop; the logits of view 0."""
    scale = plain.encoder.logit_scale
    means, variances = (torch.tensor(part) for part in source)
    optimiser = torch.optim.AdamW(plain.named.values(), lr=rate)
    features, tokens = plain.look(views)
    logits = scale * features @ plain.text().T
    kept = (-(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)).argsort()[:keep]
    mean = logits[kept].softmax(-1).mean(0)
    loss = -(mean * mean.log()).sum()
    for layer in range(layers):
        chosen = tokens[kept, layer]
        loss = loss + weight * 0.5 * (chosen.mean(0) - means[layer]).abs().mean()
        loss = loss + weight * 0.5 * (((chosen - chosen.mean(0)) ** 2).mean(0) - variances[layer]).abs().mean()
    loss.backward()
    optimiser.step()
    with torch.no_grad():
        return (scale * plain.look(views[:1])[0] @ plain.text().T)[0].numpy()


@pytest.mark.parametrize("layers", [2, 3])
def test_promptalign_is_the_specification(encoder, maple, source, views, plain, layers):
    prototypes = maple.text(maple.parameters.astype(np.float64))
    method = PromptAlign(
        prototypes, maple=maple, source=source, logit_scale=encoder.logit_scale, view_ratio=0.4, layers=layers
    )
    before = maple.parameters.copy()
    first = method.adapt_views_scores(views)
    expected = plain_promptalign(plain, views, source, keep=4, layers=layers)
    np.testing.assert_allclose(first, expected, atol=2e-5)  # answered in float32, as bytes were given
    assert (
        np.abs(first - method.logit_scale * prototypes @ maple.encode_images(views[:1], before).features[0]).max()
        > 1e-2
    )
    np.testing.assert_array_equal(method.adapt_views_scores(views), first)
    np.testing.assert_array_equal(maple.parameters, before)


def test_chunks_do_not_show(encoder, checkpoint, maple, views):
    whole = load_maple(encoder, checkpoint, NAMES)
    draw, wide = np.random.default_rng(2), maple.parameters.astype(np.float64)
    above = LayerOutput(draw.normal(size=(10, maple.dimension)), draw.normal(size=(10, 2, *maple.token_shape)))
    to_text = draw.normal(size=(4, maple.dimension))
    for one, other in (
        (maple.pull_back_images(views, wide, above), whole.pull_back_images(views, wide, above)),
        (maple.pull_back_text(wide, to_text), whole.pull_back_text(wide, to_text)),
    ):
        np.testing.assert_allclose(one, other, atol=1e-10)


def test_half_precision_points_the_same_way(encoder, checkpoint, maple, views):
    narrow = copy.copy(encoder)
    narrow.model, narrow.dtype = copy.deepcopy(encoder.model).to(torch.bfloat16), torch.bfloat16
    half = load_maple(narrow, checkpoint, NAMES)
    draw = np.random.default_rng(3)
    above = LayerOutput(1e-9 * draw.normal(size=(4, maple.dimension)), np.zeros((4, 1, *maple.token_shape)))
    to_text = 1e-9 * draw.normal(size=(4, maple.dimension))
    for call in (
        lambda one: one.pull_back_images(views[:4], one.parameters.astype(np.float64), above),
        lambda one: one.pull_back_text(one.parameters.astype(np.float64), to_text),
    ):
        wide, found = call(maple), call(half).astype(np.float64)
        assert found @ wide > 0.97 * np.linalg.norm(wide) * np.linalg.norm(found) > 0


def test_predictions_from_images(encoder, maple, source):
    method = PromptAlign(maple.text(maple.parameters), maple=maple, source=source, view_ratio=0.4)
    pictures = [noise(i, 40 + i, 50) for i in range(3)]
    found = np.stack(list(adapt_images(method, encoder, pictures, views=VIEWS)))
    together = np.stack(list(adapt_images(method, encoder, pictures, views=VIEWS, batch_size=3)))
    np.testing.assert_array_equal(found, together)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-6)
    assert method.n_seen == 6
    single = encoder.preprocessing(pictures[0])[0]
    np.testing.assert_array_equal(method.adapt(single), method.adapt_views(single[None]))


def test_the_encoder_and_other_threads_do_not_notice(encoder, maple, views):
    before = encoder.encode_texts(PROMPTS), encoder.encode_pixels((views,))
    inside = []

    def elsewhere():
        inside.append((encoder.encode_texts(PROMPTS), encoder.encode_pixels((views,))))

    def watch(module, arguments):
        handle.remove()
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()

    handle = encoder.model.vision_model.encoder.layers[3].register_forward_pre_hook(watch)
    maple.encode_images(views, maple.parameters, 2)
    assert inside
    for seen in (*inside, (encoder.encode_texts(PROMPTS), encoder.encode_pixels((views,)))):
        for one, other in zip(seen, before, strict=True):
            np.testing.assert_array_equal(one, other)


def test_statistics_are_those_of_all_images_together(encoder, maple, source):
    pictures = np.stack([encoder.preprocessing(noise(20 + i, 40, 50))[0] for i in range(7)])
    tokens = maple.encode_images(pictures, maple.parameters, 3).tokens.astype(np.float64)
    np.testing.assert_allclose(source.means, tokens.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(source.variances, tokens.var(axis=0), atol=1e-6)
    pieces = maple_statistics(maple, iter([pictures[:3], pictures[3:]]), batch_size=2)
    for one, other in zip(pieces, source, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    with pytest.raises(ValueError, match="at least two"):
        maple_statistics(maple, pictures[:1])
    with pytest.raises(ValueError, match=r"layers must be an integer from 1 to 4"):
        maple_statistics(maple, pictures, layers=5)
    with pytest.raises(TypeError, match="load_maple"):
        maple_statistics(encoder, pictures)


def test_an_encoder_the_prompts_do_not_fit_is_refused(tmp_path, encoder, checkpoint, tiny_encoder):
    with pytest.raises(ValueError, match="width 32 for text and 48 for images"):
        load_maple(tiny_encoder("clip"), checkpoint, NAMES)
    torch.save({"state_dict": state(5)}, tmp_path / "deep.pth")
    with pytest.raises(ValueError, match="prompts for 5 layers, the encoder has 4"):
        load_maple(encoder, tmp_path / "deep.pth", NAMES)
    for other in (tiny_encoder("siglip"), NumpyEncoder()):
        with pytest.raises(TypeError, match="encoder must have"):
            load_maple(other, checkpoint, NAMES)
    with pytest.raises(TypeError, match="CLIP's text transformer"):
        load_maple(tiny_encoder("altclip"), checkpoint, NAMES)


def test_other_arguments_that_do_not_fit_are_refused(encoder, checkpoint, maple, views):
    with pytest.raises(ValueError, match=r"template must have at least 2 tokens before \{\}.*has 1"):
        load_maple(encoder, checkpoint, NAMES, template="a {}.")
    with pytest.raises(ValueError, match="which are the same name"):
        load_maple(encoder, checkpoint, ["cat", "cat"])
    with pytest.raises(ValueError, match="chunk_size"):
        load_maple(encoder, checkpoint, NAMES, chunk_size=0)
    with pytest.raises(ValueError, match=r"Fix: maple\.parameters"):
        maple.text(maple.parameters[1:])
    with pytest.raises(ValueError, match=r"images must have the shape \(B, 3, 32, 32\)"):
        maple.check("images", views[:, :, :-1])


def test_a_saved_method_knows_its_prompts(tmp_path, encoder, maple, source):
    method = PromptAlign(maple.text(maple.parameters), maple=maple, source=source)
    method.save(tmp_path / "state.safetensors")
    assert PromptAlign.load(tmp_path / "state.safetensors", maple=maple).maple is maple
    torch.save({"state_dict": {**state(), "prompt_learner.ctx": torch.zeros(2, 32)}}, tmp_path / "other.pth")
    other = load_maple(encoder, tmp_path / "other.pth", NAMES)
    with pytest.raises(ValueError, match="pass the maple it was saved with"):
        PromptAlign.load(tmp_path / "state.safetensors", maple=other)
