"""The low-entropy memory against a reference with lists, and with its input split in several ways."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zeroshift.arrays import Backend
from zeroshift.methods._shared.low_entropy_memory import LowEntropyMemory

K = 3


@st.composite
def streams(draw):
    """Pseudo-classes and entropies; few different values, so that ties are common."""
    classes = draw(st.lists(st.integers(0, K - 1), min_size=1, max_size=40))
    values = draw(st.lists(st.integers(0, 12), min_size=len(classes), max_size=len(classes)))
    return np.array(classes), np.array(values) / 8


def memory_of(capacity, **options):
    return LowEntropyMemory(Backend.of(np.zeros(1)), K, capacity, 1, **options)


def numbered(n, start=0):
    """Features that contain the number of the sample."""
    return np.arange(start, start + n, dtype=float)[:, None] + 1


def insert_all(memory, classes, entropies, pieces=1):
    for rows in np.array_split(np.arange(len(classes)), pieces):
        if len(rows):
            plan = memory.plan(classes[rows], entropies[rows])
            memory.apply(plan, numbered(len(rows), rows[0]))


def reference(classes, entropies, capacity, ties="newest"):
    """Slots [class][slot] = (entropy, sample) after every sample."""
    slots = [[] for _ in range(K)]
    history = []
    for row, (k, entropy) in enumerate(zip(classes.tolist(), entropies.tolist(), strict=True)):
        own = slots[k]
        if entropy < np.inf and len(own) < capacity:
            own.append((entropy, row))
        elif own:
            worst = max(held for held, _ in own)
            if entropy < worst:
                equals = [slot for slot, (held, _) in enumerate(own) if held == worst]
                gone = max(equals, key=lambda slot: own[slot][1]) if ties == "newest" else equals[0]
                own[gone] = (entropy, row)
        history.append([list(own) for own in slots])
    return history


def insert_one_by_one(memory, classes, entropies):
    for row, (k, entropy) in enumerate(zip(classes.tolist(), entropies.tolist(), strict=True)):
        insertion = memory.plan_one(k, entropy)
        if insertion is not None:
            memory.insert(insertion, numbered(1, row)[0])


def contents(memory):
    """The memory in the form of `reference`."""
    return [
        [
            (float(entropy), int(feature[0]) - 1)
            for entropy, feature in zip(memory.entropies[k], memory.features[k], strict=True)
            if np.isfinite(entropy)
        ]
        for k in range(K)
    ]


@settings(deadline=None, max_examples=60)
@given(
    streams(),
    st.integers(0, 4),
    st.sampled_from(["newest", "first slot"]),
    st.sampled_from([insert_all, insert_one_by_one]),
    st.sampled_from([np.inf, 0.625]),
)
def test_agrees_with_the_reference(stream, capacity, ties, insert_all, limit):
    classes, entropies = stream[0], np.where(stream[1] < limit, stream[1], np.inf)
    memory = memory_of(capacity, ties=ties)
    insert_all(memory, classes, entropies)
    assert contents(memory) == reference(classes, entropies, capacity, ties)[-1]


@pytest.mark.parametrize("insert_all", [insert_all, insert_one_by_one])
@pytest.mark.parametrize(
    ("ties", "entropies", "left"),
    [
        ("newest", [0.75, 0.5, 0.5, 0.25], [3, 1]),  # sample 2 replaced sample 0: the newest is in the first slot
        ("newest", [0.5, 0.5, 0.75, 0.25], [0, 3]),
        ("first slot", [0.5, 0.5, 0.75, 0.25], [3, 1]),
    ],
)
def test_ties_replace_the_newest_or_the_first_slot(insert_all, ties, entropies, left):
    memory = memory_of(2, ties=ties)
    insert_all(memory, np.zeros(4, dtype=int), np.array(entropies))
    assert [sample for _, sample in contents(memory)[0]] == left


@settings(deadline=None, max_examples=60)
@given(streams(), st.integers(1, 4))
def test_it_keeps_the_lowest_entropies(stream, capacity):
    classes, entropies = stream
    memory = memory_of(capacity)
    insert_all(memory, classes, entropies)
    for k in range(K):
        held = np.sort(memory.entropies[k][np.isfinite(memory.entropies[k])])
        np.testing.assert_array_equal(held, np.sort(entropies[classes == k])[:capacity])
    np.testing.assert_array_equal(memory.counts, np.minimum(np.bincount(classes, minlength=K), capacity))


@settings(deadline=None, max_examples=60)
@given(streams(), st.integers(1, 4), st.integers(1, 7))
def test_splitting_does_not_change_results(stream, capacity, pieces):
    whole, parts = memory_of(capacity), memory_of(capacity)
    insert_all(whole, *stream)
    insert_all(parts, *stream, pieces)
    np.testing.assert_array_equal(parts.features, whole.features)
    np.testing.assert_array_equal(parts.entropies, whole.entropies)


@settings(deadline=None, max_examples=60)
@given(streams(), st.integers(1, 3), st.integers(0, 20))
def test_a_plan_knows_the_contents_at_each_turn(stream, capacity, cut):
    classes, entropies = stream
    history = reference(classes, entropies, capacity)
    memory = memory_of(capacity)
    cut = min(cut, len(classes) - 1)
    insert_all(memory, classes[:cut], entropies[:cut])
    old = memory.features.reshape(-1)
    plan = memory.plan(classes[cut:], entropies[cut:])
    old_present, new_present = plan.old_replaced_at > np.arange(len(classes) - cut)[:, None], plan.is_present()
    assert plan.old_replaced_at.shape == (K * capacity,)
    for turn in range(len(classes) - cut):
        there = {(slot, int(old[slot]) - 1) for slot in np.flatnonzero(old_present[turn])}
        entered = np.flatnonzero(new_present[turn])
        there |= {(int(plan.slots[e]), int(plan.rows[e]) + cut) for e in entered}
        slots = history[cut + turn]
        assert there == {(k * capacity + slot, row) for k in range(K) for slot, (_, row) in enumerate(slots[k])}
    assert {int(plan.rows[e]) for e in plan.kept()} == {int(plan.rows[e]) for e in np.flatnonzero(new_present[-1])}


def test_a_plan_changes_nothing():
    memory = memory_of(2)
    insert_all(memory, np.array([0, 1]), np.array([0.5, 0.4]))
    before = memory.entropies.copy(), memory.features.copy()
    memory.plan(np.array([0, 0, 1, 2]), np.array([0.1, 0.2, 0.3, 0.4]))
    np.testing.assert_array_equal(memory.entropies, before[0])
    np.testing.assert_array_equal(memory.features, before[1])


def test_entropies_that_differ_by_rounding_are_equal():
    memory = memory_of(1)
    insert_all(memory, np.array([0, 0]), np.array([0.3, 0.3 - 1e-12]))
    assert memory.features[0, 0, 0] == 1


@settings(deadline=None, max_examples=60)
@given(streams(), st.integers(1, 3))
def test_a_restored_memory_continues(stream, capacity):
    memory, again = memory_of(capacity), memory_of(capacity)
    insert_all(memory, *stream)
    arrays = memory.state()[0]
    assert all(np.isfinite(array).all() for array in arrays.values())
    again.restore(arrays, {})
    assert contents(again) == contents(memory)
    for each in (memory, again):
        insert_all(each, stream[0], stream[1] - 0.125)
    assert contents(again) == contents(memory)
    np.testing.assert_array_equal(again.entropies, memory.entropies)


def test_wrong_arrival_numbers_raise():
    memory = memory_of(2)
    insert_all(memory, np.array([0, 1]), np.array([0.5, 0.4]))
    with pytest.raises(ValueError, match="no arrival number"):
        memory_of(2).restore({**memory.state()[0], "arrivals": np.zeros((K, 2), dtype=np.int64)}, {})


def test_a_memory_of_another_shape_raises():
    with pytest.raises(ValueError, match=r"shape \(3, 2, 1\), not \(3, 4, 1\)"):
        memory_of(4).restore(memory_of(2).state()[0], {})


def test_torch_gives_the_same():
    backend = Backend.of(torch.zeros(1))
    memory = LowEntropyMemory(backend, K, 2, 1, dtype=torch.float32)
    classes, entropies = np.array([0, 0, 0, 1]), np.array([0.5, 0.3, 0.4, 0.9])
    memory.apply(memory.plan(classes, entropies), torch.tensor(numbered(4), dtype=torch.float32))
    assert memory.features[:, :, 0].tolist() == [[3, 2], [4, 0], [0, 0]]
    assert [array.dtype for array in memory.state()[0].values()] == [torch.float32, torch.float64, torch.int64]
