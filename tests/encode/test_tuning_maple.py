"""MaPLe's prompts in CLIP: against one graph written plainly; its checkpoints; PromptAlign from pictures to answers."""

from __future__ import annotations

import copy
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from encode import tiny  # noqa: E402
from encode.plain import PlainEncoder, noise  # noqa: E402
from zeroshift.encode import Views, adapt_images, load_maple, maple_statistics, registry  # noqa: E402
from zeroshift.encode.tuning.maple_file import read_maple  # noqa: E402
from zeroshift.files import FileFormatError  # noqa: E402
from zeroshift.methods.parts.maple_towers import Look  # noqa: E402
from zeroshift.methods.promptalign import PromptAlign  # noqa: E402

NAMES = ["cat", "dog", "frog", "horse"]
PROMPTS = [f"a photo of a {name}." for name in NAMES]
WORDS, DEPTH, WIDTH, LAYERS = 2, 3, 32, 4
PATCHES = (tiny.SIDE // 8) ** 2
VIEWS = Views(10, seed=3)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A tiny CLIP of four layers, in float64: what is left between two answers is no rounding of the model's."""
    folder = tmp_path_factory.mktemp("models") / "tiny-deep"
    settings = tiny._clip_settings(tiny._clip_tokenizer(folder))
    for side in ("text_config", "vision_config"):
        settings[side] = {**settings[side], "num_hidden_layers": LAYERS}
    settings["vision_config"]["hidden_size"] = 48  # unlike the text side's, which is 32
    kinds = transformers.CLIPModel, transformers.CLIPImageProcessorPil
    tiny._save(folder, kinds[0], transformers.CLIPConfig(**settings), kinds[1], crop=True)
    loaded = registry.load(str(folder), device="cpu")
    loaded.model, loaded.dtype = loaded.model.double(), torch.float64
    return loaded


def state(depth=DEPTH, *, words=WORDS, text=WIDTH, image=48):
    """The authors' keys, with small random numbers."""
    draw = torch.Generator().manual_seed(5)

    def numbers(*shape):
        return 0.2 * torch.randn(*shape, generator=draw)

    found = {"ctx": numbers(words, text), "proj.weight": numbers(image, text), "proj.bias": numbers(image)}
    for n in range(depth - 1):
        found[f"compound_prompts_text.{n}"] = numbers(words, text)
        found[f"compound_prompt_projections.{n}.weight"] = numbers(image, text)
        found[f"compound_prompt_projections.{n}.bias"] = numbers(image)
    found["token_prefix"], found["token_suffix"] = numbers(7, 1, text), numbers(7, 5, text)
    named = {f"prompt_learner.{name}": tensor for name, tensor in found.items()}
    return {**named, "image_encoder.conv1.weight": numbers(2, 2)}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """As the authors' training writes it, the schedule and all."""
    path = tmp_path_factory.mktemp("maple") / "model.pth.tar-2"
    weight = torch.nn.Parameter(torch.zeros(2))
    optimiser = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 5.0)
    kept = {"successor": schedule, "last_epoch": 2}
    torch.save({"state_dict": state(), "epoch": 2, "optimizer": optimiser.state_dict(), "scheduler": kept}, path)
    return path


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


def test_both_sides_are_the_plain_ones(maple, plain, views):
    assert maple.token_shape == (1 + PATCHES + WORDS, 48)
    assert (maple.depth, maple.words, maple.n_layers, maple.n_classes) == (DEPTH, WORDS, LAYERS, 4)
    np.testing.assert_array_equal(maple.parameters, plain.flat(plain.named).astype(np.float32))
    wide = maple.parameters.astype(np.float64)
    np.testing.assert_allclose(maple.text(wide), plain.text().detach(), atol=1e-10)
    features, tokens = plain.look(views)
    for layers in (0, 2, LAYERS):
        seen = maple.look(views, wide, layers)
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
    found = maple.pull_back_images(views[:5], wide, Look(to_features, to_tokens))
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
    assert np.abs(first - method.logit_scale * prototypes @ maple.look(views[:1], before).features[0]).max() > 1e-2
    np.testing.assert_array_equal(method.adapt_views_scores(views), first)
    np.testing.assert_array_equal(maple.parameters, before)


def test_chunks_do_not_show(encoder, checkpoint, maple, views):
    whole = load_maple(encoder, checkpoint, NAMES)
    draw, wide = np.random.default_rng(2), maple.parameters.astype(np.float64)
    above = Look(draw.normal(size=(10, maple.dimension)), draw.normal(size=(10, 2, *maple.token_shape)))
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
    above = Look(1e-9 * draw.normal(size=(4, maple.dimension)), np.zeros((4, 1, *maple.token_shape)))
    to_text = 1e-9 * draw.normal(size=(4, maple.dimension))
    for call in (
        lambda one: one.pull_back_images(views[:4], one.parameters.astype(np.float64), above),
        lambda one: one.pull_back_text(one.parameters.astype(np.float64), to_text),
    ):
        wide, found = call(maple), call(half).astype(np.float64)
        assert found @ wide > 0.97 * np.linalg.norm(wide) * np.linalg.norm(found) > 0


def test_from_pictures_to_answers(encoder, maple, source):
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
    maple.look(views, maple.parameters, 2)
    assert inside
    for seen in (*inside, (encoder.encode_texts(PROMPTS), encoder.encode_pixels((views,)))):
        for one, other in zip(seen, before, strict=True):
            np.testing.assert_array_equal(one, other)


def test_statistics_are_those_of_all_images_together(encoder, maple, source):
    pictures = np.stack([encoder.preprocessing(noise(20 + i, 40, 50))[0] for i in range(7)])
    tokens = maple.look(pictures, maple.parameters, 3).tokens.astype(np.float64)
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


def test_a_safetensors_file_holds_the_same(tmp_path, checkpoint):
    from safetensors.torch import save_file

    save_file(state(), tmp_path / "maple.safetensors")
    for one, other in zip(read_maple(tmp_path / "maple.safetensors"), read_maple(checkpoint), strict=True):
        np.testing.assert_array_equal(one, other)


class Bomb:
    """What pickle would run on being read."""

    def __reduce__(self):
        return (exec, ("raise RuntimeError('run')",))


def test_nothing_in_a_checkpoint_is_run(tmp_path):
    torch.save({"state_dict": state(), "scheduler": Bomb()}, tmp_path / "maple.pth")
    assert read_maple(tmp_path / "maple.pth").prompts.shape == (DEPTH, WORDS, WIDTH)


def without(name):
    return {key: value for key, value in state().items() if key != f"prompt_learner.{name}"}


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        (without("ctx"), r"lacks prompt_learner\.ctx\. Fix: it must be a checkpoint of MaPLe"),
        (without("proj.bias"), r"lacks prompt_learner\.proj\.bias"),
        (without("compound_prompts_text.0"), r"lacks prompt_learner\.compound_prompts_text\.0"),
        (without("compound_prompt_projections.1.bias"), r"lacks prompt_learner\.compound_prompt_projections\.1\.bias"),
        ({**state(), "prompt_learner.proj.bias": torch.zeros(5)}, r"projections\.0\.bias of shape \(48,\).*\(5,\)"),
        ({**state(), "prompt_learner.ctx": torch.full((2, 32), torch.nan)}, r"NaN or infinity in prompt_learner\.ctx"),
        ({**state(1), "prompt_learner.proj.weight": torch.zeros(32, 48)}, "do not go together"),
        ({**state(1), "prompt_learner.ctx": "a photo"}, r"prompt_learner\.ctx of shape \(\)"),
    ],
    ids=["ctx", "bias", "middle", "last", "shape", "nan", "turned", "words"],
)
def test_a_damaged_checkpoint_is_refused(tmp_path, damaged, message):
    torch.save({"state_dict": damaged}, tmp_path / "maple.pth")
    with pytest.raises(FileFormatError, match=message):
        read_maple(tmp_path / "maple.pth")


def test_what_is_no_checkpoint_is_refused(tmp_path, checkpoint):
    with pytest.raises(FileNotFoundError, match="multimodal-prompt-learning"):
        read_maple(tmp_path / "none.pth")
    with pytest.raises(TypeError, match="checkpoint must be a path; got NoneType"):
        read_maple(None)
    for name in ("cut.pth", "cut.safetensors"):
        (tmp_path / name).write_bytes(checkpoint.read_bytes()[:1000])
        with pytest.raises(FileFormatError, match=r"cut\."):
            read_maple(tmp_path / name)
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(FileFormatError, match="no dictionary"):
        read_maple(tmp_path / "list.pth")


def test_an_encoder_the_prompts_do_not_fit_is_refused(tmp_path, encoder, checkpoint, tiny_encoder):
    with pytest.raises(ValueError, match="width 32 for texts and 48 for images"):
        load_maple(tiny_encoder("clip"), checkpoint, NAMES)
    torch.save({"state_dict": state(5)}, tmp_path / "deep.pth")
    with pytest.raises(ValueError, match="prompts for 5 layers, the encoder has 4"):
        load_maple(encoder, tmp_path / "deep.pth", NAMES)
    for other in (tiny_encoder("siglip"), PlainEncoder()):
        with pytest.raises(TypeError, match="encoder must have"):
            load_maple(other, checkpoint, NAMES)
    with pytest.raises(TypeError, match="CLIP's own text transformer"):
        load_maple(tiny_encoder("altclip"), checkpoint, NAMES)


def test_other_arguments_that_do_not_fit_are_refused(encoder, checkpoint, maple, views):
    with pytest.raises(ValueError, match=r"template must have at least 2 tokens before \{\}.*has 1"):
        load_maple(encoder, checkpoint, NAMES, template="a {}.")
    with pytest.raises(ValueError, match="make the same prompt"):
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
    with pytest.raises(ValueError, match="give the maple it was saved with"):
        PromptAlign.load(tmp_path / "state.safetensors", maple=other)
