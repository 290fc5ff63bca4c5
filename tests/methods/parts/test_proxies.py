"""InMaP's proxies, step by step."""

from __future__ import annotations

import numpy as np
import pytest

from zeroshift import normalize
from zeroshift.methods.frolic import harden, refine_proxies
from zeroshift.testing import make_problem
from zeroshift.zero_shot import posterior, softmax

MADE = make_problem(classes=5, dimension=12, samples=70, seed=3)
LABELS = posterior(MADE.features, MADE.prototypes, 40.0)


def step_by_step(features, start, labels, temperature, rate=10.0, iterations=60, threshold=0.6):
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


@pytest.mark.parametrize(("temperature", "iterations"), [(0.04, 60), (0.005, 20)])
def test_step_by_step(temperature, iterations):
    """Also at a low temperature, where exponentials could overflow."""
    setting = {"temperature": temperature, "iterations": iterations}
    refined = refine_proxies(MADE.features, MADE.prototypes, harden(LABELS, 0.6).T @ MADE.features, **setting)
    np.testing.assert_allclose(refined, step_by_step(MADE.features, MADE.prototypes, LABELS, **setting), atol=1e-11)


def test_only_labels_above_the_threshold_are_hardened():
    labels = np.array([[0.61, 0.39], [0.6, 0.4], [0.1, 0.9]])
    np.testing.assert_array_equal(harden(labels, 0.6), [[1, 0], [0.6, 0.4], [0, 1]])
