"""InMaP's proxies, step by step."""

from __future__ import annotations

import numpy as np
import torch

from zeroshift import normalize
from zeroshift.methods.frolic import harden, refine_proxies
from zeroshift.testing import make_problem
from zeroshift.zero_shot import posterior, softmax

MADE = make_problem(classes=5, dimension=12, samples=70, seed=3)
LABELS = posterior(MADE.features, MADE.prototypes, 40.0)


def step_by_step(features, start, labels, temperature=0.04, rate=10.0, iterations=60, threshold=0.6):
    n = len(features)
    hard = np.where(labels.max(1, keepdims=True) > threshold, np.eye(labels.shape[1])[labels.argmax(1)], labels)
    before, proxies, halved = np.inf, start, 0
    for _ in range(iterations):
        gradient = softmax(features @ proxies.T / temperature).T @ features - hard.T @ features
        if np.linalg.norm(gradient) > before:
            rate, halved = rate / 2, halved + 1
        before = np.linalg.norm(gradient)
        proxies = normalize(proxies - rate / (n * temperature) * gradient)
    assert halved, "the steps are never halved: the test shows nothing of it"
    return proxies


def refined(labels, start=MADE.prototypes, **parameters):
    return refine_proxies(MADE.features, start, harden(labels, 0.6).T @ MADE.features, **parameters)


def test_step_by_step():
    np.testing.assert_allclose(
        refined(LABELS, iterations=60), step_by_step(MADE.features, MADE.prototypes, LABELS), atol=1e-11
    )


def test_a_low_temperature_does_not_overflow():
    wide = refined(LABELS, temperature=0.005, iterations=20)
    expected = step_by_step(MADE.features, MADE.prototypes, LABELS, temperature=0.005, iterations=20)
    np.testing.assert_allclose(wide, expected, atol=1e-11)


def test_proxies_have_unit_length():
    np.testing.assert_allclose(np.linalg.norm(refined(LABELS), axis=1), 1, atol=1e-12)


def test_torch_gives_the_same():
    features, start, labels = (torch.tensor(array) for array in (MADE.features, MADE.prototypes, LABELS))
    actual = refine_proxies(features, start, harden(labels, 0.6).T @ features, iterations=50)
    np.testing.assert_allclose(actual.numpy(), refined(LABELS, iterations=50), atol=1e-11)


def test_the_start_is_not_modified():
    start = MADE.prototypes.copy()
    refined(LABELS, start, iterations=3)
    np.testing.assert_array_equal(start, MADE.prototypes)


def test_only_labels_above_the_threshold_are_hardened():
    labels = np.array([[0.61, 0.39], [0.6, 0.4], [0.1, 0.9]])
    np.testing.assert_array_equal(harden(labels, 0.6), [[1, 0], [0.6, 0.4], [0, 1]])
