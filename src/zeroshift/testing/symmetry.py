"""Checks of invariances: order of classes, rotation of the feature space, splits of a stream."""

from __future__ import annotations

import itertools

import numpy as np

from zeroshift.method import ViewMethod
from zeroshift.testing.case import Case, NotApplicable, assert_same

__all__ = ["CHECKS"]

TOLERANCE = 1e-8
"""Sums in another order round differently, and Gaussian scores amplify that slightly."""


def class_order_does_not_matter(case: Case) -> None:
    problem = case.problem(classes=7, samples=60, seed=1)
    order = np.random.default_rng(0).permutation(7)
    expected = case.create(problem.prototypes).adapt(problem.features)[:, order]
    actual = case.create(problem.prototypes[order]).adapt(problem.features)
    assert_same(actual, expected, "classes in another order", tolerance=TOLERANCE)


def axes_do_not_matter(case: Case) -> None:
    """Rotating features and prototypes together changes no prediction."""
    problem = case.problem(samples=120, seed=2)
    rotation, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(16, 16)))
    expected = case.create(problem.prototypes).adapt(problem.features)
    actual = case.create(problem.prototypes @ rotation).adapt(problem.features @ rotation)
    assert_same(actual, expected, "rotated feature space", tolerance=TOLERANCE)


def sample_order_does_not_matter_for_a_set(case: Case) -> None:
    if case.cls.protocol != "transductive":
        raise NotApplicable("only a transductive method gets a whole set")
    problem = case.problem(samples=80, seed=3)
    order = np.random.default_rng(2).permutation(80)
    expected = case.create(problem.prototypes).adapt(problem.features)[order]
    actual = case.create(problem.prototypes).adapt(problem.features[order])
    assert_same(actual, expected, "samples in another order", tolerance=TOLERANCE)


def chunks_do_not_show(case: Case) -> None:
    if "chunk_size" not in case.cls.parameter_names():
        raise NotApplicable("the method has no chunk_size")
    problem = case.problem(samples=80, seed=4)
    expected = case.create(problem.prototypes).adapt(problem.features)
    for chunk_size in (1, 7, 1000):
        actual = case.create(problem.prototypes, chunk_size=chunk_size).adapt(problem.features)
        assert_same(actual, expected, f"chunk_size={chunk_size}", tolerance=TOLERANCE)


def calls_do_not_show_in_a_stream(case: Case) -> None:
    """A stream in several calls gives the same predictions as in one, up to rounding."""
    if case.cls.protocol != "online":
        raise NotApplicable("only an online method processes a stream")
    problem = case.problem(samples=90, seed=5)
    whole = case.create(problem.prototypes)
    expected = whole.adapt(problem.features)
    pieces = case.create(problem.prototypes)
    size = pieces._adapted_together
    cuts = [0, size, 2 * size, 10 * size, len(problem.features)]
    answers = [pieces.adapt(problem.features[a:b]) for a, b in itertools.pairwise(cuts) if a < b]
    assert_same(np.concatenate(answers), expected, "a stream in pieces", tolerance=1e-12)
    assert pieces.n_seen == whole.n_seen, "n_seen of a stream in pieces"


def views_all_alike_are_one_sample(case: Case) -> None:
    """An image with identical views is treated like a single feature."""
    problem = case.problem(samples=40, seed=6)
    one, several = case.create(problem.prototypes), case.create(problem.prototypes)
    if not isinstance(several, ViewMethod):
        raise NotApplicable("the method takes no views")
    expected = one.adapt(problem.features)
    views = np.repeat(problem.features[:, None, :], 5, axis=1)
    assert_same(several.adapt_views(views), expected, "five equal views", tolerance=TOLERANCE)
    assert several.n_seen == one.n_seen, "n_seen of images with views"
    assert_same(several.adapt_views(views[0]), one.adapt(problem.features[0]), "views (V, d)", tolerance=TOLERANCE)


def episodes_do_not_remember(case: Case) -> None:
    """Each sample is predicted as if it were the only one, by `adapt` and by `predict`."""
    if case.cls.protocol != "episodic":
        raise NotApplicable("only an episodic method forgets every sample")
    problem = case.problem(samples=40, seed=7)
    method = case.create(problem.prototypes)
    expected = method.adapt(problem.features)
    assert_same(method.predict(problem.features), expected, "predict", tolerance=TOLERANCE)
    assert_same(method.adapt(problem.features[::-1])[::-1], expected, "in another order", tolerance=TOLERANCE)
    alone = np.stack([method.adapt(x) for x in problem.features[:5]])
    assert_same(alone, expected[:5], "one by one", tolerance=TOLERANCE)
    assert isinstance(method, ViewMethod), "an episodic method must be a ViewMethod"
    views = problem.features.reshape(8, 5, -1)
    several = method.adapt_views(views)
    assert_same(method.adapt_views(views[3]), several[3], "an image by itself", tolerance=TOLERANCE)


CHECKS = (
    episodes_do_not_remember,
    class_order_does_not_matter,
    axes_do_not_matter,
    sample_order_does_not_matter_for_a_set,
    chunks_do_not_show,
    calls_do_not_show_in_a_stream,
    views_all_alike_are_one_sample,
)
