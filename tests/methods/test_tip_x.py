"""TIP-X: the authors' logits and choices, a plain version, and what is particular to it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from goldens import first_shots, golden, problem
from labelled_problem import unbalanced
from plain import tip_x as plain
from zeroshift.arrays import to_numpy
from zeroshift.methods import TipAdapter, TipX

TOLERANCE = 1.5e-3
"""Twice the difference between an independent float64 version and the authors' float32 one; rescaling magnifies errors
of the divergences by a hundred, and the authors search large weights."""

# The authors' ranges of cosines are those of the validation samples: a search with one candidate has them, too.
RUNS = {
    "shots16_logits": (16, golden("tip_x")["best16_alpha_beta_gamma"], {}),
    "fixed16_logits": (16, (1.0, 5.5, 1.0), {}),
    "fixed16_testrange_logits": (16, None, {}),
    "alt4_logits": (4, golden("tip_x")["alt4_best_alpha_beta_gamma"], {"temperature": 0.01}),
}


def made(shots, dtype="float32", convert=np.asarray, *, validated=True, **parameters):
    given = problem(dtype)
    features, labels = first_shots(shots, dtype)
    validation = (convert(given["unlabeled_features"]), given["unlabeled_labels"]) if validated else None
    support = convert(features), labels
    return TipX(convert(given["prototypes"]), support=support, validation=validation, released=True, **parameters)


@pytest.mark.parametrize(("dtype", "convert"), [("float32", np.asarray), ("float64", torch.tensor)])
@pytest.mark.parametrize("array", RUNS)
def test_authors_logits(array, convert, dtype):
    shots, candidate, parameters = RUNS[array]
    if candidate is not None:
        names = "search_alpha", "search_beta", "search_gamma"
        parameters = {name: (float(one), float(one)) for name, one in zip(names, candidate, strict=True)} | parameters
        parameters |= {"search_steps": (1, 1), "gamma_steps": 1}
    method = made(shots, dtype, convert, validated=candidate is not None, **parameters)
    answer = to_numpy(method.adapt_scores(convert(problem(dtype)["features"])))
    assert answer.dtype == dtype
    np.testing.assert_allclose(answer, golden("tip_x")[array], rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(answer.argmax(axis=1), golden("tip_x")[array].argmax(axis=1))


@pytest.mark.parametrize(
    ("shots", "parameters", "found"),
    [
        (16, {}, "best16_alpha_beta_gamma"),
        pytest.param(4, {"temperature": 0.01}, "alt4_best_alpha_beta_gamma", marks=pytest.mark.slow),
    ],
)
def test_the_search_finds_what_the_authors_find(shots, parameters, found):
    """Of two hundred thousand combinations."""
    alpha, beta, gamma = golden("tip_x")[found]
    chosen = made(shots, **parameters).chosen
    assert chosen == pytest.approx({"beta": beta, "alpha": alpha, "gamma": gamma}, abs=1e-12)


@pytest.mark.parametrize("validated", [True, False])
def test_a_plain_version_without_the_released_ranges(validated):
    prototypes, support, val, features = unbalanced(1)
    setting = {
        "search_alpha": (0.0, 9.0), "search_beta": (1.0, 9.0), "search_gamma": (0.1, 5.0), "search_steps": (8, 6),
        "gamma_steps": 5, "logit_scale": 20.0, "temperature": 0.2, "alpha": 2.0, "beta": 3.0,
    }  # fmt: skip
    details = {}
    expected = plain.scores(
        torch.tensor(features),
        torch.tensor(prototypes),
        support=tuple(map(torch.tensor, support)),
        validation=tuple(map(torch.tensor, val)) if validated else None,
        details=details,
        **setting,
    )
    method = TipX(prototypes, support=support, validation=val if validated else None, **setting)
    assert method.chosen == pytest.approx({name: details[name] for name in method.chosen}, abs=1e-12)
    np.testing.assert_allclose(method.predict_scores(features), expected, rtol=0, atol=1e-9)


def test_without_gamma_it_is_tip_adapter():
    prototypes, support, _, features = unbalanced()
    method = TipX(prototypes, support=support, gamma=0, alpha=1.5, beta=3.0)
    expected = TipAdapter(prototypes, support=support, alpha=1.5, beta=3.0).predict_scores(features)
    np.testing.assert_allclose(method.predict_scores(features), expected, rtol=0, atol=1e-10)


def test_answers_depend_on_their_own_sample_only_unless_released():
    prototypes, support, _, features = unbalanced()
    method = TipX(prototypes, support=support, alpha=0)
    together = method.predict_scores(features)
    np.testing.assert_allclose([method.predict_scores(x) for x in features[:5]], together[:5], rtol=0, atol=1e-10)
    released = TipX(prototypes, support=support, alpha=0, released=True)
    assert np.abs(released.predict_scores(features[:5]) - released.predict_scores(features)[:5]).max() > 1e-3


def test_equal_divergences_do_not_divide_by_zero():
    prototypes, _, _, features = unbalanced()
    scores = TipX(prototypes, support=(features[:1], np.array([2]))).predict_scores(features)
    assert np.isfinite(scores).all()


def test_cannot_be_frozen():
    prototypes, support, _, _ = unbalanced()
    with pytest.raises(TypeError, match="tip_x cannot be frozen: its divergences take a logarithm"):
        TipX(prototypes, support=support).freeze()


def test_a_search_that_ends_before_it_starts_raises():
    prototypes, support, _, _ = unbalanced()
    with pytest.raises(ValueError, match=r"search_beta must be a pair \(start, end\); got \(9.0, 3.0\). Fix: \(3.0, 9"):
        TipX(prototypes, support=support, search_beta=(9.0, 3.0))
