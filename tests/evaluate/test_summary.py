"""Summaries of records: means over orders, then over sets, without missing runs."""

import pytest

from zeroshift.evaluate import DatasetRef, JobOutcome, MethodSpec, plan_comparison, summarize
from zeroshift.evaluate.summary import Spread


@pytest.fixture
def planned(clusters):
    datasets = [DatasetRef.of("a", clusters), DatasetRef.of("b", clusters.subset(slice(0, 100)))]
    return plan_comparison(datasets, [MethodSpec("adapt_online"), MethodSpec("adapt_transductive")], orders=2)


ACCURACIES = {
    ("a", "adapt_online"): [0.50, 0.60],
    ("b", "adapt_online"): [0.90, 0.70],
    ("a", "adapt_transductive"): [0.80],
    ("b", "adapt_transductive"): [0.60],
}


ZERO_SHOT = {"a": [0.40, 0.45], "b": [0.70, 0.40]}
"""Of the same rows as the accuracies: orders that score other rows have another zero-shot accuracy."""


def outcome(trial, *, error=None):
    place = trial.seed or 0
    record = {
        "accuracy": ACCURACIES[trial.features, trial.spec.method][place],
        "zero_shot_accuracy": ZERO_SHOT[trial.features][place],
        "calibration_error": 0.1 + 0.1 * place,
        "scored": 100,
        "seconds": 1.0 + place,
        "setup_seconds": 0.5,
        "peak_bytes": 1000 * (1 + place),
    }
    return JobOutcome(trial, None if error else record, error, recorded=False)


def test_one_set(planned):
    summary = summarize(planned, [outcome(trial) for trial in planned.trials])
    online, transductive = summary.by_set["a"]
    assert online.accuracy.mean == pytest.approx(0.55)
    assert (online.accuracy.low, online.accuracy.high) == (0.5, 0.6)
    # Each against the zero-shot accuracy of its own run: 50 - 40 and 60 - 45.
    assert online.gain.values == (pytest.approx(10), pytest.approx(15))
    assert online.gain.mean == pytest.approx(12.5)
    assert (online.gain.low, online.gain.high) == (pytest.approx(10), pytest.approx(15))
    assert transductive.gain.values == (pytest.approx(40),)
    assert online.calibration_error == pytest.approx(0.15)
    assert online.microseconds == pytest.approx(1e4)
    assert online.peak_bytes == 1500
    assert (online.runs, transductive.runs) == (2, 1)
    assert summary.on("a", MethodSpec("adapt_transductive")) is transductive
    assert summary.on("a", MethodSpec("zero_shot")) is None


def test_the_mean_over_sets_spreads_over_orders_and_not_over_sets(planned):
    online, transductive = summarize(planned, [outcome(trial) for trial in planned.trials]).overall
    assert online.sets == ("a", "b")
    assert online.accuracy.mean == pytest.approx((0.55 + 0.8) / 2)
    # Order 0: (0.5 + 0.9) / 2; order 1: (0.6 + 0.7) / 2.
    assert online.accuracy.values == (pytest.approx(0.7), pytest.approx(0.65))
    # Order 0: (10 + 20) / 2; order 1: (15 + 30) / 2.
    assert online.gain.values == (pytest.approx(15), pytest.approx(22.5))
    assert transductive.gain.mean == pytest.approx((40 - 10) / 2)
    assert transductive.gain.values == (pytest.approx(15),)
    assert online.runs == 4


def test_the_order_of_finished_runs_does_not_matter(planned):
    outcomes = [outcome(trial) for trial in planned.trials]
    forwards, backwards = summarize(planned, outcomes), summarize(planned, outcomes[::-1])
    assert backwards.overall == forwards.overall
    assert backwards.by_set == forwards.by_set


def test_a_failed_order_leaves_the_others_of_its_set_to_count(planned):
    outcomes = [outcome(t, error="a bug" if (t.features, t.seed) == ("b", 1) else None) for t in planned.trials]
    summary = summarize(planned, outcomes)
    online = summary.overall[0]
    assert online.accuracy.values == (pytest.approx(0.7), pytest.approx(0.75))
    assert online.gain.values == (pytest.approx(15), pytest.approx(17.5))
    assert summary.partial == []
    assert [failed.error for failed in summary.failed] == ["a bug"]
    assert len(summary.records) == 5


def test_a_mean_without_all_sets_is_marked(planned):
    outcomes = [outcome(t, error="a bug" if t.features == "b" and t.seed is not None else None) for t in planned.trials]
    summary = summarize(planned, outcomes)
    assert [standing.spec.label for standing in summary.partial] == ["adapt_online"]
    assert summary.partial[0].sets == ("a",)
    assert [s.spec.method for s in summary.by_set["b"]] == ["adapt_transductive"]


def test_a_method_without_any_result_has_no_row(planned):
    outcomes = [outcome(t, error="a bug" if t.seed is not None else None) for t in planned.trials]
    assert [s.spec.method for s in summarize(planned, outcomes).overall] == ["adapt_transductive"]


def test_unknown_memory_stays_unknown(planned):
    outcomes = [outcome(trial) for trial in planned.trials]
    for each in outcomes:
        each.record["peak_bytes"] = None
    assert {standing.peak_bytes for standing in summarize(planned, outcomes).overall} == {None}


WRONG_VALUES = {
    "none": ([], "values must hold the number of at least one order; got none. Fix"),
    "one": (0.5, r"values must be a list of finite numbers, one for each order; got 0.5. Fix: values=\[0.5\]"),
    "NaN": ([0.5, float("nan")], "values must be .*; got nan at place 1. Fix: leave it out"),
    "no number": ([None], "values must be a list of finite numbers.*; got shape .* of object. Fix"),
}


@pytest.mark.parametrize(("values", "message"), WRONG_VALUES.values(), ids=WRONG_VALUES)
def test_missing_values_have_no_spread(values, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Spread.of(values)


def test_a_set_that_was_not_compared_is_named(planned):
    with pytest.raises(
        ValueError, match=r"dataset is 'A', a set that was not compared. Did you mean 'a'.*Fix: one of 'a', 'b'"
    ):
        summarize(planned, []).on("A", MethodSpec("adapt_online"))
