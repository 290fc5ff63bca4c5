"""InMaP's proxies: fits computed together agree with each fit by itself, step by step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zeroshift import normalize
from zeroshift.methods import frolic
from zeroshift.methods.frolic import harden, label_sums, refine_proxies
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


def refined(labels, **parameters):
    sums = np.stack([label_sums(MADE.features, y, 0.6) for y in labels])
    return refine_proxies(MADE.features, np.stack([MADE.prototypes] * len(labels)), sums, **parameters)


def test_step_by_step():
    (actual,) = refined([LABELS], iterations=60)
    np.testing.assert_allclose(actual, step_by_step(MADE.features, MADE.prototypes, LABELS), atol=1e-11)


def test_a_low_temperature_does_not_overflow():
    features = MADE.features.astype("float32")
    sums = label_sums(features, LABELS.astype("float32"), 0.6)
    proxies = refine_proxies(features, MADE.prototypes.astype("float32")[None], sums[None], temperature=0.005)
    assert np.isfinite(proxies).all()
    (wide,) = refined([LABELS], temperature=0.005, iterations=20)
    expected = step_by_step(MADE.features, MADE.prototypes, LABELS, temperature=0.005, iterations=20)
    np.testing.assert_allclose(wide, expected, atol=1e-11)


def test_fits_computed_together_are_independent():
    other = posterior(MADE.features, MADE.prototypes[::-1], 10.0)
    together = refined([LABELS, other], iterations=200)
    alone = np.concatenate([refined([LABELS], iterations=200), refined([other], iterations=200)])
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-12)
    assert np.abs(together[0] - together[1]).max() > 0.1


def test_proxies_have_unit_length():
    np.testing.assert_allclose(np.linalg.norm(refined([LABELS, LABELS]), axis=2), 1, atol=1e-12)


def test_block_size_does_not_change_results(monkeypatch):
    whole = refined([LABELS], iterations=50)
    monkeypatch.setattr(frolic, "WORK_NUMBERS", 1)
    monkeypatch.setattr(frolic, "MIN_ROWS", 16)
    monkeypatch.setattr(frolic, "BLOCK_ROWS", 16)
    np.testing.assert_allclose(refined([LABELS], iterations=50), whole, atol=1e-12)


def test_torch_gives_the_same():
    features, start, labels = (torch.tensor(array) for array in (MADE.features, MADE.prototypes, LABELS))
    actual = refine_proxies(features, start[None], label_sums(features, labels, 0.6)[None], iterations=50)
    np.testing.assert_allclose(actual.numpy(), refined([LABELS], iterations=50), atol=1e-11)


def test_starts_are_not_modified():
    starts = np.stack([MADE.prototypes])
    refine_proxies(MADE.features, starts, label_sums(MADE.features, LABELS, 0.6)[None], iterations=3)
    np.testing.assert_array_equal(starts[0], MADE.prototypes)


def test_only_labels_above_the_threshold_are_hardened():
    labels = np.array([[0.61, 0.39], [0.6, 0.4], [0.1, 0.9]])
    np.testing.assert_array_equal(harden(labels, 0.6), [[1, 0], [0.6, 0.4], [0, 1]])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_of_hardened_labels(dtype):
    features = MADE.features.astype(dtype)
    sums = label_sums(features, LABELS.astype(dtype), 0.6)
    assert sums.dtype == dtype
    np.testing.assert_allclose(sums, harden(LABELS, 0.6).T @ MADE.features, rtol=0, atol=1e-5)
