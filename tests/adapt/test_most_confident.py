"""`MostConfident`: the most confident samples of every class, selected chunk by chunk."""

from __future__ import annotations

import numpy as np
import pytest

from zeroshift.adapt import transductive
from zeroshift.adapt.transductive import MostConfident
from zeroshift.arrays import Backend, Rows, to_numpy


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize(("capacity", "pending"), [(1, 10), (3, 1), (3, 64), (7, 10**6)])
def test_equals_one_sort_of_all_samples(monkeypatch, library, capacity, pending):
    """Few distinct confidences, so that most are tied: the earlier sample stays, for any chunks."""
    monkeypatch.setattr(transductive, "PENDING", pending)
    backend = Backend.named(library, "cpu")
    rng = np.random.default_rng(0)
    classes, confidences = rng.integers(0, 9, 500), rng.integers(-4, 0, 500) / 4.0
    probabilities = rng.random(500)
    most_confident = MostConfident(backend, capacity)
    for start in range(0, 500, 23):
        part = slice(start, start + 23)
        offered = (backend.xp.asarray(values[part]) for values in (classes, confidences, probabilities))
        most_confident.offer(*offered, first_row=start)
    selected, ranks, rows, held_confidences, held_probabilities = map(to_numpy, most_confident.chosen())
    for k in range(9):
        expected = sorted(np.flatnonzero(classes == k), key=lambda row: -confidences[row])[:capacity]
        np.testing.assert_array_equal(rows[selected == k], expected)
        np.testing.assert_array_equal(ranks[selected == k], np.arange(len(expected)))
    np.testing.assert_array_equal(held_confidences, confidences[rows])
    np.testing.assert_array_equal(held_probabilities, probabilities[rows])


@pytest.mark.parametrize("source", ["numpy", "torch"])
@pytest.mark.parametrize("target", ["numpy", "torch"])
def test_take_gathers_rows(source, target):
    values = np.arange(12.0, dtype=np.float32).reshape(6, 2)
    backend = Backend.named(target, "cpu")
    rows = Rows(Backend.named(source, "cpu").xp.asarray(values), backend, backend.xp.float64)
    taken = rows.take(np.array([4, 0, 4]))
    assert taken.dtype == backend.xp.float64
    np.testing.assert_array_equal(to_numpy(taken), values[[4, 0, 4]])
    for reuse in (False, True):
        blocks = [to_numpy(block).copy() for _, block in rows.blocks(4, reuse=reuse)]
        np.testing.assert_array_equal(np.concatenate(blocks), values)
