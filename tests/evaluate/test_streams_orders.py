"""Orders of all rows: permutations, reproducible, and sorted as their names say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeroshift.evaluate.streams import (
    bursts,
    class_sorted,
    dirichlet,
    easy_to_hard,
    few_classes,
    hard_to_easy,
    random_order,
    recurring,
)

LABELS = st.lists(st.integers(0, 5), min_size=1, max_size=60).map(np.array)
SEEDS = st.integers(0, 1000)
BY_LABEL = {
    "class_sorted": class_sorted,
    "dirichlet": dirichlet,
    "few_classes": few_classes,
    "bursts": bursts,
    "recurring": recurring,
}
BY_CONFIDENCE = {"easy_to_hard": easy_to_hard, "hard_to_easy": hard_to_easy}


@pytest.mark.parametrize("order", BY_LABEL.values(), ids=BY_LABEL)
@given(labels=LABELS, seed=SEEDS)
def test_by_label_every_row_comes_once_and_the_seed_decides(order, labels, seed):
    stream = order(labels, seed)
    assert sorted(stream.rows) == list(range(len(labels)))
    np.testing.assert_array_equal(stream.rows, order(labels, seed).rows)
    assert stream.groups is None


@pytest.mark.parametrize("order", BY_CONFIDENCE.values(), ids=BY_CONFIDENCE)
@given(confidences=st.lists(st.floats(-3, 0), min_size=1, max_size=60).map(np.array), seed=SEEDS)
def test_by_confidence_every_row_comes_once_and_the_seed_decides(order, confidences, seed):
    stream = order(confidences, seed)
    assert sorted(stream.rows) == list(range(len(confidences)))
    np.testing.assert_array_equal(stream.rows, order(confidences, seed).rows)


@pytest.mark.parametrize("order", [*BY_LABEL.values(), *BY_CONFIDENCE.values()], ids=[*BY_LABEL, *BY_CONFIDENCE])
def test_another_seed_gives_another_order(order):
    # As labels, 30 of each class; as confidences, thirty times the same two values.
    assert (order(np.repeat([0, 1], 30), 0).rows != order(np.repeat([0, 1], 30), 1).rows).any()


def test_random_orders_do_not_change_between_versions():
    """`split` shuffles in this way if no stream is named: both must use a seed in the same way."""
    np.testing.assert_array_equal(random_order(50, 3).rows, np.random.default_rng(3).permutation(50))


@given(confidences=st.lists(st.floats(-3, -0.001), min_size=1, max_size=40).map(np.array), seed=SEEDS)
def test_easy_to_hard_and_hard_to_easy_are_sorted_by_confidence(confidences, seed):
    slack = 1e-9  # confidences that differ only by rounding count as equal
    assert (np.diff(confidences[easy_to_hard(confidences, seed).rows]) <= slack).all()
    assert (np.diff(confidences[hard_to_easy(confidences, seed).rows]) >= -slack).all()


@given(labels=LABELS, seed=SEEDS)
def test_sorted_classes_come_one_after_the_other(labels, seed):
    seen = labels[class_sorted(labels, seed).rows]
    assert np.count_nonzero(np.diff(seen)) == len(np.unique(labels)) - 1


def test_the_order_of_sorted_classes_is_drawn():
    labels = np.repeat(np.arange(6), 2)
    firsts = {labels[class_sorted(labels, seed).rows[0]] for seed in range(40)}
    assert firsts == set(range(6))
