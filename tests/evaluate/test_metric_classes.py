"""Metrics: merged shards equal the whole, for every split and order; ties and bounds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from zeroshift.evaluate.metrics import (
    Accuracy,
    Brier,
    Calibration,
    ClassAccuracy,
    ConfusionMatrix,
    LogLoss,
    PairedGain,
    RejectCurve,
    Scorecard,
    worst_share,
)
from zeroshift.evaluate.metrics.calibration import LEAST_PROBABILITY

CLASSES = 4

OF_PREDICTIONS = {
    "accuracy": (Accuracy, lambda metric: metric.value),
    "top 2": (lambda: Accuracy(2), lambda metric: metric.value),
    "class accuracy": (lambda: ClassAccuracy(CLASSES), lambda metric: (metric.mean, metric.n_right)),
    "calibration": (Calibration, lambda metric: (metric.error, metric.reliability["count"], metric.confidence_sums)),
    "log loss": (LogLoss, lambda metric: metric.value),
    "brier": (Brier, lambda metric: metric.value),
    "confusion": (lambda: ConfusionMatrix(CLASSES), lambda metric: (metric.counts, metric.fractions)),
    "scorecard": (
        lambda: Scorecard(CLASSES),
        lambda metric: [-1.0 if value is None else value for value in metric.record().values()],
    ),
}
"""How each is made, and what it says."""

WHOLE_NUMBERS = {"accuracy", "top 2", "class accuracy", "confusion"}


@st.composite
def shards(draw):
    """Probabilities (N, 4) with many ties, labels (N,), and a cut into shards, in any order."""
    n = draw(st.integers(1, 30))
    weights = draw(hnp.arrays(np.int64, (n, CLASSES), elements=st.integers(0, 3))) + np.eye(CLASSES)[0] * 0.5
    probabilities = weights / weights.sum(axis=1, keepdims=True)
    labels = draw(hnp.arrays(np.int64, n, elements=st.integers(0, CLASSES - 1)))
    shard_of = draw(hnp.arrays(np.int64, n, elements=st.integers(0, 3)))
    cut = [np.flatnonzero(shard_of == shard) for shard in draw(st.permutations(range(4)))]
    return probabilities, labels, [rows for rows in cut if len(rows)]


def flat(found) -> np.ndarray:
    return np.concatenate(
        [np.ravel(np.asarray(part, float)) for part in (found if isinstance(found, tuple) else [found])]
    )


@pytest.mark.parametrize("name", OF_PREDICTIONS)
@settings(max_examples=40, deadline=None)
@given(case=shards())
def test_shards_merged_in_any_order_are_the_whole(name, case):
    probabilities, labels, cut = case
    make, says = OF_PREDICTIONS[name]
    whole, merged = make(), make()
    whole.update(probabilities, labels)
    for rows in cut:
        shard = make()
        shard.update(probabilities[rows], labels[rows])
        before = flat(says(shard))
        merged.merge(shard)
        np.testing.assert_array_equal(flat(says(shard)), before)  # a shard is left as it was
    assert merged.n_samples == whole.n_samples == len(labels)
    if name in WHOLE_NUMBERS:
        np.testing.assert_array_equal(flat(says(merged)), flat(says(whole)))
    else:
        np.testing.assert_allclose(flat(says(merged)), flat(says(whole)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", OF_PREDICTIONS)
@settings(max_examples=25, deadline=None)
@given(case=shards(), seed=st.integers(0, 99))
def test_order_and_batches_of_samples_do_not_matter(name, case, seed):
    probabilities, labels, cut = case
    make, says = OF_PREDICTIONS[name]
    once, bit_by_bit = make(), make()
    once.update(probabilities, labels)
    for rows in cut:
        mixed = np.random.default_rng(seed).permutation(rows)
        bit_by_bit.update(probabilities[mixed], labels[mixed])
    np.testing.assert_allclose(flat(says(bit_by_bit)), flat(says(once)), rtol=1e-12, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(case=shards())
def test_bounds(case):
    probabilities, labels, _ = case
    card = Scorecard(CLASSES)
    card.update(probabilities, labels)
    found = card.record()
    assert 0 <= found["accuracy"] <= found["top5_accuracy"] == 1.0  # four classes: all of them are the top five
    assert 0 <= found["brier"] <= 2 + 1e-12
    assert 0 <= found["nll"] <= -np.log(LEAST_PROBABILITY)
    assert 0 <= found["calibration_error"] <= 1
    for name in ("error_auroc", "error_fpr95"):
        assert (found[name] is None) == (found["accuracy"] in (0.0, 1.0))
        assert found[name] is None or 0 <= found[name] <= 1
    counts = card.confusion.counts
    assert np.trace(counts) == card.top1.n_right == card.by_class.n_right.sum()
    np.testing.assert_array_equal(counts.sum(axis=1), np.bincount(labels, minlength=CLASSES))
    assert sum(card.calibration.reliability["count"]) == len(labels)


@settings(max_examples=60, deadline=None)
@given(
    first=hnp.arrays(bool, 20),
    second=hnp.arrays(bool, 20),
    cut=st.integers(1, 19),
)
def test_paired_gain_merges_exactly_and_is_the_difference_of_accuracies(first, second, cut):
    whole, merged, shard = PairedGain(), PairedGain(), PairedGain()
    whole.update(first, second)
    merged.update(first[cut:], second[cut:])
    shard.update(first[:cut], second[:cut])
    merged.merge(shard)
    assert merged.counts == whole.counts
    assert sum(whole.counts) == 20
    assert whole.gain == pytest.approx(100 * (first.mean() - second.mean()))
    low, high = whole.interval(draws=200)
    assert -100 <= low <= high <= 100


@settings(max_examples=60, deadline=None)
@given(
    scores=hnp.arrays(np.int64, 24, elements=st.integers(0, 5)),
    positive=hnp.arrays(bool, 24),
    cut=st.integers(1, 23),
    seed=st.integers(0, 99),
)
def test_reject_curves_merge_exactly_and_invert(scores, positive, cut, seed):
    positive[:2] = True, False
    whole, merged, shard, turned = RejectCurve(), RejectCurve(), RejectCurve(), RejectCurve()
    whole.update(scores, positive)
    mixed = np.random.default_rng(seed).permutation(24)
    merged.update(scores[mixed[cut:]], positive[mixed[cut:]])
    shard.update(scores[mixed[:cut]], positive[mixed[:cut]])
    merged.merge(shard)
    turned.update(-scores, positive)
    assert (merged.auroc, merged.false_positive_rate()) == (whole.auroc, whole.false_positive_rate())
    assert turned.auroc == pytest.approx(1 - whole.auroc)  # ties count half on both sides
    assert whole.false_positive_rate(0.5) <= whole.false_positive_rate(0.95) <= whole.false_positive_rate(1.0)


def test_a_useless_and_a_perfect_score():
    flat_scores, sharp = RejectCurve(), RejectCurve()
    wanted = np.array([True, False, False, True])
    flat_scores.update(np.zeros(4), wanted)
    assert (flat_scores.auroc, flat_scores.false_positive_rate()) == (0.5, 1.0)
    sharp.update(wanted.astype(float), wanted)
    assert (sharp.auroc, sharp.false_positive_rate()) == (1.0, 0.0)
    one_kind = RejectCurve()
    one_kind.update(np.arange(3.0), np.ones(3, bool))
    assert one_kind.auroc is None
    assert one_kind.false_positive_rate() is None


def test_the_threshold_accepts_exactly_the_requested_share():
    # 20 to be rejected, one of them at the very bottom: 19 of 20 are just 95 %, and the bottom is not reached.
    scores = np.concatenate([np.arange(21.0, 40.0), [0.0], np.linspace(1, 20, 10)])
    wanted = np.arange(30) < 20
    metric = RejectCurve()
    metric.update(scores, wanted)
    assert metric.false_positive_rate(0.95) == 0.0
    assert metric.false_positive_rate(0.951) == 1.0


def test_top_k_by_hand_with_ties():
    metric = Accuracy(2)
    metric.update(np.array([[0.25, 0.25, 0.25, 0.25]] * 4), np.arange(4))
    assert metric.n_right == 2  # of equal entries the first two


def test_certain_and_wrong_costs_the_stated_amount():
    metric = LogLoss()
    metric.update(np.eye(2), np.array([1, 0]))
    assert metric.value == pytest.approx(-np.log(LEAST_PROBABILITY))
    right = LogLoss()
    right.update(np.eye(2), np.array([0, 1]))
    assert right.value == 0.0
    assert not np.signbit(right.value)


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        (list(range(30)), 0.1, 1.0),  # 0, 1, 2
        (list(range(19)), 0.1, 0.0),  # a whole run, and not another
        ([5.0], 0.1, 5.0),
        ([3.0, 1.0, 2.0], 1.0, 2.0),
    ],
)
def test_worst_share(values, share, expected):
    assert worst_share(values, share) == expected


@pytest.mark.parametrize("name", OF_PREDICTIONS)
def test_an_empty_metric_has_no_value(name):
    make, says = OF_PREDICTIONS[name]
    with pytest.raises(ValueError, match=r"has no samples yet. Fix: call update\(\)"):
        says(make())
