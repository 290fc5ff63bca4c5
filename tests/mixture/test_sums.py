"""Sums: adding parts gives the whole in any order, and saved sums of other shapes are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zeroshift.arrays import Backend
from zeroshift.mixture.sums import Sums
from zeroshift.mixture.temperature import N_TEMPERATURES

NUMPY = Backend.of(np.zeros(1))


@st.composite
def samples(draw):
    """Features, soft labels, posteriors and confidences of a few samples."""
    n, k, d = draw(st.integers(1, 12)), draw(st.integers(1, 5)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    q, y = rng.dirichlet(np.ones(k), size=n), rng.dirichlet(np.ones(k), size=n)
    return rng.normal(size=(n, d)), q, y, rng.random((n, 1 + N_TEMPERATURES))


def sums_of(parts, rows=slice(None), last=None):
    x, q, y, confidences = (part[rows] for part in parts)
    zeros = Sums.zeros(NUMPY, q.shape[1], x.shape[1])
    return (
        zeros.add_samples(x, q).add_posteriors(y, last, in_order=True).add_confidences(confidences) if len(x) else zeros
    )


def assert_same(one, other):
    for name, array in one.arrays().items():
        np.testing.assert_allclose(array, other.arrays()[name], rtol=0, atol=1e-12, err_msg=name)


def assert_same_except_neighbours(one, other):
    for name, array in one.arrays().items():
        kept = slice(2) if name == "watched" else slice(None)
        np.testing.assert_allclose(array[kept], other.arrays()[name][kept], rtol=0, atol=1e-12, err_msg=name)


@given(samples())
def test_definition_of_each_sum(parts):
    x, q, y, confidences = parts
    sums = sums_of(parts)
    n = len(x)
    np.testing.assert_allclose(sums.counts, sum(q), atol=1e-12)
    np.testing.assert_allclose(sums.weighted, sum(np.outer(q[i], x[i]) for i in range(n)), atol=1e-12)
    np.testing.assert_allclose(sums.scatter, sum(np.outer(row, row) for row in x), atol=1e-12)
    np.testing.assert_allclose(sums.total, sum(x), atol=1e-12)
    np.testing.assert_allclose(sums.posteriors, sum(y), atol=1e-12)
    neighbours = sum(float(y[i] @ y[i - 1]) for i in range(1, n))
    np.testing.assert_allclose(sums.watched, [n, sum(float(row @ row) for row in y), n - 1, neighbours], atol=1e-12)
    np.testing.assert_allclose(sums.confidences, sum(confidences), atol=1e-12)


@settings(max_examples=60)
@given(samples(), st.data())
def test_parts_of_a_stream_add_up_to_the_whole(parts, data):
    n = len(parts[0])
    cut = data.draw(st.integers(1, n))
    head = sums_of(parts, slice(cut))
    tail = sums_of(parts, slice(cut, n), last=parts[2][cut - 1])
    assert_same(head + tail, sums_of(parts))


@given(samples(), st.data())
def test_separate_streams_have_no_common_neighbours(parts, data):
    n = len(parts[0])
    cut = data.draw(st.integers(0, n))
    added = sums_of(parts, slice(cut)) + sums_of(parts, slice(cut, n))
    whole = sums_of(parts)
    assert_same_except_neighbours(added, whole)
    assert added.watched[2] == whole.watched[2] - (0 < cut < n)


@given(samples(), st.data())
def test_addition_is_commutative(parts, data):
    n = len(parts[0])
    first, second = sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n))))
    a, b, c = (sums_of(parts, rows) for rows in (slice(first), slice(first, second), slice(second, n)))
    assert_same((a + b) + c, a + (b + c))
    assert_same(a + b, b + a)
    assert_same(a + Sums.zeros(NUMPY, *a.weighted.shape), a)


@given(samples(), st.randoms(use_true_random=False))
def test_the_order_of_samples_changes_only_neighbour_sums(parts, random):
    order = list(range(len(parts[0])))
    random.shuffle(order)
    assert_same_except_neighbours(sums_of(parts, order), sums_of(parts))


@given(samples())
def test_sums_are_never_changed_in_place(parts):
    sums = sums_of(parts)
    last = {name: array.copy() for name, array in sums.arrays().items()}
    x, q, y, confidences = parts
    (
        sums.add_samples(x, q).add_posteriors(y, y[0], in_order=False).add_confidences(confidences) + sums
    )  # the answer is not wanted
    for name, array in sums.arrays().items():
        np.testing.assert_array_equal(array, last[name], err_msg=name)


@given(samples())
def test_without_an_order_there_are_no_neighbours(parts):
    y = parts[2]
    watched = Sums.zeros(NUMPY, y.shape[1], 2).add_posteriors(y, None, in_order=False).watched
    assert watched[0] == len(y)
    assert watched[2:].tolist() == [0.0, 0.0]


def test_labelled_samples_are_certain_and_not_part_of_the_stream():
    x = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    sums = Sums.from_labelled(x, np.array([1, 1, 0]), 3)
    assert sums.counts.tolist() == [1.0, 2.0, 0.0]
    assert sums.weighted.tolist() == [[0.6, 0.8], [1.0, 1.0], [0.0, 0.0]]
    np.testing.assert_allclose(sums.total, [1.6, 1.8])
    for zeros in (sums.posteriors, sums.watched, sums.confidences):
        assert not zeros.any()


@pytest.mark.parametrize("name", ["counts", "weighted", "scatter", "total", "posteriors", "watched", "confidences"])
def test_restore_rejects_other_shapes(name):
    sums = Sums.zeros(NUMPY, 3, 2)
    arrays = {key: array + 1.0 for key, array in sums.arrays().items()}
    assert sums.restore(arrays, {}).arrays()[name] is arrays[name]
    shape = arrays[name].shape
    arrays[name] = np.zeros((*shape[:-1], shape[-1] + 1))
    with pytest.raises(ValueError, match=rf"^{name} has shape \(.*, not \("):
        sums.restore(arrays, {})
