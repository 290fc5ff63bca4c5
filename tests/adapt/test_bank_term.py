"""The bank term computed from bounds equals its definition, for any geometry."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zeroshift import OnlineADAPT
from zeroshift.adapt.bank import KnowledgeBank
from zeroshift.adapt.bank_term_bounds import (
    COORDINATES,
    IGNORED,
    CosineBounds,
    add_excess,
    can_matter,
    coordinates,
    fit_cones,
    shared_direction,
    subspace,
    uncertain_pairs,
)
from zeroshift.adapt.statistics import bank_sums, bank_term
from zeroshift.adapt.transductive_float32 import NarrowBounds
from zeroshift.arrays import Backend
from zeroshift.benchmarks.problems import clip_like
from zeroshift.zero_shot import softmax

ROUNDING = 1e-13


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


@st.composite
def banks(draw):
    """(x, bank features, weights, occupied): any cone from none (half of the cosines negative) to a narrow one, slots
    and whole classes empty, entries of weight zero, duplicates, rows a little longer or shorter than 1."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    classes, slots = draw(st.integers(1, 7)), draw(st.integers(1, 5))
    d = draw(st.sampled_from([1, 2, 3, 8, COORDINATES + 20]))
    n = draw(st.integers(1, 12))
    cone = draw(st.sampled_from([0.0, 0.3, 1.0, 3.0])) * np.sqrt(d)
    common = unit(rng.normal(size=d))
    features = unit(rng.normal(size=(classes, slots, d)) + cone * common) * rng.uniform(0.99, 1.01, (classes, slots, 1))
    x = unit(rng.normal(size=(n, d)) + cone * common) * rng.uniform(0.99, 1.01, (n, 1))
    if draw(st.booleans()):
        x[0] = features[0, 0]
    if draw(st.booleans()):
        x[-1] = -x[-1]
    counts = rng.integers(0, slots + 1, classes)
    occupied = (np.arange(slots) < counts[:, None]).astype(np.float64)
    weights = occupied * rng.uniform(0.05, 1.0, (classes, slots)) * (rng.random((classes, slots)) > 0.1)
    return x, features * occupied[:, :, None], weights, occupied


@given(banks())
@settings(max_examples=300, deadline=None)
def test_plain_product_plus_excess_is_the_bank_term(bank):
    x, features, weights, occupied = bank
    sums, totals = bank_sums(features, weights)
    m = shared_direction(sums)
    term = x @ sums.T
    uncertain = uncertain_pairs(term, x, m, fit_cones(features, occupied, sums, totals, m), totals)
    add_excess(term, x, features, weights, uncertain)
    np.testing.assert_allclose(term, bank_term(x, features, weights), rtol=0, atol=1e-11)


@given(banks())
@settings(max_examples=300, deadline=None)
def test_cones_never_miss_a_negative_cosine(bank):
    x, features, weights, occupied = bank
    sums, totals = bank_sums(features, weights)
    m = shared_direction(sums)
    uncertain = uncertain_pairs(x @ sums.T, x, m, fit_cones(features, occupied, sums, totals, m), totals)
    cosines = np.einsum("nd,kmd->nkm", x, features)
    negative = ((cosines < -1e-9) & (weights > 0)).any(axis=2)
    assert not (negative & ~uncertain).any()


@given(banks(), st.integers(1, 20))
@settings(max_examples=300, deadline=None)
def test_cosine_bounds_never_miss_a_negative_cosine(bank, block_rows):
    x, features, weights, _ = bank
    if not (weights > 0).any():
        return
    uncertain = np.zeros((len(x), len(features)), dtype=bool)
    for rows, uncertain_classes in CosineBounds.of(features, weights).uncertain_rows(x, block_rows):
        assert not uncertain[rows].any(), "a row was yielded twice"
        uncertain[rows] = uncertain_classes
    cosines = np.einsum("nd,kmd->nkm", x, features)
    negative = ((cosines < -1e-9) & (weights > 0)).any(axis=2)
    assert not (negative & ~uncertain).any()


@pytest.mark.parametrize("share", [0.002, 0.2, 1.0], ids=["single pairs", "a large part", "all"])
@pytest.mark.parametrize("max_cosines", [1, 500, 10**6])
def test_excess_completes_the_plain_product(share, max_cosines):
    rng = np.random.default_rng(3)
    features, weights = unit(rng.normal(size=(40, 4, 10))), rng.uniform(0.1, 1.0, (40, 4))
    x = unit(rng.normal(size=(60, 10)))
    uncertain = rng.random((60, 40)) < share
    plain = x @ bank_sums(features, weights)[0].T + 5.0
    term = plain.copy()
    add_excess(term, x, features, weights, uncertain, max_cosines)
    np.testing.assert_allclose(
        term[uncertain], bank_term(x, features, weights)[uncertain] + 5.0, rtol=0, atol=ROUNDING * 10
    )


def test_features_in_a_cone_leave_nothing_uncertain():
    """The cone alone leaves some rows uncertain, the subspace none."""
    rng = np.random.default_rng(4)
    d, rank = 256, 12
    cloud = rng.normal(size=(500, d)) * 0.05
    cloud[:, :rank] += rng.normal(size=(500, rank))
    cloud[:, -1] += 5.0
    cloud = unit(cloud)
    bank, x = cloud[:300], cloud[300:]
    bounds = CosineBounds.of(bank.reshape(60, 5, d), np.ones((60, 5)))
    assert (x @ bank.T).min() > 0.02, "no cosine is negative"
    assert not (x @ bounds.centre >= np.linalg.norm(x, axis=1) * bounds.limit).all(), "the cone alone is enough"
    assert list(bounds.uncertain_rows(x, 64)) == []


@given(banks())
@settings(max_examples=300, deadline=None)
def test_float32_bounds_never_miss_a_negative_cosine(given_bank):
    x, features, weights, _ = given_bank
    if not (weights > 0).any():
        return
    classes, slots, d = features.shape
    bank = KnowledgeBank(Backend.of(features), classes, d, slots)
    bank.features, bank.weights = features, weights
    term = (x @ bank_sums(features, weights)[0].T).astype(np.float32)
    spare = (np.zeros_like(term), np.zeros_like(term))
    NarrowBounds.of(bank).add_excess(term, x.astype(np.float32), spare, complete=True)
    np.testing.assert_allclose(term, bank_term(x, features, weights), rtol=0, atol=1e-5)


def test_can_matter_bounds_the_change_of_every_probability():
    rng = np.random.default_rng(3)
    scores = rng.normal(scale=12, size=(200, 50))
    weights = rng.uniform(0, 3, size=50)
    excess = rng.uniform(0, 1, size=(200, 50)) * weights
    matters = can_matter(scores, excess, weights)
    assert 0.02 < matters.mean() < 0.9
    changed = softmax(scores + excess)
    answer = softmax(scores + np.where(matters, excess, 0.0))
    assert np.abs(answer - changed).max() <= IGNORED


def test_streams_without_negligible_classes_have_the_same_probabilities():
    problem = clip_like(classes=300, dimension=64, samples=700, geometry="clustered")
    features, prototypes = problem.features.astype(np.float32), problem.prototypes.astype(np.float32)
    for engine, calls in (("streaming", 700), ("replay", 1)):
        method, complete = (OnlineADAPT(prototypes, engine=engine) for _ in range(2))
        answer = np.concatenate([method.adapt(rows) for rows in np.split(features, calls)])
        scores = np.concatenate([complete.adapt_scores(rows) for rows in np.split(features, calls)])
        assert method.diagnostics.products == "float32"
        np.testing.assert_allclose(answer, softmax(scores.astype(np.float64)), rtol=0, atol=2 * IGNORED)
        exact = OnlineADAPT(prototypes, engine="direct", precision="float64").adapt_scores(features.astype(np.float64))
        np.testing.assert_allclose(scores, exact, rtol=0, atol=2e-3)


def test_the_subspace_contains_the_entries_however_many_slots_are_empty():
    rng = np.random.default_rng(4)
    flat, used = np.zeros((400, 64)), np.zeros(400, dtype=bool)
    used[rng.choice(400, 20, replace=False)] = True
    flat[used] = rng.normal(size=(20, 64)) / 8
    centre = np.eye(64)[0]
    basis = subspace(flat, used, centre, 32)
    assert np.linalg.eigvalsh(basis @ basis.T).max() <= 1 + 1e-9
    np.testing.assert_allclose(coordinates(flat[used], basis)[:, -1], 0, atol=1e-3)
    nothing = subspace(np.zeros((400, 64)), np.zeros(400, dtype=bool), centre, 32)
    assert np.isfinite(nothing).all()
