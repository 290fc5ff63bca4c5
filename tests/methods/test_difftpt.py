"""DiffTPT's tuning against the authors' on a tiny CLIP, a plain loop with torch's gradients, and its own rules."""

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
from zeroshift.methods.difftpt import DiffTPT, most_similar
from zeroshift.methods.tpt import TPT
from zeroshift.testing import make_problem
from zeroshift.testing.examples import ExampleText
from zeroshift.views import select_lowest_entropy
from zeroshift.zero_shot import logits

AUTHORS = golden("tiny_clip_prompt_tuning")
TOLERANCE = 6e-5


def tuner(text=None, cls=DiffTPT, **parameters):
    text = text or exact_text()
    return cls(text.features(text.context), text=text, logit_scale=tiny_scale(), **parameters)


def plain_selection(scores):
    """25 of 32 views by the cosine of their logits with the first view's, then 7 by entropy."""
    cosines = torch.nn.functional.cosine_similarity(scores[1:], scores[:1])
    similar = torch.cat([torch.tensor([0]), 1 + cosines.topk(int(31 * 0.8))[1]])
    return similar[lowest_entropy_views(scores[similar], int(25 * 0.3))]


def test_the_authors_logits_and_contexts():
    method = tuner(tiny_text())
    scores = method.adapt_views_scores(tiny_views())
    np.testing.assert_allclose(scores, AUTHORS["logits_difftpt"], rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(scores.argmax(axis=1), AUTHORS["logits_difftpt"].argmax(axis=1))
    context = [method._tuned_context(views.astype(np.float64)) for views in tiny_views()[:4]]
    np.testing.assert_allclose(context, AUTHORS["ctx_difftpt"][:4], rtol=0, atol=1e-5)


def test_without_rounding_the_authors_contexts_give_our_logits():
    scores = tuner().adapt_views_scores(exact_views()[:6])
    np.testing.assert_allclose(scores, exact_logits(AUTHORS["ctx_difftpt"][:6]), rtol=0, atol=TOLERANCE)


def test_a_plain_loop_agrees():
    """The views are selected once, before the first of four steps."""
    for views in exact_views()[:3]:
        context = tuned_context(views, plain_selection, steps=4)
        np.testing.assert_allclose(tuner()._tuned_context(views), context, rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("n_views", "similar", "kept"),
    [(128, 102, 30), (32, 25, 7), (64, 51, 15), (3, 2, 1), (2, 1, 1), (1, 1, 1)],
)
def test_how_many_views_are_kept(n_views, similar, kept):
    problem = make_problem(samples=n_views)
    method = DiffTPT(problem.prototypes, text=ExampleText(problem.prototypes), logit_scale=20.0)
    scores = logits(problem.features, problem.prototypes, 20.0)
    first = most_similar(scores, 0.8)
    assert len(first) == similar
    assert (first[0], np.unique(first).tolist()) == (0, first.tolist())
    assert len(method._select_views(scores)) == kept
    assert np.isfinite(method.adapt_views(problem.features)).all()


def test_dissimilar_views_are_dropped_however_confident():
    """Views 1 and 2 are the most confident, for the other class; the image itself is not."""
    scores = np.array([[1.0, 0.5], [0.0, 9.0], [0.0, 8.0], [2.0, 1.1], [2.0, 0.9], [1.1, 0.5]])
    np.testing.assert_array_equal(most_similar(scores, 0.6), [0, 3, 4, 5])
    method = DiffTPT(np.eye(2), text=ExampleText(np.eye(2)), cosine_ratio=0.6, view_ratio=0.5)
    np.testing.assert_array_equal(method._select_views(scores), [4, 3])


def test_most_similar_is_the_largest_cosine_and_the_earlier_of_equals():
    scores = np.random.default_rng(0).normal(size=(40, 6))
    expected = torch.nn.functional.cosine_similarity(torch.tensor(scores[1:]), torch.tensor(scores[:1])).argsort(
        descending=True
    )
    np.testing.assert_array_equal(most_similar(scores, 0.25), sorted([0, *(1 + expected[:9]).tolist()]))
    np.testing.assert_array_equal(most_similar(torch.tensor(scores), 0.25), most_similar(scores, 0.25))
    np.testing.assert_array_equal(most_similar(np.tile(scores[:1], (5, 1)), 0.5), [0, 1, 2])
    assert most_similar(scores, 0.0).tolist() == [0]


def test_zero_logits_have_cosine_zero():
    scores = np.array([[1.0, 0.0], [0.0, 0.0], [3.0, 1.0]])
    np.testing.assert_array_equal(most_similar(scores, 0.5), [0, 2])
    assert len(most_similar(np.zeros((4, 2)), 0.7)) == 3


def test_cosine_ratio_one_is_tpt():
    views = exact_views()[:3]
    np.testing.assert_array_equal(
        tuner(cosine_ratio=1.0, view_ratio=0.2, steps=2).adapt_views_scores(views),
        tuner(cls=TPT, view_ratio=0.2, steps=2).adapt_views_scores(views),
    )
    scores = logits(views[0], tuner().prototypes, tiny_scale())
    np.testing.assert_array_equal(
        tuner(cosine_ratio=1.0, view_ratio=0.2)._select_views(scores), select_lowest_entropy(scores, 0.2)
    )


def test_the_defaults_are_the_authors():
    method = tuner()
    assert (method.cosine_ratio, method.view_ratio, method.steps, method.rate) == (0.8, 0.3, 4, 5e-3)
