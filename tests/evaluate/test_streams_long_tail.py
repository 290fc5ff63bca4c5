"""Long-tailed streams: the paper's counts by group, and the rows drawn for them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeroshift.evaluate.streams import StreamSpec, long_tail, long_tail_counts


def test_the_papers_counts_come_out_exactly():
    """61 head classes (40 shots or more; 2,719 images), 338 medium (7,396), 601 tail (10 or fewer; 2,416)."""
    stream = long_tail(np.repeat(np.arange(1000), 50), seed=0, imbalance=50)
    labels = np.repeat(np.arange(1000), 50)[stream.rows]
    assert np.bincount(stream.groups).tolist() == [2719, 7396, 2416]
    classes = [len(set(labels[stream.groups == group])) for group in range(3)]
    assert classes == [61, 338, 601]
    sizes = np.bincount(labels, minlength=1000)
    assert sizes.max() == 50
    assert sizes.min() == 1
    assert stream.group_names == ("head", "medium", "tail")


@given(n_classes=st.integers(1, 40), most=st.integers(2, 300), imbalance=st.floats(1, 200))
def test_sizes_fall_from_the_greatest_to_the_smallest(n_classes, most, imbalance):
    counts = long_tail_counts(n_classes, most, imbalance)
    assert counts[0] == most
    assert (np.diff(counts) <= 0).all()
    assert counts.min() >= 1
    if n_classes > 1:
        assert counts[-1] == max(1, np.rint(most / imbalance)) or abs(counts[-1] - most / imbalance) <= 0.5 + 1e-9


@given(
    sizes=st.lists(st.integers(2, 30), min_size=1, max_size=8),
    imbalance=st.floats(1, 50),
    seed=st.integers(0, 100),
)
def test_rows_occur_at_most_once_in_the_stated_numbers(sizes, imbalance, seed):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    stream = long_tail(labels, seed, imbalance=imbalance)
    assert len(set(stream.rows)) == len(stream)
    found = sorted(np.bincount(labels[stream.rows], minlength=len(sizes)), reverse=True)
    assert found == long_tail_counts(len(sizes), min(sizes), imbalance).tolist()
    for k in range(len(sizes)):
        assert len(set(stream.groups[labels[stream.rows] == k])) == 1
    np.testing.assert_array_equal(stream.rows, long_tail(labels, seed, imbalance=imbalance).rows)


def test_the_seed_draws_which_class_is_the_greatest():
    labels = np.repeat(np.arange(5), 20)
    greatest = {int(np.bincount(labels[long_tail(labels, seed).rows]).argmax()) for seed in range(40)}
    assert greatest == set(range(5))


def test_without_imbalance_all_classes_are_the_head():
    stream = long_tail(np.repeat(np.arange(4), 10), 0, imbalance=1)
    assert len(stream) == 40
    assert not stream.groups.any()


def test_classes_without_rows_do_not_count():
    labels = np.repeat([1, 7], 10)
    assert sorted(np.unique(labels[long_tail(labels, 0, imbalance=5).rows], return_counts=True)[1]) == [2, 10]


def test_more_than_the_smallest_class_has_is_rejected():
    with pytest.raises(ValueError, match=r"most must be at most 4, the size of the smallest class; got 5. Fix: most=4"):
        long_tail(np.array([0] * 4 + [1] * 9), 0, most=5)
    with pytest.raises(ValueError, match=r"imbalance must be a number of at least 1; got 0\.5"):
        long_tail(np.repeat([0, 1], 3), 0, imbalance=0.5)


def test_the_ratio_is_limited_by_the_largest_class():
    assert long_tail_counts(8, most=6, imbalance=50)[[0, -1]].tolist() == [6, 1]


@pytest.mark.parametrize("most", [1, 0], ids=["one", "none"])
def test_fewer_than_two_rows_are_rejected(most):
    words = rf"most must be None or an integer of at least 2; got {most}.*Fix: most=None"
    for make in (
        lambda: long_tail(np.repeat([0, 1], 3), 0, most=most),
        lambda: long_tail_counts(3, most),
        lambda: StreamSpec("long_tail", {"most": most}),
    ):
        with pytest.raises(ValueError, match=words):
            make()
    with pytest.raises(ValueError, match=r"the smallest class has 1 row; .* at least 2. Fix: leave out the classes"):
        long_tail(np.array([0, 0, 0, 1]), 0)
