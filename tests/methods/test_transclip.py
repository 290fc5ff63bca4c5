"""TransCLIP against its authors' output, and against the plain version on other problems."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

from goldens import assert_golden, golden, problem
from plain import transclip as plain
from zeroshift import normalize
from zeroshift.methods import TransCLIP, transclip
from zeroshift.testing import make_problem
from zeroshift.zero_shot import posterior

TOLERANCE = 4e-5
"""An independent float64 version is 8.6e-6 from the authors' float32."""


def labelled(dtype="float64"):
    """Support and validation of the authors' few-shot output."""
    given = problem(dtype)
    rows = golden("transclip")["fewshot_support_index"]
    support = given["support_features"][rows], given["support_labels"][rows]
    return support, (given["val_features"], given["val_labels"])


@functools.cache
def other_problem():
    """Samples, prototypes and labelled samples that differ from the golden ones."""
    made = make_problem(classes=8, dimension=24, samples=200, seed=11)
    return made.features[:160], made.prototypes, (made.features[160:], made.labels[160:])


def test_golden():
    given, expected = problem(), golden("transclip")
    assert_golden(TransCLIP(given["prototypes"]).adapt_scores(given["features"]), expected["probs"], TOLERANCE)
    first = TransCLIP(given["prototypes"], iterations=0)
    first.adapt(given["features"])
    np.testing.assert_allclose(first.means, expected["init_mu"], rtol=0, atol=1e-5)


def test_golden_with_initial_means_at_the_text():
    given = problem()
    scores = TransCLIP(given["prototypes"], initial_means="text").adapt_scores(given["features"])
    assert_golden(scores, golden("stata")["transclip_stata_repo_probs"], TOLERANCE)


@pytest.mark.parametrize("ignored", [False, True])
def test_golden_few_shot(ignored):
    """The authors' code ignores the validation set."""
    given, (support, validation) = problem(), labelled("float32")
    more = {"validation": validation, "gamma": 3.0} if ignored else {}
    method = TransCLIP(given["prototypes"], support=support, released=True, **more)
    assert_golden(method.adapt_scores(given["features"]), golden("transclip")["fewshot_probs"], TOLERANCE)
    assert method.chosen == {"gamma": 0.2}


@pytest.mark.parametrize(
    "parameters",
    [{}, {"text_weight": 0.7, "neighbours": 5}, {"confident": 3, "iterations": 2, "inner_iterations": 1}],
    ids=str,
)
def test_plain(parameters):
    features, prototypes, _ = other_problem()
    expected = plain.scores(torch.tensor(features), torch.tensor(prototypes), logit_scale=30.0, **parameters)
    actual = TransCLIP(prototypes, logit_scale=30.0, **parameters).adapt(features)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("gamma", [0.002, 0.02, 0.5])
def test_plain_few_shot(gamma):
    """Also without labelled samples of a class, whose mean then starts at its prototype."""
    features, prototypes, (shots, labels) = other_problem()
    tensors = (torch.tensor(features), torch.tensor(prototypes))
    pair = torch.tensor(shots), torch.tensor(labels)
    expected = plain.few_shot_scores(*tensors, logit_scale=30.0, support=pair, gammas=(gamma,))
    method = TransCLIP(prototypes, logit_scale=30.0, support=(shots, labels), gamma=gamma)
    np.testing.assert_allclose(method.adapt(features), expected, rtol=0, atol=1e-11)
    fewer = shots[labels != 2], labels[labels != 2]
    method = TransCLIP(prototypes, logit_scale=30.0, support=fewer, gamma=gamma, iterations=0)
    assert np.isfinite(method.adapt(features)).all()
    np.testing.assert_array_equal(method.means[2], prototypes[2])


def test_validation_chooses_the_first_of_the_best_gammas():
    given, (support, _) = problem("float64"), labelled()
    features, prototypes = given["features"], given["prototypes"]

    def answer(gamma):
        return TransCLIP(prototypes, support=support, gamma=gamma).adapt(features)

    classes = {gamma: answer(gamma).argmax(axis=1) for gamma in transclip.GAMMAS}
    differing = classes[0.002] != classes[0.2]
    validation = features[differing], classes[0.2][differing]
    right = [np.mean(predicted[differing] == validation[1]) for predicted in classes.values()]
    best = transclip.GAMMAS[int(np.argmax(right))]
    assert best != 0.002
    method = TransCLIP(prototypes, support=support, validation=validation, gamma=9.0)
    np.testing.assert_array_equal(method.adapt(features), answer(best))
    assert method.chosen == {"gamma": best}

    agreed = np.all([predicted == classes[0.002] for predicted in classes.values()], axis=0)
    validation = features[agreed], classes[0.002][agreed]
    method = TransCLIP(prototypes, support=support, validation=validation)
    method.adapt(features)
    assert method.chosen == {"gamma": 0.002}


def test_predict_combines_text_and_likelihood():
    features, prototypes, _ = other_problem()
    method = TransCLIP(prototypes, logit_scale=30.0, text_weight=0.5, temperature=20.0)
    method.adapt(features[:100])
    others = features[100:]
    distances = ((others[:, None, :] - method.means) ** 2 / method.variances).sum(axis=2)
    weights = posterior(others, prototypes, 30.0) ** 0.5 * np.exp(-0.5 * distances / 20.0)
    expected = weights / weights.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(method.predict(others), expected, rtol=0, atol=1e-12)


def test_variances_have_a_floor():
    """Classes differ in three of eight dimensions, samples in the fourth; the others do not vary."""
    prototypes = np.eye(3, 8)
    features = np.concatenate([0.8 * prototypes + [[0, 0, 0, way, 0, 0, 0, 0]] for way in (-0.6, 0.6)])
    method = TransCLIP(prototypes)
    for answer in (method.adapt(features), method.predict(features)):
        np.testing.assert_array_equal(answer.argmax(axis=1), [0, 1, 2, 0, 1, 2])
    np.testing.assert_allclose(method.variances[4:], 1e-6 / 8, rtol=1e-12)
    assert method.variances[3] > 0.1


def test_a_class_whose_posterior_underflows():
    features, prototypes, _ = other_problem()
    prototypes = prototypes.copy()
    prototypes[4] = -normalize(features.mean(axis=0))
    assert not posterior(features, prototypes, 1000.0)[:, 4].any()
    method, first = (TransCLIP(prototypes, logit_scale=1000.0, iterations=iterations) for iterations in (10, 0))
    for answer in (method.adapt(features), method.predict(features)):
        np.testing.assert_allclose(answer.sum(axis=1), 1.0, rtol=0, atol=1e-6)
    first.adapt(features)
    assert np.isfinite(method.means).all()
    np.testing.assert_array_equal(method.means[4], first.means[4])


def test_validation_needs_support():
    with pytest.raises(ValueError, match=r"support is None.*Fix"):
        TransCLIP(np.eye(3), validation=(np.eye(3), np.arange(3)))


def test_chosen_gamma_is_saved(tmp_path):
    features, prototypes, support = other_problem()
    method = TransCLIP(prototypes, support=support, validation=support)
    assert method.chosen == {"gamma": 0.02}
    method.adapt(features)
    assert method.chosen["gamma"] in transclip.GAMMAS
    method.save(tmp_path / "state.safetensors")
    assert TransCLIP.load(tmp_path / "state.safetensors").chosen == method.chosen
    assert TransCLIP(prototypes).chosen == {}
