"""TIP-X: the authors' logits and choices, a plain version, a case by hand, and properties of the formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from goldens import first_shots, golden, problem
from plain import tip_x as plain
from zeroshift.arrays import to_numpy
from zeroshift.methods import TipAdapter, TipX, tip_x
from zeroshift.methods._shared import few_shot
from zeroshift.testing import check_method, make_problem
from zeroshift.testing.examples import example_support

TOLERANCE = 1.5e-3
"""Twice the difference between an independent float64 version and the authors' float32 one; rescaling magnifies errors
of the divergences by a hundred, and the authors search large weights."""

SEARCH = {"search_alpha": (0.0, 9.0), "search_beta": (1.0, 9.0), "search_gamma": (0.1, 5.0), "search_steps": (8, 6)}
FIXED = {"search_alpha": (1, 1), "search_beta": (5.5, 5.5), "search_gamma": (1, 1), "search_steps": (1, 1)}
"""A search with one candidate: the authors' ranges of cosines are those of the validation samples."""


def made(shots, dtype="float32", convert=np.asarray, *, validated=True, **parameters):
    given = problem(dtype)
    features, labels = first_shots(shots, dtype)
    validation = (convert(given["unlabeled_features"]), given["unlabeled_labels"]) if validated else None
    support = convert(features), labels
    return TipX(convert(given["prototypes"]), support=support, validation=validation, released=True, **parameters)


def unbalanced(seed=0):
    """(prototypes, support, validation, features): classes with 0 to 12 support samples, class 3 without any."""
    given = make_problem(classes=7, dimension=12, samples=200, seed=seed)
    rows = np.array([i for i in range(60) if given.labels[i] != 3])
    support = given.features[rows], given.labels[rows]
    return given.prototypes, support, (given.features[60:120], given.labels[60:120]), given.features[120:]


RUNS = {
    "shots16_logits": (16, {}),
    "fixed16_logits": (16, {**FIXED, "gamma_steps": 1}),
    "fixed16_testrange_logits": (16, {"validated": False}),
    "alt4_logits": (4, {"temperature": 0.01}),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("convert", [np.asarray, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("array", RUNS)
def test_authors_logits(array, convert, dtype):
    shots, parameters = RUNS[array]
    method = made(shots, dtype, convert, **parameters)
    answer = to_numpy(method.adapt_scores(convert(problem(dtype)["features"])))
    assert answer.dtype == dtype
    np.testing.assert_allclose(answer, golden("tip_x")[array], rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(answer.argmax(axis=1), golden("tip_x")[array].argmax(axis=1))


@pytest.mark.parametrize(
    ("shots", "parameters", "prefix", "first"), [(16, {}, "16", 50), (4, {"temperature": 0.01}, "alt4", 100)]
)
def test_authors_divergences_and_choices(shots, parameters, prefix, first):
    theirs, x = golden("tip_x"), problem("float64")["features"]
    method = made(shots, **parameters)
    best, kl = ("best16", "kl_logits16") if prefix == "16" else ("alt4_best", "alt4_kl_logits")
    alpha, beta, gamma = theirs[f"{best}_alpha_beta_gamma"]
    assert method.chosen == pytest.approx({"beta": beta, "alpha": alpha, "gamma": gamma}, abs=1e-12)
    divergences = method._divergences(method._log_signature(x[:first]))
    expected = theirs["test_kl16_first50" if prefix == "16" else "alt4_test_kl"][:, method._groups.order]
    np.testing.assert_allclose(divergences, expected, rtol=0, atol=1e-6 if prefix == "16" else 2e-4)
    ranges = method._ranges_of([x])._replace(cosines=method._ranges.cosines)
    np.testing.assert_allclose(method._divergence_votes(x, ranges), theirs[kl], rtol=0, atol=4e-4)


@pytest.mark.parametrize("released", [True, False])
@pytest.mark.parametrize("seed", [1, 2])
def test_plain_version_on_other_problems(seed, released):
    prototypes, support, val, features = unbalanced(seed)
    setting = {**SEARCH, "gamma_steps": 5, "logit_scale": 20.0, "temperature": 0.2, "released": released}
    details = {}
    expected = plain.scores(
        torch.tensor(features),
        torch.tensor(prototypes),
        support=tuple(map(torch.tensor, support)),
        validation=tuple(map(torch.tensor, val)),
        details=details,
        **setting,
    )
    method = TipX(prototypes, support=support, validation=val, **setting)
    assert method.chosen == pytest.approx({name: details[name] for name in method.chosen}, abs=1e-12)
    np.testing.assert_allclose(method.predict_scores(features), expected, rtol=0, atol=1e-9)


def test_divergence_by_hand():
    """softmax((0.8, 0.6) / 0.5) = (0.598688, 0.401312); to the mirrored key: 0.598688 * 0.4 - 0.401312 * 0.4."""
    support = np.array([[0.8, 0.6], [0.6, 0.8]]), np.array([0, 1])
    method = TipX(np.eye(2), support=support, logit_scale=5.0)
    divergences = method._divergences(method._log_signature(np.array([[0.8, 0.6]])))
    np.testing.assert_allclose(divergences, [[0, 0.078950]], rtol=0, atol=1e-6)
    # The divergences among the support samples, 0 and 0.07895, get the range of their cosines, 0.96 and 1.
    answer = method.predict_scores(np.array([0.8, 0.6]))
    np.testing.assert_allclose(answer, [4 + 1 - 0.96, 3 + np.exp(-5.5 * 0.04) - 1], rtol=0, atol=1e-6)


def test_without_gamma_it_is_tip_adapter():
    prototypes, support, _, features = unbalanced()
    method = TipX(prototypes, support=support, gamma=0, alpha=1.5, beta=3.0)
    expected = TipAdapter(prototypes, support=support, alpha=1.5, beta=3.0).predict_scores(features)
    np.testing.assert_allclose(method.predict_scores(features), expected, rtol=0, atol=1e-10)


def test_divergences_are_positive_and_zero_for_equal_samples():
    prototypes, support, _, features = unbalanced()
    method = TipX(prototypes, support=support)
    own = method._divergences(method._log_signature(support[0][method._groups.order]))
    np.testing.assert_allclose(np.diagonal(own), 0, atol=1e-14)
    assert (method._divergences(method._log_signature(features)) >= -1e-14).all()


def test_votes_are_the_sums_of_rescaled_divergences():
    """Whose range is that of the cosines."""
    prototypes, support, val, features = unbalanced()
    method = TipX(prototypes, support=support, validation=val, gamma_steps=1, search_steps=(1, 1))
    labels = support[1][method._groups.order]
    E = method._divergences(method._log_signature(val[0]))
    R = val[0] @ support[0].T
    factor, offset = method._ranges.rescaling()
    rescaled = factor * E + offset
    assert (rescaled.min(), rescaled.max()) == pytest.approx((R.min(), R.max()), abs=1e-12)
    E = factor * method._divergences(method._log_signature(features)) + offset
    expected = -np.stack([E[:, labels == k].sum(axis=1) for k in range(7)], axis=1)
    np.testing.assert_allclose(method._divergence_votes(features, method._ranges), expected, rtol=0, atol=1e-10)
    assert (expected[:, 3] == 0).all()


def test_answers_depend_on_their_own_sample_only_unless_released():
    prototypes, support, _, features = unbalanced()
    method = TipX(prototypes, support=support, alpha=0)
    together = method.predict_scores(features)
    np.testing.assert_allclose([method.predict_scores(x) for x in features[:5]], together[:5], rtol=0, atol=1e-10)
    released = TipX(prototypes, support=support, alpha=0, released=True)
    assert np.abs(released.predict_scores(features[:5]) - released.predict_scores(features)[:5]).max() > 1e-3


def test_block_size_does_not_change_results(monkeypatch):
    prototypes, support, val, features = unbalanced()
    expected = {}
    for released in (True, False):
        setting = {"support": support, "validation": val, **SEARCH, "gamma_steps": 3, "released": released}
        expected[released] = TipX(prototypes, **setting).predict(features)
    monkeypatch.setattr(few_shot, "WORK_NUMBERS", 7 * len(support[1]))
    monkeypatch.setattr(tip_x, "KERNEL_NUMBERS", 3 * len(support[1]))
    for released in (True, False):
        setting = {"support": support, "validation": val, **SEARCH, "gamma_steps": 3, "released": released}
        pieces = TipX(prototypes, **setting)
        assert pieces._predict_rows == 3
        np.testing.assert_allclose(pieces.predict(features), expected[released], rtol=0, atol=1e-12)
        np.testing.assert_allclose(pieces.adapt(features), expected[released], rtol=0, atol=1e-12)


def test_equal_divergences_do_not_divide_by_zero():
    prototypes, _, _, features = unbalanced()
    scores = TipX(prototypes, support=(features[:1], np.array([2]))).predict_scores(features)
    assert np.isfinite(scores).all()


def test_cannot_be_frozen():
    prototypes, support, _, _ = unbalanced()
    with pytest.raises(TypeError, match="tip_x cannot be frozen: its divergences take a logarithm"):
        TipX(prototypes, support=support).freeze()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temperature": 0}, "temperature must be a number from 0.001 to 1000; got 0"),
        (
            {"search_beta": (9.0, 3.0)},
            r"search_beta must be a pair \(start, end\); got \(9.0, 3.0\). Fix: \(3.0, 9.0\)",
        ),
        ({"search_steps": (0, 3)}, "search_steps must be a pair"),
        ({"gamma": -1}, "gamma must be a number of at least 0; got -1"),
    ],
)
def test_wrong_parameters(given, message):
    prototypes, support, _, _ = unbalanced()
    with pytest.raises(ValueError, match=message):
        TipX(prototypes, support=support, **given)


@pytest.mark.slow  # tests/common runs the same checks one by one
@pytest.mark.parametrize("parameters", [{}, {"search_steps": (5, 3), "gamma_steps": 2}], ids=["given", "searched"])
def test_common_checks(parameters):
    if parameters:
        parameters = {**parameters, "validation": example_support}
    assert not check_method(TipX, parameters=parameters).failed
