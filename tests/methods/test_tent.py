"""Tent against the outputs of the authors' loop on a tiny CLIP (tests/golden/README.md), and what is particular to it
and to other methods that tune layer norms."""

import copy

import numpy as np
import pytest
import torch

from goldens import golden
from plain import towers
from saved import saved_state
from tiny_clip import exact_clip, tiny_clip, tiny_method, tiny_pixels, tiny_scale
from zeroshift.methods import BATCLIP, Mint, Tent
from zeroshift.testing import make_problem
from zeroshift.testing.examples import ExampleText, ExampleVision
from zeroshift.zero_shot import posterior

AUTHORS = golden("tiny_clip_tower")
IMAGES = AUTHORS["images"]
RUNS = {
    "tent_adam": {},
    "tent_sgd": {"optimizer": "sgd", "rate": 2.5e-4},
    "tent_episodic3": {"steps": 3, "episodic": True},
}
METHODS = (Tent, BATCLIP, Mint)


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("run", RUNS)
def test_the_authors_logits_and_layer_norms(run, precision, tmp_path):
    method = tiny_method(Tent, precision, **RUNS[run])
    found = method.adapt_scores(IMAGES)
    # The goldens are float32; the specification states these differences for an independent version.
    np.testing.assert_allclose(found, AUTHORS[f"{run}_logits"], atol=5e-4)
    np.testing.assert_array_equal(found.argmax(axis=1), AUTHORS[f"{run}_logits"].argmax(axis=1))
    if method.episodic:  # those of the last batch, which an episodic method forgets
        method = tiny_method(Tent, precision, steps=3)
        method.adapt(IMAGES[-24:])
    np.testing.assert_allclose(saved_state(method, tmp_path)["norms"], AUTHORS[f"{run}_norm_params"], atol=5e-6)
    assert np.abs(AUTHORS[f"{run}_norm_params"] - method.vision.norms).max() > 1e-4


def test_a_plain_loop_agrees():
    method, images = tiny_method(Tent, "float64"), IMAGES[:72]
    expected = towers.tent(
        copy.deepcopy(exact_clip()), tiny_pixels(images), torch.tensor(method.prototypes),
        logit_scale=tiny_scale(), batch=24, rate=1e-3,
    )  # fmt: skip
    np.testing.assert_allclose(method.adapt_scores(images.astype(np.float64)), expected, atol=1e-10)


@pytest.mark.parametrize(
    ("cls", "settings"), [(Tent, {"rate": 0.0}), (Tent, {"episodic": True}), (BATCLIP, {"rate": 0.0})]
)
def test_without_a_step_it_is_zero_shot(cls, settings):
    found = tiny_method(cls, **settings).adapt_scores(IMAGES)
    np.testing.assert_allclose(found, AUTHORS["zeroshot_logits"], atol=1e-4)


def test_the_first_batch_is_zero_shot_and_entropy_falls():
    problem = make_problem(classes=5, dimension=12, samples=60, seed=3)
    method = Tent(problem.prototypes, vision=ExampleVision(problem.prototypes), logit_scale=20.0, steps=20, rate=1e-2)
    before = posterior(problem.features, problem.prototypes, 20.0)
    np.testing.assert_allclose(method.predict(problem.features), before, atol=1e-12)
    method.adapt(problem.features)
    after = method.predict(problem.features)
    assert -(after * np.log(after)).sum() < -(before * np.log(before)).sum()


@pytest.mark.parametrize("cls", METHODS)
def test_the_encoder_is_not_changed_and_reset_forgets(cls):
    method, before = tiny_method(cls), {name: array.clone() for name, array in tiny_clip().state_dict().items()}
    zero_shot, first = method.predict_scores(IMAGES[:24]), method.adapt_scores(IMAGES[:48])
    assert np.abs(method.predict_scores(IMAGES[:24]) - zero_shot).max() > 1e-3
    assert all((weights == before[name]).all() for name, weights in tiny_clip().state_dict().items())
    method.reset()
    np.testing.assert_array_equal(method.adapt_scores(IMAGES[:48]), first)


@pytest.mark.parametrize(("cls", "side"), [(Tent, "vision"), (Mint, "vision"), (BATCLIP, "vision"), (BATCLIP, "text")])
def test_an_encoder_without_layer_norms_is_refused(cls, side):
    models = {"vision": ExampleVision(np.eye(5)), "text": ExampleText(np.eye(5))}
    models[side].norms = None
    with pytest.raises(ValueError, match=rf"{side} has no layer norms that can be tuned; got <example {side}"):
        cls(np.eye(5), **{name: models[name] for name in cls.model_parameters})


def test_an_encoder_of_another_dimension_is_refused():
    with pytest.raises(ValueError, match=r"vision gives features of d = 12, the prototypes have d = 11\. Fix"):
        Tent(np.eye(3, 11), vision=ExampleVision(np.eye(12)))
