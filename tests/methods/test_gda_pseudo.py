"""GDA-CLIP's unsupervised variant, against a plain loop of its equations and against the few-shot method."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from plain import common as plain
from zeroshift.methods import GDAPseudo, get
from zeroshift.testing import make_problem
from zeroshift.zero_shot import posterior, softmax

MADE = make_problem(classes=6, dimension=20, samples=150, seed=8)


def written_out(x, t, scale, alpha, iterations):
    n, d = x.shape
    logits = scale * x @ t.T
    scores = logits
    for _ in range(iterations):
        r = softmax(scores)
        means = (r.T @ x) / r.sum(axis=0)[:, None]
        scatter = np.zeros((d, d))
        for k, mean in enumerate(means):
            scatter += (x - mean).T @ (r[:, k, None] * (x - mean))
        covariance = scatter / (n - 1)
        precision = d * np.linalg.pinv((n - 1) * covariance + np.trace(covariance) * np.eye(d))
        w = means @ precision
        scores = logits + alpha * (x @ w.T - 0.5 * (w * means).sum(axis=1))
    return scores


@pytest.mark.parametrize(
    ("alpha", "iterations"), [(1.0, 1), (1.0, 10), (10.0, 3), (0.1, 2)], ids=lambda value: f"{value:g}"
)
def test_agrees_with_a_plain_loop(alpha, iterations):
    method = GDAPseudo(MADE.prototypes, logit_scale=30.0, alpha=alpha, iterations=iterations)
    expected = written_out(MADE.features, MADE.prototypes, 30.0, alpha, iterations)
    np.testing.assert_allclose(method.adapt_scores(MADE.features), expected, rtol=0, atol=1e-10)


def test_certain_posteriors_are_labels():
    """With posteriors of 0 and 1 a single iteration is GDA-CLIP with pseudo-labels as support."""
    found = make_problem(classes=4, dimension=20, samples=120, seed=9, noise=0.3)
    scale = 1e6
    scores = GDAPseudo(found.prototypes, logit_scale=scale, iterations=1).adapt_scores(found.features)
    labels = (found.features @ found.prototypes.T).argmax(axis=1)
    w, b, _, _ = plain.gda(torch.tensor(found.features), torch.tensor(labels), 4)
    # The logits are a million times as large as the discriminants, which are therefore accurate to fewer digits.
    discriminants = scores - scale * found.features @ found.prototypes.T
    expected = found.features @ w.numpy().T + b.numpy() + np.log(4)
    np.testing.assert_allclose(discriminants, expected, rtol=0, atol=1e-7)


def test_a_class_without_responsibility_keeps_its_prototype():
    prototypes = MADE.prototypes.copy()
    mean = MADE.features.mean(axis=0)
    prototypes[2] = -mean / np.linalg.norm(mean)
    rest = [0, 1, 3, 4, 5]
    scores = GDAPseudo(prototypes, logit_scale=1000.0).adapt_scores(MADE.features)
    others = GDAPseudo(prototypes[rest], logit_scale=1000.0).adapt_scores(MADE.features)
    np.testing.assert_allclose(scores[:, rest], others, rtol=0, atol=1e-9)


def test_no_spread_is_zero_shot():
    features = np.repeat(MADE.prototypes[:1], 30, axis=0)
    answer = GDAPseudo(MADE.prototypes).adapt(features)
    np.testing.assert_allclose(answer, posterior(features, MADE.prototypes, 100.0), atol=1e-5)


def test_is_marked_as_a_reconstruction():
    assert "no released code" in get("gda_pseudo").reconstructed
