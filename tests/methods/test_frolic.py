"""Frolic against the output of its authors' file, step by step; the reconstructed variant against its equations."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from goldens import assert_golden, golden, problem
from plain import frolic as plain
from zeroshift import normalize
from zeroshift.methods import Frolic
from zeroshift.methods._shared.sinkhorn import sinkhorn
from zeroshift.methods.frolic import (
    harden,
    mean_confidence,
    mean_prompts,
    moment_covariance,
    pooled_variance,
    prompt_logits,
    refine_proxies,
    shrunken_precision,
)
from zeroshift.testing import make_problem
from zeroshift.testing.examples import example_prompts
from zeroshift.zero_shot import posterior, softmax

TOLERANCE = 1e-3
"""An independent float64 version is 2.9e-4 from the authors' float32."""


@pytest.mark.parametrize(("key", "rounds"), [("logits", None), ("fused_logits", 0), ("debias0_logits", 1)])
def test_golden(key, rounds):
    given = problem()
    method = Frolic(given["prototypes"], prompts=given["prompts"], bias_rounds=rounds)
    assert_golden(method.adapt_scores(given["features"]), golden("frolic")[key], TOLERANCE)


def test_golden_steps():
    given, expected = problem(), golden("frolic")
    x, prototypes, prompts = (given[key].astype("float64") for key in ("features", "prototypes", "prompts"))
    means = mean_prompts(prompts)
    precision = shrunken_precision(pooled_variance(x, prompts), 0.9)
    gaussian = prompt_logits(x, means, precision)
    np.testing.assert_allclose(gaussian, expected["lda_logits"], rtol=0, atol=2e-6)
    # Name, start of the classifier, and the scores its labels are computed from.
    fits = {
        "inmap_logits": (prototypes, x @ prototypes.T),
        "inmap_v1_logits": (prototypes, x @ means.T),
        "inmap_v2_logits": (means, x @ means.T),
        "inmap_v3_logits": (prototypes, gaussian),
        "inmap_v4_logits": (means, gaussian),
    }
    for key, (start, scores) in fits.items():
        actual = x @ refine_proxies(x, start, harden(sinkhorn(scores), 0.6).T @ x).T
        assert_golden(actual, expected[key], TOLERANCE)


def made(seed, **geometry):
    found = make_problem(classes=7, dimension=24, samples=160, seed=seed, **geometry)
    return found, example_prompts(found.prototypes)


def test_plain():
    found, prompts = made(1)
    given = (torch.tensor(found.features), torch.tensor(found.prototypes))
    parameters = {"logit_scale": 30.0, "shrinkage": 0.5}
    expected = plain.scores(*given, prompts=torch.tensor(prompts), iterations=150, rounds=4, **parameters)
    method = Frolic(found.prototypes, prompts=prompts, proxy_iterations=150, bias_rounds=4, **parameters)
    np.testing.assert_allclose(method.adapt_scores(found.features), expected.numpy(), rtol=0, atol=1e-9)


def test_paper_variant_step_by_step():
    found, prompts = made(3)
    x, t = found.features, found.prototypes
    method = Frolic(t, prompts=prompts, logit_scale=30.0, variant="paper")
    logits = 30.0 * x @ t.T
    means = normalize(prompts.mean(axis=1))
    precision = np.linalg.inv(moment_covariance(x, means, 1.0)[0])
    gaussian = x @ precision @ means.T - 0.5 * np.einsum("kd,de,ke->k", means, precision, means)

    fused = Frolic(t, prompts=prompts, logit_scale=30.0, variant="paper", bias_rounds=0).adapt_scores(x)
    temperature = np.ptp(gaussian[0]) / np.ptp((fused - logits)[0])
    np.testing.assert_allclose(fused - logits, gaussian / temperature, atol=1e-9)
    assert mean_confidence(gaussian / temperature) == pytest.approx(mean_confidence(logits), abs=1e-8)

    scores = method.adapt_scores(x)
    bias = (fused - scores)[0]
    np.testing.assert_allclose(fused - scores, np.tile(bias, (len(x), 1)), atol=1e-10)
    beta, classes = np.exp(bias), fused.argmax(axis=1)
    columns = [softmax(fused)[classes == k].mean(axis=0) if (classes == k).any() else np.zeros(7) for k in range(7)]
    after = np.stack(columns, axis=1) @ beta
    assert np.abs(after / after.sum() - beta).sum() < 1e-3


@pytest.mark.parametrize("variant", ["released", "paper"])
def test_equally_frequent_classes_are_predicted_more_evenly(variant):
    found = make_problem(classes=4, dimension=16, samples=400, seed=6, noise=1.5)
    leaning = found.prototypes.copy()
    leaning[0] += 0.5 * found.features.mean(axis=0)  # nearer to everything
    leaning = normalize(leaning)
    parameters = {"prompts": leaning[:, None, :], "logit_scale": 10.0, "variant": variant, "proxy_iterations": 300}
    spreads = []
    for rounds in (0, None):
        answer = Frolic(leaning, bias_rounds=rounds, **parameters).adapt(found.features)
        spreads.append(np.ptp(np.bincount(answer.argmax(axis=1), minlength=4)))
    assert spreads[1] < spreads[0]


@pytest.mark.parametrize("variant", ["released", "paper"])
def test_new_samples_are_predicted_by_the_same_classifier(variant):
    found, prompts = made(4)
    method = Frolic(found.prototypes, prompts=prompts, variant=variant, proxy_iterations=50)
    np.testing.assert_allclose(
        method.predict(found.features), posterior(found.features, found.prototypes, 100.0), atol=1e-12
    )
    answer = method.adapt(found.features)
    np.testing.assert_allclose(method.predict(found.features[::7]), answer[::7], rtol=0, atol=1e-12)
    method.adapt(found.features[:50])
    again = Frolic(found.prototypes, prompts=prompts, variant=variant, proxy_iterations=50)
    np.testing.assert_array_equal(again.adapt(found.features), answer)
    assert np.abs(method.predict(found.features) - answer).max() > 1e-6, "a second set starts from scratch"


def test_prompts_are_required_and_checked():
    prototypes = np.eye(3, 8)
    with pytest.raises(TypeError, match="prompts"):
        Frolic(prototypes)
    with pytest.raises(ValueError, match=r"prompts .*Fix:"):
        Frolic(prototypes, prompts=prototypes)
    with pytest.raises(ValueError, match=r"prompts\[1\].*unit length"):
        Frolic(prototypes, prompts=prototypes[:, None, :] * np.array([1.0, 2.0, 1.0])[:, None, None])
