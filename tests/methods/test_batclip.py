"""BATCLIP against the outputs of the authors' code on a tiny CLIP (tests/golden/README.md), and what is particular to
it. Further tests of it are in test_tent.py."""

import copy

import numpy as np
import pytest
import torch

from goldens import golden
from plain import towers
from saved import saved_state
from tiny_clip import exact_clip, tiny_method, tiny_pixels, tiny_scale
from zeroshift.methods.batclip import BATCLIP, bimodal_loss
from zeroshift.testing import make_problem
from zeroshift.testing.examples import ExampleText, ExampleVision
from zeroshift.zero_shot import posterior

AUTHORS = golden("tiny_clip_tower")
IMAGES = AUTHORS["images"]
RUNS = {
    "batclip_adamw": {},
    "batclip_adam": {"optimizer": "adam"},
    "batclip_adamw1e3": {"rate": 1e-3},
}
N_VISION = 768


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("run", RUNS)
def test_the_authors_logits_losses_and_layer_norms(run, precision, tmp_path):
    method, losses, found = tiny_method(BATCLIP, precision, **RUNS[run]), [], []
    initial = norms = saved_state(method, tmp_path)["norms"]
    for images in np.split(IMAGES, 10):
        raw = method.vision.encode_with_norms(images, norms[:N_VISION])
        text = method.text.features_with_norms(norms[N_VISION:])
        losses.append([float(term) for term in bimodal_loss(raw, text, method.logit_scale)[:3]])
        found.append(method.adapt_scores(images))
        norms = saved_state(method, tmp_path)["norms"]
    # The goldens are float32; the specification states differences of 2.4e-4 for an independent version.
    np.testing.assert_allclose(np.concatenate(found), AUTHORS[f"{run}_logits"], atol=5e-4)
    np.testing.assert_array_equal(np.concatenate(found).argmax(axis=1), AUTHORS[f"{run}_logits"].argmax(axis=1))
    np.testing.assert_allclose(losses, AUTHORS[f"{run}_losses"], atol=5e-5)
    np.testing.assert_allclose(norms, AUTHORS[f"{run}_norm_params"], atol=2e-6)
    assert np.abs(norms - initial).max() > 1e-3


@pytest.mark.parametrize("optimizer", ["AdamW", "Adam"])
def test_a_plain_loop_agrees(optimizer, tmp_path):
    ids, details = torch.tensor(golden("tiny_clip_prompt_tuning")["input_ids"]), {}
    expected = towers.batclip(
        copy.deepcopy(exact_clip()), tiny_pixels(IMAGES[:72]), ids,
        logit_scale=tiny_scale(), batch=24, rate=5e-4, optimizer=optimizer, details=details,
    )  # fmt: skip
    method = tiny_method(BATCLIP, "float64", optimizer=optimizer.lower())
    np.testing.assert_allclose(method.adapt_scores(IMAGES[:72].astype(np.float64)), expected, atol=1e-10)
    np.testing.assert_allclose(saved_state(method, tmp_path)["norms"], details["norms"], atol=1e-12)


def test_the_gradients_of_the_loss_are_torch_s():
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
    one, twice = bimodal_loss(raw, np.eye(2), 20.0), bimodal_loss(2 * raw, np.eye(2), 20.0)
    assert (float(twice.entropy), float(twice.between)) == pytest.approx((float(one.entropy), 0.0), abs=1e-12)
    assert float(twice.image_text) == pytest.approx(2 * float(one.image_text))


def test_the_first_batch_is_zero_shot_and_the_next_is_not():
    problem = make_problem(classes=5, dimension=12, samples=60, seed=3)
    text, vision = ExampleText(problem.prototypes), ExampleVision(problem.prototypes)
    method = BATCLIP(problem.prototypes, text=text, vision=vision, logit_scale=20.0, rate=0.1, batch_size=30)
    expected = posterior(problem.features, problem.prototypes, 20.0)
    np.testing.assert_allclose(method.predict(problem.features), expected, atol=1e-12)
    found = method.adapt(problem.features)
    np.testing.assert_allclose(found[:30], expected[:30], atol=1e-12)
    assert np.abs(found[30:] - expected[30:]).max() > 1e-2


def test_a_text_side_that_does_not_fit_is_refused():
    def fails(prototypes, text, message):
        with pytest.raises(ValueError, match=message):
            BATCLIP(prototypes, text=text, vision=ExampleVision(np.eye(5)))

    fails(np.eye(5), ExampleText(np.eye(5)[:4]), r"text has 4 classes in d = 5, the prototypes have 5 in d = 5\. Fix")
    three = ExampleText(np.eye(5), n_prompts=3)
    fails(np.eye(5), three, r"text must have 1 prompts per class; it has 3\. Fix: .*position='end'\)")
    fails(np.eye(5)[::-1], ExampleText(np.eye(5)), "prototypes differ from the features of text's own context")
