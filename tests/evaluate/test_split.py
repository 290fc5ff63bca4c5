"""Which rows are support, validation or unlabelled, and which are scored."""

import numpy as np
import pytest

from zeroshift.evaluate.trial import split

LABELS = np.random.default_rng(3).integers(0, 5, size=120)


def test_without_a_seed_all_rows_in_their_order():
    parts = split(LABELS, seed=None, shuffled=True)
    np.testing.assert_array_equal(parts.scored, np.arange(120))
    assert parts.support is None
    assert parts.unlabelled is None


def test_an_order_is_the_plain_permutation_of_its_seed():
    orders = [split(LABELS, seed=seed, shuffled=True).scored for seed in range(3)]
    for seed, order in enumerate(orders):
        np.testing.assert_array_equal(order, np.random.default_rng(seed).permutation(120))
    assert not np.array_equal(orders[0], orders[1])


@pytest.mark.parametrize("shuffled", [False, True])
def test_no_row_is_in_two_parts_and_none_is_lost(shuffled):
    parts = split(LABELS, seed=1, shuffled=shuffled, shots=4, halved=True)
    together = np.concatenate([parts.scored, parts.support, parts.unlabelled])
    np.testing.assert_array_equal(np.sort(together), np.arange(120))
    assert len(parts.unlabelled) == (120 - 20) // 2
    assert (np.diff(parts.scored) > 0).all() == (not shuffled)


def test_support_is_at_most_half_of_each_class():
    labels = np.array([0] * 9 + [1] * 5 + [2] * 1 + [4] * 2)
    support = split(labels, seed=0, shuffled=False, shots=4).support
    assert np.bincount(labels[support], minlength=5).tolist() == [4, 2, 0, 0, 1]
    assert (np.diff(labels[support]) >= 0).all()


def test_the_same_seed_draws_the_same_rows_and_another_draws_others():
    drawn = [split(LABELS, seed=seed, shuffled=True, shots=4).support for seed in (0, 0, 1)]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])
    # Whoever is streamed or not gets the same labelled samples.
    np.testing.assert_array_equal(drawn[0], split(LABELS, seed=0, shuffled=False, shots=4).support)


def test_validation_comes_out_of_the_labelled_samples():
    whole = split(LABELS, seed=2, shuffled=False, shots=4)
    parts = split(LABELS, seed=2, shuffled=False, shots=4, validated=True)
    np.testing.assert_array_equal(np.sort(np.concatenate([parts.support, parts.validation])), np.sort(whole.support))
    np.testing.assert_array_equal(parts.scored, whole.scored)
    counts = [np.bincount(LABELS[rows], minlength=LABELS.max() + 1) for rows in (parts.support, parts.validation)]
    assert ((counts[0] - counts[1] == 0) | (counts[0] - counts[1] == 1)).all()
