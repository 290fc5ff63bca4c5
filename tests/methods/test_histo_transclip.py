"""Histo-TransCLIP against its authors' output: TransCLIP with another text."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from goldens import assert_golden, golden, problem
from plain import histo_transclip as plain
from zeroshift import normalize
from zeroshift.methods import HistoTransCLIP, TransCLIP
from zeroshift.testing import make_problem
from zeroshift.zero_shot import logits

TOLERANCE = 4e-5
"""An independent float64 version is 7.7e-6 from the authors' float32; for the first prompts, ours is 1.3e-5."""


@pytest.fixture(scope="module")
def other():
    """Features, prototypes and prompts (K, 4, d) that agree more in some classes than in others."""
    made = make_problem(classes=7, dimension=20, samples=150, seed=5)
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(7, 4, 20)) * np.linspace(0.05, 0.3, 7)[:, None, None]
    prompts = normalize((made.prototypes[:, None, :] + noise).reshape(-1, 20)).reshape(7, 4, 20)
    return made.features, made.prototypes, prompts


def test_golden():
    given = problem()
    method = HistoTransCLIP(given["prototypes"], prompts=given["prompts"])
    assert_golden(method.adapt_scores(given["features"]), golden("histo_transclip")["probs"], TOLERANCE)


def test_golden_text():
    """The authors' text is the mean of the prompts. With a very high temperature, predictions follow it alone."""
    given, expected = problem("float64"), golden("histo_transclip")["zs_logits"]
    method = HistoTransCLIP(given["prototypes"], prompts=given["prompts"], temperature=1e12)
    method.adapt(given["features"][:100])
    probabilities = np.exp(expected - expected.max(axis=1, keepdims=True))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(method.predict(given["features"]), probabilities, rtol=0, atol=2e-5)


def test_golden_of_transclip_with_the_first_prompt():
    given, expected = problem(), golden("histo_transclip")
    first = given["prompts"][:, 0]
    scores = TransCLIP(first).adapt_scores(given["features"])
    assert_golden(scores, expected["transclip_first_template_probs"], TOLERANCE)
    assert_golden(logits(given["features"], first, 100.0), expected["zs_first_template_logits"], 1e-4)


@pytest.mark.parametrize("renormalise", [False, True])
def test_plain(other, renormalise):
    features, prototypes, prompts = other
    setting = {"renormalise": renormalise, "logit_scale": 30.0}
    expected = plain.scores(torch.tensor(features), prompts=torch.tensor(prompts), **setting)
    found = HistoTransCLIP(prototypes, prompts=prompts, **setting).adapt(features)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11)


def test_length_of_a_prompt_does_not_matter(other):
    features, prototypes, prompts = other
    longer = prompts * np.linspace(0.995, 1.005, 4)[:, None]
    expected = HistoTransCLIP(prototypes, prompts=prompts).adapt(features)
    np.testing.assert_allclose(HistoTransCLIP(prototypes, prompts=longer).adapt(features), expected, rtol=0, atol=1e-10)


def test_prompts_of_a_wrong_shape_raise():
    with pytest.raises(ValueError, match=r"prompts must have the shape .*Fix"):
        HistoTransCLIP(np.eye(3), prompts=np.eye(3))
