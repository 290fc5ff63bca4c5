"""Correlated streams: how often neighbours share a class, and the limit on classes per batch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeroshift.evaluate.streams import dirichlet, few_classes
from zeroshift.evaluate.streams.orders import run_length

TEN = np.tile(np.arange(10), 60)


def same_as_before(labels: np.ndarray) -> float:
    """Fraction of neighbours of one class: 1 / K in a random order of K equal classes."""
    return float(np.mean(np.diff(labels) == 0))


def test_a_small_concentration_correlates_and_a_large_one_does_not():
    by_concentration = [
        np.mean([same_as_before(TEN[dirichlet(TEN, seed, concentration=c).rows]) for seed in range(5)])
        for c in (0.1, 1.0, 10.0, 1e7)
    ]
    assert by_concentration == sorted(by_concentration, reverse=True)
    assert by_concentration[0] > 0.4
    assert by_concentration[-1] == pytest.approx(0.1, abs=0.03)


@pytest.mark.parametrize("seed", range(3))
def test_with_many_classes_few_occur_together(seed):
    """200 classes: 64 rows of a random order hold about 55 of them."""
    labels = np.tile(np.arange(200), 20)
    seen = labels[dirichlet(labels, seed).rows]
    distinct = [len(set(seen[i : i + 64])) for i in range(0, len(seen) - 63, 64)]
    assert np.mean(distinct) < 25


def test_the_concentration_is_spread_over_the_slots():
    """With ten classes the default is 0.1 per slot: with twice the slots a class is in about as many of them."""
    labels = np.repeat(np.arange(50), 100)
    places = []
    for slots in (10, 200):
        rows = dirichlet(labels, 0, concentration=1.0, slots=slots).rows
        runs = np.diff(np.flatnonzero(np.diff(labels[rows], prepend=-1, append=-1)))
        places.append(len(runs))
    assert places[1] < places[0]  # more slots, none of them fuller: neighbours share a class more often


def test_at_the_lower_limit_a_class_falls_into_one_slot():
    rows = dirichlet(TEN, 0, concentration=1e-9, slots=len(TEN)).rows
    assert np.count_nonzero(np.diff(TEN[rows])) == 9


def test_at_the_upper_limit_every_slot_has_equal_classes():
    rows = dirichlet(TEN, 0, concentration=1e9, slots=4).rows
    for slot in TEN[rows].reshape(4, -1):
        np.testing.assert_array_equal(np.bincount(slot), np.full(10, 15))


def test_one_slot_is_a_random_order():
    assert same_as_before(TEN[dirichlet(TEN, 0, concentration=0.01, slots=1).rows]) < 0.2


@given(
    counts=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    cap=st.integers(1, 4),
    batch_size=st.integers(1, 30),
    seed=st.integers(0, 100),
)
def test_batches_hold_no_more_classes_than_allowed_until_rows_run_out(counts, cap, batch_size, seed):
    labels = np.repeat(np.arange(len(counts)), counts)
    stream = few_classes(labels, seed, classes_per_batch=cap, batch_size=batch_size)
    seen = labels[stream.rows]
    length = run_length(cap, batch_size)
    left = sum(n % length if cap == 1 else n * (n < length) for n in counts)
    for start in range(0, len(seen) - left - batch_size + 1, batch_size):
        assert len(set(seen[start : start + batch_size])) <= cap


@given(cap=st.integers(2, 5), seed=st.integers(0, 50))
def test_with_enough_rows_in_each_class_every_batch_keeps_to_the_cap(cap, seed):
    seen = TEN[few_classes(TEN, seed, classes_per_batch=cap, batch_size=48).rows]
    assert max(len(set(seen[i : i + 48])) for i in range(0, len(seen), 48)) <= cap


def test_a_class_comes_back_later():
    """Runs of all classes are shuffled: it is not the class-sorted stream."""
    seen = TEN[few_classes(TEN, 0, classes_per_batch=4, batch_size=40).rows]
    assert len(set(seen[:300])) == 10


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: dirichlet(TEN, 0, concentration=0), "concentration must be a number greater than 0; got 0"),
        (lambda: dirichlet(TEN, 0, slots=0), "slots must be None or an integer of at least 1; got 0"),
        (lambda: few_classes(TEN, 0, classes_per_batch=0), "classes_per_batch must be an integer of at least 1"),
        (lambda: few_classes(TEN, 0, batch_size=0), "batch_size must be an integer of at least 1; got 0"),
    ],
    ids=["concentration", "slots", "classes_per_batch", "batch_size"],
)
def test_parameters_are_checked(make, words):
    with pytest.raises(ValueError, match=words):
        make()
