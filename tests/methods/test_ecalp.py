"""ECALP against its authors' results, the plain version, and the rules of its graph."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from goldens import golden, problem
from plain import ecalp as plain
from zeroshift.methods import ECALP
from zeroshift.testing import make_problem
from zeroshift.testing.examples import example_support
from zeroshift.zero_shot import softmax


@pytest.mark.parametrize("kind", ["", "fewshot4_"], ids=["zero-shot", "few-shot"])
def test_golden(kind):
    """The authors' lists lose neighbours of the first ten samples, ours are exact; a few early rows differ."""
    given, expected = problem("float64"), golden("ecalp")
    rows = expected["fewshot_support_index"]
    support = (given["support_features"][rows], given["support_labels"][rows]) if kind else None
    actual = ECALP(given["prototypes"], support=support).adapt_scores(given["features"])
    np.testing.assert_array_equal(actual.argmax(axis=1), expected[f"{kind}scores"].argmax(axis=1))
    assert np.mean(np.abs(actual - expected[f"{kind}scores"]).max(axis=1) < 2e-6) > 0.95
    sharp = softmax(10_000.0 * actual)
    assert np.mean(np.abs(sharp - expected[f"{kind}probs"]).max(axis=1) < 1e-3) > 0.99


def test_probabilities_are_the_sharpened_softmax():
    given = make_problem(samples=20)
    for sharpness in (10_000.0, 50.0):
        scores = ECALP(given.prototypes).adapt_scores(given.features)
        answer = ECALP(given.prototypes, sharpness=sharpness).adapt(given.features)
        np.testing.assert_allclose(answer, softmax(sharpness * scores), rtol=1e-9)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({}, {}),
        ({"image_neighbours": 3, "text_neighbours": 1}, {"n_neighbors": 3, "n_text_neighbors": 1}),
        ({"image_neighbours": 1}, {"n_neighbors": 1}),
        ({"alpha": 0.7, "rounds": 5, "gamma": 4.0}, {"alpha": 0.7, "rounds": 5, "gamma": 4.0}),
        ({"support_neighbours": 2}, {"n_support_neighbors": 2}),
        ({"rounds": 1, "image_neighbours": 500}, {"rounds": 1, "n_neighbors": 500}),
    ],
    ids=str,
)
@pytest.mark.parametrize("shots", [0, 3])
def test_plain(theirs, ours, shots):
    given = make_problem(classes=5, samples=40, seed=21)
    features, prototypes = torch.tensor(given.features), torch.tensor(given.prototypes)
    support = example_support(given.prototypes) if shots else None
    theirs = {**theirs, "support": tuple(map(torch.tensor, support)) if support else None}
    expected = plain.scores(features, prototypes, **theirs).numpy()
    method = ECALP(given.prototypes, support=support, **ours)
    np.testing.assert_allclose(method.adapt_scores(given.features), expected, rtol=1e-8)


def test_the_first_prediction_is_zero_shot():
    given = make_problem(samples=40)
    method = ECALP(given.prototypes)
    for x in given.features:
        assert method.adapt(x).argmax() == (given.prototypes @ x).argmax()
        method.reset()


@pytest.mark.parametrize(
    "parameters",
    [{}, {"alpha": 0.6, "rounds": 2}, {"support": example_support}],
    ids=lambda given: "+".join(given) or "defaults",
)
def test_predict_is_what_adapt_would_return(parameters):
    given = make_problem(samples=30, seed=22)
    parameters = {name: value(given.prototypes) if callable(value) else value for name, value in parameters.items()}
    method = ECALP(given.prototypes, **parameters)
    for x in given.features:
        predicted, answer = method.predict_scores(x), method.adapt_scores(x)
        if method.n_seen > 1 or "support" in parameters:
            np.testing.assert_allclose(predicted, answer, rtol=1e-9)


def test_repeated_samples():
    """Equal samples tie everywhere; the split of the stream must not decide between them."""
    given = make_problem(samples=12, seed=24)
    stream = np.concatenate([given.features, given.features[::-1], given.features[3:9]] * 2)
    whole = ECALP(given.prototypes, n_neighbors=4)
    expected = whole.adapt_scores(stream)
    pieces = ECALP(given.prototypes, n_neighbors=4)
    np.testing.assert_allclose(np.array([pieces.adapt_scores(x) for x in stream]), expected, rtol=1e-9)


def test_classes_without_variance():
    """One class, equal prototypes and one labelled sample have no variance to weight dimensions by."""
    given = make_problem(classes=2, samples=20)
    equal = given.prototypes[[0, 0]]
    support = (given.features[:1], np.array([1]))
    for method in (ECALP(given.prototypes[:1]), ECALP(equal), ECALP(given.prototypes, support=support)):
        assert np.isfinite(method.adapt_scores(given.features)).all()
