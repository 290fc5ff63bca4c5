"""The memory of the most confident samples of each class, against lists."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from zeroshift.arrays import Backend
from zeroshift.methods._shared.class_memory import ClassMemory

K, SHARPNESS = 2, 2.0


@st.composite
def streams(draw):
    """Classes and entropies; few different values, so that ties are common."""
    classes = draw(st.lists(st.integers(0, K - 1), min_size=1, max_size=40))
    values = draw(st.lists(st.integers(0, 4), min_size=len(classes), max_size=len(classes)))
    return np.array(classes), np.array(values) / 8


def numbered(row):
    """A sample that contains its number."""
    return np.array([1.0, row]) / 100


def listed(classes, entropies, capacity, ties):
    """The samples in the slots of each class."""
    slots = [[] for _ in range(K)]
    for row, (k, entropy) in enumerate(zip(classes.tolist(), entropies.tolist(), strict=True)):
        own = slots[k]
        highest = max((held for held, _ in own), default=np.inf)
        if len(own) < capacity:
            own.append((entropy, row))
        elif own and entropy < highest:
            tied = [slot for slot, (held, _) in enumerate(own) if held == highest]
            own[max(tied, key=lambda slot: own[slot][1]) if ties == "newest" else tied[0]] = (entropy, row)
    return [[row for _, row in own] for own in slots]


@settings(deadline=None, max_examples=60)
@example((np.zeros(4, dtype=int), np.array([0.75, 0.5, 0.5, 0.25])), 2, "newest", False, False)
@given(streams(), st.integers(0, 4), st.sampled_from(["newest", "first slot"]), st.booleans(), st.booleans())
def test_it_agrees_with_lists(stream, capacity, ties, masks, in_torch):
    """Also after saving and loading halfway. A sample's mask is that of its number."""
    convert = torch.tensor if in_torch else np.array
    backend = Backend.of(convert(np.zeros(1)))
    every_mask = np.random.default_rng(0).random((40, K))
    memory = ClassMemory(backend, K, capacity, 2, ties=ties, masks=masks)
    for row, (k, entropy) in enumerate(zip(*stream, strict=True)):
        after = np.asarray(memory.of_class_after(k, entropy, convert(numbered(row))))
        before, samples = np.asarray(memory.of_class(k)), listed(*(part[: row + 1] for part in stream), capacity, ties)
        entered = memory.offer(k, entropy, convert(numbered(row)), convert(every_mask[row]) if masks else None)
        assert entered == (row in samples[k])
        assert entered or np.array_equal(before, after)
        np.testing.assert_array_equal(after, memory.of_class(k))
        if row == len(stream[0]) // 2:
            saved, memory = memory.state()[0], ClassMemory(backend, K, capacity, 2, ties=ties, masks=masks)
            memory.restore({name: convert(np.asarray(array)) for name, array in saved.items()}, {})
            memory.check_seen(row + 1)
    for k, rows in enumerate(samples):
        np.testing.assert_array_equal(memory.of_class(k), np.array([numbered(row) for row in rows]).reshape(-1, 2))
    np.testing.assert_array_equal(memory.counts, [len(rows) for rows in samples])
    held = [(k, row) for k, rows in enumerate(samples) for row in rows]
    assert sorted(zip(memory.classes, np.rint(100 * np.asarray(memory.samples)[:, 1]), strict=True)) == sorted(held)
    x = np.array([[0.6, 0.8], [1.0, 0.0]])
    votes = np.zeros((2, K))
    for k, row in held:
        kernel = np.exp(SHARPNESS * (x @ numbered(row) - 1))
        votes += kernel[:, None] * (every_mask[row] if masks else np.eye(K)[k])
    np.testing.assert_allclose(np.asarray(memory.votes(convert(x), SHARPNESS)), votes, rtol=0, atol=1e-12)


def test_entropies_that_differ_by_rounding_are_equal():
    memory = ClassMemory(Backend.of(np.zeros(1)), K, 1, 2)
    assert memory.offer(0, 0.3, numbered(0))
    assert not memory.offer(0, 0.3 - 1e-12, numbered(1))


def restore(change):
    """A memory with two samples of class 0 and one of class 1, saved, changed and loaded."""
    memory, again = (ClassMemory(Backend.of(np.zeros(1)), K, 2, 2) for _ in range(2))
    for row, k in enumerate([0, 0, 1]):
        memory.offer(k, 0.5, numbered(row))
    again.restore({**memory.state()[0], **change}, {})
    again.check_seen(3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": np.array([[1, 1], [3, 0]])}, "not numbered 1, 2"),
        ({"arrivals": np.zeros((K, 2))}, "no entropy or arrival number"),
        ({"entropies": np.full((K, 2), -1.0)}, "no entropy or arrival number"),
        ({"entries": np.zeros((7, 2))}, r"entries has shape \(7, 2\), not \(5, 2\)"),
        ({"entries": np.ones((5, 2))}, "entries must be no longer than 1"),
        ({"arrivals": np.array([[1, 9], [1, 0]])}, "last arrival must be from 0 to n_seen = 3"),
    ],
)
def test_a_state_that_no_samples_lead_to_is_refused(change, message):
    restore({})
    with pytest.raises(ValueError, match=message):
        restore(change)
