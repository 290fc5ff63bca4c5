"""C-TPT against the authors' loop on a tiny CLIP, a plain loop with torch's gradients, and its own rules."""

import numpy as np
import pytest
import torch

from goldens import golden
from tiny_clip import (
    exact_logits,
    exact_text,
    exact_views,
    lowest_entropy_views,
    tiny_scale,
    tiny_text,
    tiny_views,
    tuned_context,
)
from zeroshift.methods.ctpt import CTPT, dispersion
from zeroshift.methods.tpt import TPT

AUTHORS = golden("tiny_clip_prompt_tuning")
ROUNDING = 2e-5  # see test_tpt.py
WEIGHTS = {"ctpt50": {}, "ctpt20": {"dispersion_weight": 20.0}}


def tuner(text=None, cls=CTPT, **parameters):
    text = text or exact_text()
    return cls(text.features(text.context), text=text, logit_scale=tiny_scale(), view_ratio=0.2, **parameters)


def plain_dispersion(text):
    return (text - text.mean(0)).norm(dim=1).mean()


@pytest.mark.parametrize("run", WEIGHTS)
def test_the_authors_logits_contexts_and_dispersion(run):
    method = tuner(tiny_text(), **WEIGHTS[run])
    scores = method.adapt_views_scores(tiny_views())
    np.testing.assert_allclose(scores, AUTHORS[f"logits_{run}"], rtol=0, atol=ROUNDING)
    np.testing.assert_array_equal(scores.argmax(axis=1), AUTHORS[f"logits_{run}"].argmax(axis=1))
    context = [method._tuned_context(views.astype(np.float64)) for views in tiny_views()[:6]]
    np.testing.assert_allclose(context, AUTHORS[f"ctx_{run}"][:6], rtol=0, atol=1e-6)
    dispersions = [dispersion(method._text_features(each))[0] for each in context]
    np.testing.assert_allclose(dispersions, AUTHORS[f"dispersion_{run}"][:6], rtol=0, atol=1e-6)


@pytest.mark.parametrize("run", WEIGHTS)
def test_without_rounding_the_authors_contexts_give_our_logits(run):
    scores = tuner(**WEIGHTS[run]).adapt_views_scores(exact_views()[:6])
    np.testing.assert_allclose(scores, exact_logits(AUTHORS[f"ctx_{run}"][:6]), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("weight", "steps"), [(50.0, 1), (3.0, 2)])
def test_a_plain_loop_agrees(weight, steps):
    method = tuner(dispersion_weight=weight, steps=steps)
    for views in exact_views()[:2]:
        context = tuned_context(
            views,
            lambda scores: lowest_entropy_views(scores, 6),
            steps=steps,
            extra=lambda text: -weight * plain_dispersion(text),
        )
        np.testing.assert_allclose(method._tuned_context(views), context, rtol=0, atol=1e-9)


@pytest.mark.parametrize("shape", [(2, 3), (7, 5), (40, 16)])
def test_the_gradient_of_the_dispersion_is_torchs(shape):
    rows = np.random.default_rng(0).normal(size=shape)
    traced = torch.tensor(rows, requires_grad=True)
    expected = plain_dispersion(traced)
    expected.backward()
    for given in (rows, torch.tensor(rows)):
        value, gradient = dispersion(given)
        assert isinstance(gradient, type(given))
        np.testing.assert_allclose(value, expected.detach(), rtol=1e-14)
        np.testing.assert_allclose(gradient, traced.grad, rtol=0, atol=1e-15)


@pytest.mark.parametrize("classes", [1, 2, 3, 11])
def test_equal_classes_have_no_dispersion_and_no_gradient(classes):
    """Also if the mean of equal rows is rounded to a value that differs from all of them."""
    rows = np.repeat(np.random.default_rng(1).normal(size=(1, 8)) / 3, classes, axis=0)
    value, gradient = dispersion(rows)
    assert value <= 1e-15
    np.testing.assert_array_equal(gradient, 0)


def test_a_class_at_the_mean_adds_no_gradient():
    """Like torch, where the norm of zero has the gradient zero."""
    rows = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]])
    traced = torch.tensor(rows, requires_grad=True)
    plain_dispersion(traced).backward()
    np.testing.assert_allclose(dispersion(rows)[1], traced.grad, rtol=0, atol=1e-15)


def test_weight_zero_is_tpt():
    views = exact_views()[:3]
    np.testing.assert_array_equal(
        tuner(dispersion_weight=0.0, steps=2).adapt_views_scores(views),
        tuner(cls=TPT, steps=2).adapt_views_scores(views),
    )


def test_a_large_weight_spreads_the_classes():
    method = tuner(dispersion_weight=1000.0)
    before = dispersion(method.prototypes)[0]
    for views in exact_views()[:4]:
        after = dispersion(method._text_features(method._tuned_context(views)))[0]
        assert after > before


def test_presets_are_the_authors_for_natural_shifts():
    assert set(CTPT.presets) == {"imagenet_a", "imagenetv2", "imagenet_r", "imagenet_sketch"}
    assert tuner(**CTPT.preset("imagenet_r")).dispersion_weight == 20.0
    assert tuner().dispersion_weight == 50.0
