"""Inputs of streams: lists, arrays and tensors are accepted, and invalid values are refused with a message."""

import re

import numpy as np
import pytest

from zeroshift import FeatureSet
from zeroshift.evaluate import streams as ours
from zeroshift.evaluate.streams import Stream, StreamSpec

LABELS = np.repeat(np.arange(3), 8)
SURE = -np.linspace(0.1, 1, 24)

BY_LABELS = {
    "class_sorted": ours.class_sorted,
    "dirichlet": ours.dirichlet,
    "few_classes": ours.few_classes,
    "long_tail": ours.long_tail,
    "bursts": ours.bursts,
    "recurring": ours.recurring,
    "some_classes": ours.some_classes,
    "some_classes_sorted": ours.some_classes_sorted,
}
BY_CONFIDENCE = {
    "easy_to_hard": ours.easy_to_hard,
    "hard_to_easy": ours.hard_to_easy,
    "few_confident": lambda sure, seed: ours.few_confident(sure, LABELS, seed),
    "early_noise": lambda sure, seed: ours.early_noise(sure, LABELS, 3, seed),
}
BY_CLASSES = {
    "few_confident": lambda classes: ours.few_confident(SURE, classes, 0),
    "early_noise": lambda classes: ours.early_noise(SURE, classes, 3, 0),
}
ANYTHING = {
    **{name: lambda seed, make=make: make(LABELS, seed) for name, make in BY_LABELS.items()},
    **{name: lambda seed, make=make: make(SURE, seed) for name, make in BY_CONFIDENCE.items()},
    "random_order": lambda seed: ours.random_order(5, seed),
    "continual": lambda seed: ours.continual([2, 3], seed),
    "mixed": lambda seed: ours.mixed([2, 3], seed),
}

BAD_CLASSES = {
    "floats": (LABELS.astype(float), "must hold class indices.*got float64. Fix: numpy.asarray"),
    "fractions": (LABELS + 0.5, "must hold class indices.*got float64. Fix: the class index of each row"),
    "negative": (LABELS - 1, "must hold class indices.*got -1 in row 0. Fix: leave out"),
    "words": (["cat"] * 24, "must hold class indices.*got <U3. Fix: .class_names.index"),
    "none at all": ([], "must be a vector of class indices, at least one; got none. Fix"),
    "a matrix": (LABELS[:, None], r"must be a vector of class indices.*got shape \(24, 1\). Fix"),
    "None": (None, "must be a vector of class indices.*got None. Fix"),
    "a number": (3, "must be a vector of class indices.*got 3. Fix"),
    "unequal lists": ([[0, 1], [2]], "must be a vector of class indices.*got a list. Fix"),
    "masked": (np.ma.masked_array(LABELS), "must be a plain vector; got a masked one. Fix"),
    "a set": (
        FeatureSet(np.eye(3), prototypes=np.eye(3), labels=[0, 1, 2]),
        "must be a vector of class indices.*got a FeatureSet. Fix: .*=features.labels",
    ),
}


@pytest.mark.parametrize("make", BY_LABELS.values(), ids=BY_LABELS)
@pytest.mark.parametrize(("given", "words"), BAD_CLASSES.values(), ids=BAD_CLASSES)
def test_invalid_labels_are_rejected(make, given, words):
    with pytest.raises((TypeError, ValueError), match=f"labels {words}"):
        make(given, 0)


@pytest.mark.parametrize("make", BY_CLASSES.values(), ids=BY_CLASSES)
@pytest.mark.parametrize(("given", "words"), BAD_CLASSES.values(), ids=BAD_CLASSES)
def test_invalid_pseudo_classes_are_rejected(make, given, words):
    with pytest.raises((TypeError, ValueError), match=f"pseudo_classes {words}"):
        make(given)
    with pytest.raises(ValueError, match=r"pseudo_classes must be a vector of class indices, 24 of them.*got 4. Fix"):
        make(LABELS[:4])


def test_pseudo_classes_out_of_range_are_rejected():
    with pytest.raises(ValueError, match=r"pseudo_classes must hold class indices, 0 to 1; got 2 in row 16. Fix: n_cl"):
        ours.early_noise(SURE, LABELS, 2, 0)


@pytest.mark.parametrize("make", BY_CONFIDENCE.values(), ids=BY_CONFIDENCE)
@pytest.mark.parametrize(
    ("given", "words"),
    [
        (np.where(np.arange(24) == 4, np.nan, SURE), "confidences must be finite; got nan in row 4. Fix"),
        (np.where(np.arange(24) == 4, -np.inf, SURE), "confidences must be finite; got -inf in row 4. Fix"),
        (SURE[:, None], r"confidences must be a vector of numbers.*got shape \(24, 1\). Fix"),
        (["sure"] * 24, "confidences must hold numbers; got <U4. Fix"),
        ([], "confidences must be a vector of numbers, at least one; got none. Fix"),
        (None, "confidences must be a vector of numbers.*got None. Fix"),
    ],
    ids=["nan", "infinite", "matrix", "words", "none at all", "None"],
)
def test_invalid_confidences_are_rejected(make, given, words):
    with pytest.raises((TypeError, ValueError), match=words):
        make(given, 0)


@pytest.mark.parametrize("make", ANYTHING.values(), ids=ANYTHING)
@pytest.mark.parametrize(
    "seed", [None, True, np.True_, -1, 1.5, "a"], ids=["None", "True", "np.True_", "-1", "1.5", "a"]
)
def test_seeds_are_checked_everywhere(make, seed):
    said = f"seed must be an integer of at least 0; got {seed!r}. Fix: seed=0."
    with pytest.raises((TypeError, ValueError), match=re.escape(said)):
        make(seed)


def test_a_seed_may_be_large_or_from_numpy():
    np.testing.assert_array_equal(ours.random_order(9, 2**70 + 1).rows, np.random.default_rng(2**70 + 1).permutation(9))
    np.testing.assert_array_equal(ours.random_order(9, np.int32(4)).rows, ours.random_order(9, 4).rows)


def test_an_arrangement_checks_its_seed():
    some = FeatureSet(np.eye(3), prototypes=np.eye(3), labels=[0, 1, 2])
    with pytest.raises(ValueError, match=r"seed must be an integer of at least 0.*got -1. Fix: seed=0"):
        StreamSpec("random").stream(some, seed=-1)


@pytest.mark.parametrize("n_rows", ["5", -1, 0, True, 2.5, None], ids=str)
def test_the_number_of_rows_is_checked(n_rows):
    with pytest.raises((TypeError, ValueError), match="n_rows must be an integer of at least 1; got"):
        ours.random_order(n_rows, 0)


def test_lists_and_tensors_are_accepted():
    torch = pytest.importorskip("torch")
    for make in BY_LABELS.values():
        for given in (LABELS.tolist(), tuple(LABELS.tolist()), torch.tensor(LABELS), LABELS.astype(np.uint8)):
            np.testing.assert_array_equal(make(given, 1).rows, make(LABELS, 1).rows)
    for name in ("easy_to_hard", "hard_to_easy", "few_confident"):
        for given in (SURE.tolist(), torch.tensor(SURE)):
            np.testing.assert_array_equal(BY_CONFIDENCE[name](given, 1).rows, BY_CONFIDENCE[name](SURE, 1).rows)
    noise = ours.early_noise(torch.tensor(SURE), LABELS.tolist(), 3, 1, labels=torch.tensor(LABELS))
    expected = ours.early_noise(SURE, LABELS, 3, 1, labels=LABELS)
    np.testing.assert_array_equal(noise.wrong_classes, expected.wrong_classes)
    for sizes in ((2, 3), np.array([2, 3]), torch.tensor([2, 3])):
        for make in (ours.mixed, ours.continual, ours.gradual):
            np.testing.assert_array_equal(make(sizes, 0).rows, make([2, 3], 0).rows)


def test_no_more_slots_than_rows():
    with pytest.raises(ValueError, match=r"slots must be at most 24, the number of rows; got 1000000000000. Fix"):
        ours.dirichlet(LABELS, 0, slots=10**12)
    assert len(ours.dirichlet(LABELS, 0, slots=24)) == 24


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (([[0, 1]],), r"rows must be a vector of different row numbers.*got shape \(1, 2\) of int64. Fix"),
        (([0.0, 1.0],), r"rows must be a vector of .*got shape \(2,\) of float64. Fix"),
        (([True, False],), r"of bool. Fix: numpy.flatnonzero"),
        ((None,), r"rows must be a vector of"),
        (([2, -1],), "rows must be different row numbers, integers of at least 0; got -1. Fix"),
        (([2, 0, 2],), "rows must be different row numbers; got row 2 2 times. Fix"),
        (([0, 1], [0], ("a",)), "groups must be 2 numbers, one per row; got 1. Fix"),
        (([0, 1], [0, 1], ("a",)), "groups must be below 1, the number of group_names; got 1. Fix"),
        (([0, 1], [0, -1], ("a",)), "groups must be the group of each of the 2 rows, as its number; got -1. Fix"),
        (([0, 1], [0, 0], "a"), "group_names must be a tuple of names; got 'a'. Fix"),
    ],
    ids=range(10),
)
def test_a_stream_is_different_rows_and_their_groups(given, words):
    with pytest.raises((TypeError, ValueError), match=words):
        Stream(*given)


def test_a_stream_of_lists():
    stream = Stream([2, 0], [1, 0], ["a", "b"])
    assert (stream.rows.tolist(), stream.groups.tolist(), stream.group_names) == ([2, 0], [1, 0], ("a", "b"))
    assert len(Stream([])) == 0


def test_errors_describe_domains():
    with pytest.raises(
        ValueError, match=r"needs the parameter 'domains'.*number of rows of each domain.*Fix: stack_datasets\("
    ):
        StreamSpec("continual")
    assert all(f" {kind}" in StreamSpec.__doc__ for kind in ours.KINDS)
