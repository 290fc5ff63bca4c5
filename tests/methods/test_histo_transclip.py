"""Histo-TransCLIP against its authors' output: TransCLIP with another text."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from goldens import golden, problem
from plain import histo_transclip as plain
from zeroshift import normalize
from zeroshift.methods import HistoTransCLIP, TransCLIP
from zeroshift.testing import check_method, make_problem
from zeroshift.zero_shot import logits

TOLERANCE = 4e-5
"""An independent float64 version is 7.7e-6 from the authors' float32; for the first prompts, ours is 1.3e-5."""

both_precisions = pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
both_libraries = pytest.mark.parametrize("library", [np.asarray, torch.tensor], ids=["numpy", "torch"])


def assert_golden(actual, expected):
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(np.asarray(actual).argmax(axis=1), expected.argmax(axis=1))


@pytest.fixture(scope="module")
def other():
    """Features, prototypes and prompts (K, 4, d) that agree more in some classes than in others."""
    made = make_problem(classes=7, dimension=20, samples=150, seed=5)
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(7, 4, 20)) * np.linspace(0.05, 0.3, 7)[:, None, None]
    prompts = normalize((made.prototypes[:, None, :] + noise).reshape(-1, 20)).reshape(7, 4, 20)
    return made.features, made.prototypes, prompts


@both_libraries
@both_precisions
def test_golden(dtype, library):
    given = problem(dtype)
    method = HistoTransCLIP(library(given["prototypes"]), prompts=library(given["prompts"]))
    assert_golden(method.adapt_scores(library(given["features"])), golden("histo_transclip")["probs"])


@both_precisions
def test_golden_text(dtype):
    given = problem(dtype)
    method = HistoTransCLIP(given["prototypes"], prompts=given["prompts"])
    expected = golden("histo_transclip")["zs_logits"]
    np.testing.assert_allclose(logits(given["features"], method._text, 100.0), expected, rtol=0, atol=1e-4)


@both_precisions
def test_golden_of_transclip_with_the_first_prompt(dtype):
    given, expected = problem(dtype), golden("histo_transclip")
    first = given["prompts"][:, 0]
    assert_golden(TransCLIP(first).adapt_scores(given["features"]), expected["transclip_first_template_probs"])
    zero_shot = logits(given["features"], first, 100.0)
    np.testing.assert_allclose(zero_shot, expected["zs_first_template_logits"], rtol=0, atol=1e-4)


def test_text_is_shorter_if_prompts_disagree():
    prompts = np.array([[[1.0, 0.0], [0.6, 0.8]], [[0.8, 0.6], [0.8, 0.6]]])
    method = HistoTransCLIP(np.eye(2), prompts=prompts)
    np.testing.assert_allclose(method._text, [[0.8, 0.4], [0.8, 0.6]], rtol=0, atol=1e-15)
    unit = HistoTransCLIP(np.eye(2), prompts=prompts, renormalise=True)
    np.testing.assert_allclose(unit._text @ [1.0, 0.0], [0.894427, 0.8], rtol=0, atol=1e-6)


@pytest.mark.parametrize("renormalise", [False, True])
def test_plain(other, renormalise):
    features, prototypes, prompts = other
    expected = plain.scores(
        torch.tensor(features), prompts=torch.tensor(prompts), renormalise=renormalise, logit_scale=30.0
    )
    method = HistoTransCLIP(prototypes, prompts=prompts, renormalise=renormalise, logit_scale=30.0)
    np.testing.assert_allclose(method.adapt(features), expected.numpy(), rtol=0, atol=1e-11)


def test_one_prompt_is_transclip(other):
    features, prototypes, prompts = other
    one = HistoTransCLIP(prototypes, prompts=prompts[:, :1])
    expected = TransCLIP(prompts[:, 0]).adapt(features)
    np.testing.assert_allclose(one.adapt(features), expected, rtol=0, atol=1e-11)


def test_renormalised_is_transclip_with_the_mean(other):
    features, prototypes, prompts = other
    expected = TransCLIP(normalize(prompts.mean(axis=1))).adapt(features)
    renormalised = HistoTransCLIP(prototypes, prompts=prompts, renormalise=True).adapt(features)
    np.testing.assert_allclose(renormalised, expected, rtol=0, atol=1e-11)
    assert np.abs(HistoTransCLIP(prototypes, prompts=prompts).adapt(features) - expected).max() > 0.01


def test_length_of_a_prompt_does_not_matter(other):
    features, prototypes, prompts = other
    longer = prompts * np.linspace(0.995, 1.005, 4)[:, None]
    expected = HistoTransCLIP(prototypes, prompts=prompts).adapt(features)
    np.testing.assert_allclose(HistoTransCLIP(prototypes, prompts=longer).adapt(features), expected, rtol=0, atol=1e-10)


def test_predict_uses_the_prompts_after_adapt(other):
    features, prototypes, prompts = other
    method = HistoTransCLIP(prototypes, prompts=prompts, logit_scale=30.0, temperature=1e12)
    method.adapt(features[:100])
    weights = np.exp(30.0 * features[100:] @ prompts.mean(axis=1).T)
    expected = weights / weights.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(method.predict(features[100:]), expected, rtol=0, atol=1e-6)


def test_prompts_of_a_wrong_shape_raise():
    with pytest.raises(ValueError, match=r"prompts must have the shape .*Fix"):
        HistoTransCLIP(np.eye(3), prompts=np.eye(3))


@pytest.mark.slow  # tests/common runs the same checks one by one
def test_common_checks():
    check_method(HistoTransCLIP)
