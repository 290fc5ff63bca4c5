"""Sums, means and residuals of classes, against adding row by row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zeroshift.methods._shared.gaussian_classifier import ClassGroups

CASES = {
    "balanced": np.repeat(np.arange(5), 4),
    "shuffled": np.random.default_rng(0).permutation(np.repeat(np.arange(5), 4)),
    "unbalanced": np.random.default_rng(1).integers(5, size=37),
    "empty classes": np.array([3, 1, 1, 3, 1]),
    "one sample": np.array([4]),
}


@pytest.mark.parametrize("convert", [np.asarray, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("labels", CASES.values(), ids=CASES.keys())
def test_agrees_with_adding_row_by_row(labels, convert):
    values = np.random.default_rng(2).normal(size=(len(labels), 3))
    expected = np.zeros((5, 3))
    np.add.at(expected, labels, values)
    counts = np.bincount(labels, minlength=5)
    groups = ClassGroups(labels, 5)
    assert sorted(groups.order) == list(range(len(labels)))
    np.testing.assert_array_equal(groups.counts, counts)
    ordered = convert(values[groups.order])
    np.testing.assert_allclose(groups.sums(ordered), expected, rtol=0, atol=1e-12)
    means = expected / np.maximum(counts, 1)[:, None]
    np.testing.assert_allclose(groups.means(ordered), means, rtol=0, atol=1e-12)
    residuals = (values - means[labels])[groups.order]
    groups.subtract(ordered, convert(means))
    np.testing.assert_allclose(ordered, residuals, rtol=0, atol=1e-12)


def test_precision_is_kept():
    groups = ClassGroups(np.array([0, 1, 1]), 2)
    values = np.ones((3, 2), np.float32)
    assert groups.sums(values).dtype == groups.means(values).dtype == np.float32
