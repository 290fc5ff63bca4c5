"""TPT against the authors' loop on a tiny CLIP, a plain loop with torch's gradients, and its own rules."""

import numpy as np
import pytest
import torch

from goldens import golden
from tiny_clip import (
    exact_logits,
    exact_text,
    exact_views,
    lowest_entropy_views,
    text_features,
    tiny_scale,
    tiny_text,
    tiny_views,
    tuned_context,
)
from zeroshift.methods import TPT, ZeroShot
from zeroshift.testing import make_problem
from zeroshift.testing.examples import ExampleText
from zeroshift.views import marginal_entropy, select_lowest_entropy
from zeroshift.zero_shot import logits

AUTHORS = golden("tiny_clip_prompt_tuning")

# The authors' contexts, encoded on another machine, already differ by 1e-5 from their logits in float32.
ROUNDING = 2e-5

SETTINGS = {
    "tpt": ({}, ROUNDING, 1e-6, 8e-6),
    "tpt_steps3": ({"steps": 3}, 4.5e-5, 1e-5, 4.5e-5),
    "tpt_lr0": ({"rate": 0.0}, ROUNDING, 0.0, 1e-12),
}


def tuner(cls=TPT, text=None, **parameters):
    text = text or exact_text()
    settings = {"logit_scale": tiny_scale(), "view_ratio": 0.2, **parameters}
    return cls(text.features(text.context), text=text, **settings)


@pytest.mark.parametrize("run", SETTINGS)
def test_the_authors_logits_and_contexts(run):
    parameters, logit_gap, context_gap, _ = SETTINGS[run]
    method = tuner(text=tiny_text(), **parameters)
    scores = method.adapt_views_scores(tiny_views())
    np.testing.assert_allclose(scores, AUTHORS[f"logits_{run}"], rtol=0, atol=logit_gap)
    np.testing.assert_array_equal(scores.argmax(axis=1), AUTHORS[f"logits_{run}"].argmax(axis=1))
    context = [method._tuned_context(views.astype(np.float64)) for views in tiny_views()[:6]]
    np.testing.assert_allclose(context, AUTHORS[f"ctx_{run}"][:6], rtol=0, atol=context_gap)


@pytest.mark.parametrize("run", SETTINGS)
def test_without_rounding_the_authors_contexts_give_our_logits(run):
    parameters, _, _, gap = SETTINGS[run]
    scores = tuner(**parameters).adapt_views_scores(exact_views()[:6])
    np.testing.assert_allclose(scores, exact_logits(AUTHORS[f"ctx_{run}"][:6]), rtol=0, atol=gap)


@pytest.mark.parametrize("steps", [1, 3])
def test_a_plain_loop_agrees(steps):
    method = tuner(steps=steps)
    for views in exact_views()[:3]:
        context = tuned_context(views, lambda scores: lowest_entropy_views(scores, 6), steps=steps)
        np.testing.assert_allclose(method._tuned_context(views), context, rtol=0, atol=1e-9)
        with torch.no_grad():
            expected = tiny_scale() * text_features(context) @ torch.tensor(views[0])
        np.testing.assert_allclose(method.adapt_views_scores(views), expected, rtol=0, atol=1e-7)


def test_the_rate_and_the_decay_are_those_of_adamw():
    """Without decay the first step moves every coordinate by the rate, unless the gradient nearly vanishes."""
    method = tuner(rate=0.02, weight_decay=0.0)
    moved = np.abs(method._tuned_context(exact_views()[0]) - method.text.context)
    assert moved.max() <= 0.02 + 1e-12
    assert np.median(moved) > 0.0199
    decayed = tuner(rate=0.02, weight_decay=0.5)._tuned_context(exact_views()[0]) - method._tuned_context(
        exact_views()[0]
    )
    np.testing.assert_allclose(decayed, -0.01 * method.text.context, atol=1e-12)


@pytest.mark.parametrize("chunk_size", [1, 3])
def test_chunks_of_classes_agree(chunk_size):
    views = tiny_views()[:4]
    whole, chunked = (tuner(text=text).adapt_views_scores(views) for text in (tiny_text(), tiny_text(chunk_size)))
    np.testing.assert_allclose(chunked, whole, rtol=0, atol=ROUNDING)


def test_torch_agrees_with_numpy():
    text = exact_text()
    method = TPT(torch.tensor(text.features(text.context)), text=text, logit_scale=tiny_scale(), view_ratio=0.2)
    answer = method.adapt_views(torch.tensor(exact_views()[:3]))
    assert isinstance(answer, torch.Tensor)
    np.testing.assert_allclose(answer, tuner().adapt_views(exact_views()[:3]), rtol=0, atol=1e-8)


def test_rate_zero_is_zero_shot():
    method = tuner(rate=0.0)
    expected = ZeroShot(method.prototypes, logit_scale=tiny_scale()).predict(exact_views()[:, 0])
    np.testing.assert_allclose(method.adapt_views(exact_views()), expected, rtol=0, atol=1e-12)


def test_images_do_not_depend_on_earlier_ones():
    method = tuner()
    first, second = exact_views()[:2]
    expected = method.adapt_views(second)
    method.adapt_views(first)
    np.testing.assert_array_equal(method.adapt_views(second), expected)
    assert method.n_seen == 3


def test_the_mean_prediction_of_the_kept_views_becomes_more_confident():
    method, before, after = tuner(), [], []
    for views in exact_views():
        kept = select_lowest_entropy(logits(views, method.prototypes, tiny_scale()), 0.2)
        tuned = method.text.features(method._tuned_context(views))
        before.append(marginal_entropy(logits(views[kept], method.prototypes, tiny_scale())))
        after.append(marginal_entropy(logits(views[kept], tuned, tiny_scale())))
    assert np.mean(after) < np.mean(before)


@pytest.mark.parametrize(("n_views", "kept"), [(64, 6), (32, 3), (19, 1), (9, 1), (1, 1)])
def test_how_many_views_are_kept(n_views, kept):
    """With fewer than ten views the authors' code keeps none; here the most confident one is kept."""
    problem = make_problem(samples=n_views)
    text = ExampleText(problem.prototypes)
    method = TPT(problem.prototypes, text=text, logit_scale=20.0)
    assert method._select_views(logits(problem.features, problem.prototypes, 20.0)).shape == (kept,)
    assert np.isfinite(method.adapt_views(problem.features)).all()


def test_classes_in_another_order():
    problem = make_problem(samples=40)
    order = [3, 0, 5, 1, 4, 2]
    scores = [
        TPT(prototypes, text=ExampleText(prototypes), logit_scale=20.0).adapt_views_scores(problem.features)
        for prototypes in (problem.prototypes, problem.prototypes[order])
    ]
    np.testing.assert_allclose(scores[1], scores[0][order], rtol=0, atol=1e-9)


def test_prototypes_of_another_prompt_raise():
    text = tiny_text()
    prototypes = np.roll(text.features(text.context), 1, axis=0)
    with pytest.raises(
        ValueError, match=r"differ from the features of text's own context.*Fix: prototypes=text\.features"
    ):
        TPT(prototypes, text=text)
    with pytest.raises(ValueError, match=r"text has 7 classes in d = \d+, the prototypes have 6 .*Fix: make both"):
        TPT(prototypes[:6], text=text)
    with pytest.raises(TypeError, match=r"text must be a PromptedText, as zeroshift\.encode\.prompted_text"):
        TPT(prototypes, text=text.features)


def test_loading_requires_the_text(tmp_path):
    method = tuner()
    expected = method.adapt_views(exact_views()[:2])
    method.save(tmp_path / "tpt.safetensors")
    loaded = TPT.load(tmp_path / "tpt.safetensors", text=exact_text())
    assert loaded.n_seen == 2
    np.testing.assert_array_equal(loaded.adapt_views(exact_views()[:2]), expected)
    with pytest.raises(TypeError, match=r"does not contain the model text"):
        TPT.load(tmp_path / "tpt.safetensors")
