"""COSMIC: the authors' outputs where they are well posed, a plain version, a case by hand, and its rules."""

import numpy as np
import pytest
import torch

from goldens import golden, problem, views
from plain import cosmic as plain
from zeroshift import methods
from zeroshift.evaluate import MethodSpec, compare
from zeroshift.features import FeatureSet
from zeroshift.methods import COSMIC
from zeroshift.testing import make_problem

TOLERANCE = 2e-5
"""Twice the difference between a float64 version and the authors' float32 one."""

ALT = {"memory_size": 4, "alpha": 4.0, "beta": 8.0, "degree": 2.5}


def well_posed(expected, array, prefix=""):
    """The rows in which the authors' output does not depend on rounding; see tests/golden/README.md."""
    first, second = (expected[f"{prefix}well_posed_rows_{space}"] for space in ("clip", "aux"))
    return {"clip_clique": first, "aux_clique": second, "scores": first & second}.get(array, np.full(len(first), True))


def scores_and_terms(prototypes, call, *inputs, second, **parameters):
    """Scores, and what they are the sum of: the weights of the cliques change no memory."""
    whole, one, none = (
        getattr(COSMIC(prototypes, **parameters, **weights), call)(*inputs, second=second)
        for weights in ({}, {"second_clique_weight": 0.0}, {"clique_weight": 0.0, "second_clique_weight": 0.0})
    )
    return {"scores": whole, "text_probs": none, "clip_clique": one - none, "aux_clique": whole - one}


def check_against_authors(found, expected, prefix=""):
    for name, rows in found.items():
        if prefix + name not in expected:
            continue
        right = well_posed(expected, name, prefix)
        assert right.mean() > 0.75
        np.testing.assert_allclose(rows[right], expected[prefix + name][right], rtol=0, atol=TOLERANCE, err_msg=name)
    np.testing.assert_array_equal(found["scores"].argmax(1), expected[f"{prefix}scores"].argmax(1))


@pytest.mark.parametrize(("prefix", "parameters"), [("", {}), ("alt_", ALT)])
def test_the_authors_outputs(prefix, parameters):
    given, expected = problem("float64"), golden("cosmic")
    inputs = {"second": expected["aux_features"].astype("float64"), **parameters}
    check_against_authors(
        scores_and_terms(given["prototypes"], "adapt_scores", given["features"], **inputs), expected, prefix
    )


def test_the_authors_outputs_with_views():
    given, expected = views("float64"), golden("cosmic_views")
    second = expected["aux_features"].astype("float64")
    found = scores_and_terms(given["prototypes"], "adapt_views_scores", given["views"][:, :8], second=second)
    check_against_authors(found, expected)


def two_spaces(seed=0, classes=14, samples=400, dimension=10):
    """A problem, and features of the same samples from another encoder: enough classes for cliques to differ."""
    given = make_problem(classes=classes, dimension=16, samples=samples, seed=seed)
    mixing = np.random.default_rng(seed).normal(size=(16, dimension))
    second = np.tanh(2 * given.features @ mixing)
    return given, second / np.linalg.norm(second, axis=1, keepdims=True)


@pytest.mark.parametrize("n_views", [1, 6])
def test_the_plain_version_agrees(n_views):
    """Once every class has samples in both spaces: before, products are equal. 14 * 4 / 2 edges can be reached."""
    given, second = two_spaces(1)
    noise = 0.1 * np.random.default_rng(1).normal(size=(400, n_views, 16))
    noise[:, 0] = 0
    views = given.features[:, None, :] + noise
    views /= np.linalg.norm(views, axis=2, keepdims=True)
    setting = {"logit_scale": 20.0, "degree": 5.0, "memory_size": 3, "rebuild_every": 10, "clique_weight": 0.7}
    setting |= {"view_ratio": 0.5}
    found = COSMIC(given.prototypes, **setting).adapt_views_scores(views, second=second)
    images, prototypes, other = map(torch.tensor, (views, given.prototypes, second))
    expected = plain.scores(images, prototypes, second=other, **setting).numpy()
    differ = np.abs(found - expected).max(axis=1) > 1e-9
    assert differ[60:].sum() == 0
    assert differ[:60].mean() < 0.3


def test_a_case_by_hand():
    """One sample of two classes: every node is a clique by itself, and in both spaces the nearest is its class."""
    method = COSMIC(np.eye(2), logit_scale=5.0, degree=1.0)
    x, z = np.array([0.8, 0.6]), np.array([1.0, 0.0, 0.0])
    y = np.array([np.exp(4), np.exp(3)]) / (np.exp(4) + np.exp(3))
    vector = x + np.exp(-5.5 * 0.2) * np.array([1.0, 0.0])
    cosine = vector @ x / np.linalg.norm(vector)
    scores = method.adapt_scores(x, second=z)
    np.testing.assert_allclose(scores, [y[0] + 2 * np.exp(5 * (cosine - 1)) / 2 + 2, y[1]], rtol=0, atol=1e-12)
    assert method.n_cliques == (4, 2)
    np.testing.assert_allclose(method.predict(x, second=z), scores / scores.sum(), rtol=0, atol=1e-12)


def test_cliques_are_found_again_when_that_is_due():
    """Later in the stream, only every `rebuild_every`-th sample can change what the cliques are."""
    given, second = two_spaces()
    method = COSMIC(given.prototypes, logit_scale=20.0, memory_size=2, rebuild_every=50)
    changed, before = [], (0, 0)
    for i, (x, z) in enumerate(zip(given.features, second, strict=True)):
        method.adapt(x, second=z)
        if method.n_cliques != before:
            changed.append(i)
        before = method.n_cliques
    assert len(changed) > 10
    assert all(i % 50 == 0 for i in changed if i > 28)


def test_a_saved_stream_of_two_encoders_continues_bit_for_bit(tmp_path):
    given, second = two_spaces()
    method = COSMIC(given.prototypes, logit_scale=20.0, memory_size=3)
    method.adapt(given.features[:30], second=second[:30])
    method.save(tmp_path / "state.safetensors")
    again = methods.load(tmp_path / "state.safetensors")
    assert (again.n_seen, again.n_cliques) == (30, method.n_cliques)
    rest = given.features[30:]
    np.testing.assert_array_equal(again.adapt(rest, second=second[30:]), method.adapt(rest, second=second[30:]))


def test_alone_uses_the_features_twice():
    given, _ = two_spaces()
    expected = COSMIC(given.prototypes, logit_scale=20.0).adapt(given.features, second=given.features)
    found = COSMIC(given.prototypes, logit_scale=20.0, alone=True).adapt(given.features)
    np.testing.assert_array_equal(found, expected)


def wrong_calls():
    given, second = two_spaces(samples=12)
    method = COSMIC(given.prototypes)
    seen = COSMIC(given.prototypes)
    seen.adapt(given.features, second=second)
    x, views = given.features, given.features[:, None]
    return {
        "missing": (lambda: method.adapt(x), "second is missing: cosmic needs .*Fix: adapt.features, second=...."),
        "missing for views": (lambda: method.adapt_views(views), "second is missing"),
        "missing for predict": (lambda: seen.predict(x), "second is missing"),
        "missing for predict at first": (lambda: method.predict(x), "second is missing"),
        "rows": (lambda: method.adapt(x, second=second[:5]), "second has 5 rows, but features has 12"),
        "rows of views": (lambda: method.adapt_views(views, second=second[:5]), "second has 5 rows, but there are 12"),
        "single": (lambda: method.adapt(x[0], second=second), r"second has 2 dimension\(s\), but features has 1"),
        "length": (lambda: method.adapt(x, second=2 * second), "second row 0 has length 2"),
        "columns": (lambda: seen.adapt(x, second=second[:, :0]), "second"),
        "other columns": (lambda: seen.adapt(x, second=x), "second has 16 columns, but for the 12 samples before it"),
    }  # fmt: skip


@pytest.mark.parametrize("what", wrong_calls())
def test_wrong_calls_change_nothing(what):
    call, message = wrong_calls()[what]
    with pytest.raises(ValueError, match=message):
        call()


def test_comparisons_give_it_the_extra_features_of_a_set():
    given, second = two_spaces()
    plain_set = FeatureSet(given.features, prototypes=given.prototypes, labels=given.labels, logit_scale=20.0)
    both = plain_set.with_extra("other", second)
    method = COSMIC(given.prototypes, logit_scale=20.0)
    found = compare(both, [method], second="other").results[0].run.probabilities
    np.testing.assert_allclose(
        found, COSMIC(given.prototypes, logit_scale=20.0).adapt(given.features, second=second), rtol=0, atol=1e-12
    )
    with pytest.raises(ValueError, match="second is missing"):
        compare(both, [COSMIC(given.prototypes, logit_scale=20.0)])
    assert MethodSpec("cosmic").given == ("second",)
    assert "from a second encoder. Fix: zeroshift extract" in MethodSpec("cosmic").missing_input()
    assert MethodSpec("cosmic").missing_input("second") is None
    assert MethodSpec.named("cosmic+views").given == ("views", "second")


def test_with_the_order_filter_it_takes_both_encoders():
    given, second = two_spaces()
    order = np.argsort(given.labels, kind="stable")
    filtered = methods.create("cosmic+filter", given.prototypes, logit_scale=20.0)
    answers = filtered.adapt(given.features[order], second=second[order])
    plain_answers = COSMIC(given.prototypes, logit_scale=20.0).adapt(given.features[order], second=second[order])
    right = [(one.argmax(axis=1) == given.labels[order]).mean() for one in (answers, plain_answers)]
    assert right[0] > right[1]
