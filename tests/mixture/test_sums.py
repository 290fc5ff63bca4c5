"""Sums: adding parts gives the whole in any order, and saved sums of other shapes or counts are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zeroshift.arrays import Backend
from zeroshift.mixture.scoring import new_columns
from zeroshift.mixture.sums import SetSums, Sums
from zeroshift.mixture.temperature import N_TEMPERATURES
from zeroshift.testing import make_problem

NUMPY = Backend.of(np.zeros(1))


@st.composite
def samples(draw, second=None):
    """Features, soft labels, posteriors, confidences, features of a second encoder, and posteriors of each alone."""
    n, k, d = draw(st.integers(1, 12)), draw(st.integers(1, 5)), draw(st.integers(1, 4))
    e = draw(st.integers(0, 3)) if second is None else second
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    q, y, first, other = (rng.dirichlet(np.ones(k), size=n) for _ in range(4))
    return rng.normal(size=(n, d)), q, y, rng.random((n, 1 + N_TEMPERATURES)), rng.normal(size=(n, e)), first, other


def sums_of(parts, rows=slice(None)):
    x, q, y, confidences, v, first, other = (part[rows] for part in parts)
    sums = Sums.zeros(NUMPY, q.shape[1], x.shape[1], v.shape[1])
    if not len(x):
        return sums
    second = v if v.shape[1] else None
    sums = sums.add_samples(x, q, second).add_posteriors(y, second).add_confidences(confidences)
    return sums if second is None else sums.add_agreement(first, other)


def assert_same(one, other):
    for name, array in one.arrays().items():
        np.testing.assert_allclose(array, other.arrays()[name], rtol=0, atol=1e-12, err_msg=name)


@given(samples())
def test_definition_of_each_sum(parts):
    x, q, y, confidences, v, first, other = parts
    sums = sums_of(parts)
    n = len(x)
    np.testing.assert_allclose(sums.counts, sum(q), atol=1e-12)
    np.testing.assert_allclose(sums.weighted, sum(np.outer(q[i], x[i]) for i in range(n)), atol=1e-12)
    np.testing.assert_allclose(sums.scatter, sum(np.outer(row, row) for row in x), atol=1e-12)
    np.testing.assert_allclose(sums.total, sum(x), atol=1e-12)
    np.testing.assert_allclose(sums.posteriors, sum(y), atol=1e-12)
    np.testing.assert_allclose(sums.squares, sum(y**2), atol=1e-12)
    np.testing.assert_allclose(sums.confidences, sum(confidences), atol=1e-12)
    np.testing.assert_allclose(sums.second_weighted, sum(np.outer(q[i], v[i]) for i in range(n)), atol=1e-12)
    np.testing.assert_allclose(sums.second_anchors, sum(np.outer(y[i], v[i]) for i in range(n)), atol=1e-12)
    np.testing.assert_allclose(sums.second_scatter, sum(np.outer(row, row) for row in v), atol=1e-12)
    np.testing.assert_allclose(sums.second_total, sum(v), atol=1e-12)
    judged = [n, sum(float(a @ b) for a, b in zip(first, other, strict=True)), float((first**2).sum())]
    np.testing.assert_allclose(sums.agreement, judged if v.shape[1] else np.zeros(3), atol=1e-12)
    np.testing.assert_allclose(sums.first_posteriors, v.shape[1] and sum(first), atol=1e-12)
    np.testing.assert_allclose(sums.second_posteriors, v.shape[1] and sum(other), atol=1e-12)
    assert sums.n_samples == pytest.approx(n)
    assert sums.second_dimension == v.shape[1]


@settings(max_examples=60)
@given(samples(), st.data())
def test_parts_add_up_to_the_whole_in_any_order(parts, data):
    n = len(parts[0])
    first, second = sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n))))
    a, b, c = (sums_of(parts, rows) for rows in (slice(first), slice(first, second), slice(second, n)))
    assert_same((a + b) + c, sums_of(parts))
    assert_same(a + (b + c), sums_of(parts))
    assert_same(a + b, b + a)
    assert_same(sums_of(parts, slice(None, None, -1)), sums_of(parts))


@given(samples(second=2))
def test_samples_that_have_no_second_encoder_yet_add_nothing_to_it(parts):
    sums = sums_of(parts)
    fresh = Sums.zeros(NUMPY, *sums.weighted.shape)
    labelled = Sums.from_labelled(parts[0], np.zeros(len(parts[0]), int), sums.counts.shape[0])
    assert_same(sums + fresh, sums)
    assert_same(fresh + sums, sums)
    for both in (sums + labelled, labelled + sums):
        np.testing.assert_allclose(both.counts, sums.counts + labelled.counts)
        np.testing.assert_array_equal(both.second_weighted, sums.second_weighted)
        assert both.second_dimension == 2


def test_streams_with_and_without_a_second_encoder_are_not_added():
    k, d = 2, 3
    rng = np.random.default_rng(0)
    q, x, v = np.full((4, k), 0.5), rng.normal(size=(4, d)), rng.normal(size=(4, 2))
    one = Sums.zeros(NUMPY, k, d, 2).add_samples(x, q, v).add_posteriors(q, v)
    without = Sums.zeros(NUMPY, k, d).add_samples(x, q).add_posteriors(q)
    wider = Sums.zeros(NUMPY, k, d, 1).add_samples(x, q, v[:, :1]).add_posteriors(q, v[:, :1])
    for a, b in ((one, without), (without, one), (one, wider)):
        with pytest.raises(ValueError, match=r"columns of a second encoder.*same encoder for both, or for neither"):
            a + b


@given(samples(), st.floats(0.01, 1))
def test_faded_sums_are_those_of_lighter_samples(parts, factor):
    sums = sums_of(parts)
    for name, array in sums.faded(factor).arrays().items():
        np.testing.assert_allclose(array, factor * sums.arrays()[name], err_msg=name)


@given(samples())
def test_sums_are_never_changed_in_place(parts):
    sums = sums_of(parts)
    last = {name: array.copy() for name, array in sums.arrays().items()}
    x, q, y, confidences, v, first, other = parts
    second = v if v.shape[1] else None
    added = sums.add_samples(x, q, second).add_posteriors(y, second).add_confidences(confidences)
    added = added.add_agreement(first, other).faded(0.5) + sums
    added.with_labels(counts=q[0])
    for name, array in sums.arrays().items():
        np.testing.assert_array_equal(array, last[name], err_msg=name)


@given(samples())
def test_with_other_labels_the_samples_can_be_counted_again(parts):
    x, q, _, confidences, v, first, other = parts
    second = v if v.shape[1] else None
    whole = sums_of(parts)
    again = whole.with_labels(confidences=np.zeros_like(whole.confidences))
    assert not again.counts.any()
    assert not again.confidences.any()
    again = again.add_labels(x, q, second).add_confidences(confidences)
    assert_same(again if second is None else again.add_agreement(first, other), whole)


def test_labelled_samples_are_certain_and_not_part_of_the_stream():
    x = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    sums = Sums.from_labelled(x, np.array([1, 1, 0]), 3)
    assert sums.counts.tolist() == [1.0, 2.0, 0.0]
    assert sums.weighted.tolist() == [[0.6, 0.8], [1.0, 1.0], [0.0, 0.0]]
    np.testing.assert_allclose(sums.total, [1.6, 1.8])
    for zeros in (sums.posteriors, sums.squares, sums.confidences, sums.agreement):
        assert not zeros.any()
    assert sums.n_samples == 0.0


def four_samples():
    rng = np.random.default_rng(3)
    q, y, first, other = (rng.dirichlet(np.ones(3), size=4) for _ in range(4))
    return sums_of(
        (rng.normal(size=(4, 2)), q, y, rng.random((4, 1 + N_TEMPERATURES)), rng.normal(size=(4, 5)), first, other)
    )


@pytest.mark.parametrize("name", Sums.zeros(NUMPY, 3, 2).arrays())
def test_restore_rejects_other_shapes(name):
    arrays = four_samples().arrays()
    fresh = Sums.zeros(NUMPY, 3, 2)
    assert fresh.restore(arrays, {}).arrays()[name] is arrays[name]
    shape = arrays[name].shape
    arrays[name] = np.zeros((*shape[:-1], shape[-1] + 1))
    with pytest.raises(ValueError, match=r"has shape \(.*, not \("):
        fresh.restore(arrays, {})


@pytest.mark.parametrize(
    ("name", "index", "value"),
    [
        ("counts", 0, -0.5),
        ("counts", 0, 9.0),
        ("posteriors", 1, 9.0),
        ("posteriors", 1, -0.5),
        ("squares", 0, 5.0),
        ("confidences", 3, 4.5),
        ("agreement", 0, 5.0),
        ("agreement", 1, 5.0),
        ("first_posteriors", 2, 3.0),
        ("second_posteriors", 2, 3.0),
    ],
)
def test_restore_rejects_sums_that_no_samples_have(name, index, value):
    arrays = four_samples().arrays()
    arrays[name] = arrays[name].copy()
    arrays[name][index] = value
    with pytest.raises(ValueError, match="must be"):
        Sums.zeros(NUMPY, 3, 2).restore(arrays, {})


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("certain", [0.0, 0.1, 0.6, 1.0])
def test_a_set_added_up_in_chunks_equals_its_samples(dtype, certain):
    """Labels that are 1 but for rounding are added up class by class: with all, some or none of them."""
    draw = np.random.default_rng(3)
    classes, d, n = 300, 12, 700
    problem = make_problem(classes, d, n, seed=2)
    features = problem.features.astype(dtype)
    q = draw.dirichlet(np.full(classes, 0.02), size=n)
    rows = draw.random(n) < certain
    q[rows] = np.eye(classes)[draw.integers(0, classes, size=int(rows.sum()))]
    y = draw.dirichlet(np.full(classes, 0.1), size=n)
    zeros = Sums.zeros(Backend.of(q), classes, d)
    expected = zeros.add_samples(features.astype(np.float64), q).add_posteriors(y)
    origin = features[:9].mean(axis=0).astype(np.float32).astype(np.float64)
    parts = [SetSums(zeros, origin, None, y[:50].mean(axis=0).astype(dtype)) for _ in range(2)]
    for number, start in enumerate(range(0, n, 230)):
        sums, chunk = parts[number % 2], slice(start, start + 230)
        columns = new_columns(Backend.of(q), len(features[chunk]), d, dtype)
        columns[:, :d] = features[chunk] - origin.astype(dtype)
        sums.add_labels(columns, q[chunk].astype(dtype), None)
        sums.add_features(columns, y[chunk].astype(dtype), None)
    found = parts[0].add(parts[1]).result()
    tolerance = 1e-11 if dtype is np.float64 else 1e-4
    for name, array in expected.arrays().items():
        np.testing.assert_allclose(getattr(found, name), array, rtol=0, atol=tolerance, err_msg=name)
    assert round(float(found.counts.sum()), 6) == n
    assert round(found.n_samples, 6) == n
