"""Counting correct samples for many weights, against trying each weight."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zeroshift.arrays import Backend
from zeroshift.methods._shared.few_shot import best_weight, count_correct, row_blocks

WEIGHTS = np.array([0.0, 1e-4, 0.03, 0.5, 1.0, 2.5, 40.0, 1e4])


def counts_by_trying(base, term, labels):
    return np.array([((base + weight * term).argmax(axis=1) == labels).sum() for weight in WEIGHTS])


@pytest.mark.parametrize("convert", [np.asarray, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("seed", range(5))
def test_agrees_with_trying_each_weight(seed, convert):
    rng = np.random.default_rng(seed)
    base, term = rng.normal(size=(2, 200, 6))
    labels = rng.integers(6, size=200)
    term[np.arange(0, 200, 3), labels[::3]] += 2  # some are right above a weight, some below one, some between two
    expected = counts_by_trying(base, term, labels)
    assert len(set(expected.tolist())) > 3
    right = count_correct(convert(base), convert(term), convert(labels), convert(WEIGHTS))
    np.testing.assert_array_equal(right, expected)
    transposed = count_correct(convert(base.T.copy()).T, convert(term), convert(labels), convert(WEIGHTS))
    np.testing.assert_array_equal(transposed, expected)


@pytest.mark.parametrize("seed", range(5))
def test_of_tied_classes_the_first_is_predicted(seed):
    """Whole numbers, so that ties are common, also at the bounds of the weights."""
    rng = np.random.default_rng(seed)
    base, term = rng.integers(-2, 3, size=(2, 300, 4)).astype(float)
    labels, weights = rng.integers(4, size=300), np.array([0.0, 0.5, 1.0, 2.0, 4.0])
    expected = [((base + weight * term).argmax(axis=1) == labels).sum() for weight in weights]
    np.testing.assert_array_equal(count_correct(base, term, labels, weights), expected)


def test_a_constant_term_changes_nothing():
    rng = np.random.default_rng(0)
    base, labels = rng.normal(size=(50, 4)), rng.integers(4, size=50)
    flat = np.full((50, 4), 3.0)
    np.testing.assert_array_equal(count_correct(base, flat, labels, WEIGHTS), counts_by_trying(base, flat, labels))


def test_one_class_is_always_right():
    assert (count_correct(np.ones((3, 1)), np.ones((3, 1)), np.zeros(3, int), WEIGHTS) == 3).all()


def test_best_weight_is_the_first_of_the_best(monkeypatch):
    rng = np.random.default_rng(1)
    base_head, term_head = rng.normal(size=(2, 5, 8))
    features, labels = rng.normal(size=(300, 8)), rng.integers(5, size=300)
    scores = lambda x: (x @ base_head.T, x @ term_head.T)  # noqa: E731
    counts = counts_by_trying(*scores(features), labels)
    expected = WEIGHTS[counts.argmax()], counts.max() / 300
    assert best_weight((features, labels), 5, WEIGHTS.tolist(), scores) == expected
    monkeypatch.setattr("zeroshift.methods._shared.few_shot.WORK_NUMBERS", 7 * 8)
    assert best_weight((features, labels), 5, WEIGHTS.tolist(), scores) == expected
    assert best_weight((features, labels), 5, [0.5, 0.5], scores)[0] == 0.5


def test_blocks_cover_every_row_once(monkeypatch):
    monkeypatch.setattr("zeroshift.methods._shared.few_shot.WORK_NUMBERS", 10)
    blocks = list(row_blocks(7, 3, Backend.of(np.eye(2))))
    assert [(block.start, block.stop) for block in blocks] == [(0, 3), (3, 6), (6, 7)]
    assert len(list(row_blocks(4, 1000, Backend.of(np.eye(2))))) == 4
