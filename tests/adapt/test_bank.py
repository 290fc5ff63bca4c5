"""The knowledge bank's invariants, for any sequence of offers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zeroshift.adapt.bank import HELD, KnowledgeBank
from zeroshift.arrays import Backend
from zeroshift.zero_shot import confidence, log_softmax, pseudo_class

D = 4
BACKEND = Backend.of(np.zeros(1))

# Few distinct posteriors, so that ties are common.
offers = st.lists(st.sampled_from(range(12)), min_size=1, max_size=60)
capacities = st.integers(1, 7)
LOG_POSTERIORS = log_softmax(np.random.default_rng(0).normal(scale=2, size=(12, 3)))
LOG_POSTERIORS[7] = LOG_POSTERIORS[2]
LOG_POSTERIORS[11] = LOG_POSTERIORS[2]


def sample(number: int) -> np.ndarray:
    """A vector whose first number is the time it was offered."""
    return np.array([[number, 1.0, 2.0, 3.0]])


def held(bank: KnowledgeBank, k: int) -> list[tuple[int, float, float]]:
    n = bank.sample_counts[k]
    slots = slice(bank.pinned, bank.pinned + n)
    return [
        (int(x[0]), float(p), float(c))
        for x, p, c in zip(bank.features[k, slots], bank.weights[k, slots], bank.confidences[k, slots], strict=True)
    ]


def expected_banks(rows: list[int], capacity: int) -> list[list[tuple[int, float, float]]]:
    """The bank's specification, with plain lists."""
    banks: list[list[tuple[int, float, float]]] = [[], [], []]
    for number, row in enumerate(rows):
        log_y = LOG_POSTERIORS[row]
        k, c = int(pseudo_class(log_y[None])[0]), float(confidence(log_y[None])[0])
        entry = (number, float(np.exp(log_y[k])), c)
        if len(banks[k]) < capacity:
            banks[k].append(entry)
            continue
        confidences = [other[2] for other in banks[k]]
        lowest = confidences.index(min(confidences))
        if c > confidences[lowest]:
            banks[k][lowest] = entry
    return banks


@given(offers, capacities)
def test_single_rows_enter_where_a_plan_puts_them(rows, capacity):
    bank, planned = (KnowledgeBank(BACKEND, 3, D, capacity) for _ in range(2))
    for number, row in enumerate(rows):
        log_y = LOG_POSTERIORS[row : row + 1]
        k, c = int(pseudo_class(log_y)[0]), float(confidence(log_y)[0])
        plan = planned.plan(np.array([k]), np.array([c]))
        found = bank.find_slot(k, c)
        assert (found is not None) == planned.offer(sample(number), log_y)
        if found is not None:
            assert found == (int(plan.slots[0]), plan.replaced[0] == HELD)
            bank.put(k, found[0], sample(number)[0], np.exp(log_y[0, k]), c)
    for name, array in bank.state()[0].items():
        np.testing.assert_array_equal(array, planned.state()[0][name])


@given(offers, capacities)
def test_bank_equals_its_specification_slot_by_slot(rows, capacity):
    bank = KnowledgeBank(BACKEND, 3, D, capacity)
    for number, row in enumerate(rows):
        bank.offer(sample(number), LOG_POSTERIORS[row : row + 1])
    for k, expected in enumerate(expected_banks(rows, capacity)):
        assert [number for number, _, _ in held(bank, k)] == [number for number, _, _ in expected]
        np.testing.assert_allclose(held(bank, k), expected)


@given(offers, capacities)
def test_never_over_capacity_and_unused_slots_are_zero(rows, capacity):
    bank = KnowledgeBank(BACKEND, 3, D, capacity)
    for number, row in enumerate(rows):
        bank.offer(sample(number), LOG_POSTERIORS[row : row + 1])
        assert (bank.counts <= capacity).all()
        assert bank.features.shape[1] <= max(capacity, 1)
        empty = bank.occupied == 0
        assert (bank.features[empty] == 0).all()
        assert (bank.weights[empty] == 0).all()
    assert bank.size == bank.occupied.sum()


@given(offers, capacities)
def test_lowest_confidence_never_falls_once_full(rows, capacity):
    bank = KnowledgeBank(BACKEND, 3, D, capacity)
    lowest = {}
    for number, row in enumerate(rows):
        bank.offer(sample(number), LOG_POSTERIORS[row : row + 1])
        for k in range(3):
            if bank.counts[k] == capacity:
                now = min(c for _, _, c in held(bank, k))
                assert now >= lowest.get(k, -np.inf)
                lowest[k] = now


@given(offers, capacities)
def test_bank_holds_the_most_confident_samples(rows, capacity):
    """The confidences held are the L largest offered; no sample above the lowest of them is missing."""
    bank = KnowledgeBank(BACKEND, 3, D, capacity)
    for number, row in enumerate(rows):
        bank.offer(sample(number), LOG_POSTERIORS[row : row + 1])
    classes, confidences = pseudo_class(LOG_POSTERIORS[rows]), confidence(LOG_POSTERIORS[rows])
    for k in range(3):
        offered = [(float(c), number) for number, c in enumerate(confidences) if classes[number] == k]
        top = sorted((c for c, _ in offered), reverse=True)[:capacity]
        entries = held(bank, k)
        assert sorted((c for _, _, c in entries), reverse=True) == pytest.approx(top)
        if entries:
            least = min(c for _, _, c in entries)
            assert {number for c, number in offered if c > least} <= {number for number, _, _ in entries}


@given(offers, capacities)
def test_offering_a_batch_equals_offering_row_by_row(rows, capacity):
    one, batch = KnowledgeBank(BACKEND, 3, D, capacity), KnowledgeBank(BACKEND, 3, D, capacity)
    for number, row in enumerate(rows):
        one.offer(sample(number), LOG_POSTERIORS[row : row + 1])
    batch.offer(np.concatenate([sample(number) for number in range(len(rows))]), LOG_POSTERIORS[rows])
    for k in range(3):
        assert held(batch, k) == held(one, k)


@given(offers, capacities, st.floats(0, 1))
def test_prune_drops_the_least_confident_and_keeps_the_order(rows, capacity, ratio):
    bank = KnowledgeBank(BACKEND, 3, D, capacity)
    for number, row in enumerate(rows):
        bank.offer(sample(number), LOG_POSTERIORS[row : row + 1])
    before = [held(bank, k) for k in range(3)]
    bank.prune(ratio)
    for k, entries in enumerate(before):
        drop = int(ratio * len(entries) + 1e-9)
        dropped = sorted(range(len(entries)), key=lambda slot: entries[slot][2])[:drop]
        assert held(bank, k) == [entry for slot, entry in enumerate(entries) if slot not in dropped]
    assert (bank.features[bank.occupied == 0] == 0).all()


@settings(max_examples=30)
@given(offers, capacities, st.lists(st.integers(0, 2), min_size=1, max_size=6))
def test_pinned_samples_are_never_evicted(rows, capacity, labels):
    bank = KnowledgeBank(BACKEND, 3, D, capacity)
    labels = np.array(labels)
    bank.pin(np.full((len(labels), D), 9.0), labels)
    pinned = np.bincount(labels, minlength=3)
    for number, row in enumerate(rows):
        bank.offer(sample(number), LOG_POSTERIORS[row : row + 1])
    bank.prune(1.0)
    np.testing.assert_array_equal(bank.counts, pinned)
    assert (bank.features[bank.occupied == 1] == 9).all()
    assert (bank.weights[bank.occupied == 1] == 1).all()


def test_replacing_needs_strictly_higher_confidence():
    bank = KnowledgeBank(BACKEND, 3, D, 1)
    log_y = LOG_POSTERIORS[2:3]
    assert bank.offer(sample(0), log_y)
    assert not bank.offer(sample(1), log_y)
    assert held(bank, int(pseudo_class(log_y)[0]))[0][0] == 0
