"""Streams of runs and of some classes: lengths of runs, classes that come back, and the share of the classes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeroshift.evaluate.streams import bursts, recurring, some_classes, some_classes_sorted

TEN = np.tile(np.arange(10), 300)
LABELS = st.lists(st.integers(0, 6), min_size=1, max_size=80).map(np.array)
SEEDS = st.integers(0, 1000)
SHARES = {"some_classes": some_classes, "some_classes_sorted": some_classes_sorted}


def runs(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The class and the length of every run of equal labels."""
    starts = np.flatnonzero(np.diff(labels, prepend=-1))
    return labels[starts], np.diff([*starts, len(labels)])


@pytest.mark.parametrize("mean_length", [1, 3, 10])
def test_lengths_of_bursts_are_geometric(mean_length):
    lengths = np.concatenate([runs(TEN[bursts(TEN, seed, mean_length=mean_length).rows])[1] for seed in range(3)])
    # The last run of a class is cut, so that the mean is a little lower.
    assert 0.9 * mean_length < lengths.mean() < 1.05 * mean_length
    longer = [np.mean(lengths > n) for n in (mean_length, 2 * mean_length)]
    stay = 1 - 1 / mean_length
    assert longer == pytest.approx([stay**mean_length, stay ** (2 * mean_length)], abs=0.05)


@given(labels=LABELS, seed=SEEDS)
def test_bursts_of_length_one_repeat_a_class_only_where_it_must(labels, seed):
    seen = labels[bursts(labels, seed, mean_length=1).rows]
    largest = np.bincount(labels).max()
    assert np.count_nonzero(np.diff(seen) == 0) == max(0, 2 * largest - len(labels) - 1)


def test_bursts_of_a_long_mean_are_the_sorted_stream():
    seen = TEN[bursts(TEN, 0, mean_length=1e15).rows]
    assert len(runs(seen)[0]) == 10


def test_the_classes_of_bursts_are_mixed_over_the_whole_stream():
    for seed in range(3):
        thirds = np.split(TEN[bursts(TEN, seed).rows], 3)
        assert all(len(set(third)) == 10 for third in thirds)


@given(rounds=st.integers(1, 4), classes=st.integers(2, 5), rows=st.integers(4, 9), seed=SEEDS)
def test_every_class_comes_once_per_round(rounds, classes, rows, seed):
    labels = np.repeat(np.arange(classes), rows)
    order, lengths = runs(labels[recurring(labels, seed, rounds=rounds).rows])
    for one_round in order.reshape(rounds, classes):
        assert sorted(one_round) == list(range(classes))
    assert set(lengths) <= {rows // rounds, -(-rows // rounds)}


def test_rounds_have_orders_of_their_own():
    order, _ = runs(TEN[recurring(TEN, 0, rounds=3).rows])
    assert len({tuple(one) for one in order.reshape(3, 10)}) == 3


def test_small_classes_may_miss_any_round():
    labels = np.array([0, 0, *[1] * 30, *[2] * 30])
    seen = [labels[recurring(labels, seed).rows] for seed in range(30)]
    assert {int(one.argmin()) // 20 for one in seen} == {0, 1, 2}
    assert all(np.count_nonzero(runs(one)[0] == 0) == 2 for one in seen)


@pytest.mark.parametrize("make", SHARES.values(), ids=SHARES)
@given(labels=LABELS, seed=SEEDS, share=st.floats(0.01, 1))
def test_all_rows_of_a_share_of_the_classes_come_once(make, labels, seed, share):
    rows = make(labels, seed, class_share=share).rows
    kept, present = np.unique(labels[rows]), np.unique(labels)
    assert len(kept) == max(1, round(share * len(present)))
    assert sorted(rows) == np.flatnonzero(np.isin(labels, kept)).tolist()
    np.testing.assert_array_equal(rows, make(labels, seed, class_share=share).rows)


@given(labels=LABELS, seed=SEEDS)
def test_both_orders_hold_the_same_rows_and_one_is_sorted(labels, seed):
    mixed, by_class = some_classes(labels, seed).rows, some_classes_sorted(labels, seed).rows
    assert sorted(mixed) == sorted(by_class)
    assert len(runs(labels[by_class])[0]) == len(np.unique(labels[by_class]))


def test_some_classes_in_random_order_are_mixed():
    seen = TEN[some_classes(TEN, 0).rows]
    assert np.mean(np.diff(seen) == 0) == pytest.approx(1 / 3, abs=0.05)


@pytest.mark.parametrize("make", SHARES.values(), ids=SHARES)
def test_the_classes_are_drawn_by_the_seed(make):
    drawn = {tuple(np.unique(TEN[make(TEN, seed).rows])) for seed in range(3)}
    assert len(drawn) == 3
    assert {k for seed in range(40) for k in np.unique(TEN[make(TEN, seed).rows])} == set(range(10))


@pytest.mark.parametrize("make", [bursts, recurring, some_classes, some_classes_sorted])
def test_three_seeds_give_three_orders(make):
    assert len({tuple(make(TEN, seed).rows) for seed in range(3)}) == 3


def test_there_are_no_more_rounds_than_rows():
    few = TEN[:30]
    np.testing.assert_array_equal(recurring(few, 0, rounds=10**15).rows, recurring(few, 0, rounds=30).rows)
