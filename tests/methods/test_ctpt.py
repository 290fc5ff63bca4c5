"""C-TPT against the authors' loop on a tiny CLIP, and its term of the loss."""

import numpy as np
import pytest
import torch

from goldens import golden
from tiny_clip import exact_logits, exact_text, exact_views, tiny_scale, tiny_text, tiny_views
from zeroshift.methods.ctpt import CTPT, dispersion
from zeroshift.methods.tpt import TPT

AUTHORS = golden("tiny_clip_prompt_tuning")
ROUNDING = 2e-5  # see test_tpt.py
WEIGHTS = {"ctpt50": {}, "ctpt20": CTPT.preset("imagenet_r")}


def tuner(text, cls=CTPT, **parameters):
    return cls(text.features(text.context), text=text, logit_scale=tiny_scale(), view_ratio=0.2, **parameters)


@pytest.mark.parametrize("run", WEIGHTS)
def test_the_authors_logits_and_dispersion(run):
    scores = tuner(tiny_text(), **WEIGHTS[run]).adapt_views_scores(tiny_views())
    np.testing.assert_allclose(scores, AUTHORS[f"logits_{run}"], rtol=0, atol=ROUNDING)
    np.testing.assert_array_equal(scores.argmax(axis=1), AUTHORS[f"logits_{run}"].argmax(axis=1))
    dispersions = [dispersion(exact_text().features(context))[0] for context in AUTHORS[f"ctx_{run}"]]
    np.testing.assert_allclose(dispersions, AUTHORS[f"dispersion_{run}"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("run", WEIGHTS)
def test_without_rounding_the_authors_contexts_give_our_logits(run):
    scores = tuner(exact_text(), **WEIGHTS[run]).adapt_views_scores(exact_views()[:6])
    np.testing.assert_allclose(scores, exact_logits(AUTHORS[f"ctx_{run}"][:6]), rtol=0, atol=1e-5)


def of_torch(rows):
    traced = torch.tensor(rows, requires_grad=True)
    value = (traced - traced.mean(0)).norm(dim=1).mean()
    value.backward()
    return value.detach(), traced.grad


@pytest.mark.parametrize("shape", [(2, 3), (7, 5), (40, 16)])
def test_the_gradient_of_the_dispersion_is_torchs(shape):
    rows = np.random.default_rng(0).normal(size=shape)
    expected = of_torch(rows)
    for given in (rows, torch.tensor(rows)):
        value, gradient = dispersion(given)
        assert isinstance(gradient, type(given))
        np.testing.assert_allclose(value, expected[0], rtol=1e-14)
        np.testing.assert_allclose(gradient, expected[1], rtol=0, atol=1e-15)


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
    np.testing.assert_allclose(dispersion(rows)[1], of_torch(rows)[1], rtol=0, atol=1e-15)


def test_weight_zero_is_tpt():
    views = exact_views()[:3]
    np.testing.assert_array_equal(
        tuner(exact_text(), dispersion_weight=0.0, steps=2).adapt_views_scores(views),
        tuner(exact_text(), cls=TPT, steps=2).adapt_views_scores(views),
    )
