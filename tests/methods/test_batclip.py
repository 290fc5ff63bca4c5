"""BATCLIP against the outputs of the authors' code on a tiny CLIP (tests/golden/README.md), and its properties."""

import copy

import numpy as np
import pytest

from goldens import golden
from zeroshift.methods.batclip import BATCLIP, bimodal_loss
from zeroshift.testing import make_problem
from zeroshift.testing.examples import ExampleText, ExampleVision
from zeroshift.zero_shot import posterior

RUNS = {
    "batclip_adamw": {},
    "batclip_adam": {"optimizer": "adam"},
    "batclip_adamw1e3": {"rate": 1e-3},
}


def make_method(precision="float32", **settings):
    pytest.importorskip("transformers")
    from tiny_clip import exact_text, tiny_scale, tiny_text, tiny_vision

    text = exact_text() if precision == "float64" else tiny_text()
    return BATCLIP(
        text.features(text.context),
        text=text,
        vision=tiny_vision(precision),
        logit_scale=tiny_scale(),
        **{"batch_size": 24, **settings},
    )


def example(**settings):
    problem = make_problem(classes=5, dimension=12, samples=60, seed=3)
    text, vision = ExampleText(problem.prototypes), ExampleVision(problem.prototypes)
    settings = {"logit_scale": 20.0, "batch_size": 60, **settings}
    return problem, BATCLIP(text.features(text.context), text=text, vision=vision, **settings)


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("run", RUNS)
def test_agrees_with_the_golden(run, precision):
    expected = golden("tiny_clip_tower")
    method, losses, found = make_method(precision, **RUNS[run]), [], []
    for start in range(0, 240, 24):
        images = expected["images"][start : start + 24]
        raw = method._raw_features(images, method._norms[:768])
        losses.append([float(term) for term in bimodal_loss(raw, method._text_features(), method.logit_scale)[:3]])
        found.append(method.adapt_scores(images))
    # The goldens are float32; the specification states differences of 2.4e-4 for an independent version.
    np.testing.assert_allclose(np.concatenate(found), expected[f"{run}_logits"], atol=5e-4)
    np.testing.assert_array_equal(np.concatenate(found).argmax(axis=1), expected[f"{run}_logits"].argmax(axis=1))
    np.testing.assert_allclose(losses, expected[f"{run}_losses"], atol=5e-5)
    np.testing.assert_allclose(method._norms, expected[f"{run}_norm_params"], atol=2e-6)
    assert np.abs(method._norms - method._initial_norms).max() > 1e-3


@pytest.mark.parametrize("optimizer", ["AdamW", "Adam"])
def test_agrees_with_a_plain_loop(optimizer):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from plain import towers
    from tiny_clip import exact_clip, tiny_pixels, tiny_scale

    images = golden("tiny_clip_tower")["images"][:72]
    ids = torch.tensor(golden("tiny_clip_prompt_tuning")["input_ids"])
    details = {}
    expected = towers.batclip(
        copy.deepcopy(exact_clip()), tiny_pixels(images), ids,
        logit_scale=tiny_scale(), batch=24, rate=5e-4, optimizer=optimizer, details=details,
    )  # fmt: skip
    method = make_method("float64", optimizer=optimizer.lower())
    np.testing.assert_allclose(method.adapt_scores(images.astype(np.float64)), expected, atol=1e-10)
    np.testing.assert_allclose(method._norms, details["norms"], atol=1e-12)


def test_the_gradients_of_the_loss_are_torch_s():
    torch = pytest.importorskip("torch")
    draw = np.random.default_rng(4)
    raw = torch.tensor(3 * draw.normal(size=(9, 6)), requires_grad=True)
    text = torch.nn.functional.normalize(torch.tensor(draw.normal(size=(4, 6))), dim=1).requires_grad_()
    logits = 10 * torch.nn.functional.normalize(raw, dim=1) @ text.T
    classes = logits.argmax(1)
    means = torch.stack([raw[classes == k].mean(0) for k in classes.unique()])
    unit = torch.nn.functional.normalize(means, dim=1)
    between = (1 - unit @ unit.T).sum()
    entropy = -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()
    image_text = (means * text[classes.unique()]).sum(1).mean()
    gradients = torch.autograd.grad(entropy - image_text - between, (raw, text))
    found = bimodal_loss(raw.detach().numpy(), text.detach().numpy(), 10.0)
    assert len(classes.unique()) > 1
    np.testing.assert_allclose(found[:3], [float(x.detach()) for x in (entropy, image_text, between)], atol=1e-12)
    for own, expected in zip(found[3:], gradients, strict=True):
        np.testing.assert_allclose(own, expected, atol=1e-12)


def test_a_single_predicted_class_has_no_distance_and_long_features_only_matter_to_one_term():
    raw = np.array([[1.0, 0.1], [2.0, 0.1]])
    one = bimodal_loss(raw, np.eye(2), 20.0)
    assert float(one.between) == pytest.approx(0.0, abs=1e-12)
    twice = bimodal_loss(2 * raw, np.eye(2), 20.0)
    assert float(twice.image_text) == pytest.approx(2 * float(one.image_text))
    assert (float(twice.entropy), float(twice.between)) == pytest.approx((float(one.entropy), 0.0), abs=1e-12)


def test_a_rate_of_zero_is_zero_shot():
    expected = golden("tiny_clip_tower")
    found = make_method(rate=0.0).adapt_scores(expected["images"])
    np.testing.assert_allclose(found, expected["zeroshot_logits"], atol=1e-4)


def test_the_first_batch_is_zero_shot_and_the_next_is_not():
    problem, method = example(rate=0.1, batch_size=30)
    expected = posterior(problem.features, method.prototypes, 20.0)
    np.testing.assert_allclose(method.predict(problem.features), expected, atol=1e-12)
    found = method.adapt(problem.features)
    np.testing.assert_allclose(found[:30], expected[:30], atol=1e-12)
    assert np.abs(found[30:] - expected[30:]).max() > 1e-2
    method.reset()
    np.testing.assert_array_equal(method.adapt(problem.features), found)


def test_a_loaded_method_continues_bit_for_bit(tmp_path):
    images = golden("tiny_clip_tower")["images"]
    method = make_method()
    method.adapt(images[:48])
    method.save(tmp_path / "batclip.safetensors")
    again = BATCLIP.load(tmp_path / "batclip.safetensors", text=method.text, vision=method.vision)
    np.testing.assert_array_equal(again.predict(images[:24]), method.predict(images[:24]))
    np.testing.assert_array_equal(again.adapt(images[48:96]), method.adapt(images[48:96]))


def test_the_encoder_is_not_changed():
    from tiny_clip import tiny_clip

    method = make_method()
    before = {name: weights.clone() for name, weights in tiny_clip().state_dict().items()}
    method.adapt(golden("tiny_clip_tower")["images"][:48])
    assert all((weights == before[name]).all() for name, weights in tiny_clip().state_dict().items())


def test_only_layer_norms_of_the_text_side_are_its_own():
    """The model that is given to the text side has the image side, too."""
    from tiny_clip import tiny_clip, tiny_text, tiny_vision

    model = tiny_clip()
    final = model.text_model.final_layer_norm
    norms = tiny_text().norms
    assert (len(norms), len(tiny_vision().norms)) == (640, 768)
    np.testing.assert_array_equal(norms[-128:-64], final.weight.detach())


def test_text_gradients_are_torch_s_and_chunks_do_not_matter(monkeypatch):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from plain.towers import norm_parameters, text_features

    from tiny_clip import exact_clip, exact_text

    text, above = exact_text(), np.random.default_rng(5).normal(size=(7, 32))
    model = copy.deepcopy(exact_clip())
    parameters = norm_parameters(model.text_model)
    features = text_features(model, torch.tensor(golden("tiny_clip_prompt_tuning")["input_ids"]))
    gradients = torch.autograd.grad((features * torch.tensor(above)).sum(), parameters)
    expected = torch.cat([gradient.reshape(-1) for gradient in gradients])
    np.testing.assert_allclose(text.features_with_norms(text.norms), features.detach(), atol=1e-12)
    for chunk_size in (64, 3):
        monkeypatch.setattr(text, "chunk_size", chunk_size)
        np.testing.assert_allclose(text.pull_back_norms(text.norms, above), expected, atol=1e-11)
        found, pull_back = text.linearize_norms(text.norms)
        np.testing.assert_allclose(found, features.detach(), atol=1e-12)
        np.testing.assert_allclose(pull_back(above), expected, atol=1e-11)


def test_wrong_inputs_are_named():
    problem, method = example()
    other = ExampleText(problem.prototypes[:4])
    with pytest.raises(ValueError, match=r"text has 4 classes in d = 12, the prototypes have 5 in d = 12\. Fix"):
        BATCLIP(method.prototypes, text=other, vision=method.vision)
    with pytest.raises(ValueError, match=r"text must have 1 prompts per class; it has 3\. Fix: .*position='end'\)"):
        BATCLIP(method.prototypes, text=ExampleText(problem.prototypes, n_prompts=3), vision=method.vision)
    with pytest.raises(ValueError, match=r"prototypes differ from the features of text's own context"):
        BATCLIP(problem.prototypes[::-1], text=method.text, vision=method.vision)
    for name, side in (("text", ExampleText(problem.prototypes)), ("vision", ExampleVision(problem.prototypes))):
        side.norms = None
        with pytest.raises(ValueError, match=rf"{name} has no layer norms that can be tuned; got <example {name}"):
            BATCLIP(method.prototypes, **{"text": method.text, "vision": method.vision, name: side})
    with pytest.raises(ValueError, match=r"optimizer must be one of 'adamw', 'adam'; got 'sgd'"):
        example(optimizer="sgd")


def test_a_text_side_without_modules_has_no_layer_norms():
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tiny_clip import tiny_clip
    from zeroshift.encode.tuning import ContextText

    ids = torch.tensor(golden("tiny_clip_prompt_tuning")["input_ids"])
    encode = lambda tokens: tiny_clip().get_text_features(**tokens).pooler_output  # noqa: E731
    text = ContextText(encode, tiny_clip().text_model.embeddings.token_embedding, {"input_ids": ids}, start=1, words=4)
    assert text.norms is None
    with pytest.raises(TypeError, match="has no layer norms that can be tuned"):
        text.features_with_norms(np.zeros(3))
    with pytest.raises(ValueError, match=r"norms must have the shape \(640,\), like text\.norms; got \(3,\)"):
        make_method().text.features_with_norms(np.zeros(3))
