"""DiffTPT's tuning against the authors' on a tiny CLIP, and its selection of views."""

import numpy as np
import pytest
import torch

from goldens import golden
from tiny_clip import exact_logits, exact_text, exact_views, tiny_scale, tiny_text, tiny_views
from zeroshift.methods.difftpt import DiffTPT, most_similar
from zeroshift.methods.tpt import TPT

AUTHORS = golden("tiny_clip_prompt_tuning")
TOLERANCE = 6e-5


def tuner(text, cls=DiffTPT, **parameters):
    return cls(text.features(text.context), text=text, logit_scale=tiny_scale(), **parameters)


def test_the_authors_logits():
    scores = tuner(tiny_text()).adapt_views_scores(tiny_views())
    np.testing.assert_allclose(scores, AUTHORS["logits_difftpt"], rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(scores.argmax(axis=1), AUTHORS["logits_difftpt"].argmax(axis=1))


def test_without_rounding_the_authors_contexts_give_our_logits():
    scores = tuner(exact_text()).adapt_views_scores(exact_views()[:6])
    np.testing.assert_allclose(scores, exact_logits(AUTHORS["ctx_difftpt"][:6]), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(("n_views", "similar"), [(128, 102), (32, 25), (3, 2), (2, 1), (1, 1)])
def test_how_many_views_the_first_filter_keeps(n_views, similar):
    first = most_similar(np.random.default_rng(0).normal(size=(n_views, 5)), 0.8)
    assert len(first) == similar
    assert (first[0], np.unique(first).tolist()) == (0, first.tolist())


def test_dissimilar_views_are_dropped_however_confident():
    """Views 1 and 2 are the most confident, for the other class; the image itself is not."""
    scores = np.array([[1.0, 0.5], [0.0, 9.0], [0.0, 8.0], [2.0, 1.1], [2.0, 0.9], [1.1, 0.5]])
    np.testing.assert_array_equal(most_similar(scores, 0.6), [0, 3, 4, 5])


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
    views, text = exact_views()[:3], exact_text()
    np.testing.assert_array_equal(
        tuner(text, cosine_ratio=1.0, view_ratio=0.2, steps=2).adapt_views_scores(views),
        tuner(text, cls=TPT, view_ratio=0.2, steps=2).adapt_views_scores(views),
    )
