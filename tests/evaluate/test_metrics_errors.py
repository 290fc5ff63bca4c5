"""Invalid input of metrics: the messages, and that nothing is counted."""

import numpy as np
import pytest

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
    score_run,
    uncertainty,
    worst_share,
)

P = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4], [0.5, 0.4, 0.1]])
LABELS = np.array([0, 1, 0, 1])


@pytest.mark.parametrize(
    ("one", "other", "kind", "message"),
    [
        (Accuracy(1), Accuracy(5), ValueError, "top=5.*top=1"),
        (Calibration(15), Calibration(10), ValueError, "bins=10.*bins=15"),
        (ConfusionMatrix(3), ConfusionMatrix(4), ValueError, "classes=4.*classes=3"),
        (Scorecard(3), Scorecard(4), ValueError, "classes=4"),
        (LogLoss(), Brier(), TypeError, "other must be a LogLoss; got a Brier"),
        (Accuracy(), Brier(), TypeError, "other must be an Accuracy; got a Brier. Fix"),
        (Brier(), Accuracy(), TypeError, "other must be a Brier; got an Accuracy. Fix"),
        (Brier(), None, TypeError, "other must be a Brier; got None. Fix"),
    ],
    ids=["top", "bins", "classes", "scorecards", "kinds", "a vowel", "another vowel", "None"],
)
def test_metrics_with_different_settings_are_not_merged(one, other, kind, message):
    with pytest.raises(kind, match=message):
        one.merge(other)
    assert one.n_samples == 0


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (
            lambda: ClassAccuracy(3).update(np.eye(2), [0, 1]),
            "must have 3 columns.*got 2. Fix: Class",
        ),
        (lambda: Scorecard(2).update(np.array([[2.0, 3.0]]), [0]), "row 0 sums to 5"),
        (lambda: Brier().update(np.array([[2.0, 3.0]]), [0]), "row 0 sums to 5"),
        (lambda: LogLoss().update(np.array([[-0.5, 1.5]]), [0]), "-0.5 as its smallest entry"),
        (
            lambda: PairedGain().update(np.array([True]), np.array([True, False])),
            "second must have .* each of first, 1 of them; got 2. Fix: first and second",
        ),
        (lambda: PairedGain().update(np.array([1]), np.array([True])), "first must be a vector of True and False"),
        (lambda: RejectCurve().update(np.array([np.nan]), np.array([True])), "finite"),
        (lambda: RejectCurve().update(np.array([0.5]), np.array([1])), "positive must be a vector of True and False"),
        (lambda: Accuracy(0), "top must be an integer of at least 1"),
        (lambda: worst_share([]), "at least one"),
        (lambda: worst_share([np.inf]), "finite"),
    ],
    ids=[
        "columns",
        "scores",
        "scores for Brier",
        "negative",
        "lengths",
        "numbers",
        "NaN",
        "zeros and ones",
        "top",
        "no run",
        "infinite",
    ],
)
def test_invalid_input_is_rejected(act, message):
    with pytest.raises(ValueError, match=message):
        act()


def test_a_refused_update_leaves_a_scorecard_as_it_was():
    card = Scorecard(2)
    card.update(np.eye(2), [0, 1])
    before = card.record()
    with pytest.raises(ValueError, match="sums to"):
        card.update(np.array([[2.0, 3.0]]), [0])
    assert card.record() == before


def gained():
    metric = PairedGain()
    metric.update([True, False], [False, False])
    return metric


def sheet(zero_shot=P, **groups):
    return score_run(P, zero_shot, LABELS, **groups)


WRONG = {
    "share of 0": (lambda: worst_share([0.5], share=0), "share must be a number above 0 and at most 1; got 0. Fix"),
    "level of 0": (lambda: gained().interval(level=0), "level must be a number above 0.*; got 0. Fix: level=0.95"),
    "no draw": (lambda: gained().interval(draws=0), "draws must be an integer of at least 1; got 0. Fix: draws=2000"),
    "too many draws": (
        lambda: gained().interval(draws=10**11),
        "draws must be at most 1,000,000; got 1000.*Fix: draws=2000",
    ),
    "tpr of 0": (
        lambda: RejectCurve().false_positive_rate(tpr=0),
        "tpr must be a number above 0.*got 0. Fix: tpr=0.95",
    ),
    "share in words": (lambda: worst_share([0.5], share="all"), "share must be a number above 0.*; got 'all'. Fix"),
    "one value": (lambda: worst_share(0.5), r"values must be a list of .*; got 0.5. Fix: values=\[0.5\]"),
    "one value to count": (lambda: worst_share(0.5), r"values must be a list of .*; got 0.5. Fix: values=\[0.5\]"),
    "a word": (lambda: worst_share("0.5"), r"values must be a list of .*; got '0.5'. Fix: values=\["),
    "words": (lambda: worst_share(["a"]), "values must be a list of finite numbers.*; got shape .*Fix: a flat list"),
    "no value": (lambda: worst_share([]), "values must hold .* at least one run; got none. Fix"),
    "NaN among values": (
        lambda: worst_share([0.5, np.nan]),
        "values must be .*; got nan at place 1. Fix: leave it out",
    ),
    "doubt of one row": (
        lambda: uncertainty(P[0]),
        r"probabilities must be .*; got shape \(3,\).*Fix: probabilities\[None",
    ),
    "doubt of NaN": (
        lambda: uncertainty(P * np.nan),
        "probabilities row 0 holds NaN .*must be finite. Fix: drop the row",
    ),
    "doubt of scores": (lambda: uncertainty(5 * P), "probabilities row 0 sums to 5 .*Fix: pass what adapt"),
    "zero-shot of fewer": (lambda: sheet(P[:2]), r"zero_shot must have the shape of probabilities, \(4, 3\); got \(2,"),
    "zero-shot scores": (lambda: sheet(5 * P), "zero_shot row 0 sums to 5 .*Fix: pass what"),
    "zero-shot NaN": (lambda: sheet(P * np.nan), "zero_shot row 0 holds NaN.*Fix"),
    "groups beyond the names": (
        lambda: sheet(groups=[0, 0, 1, 9], group_names=["a", "b"]),
        "groups row 3 is 9; groups are numbered from 0 to 1, as group_names has 2. Fix",
    ),
    "groups below 0": (lambda: sheet(groups=[0, 0, -1, 0]), "groups row 2 is -1; .* at least 0. Fix: number groups"),
    "too few groups": (lambda: sheet(groups=[0, 1]), r"groups must hold .*, shape \(4,\); got shape \(2,\) of .*Fix"),
    "ragged groups": (lambda: sheet(groups=[[0], [0, 1]]), r"groups must hold .*; got \[\[0\], \[0, 1\]\].*Fix"),
    "groups by name": (lambda: sheet(groups=list("abab")), r"groups must hold .*Fix: groups = \[group_names.index"),
    "one name for all": (lambda: sheet(groups=[0] * 4, group_names="a"), r"group_names .*; got 'a'. Fix: .*\['a'\]"),
    "a name twice": (lambda: sheet(groups=[0] * 4, group_names=["a", "a"]), r"group_names must differ; got .*Fix"),
    "half a class": (lambda: ConfusionMatrix(2.5), "classes must be an integer of at least 1; got 2.5. Fix: as many"),
    "too many to confuse": (
        lambda: ConfusionMatrix(10**7),
        "classes must be at most 25,000; got 10000000: every pair .*Fix",
    ),
    "too many classes": (lambda: ClassAccuracy(10**12), "classes must be at most 10,000,000; got 1000000000000: .*Fix"),
    "too many to score": (lambda: Scorecard(10**12), "classes must be at most 10,000,000; got 1000000000000: .*Fix"),
    "too many bins": (
        lambda: Calibration(10**11),
        "bins must be at most 100,000; got 100000000000: most .*Fix: bins=15",
    ),
    "bins of a card": (lambda: Scorecard(3, bins=10**11), "bins must be at most 100,000; got .*Fix: bins=15"),
    "no bin": (lambda: Calibration(0), "bins must be an integer of at least 1; got 0. Fix: bins=15"),
    "top beyond floats": (
        lambda: Accuracy(10**400),
        r"top must be an integer of at least 1; got 1000.*\.\.\.\. Fix: top=1",
    ),
    "counted unchecked": (lambda: Accuracy().add(P), "predictions must be Predictions; got ndarray. Fix: update"),
}


@pytest.mark.parametrize(("call", "message"), WRONG.values(), ids=WRONG)
def test_wrong_calls_report_the_argument_and_a_fix(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_the_largest_number_of_bins_and_whole_floats_are_accepted():
    assert Calibration(100_000).bins == 100_000
    top = Accuracy(top=5.0).top  # as methods take their integers
    assert (top, type(top)) == (5, int)


def test_lists_are_accepted_as_arrays():
    assert uncertainty([[0.5, 0.5]]).tolist() == [0.5]
    groups = sheet(groups=[0, 0, 1, 1], group_names=["a", "b"])["groups"]
    assert {name: group["scored"] for name, group in groups.items()} == {"a": 2, "b": 2}
    assert {name: group["accuracy"] for name, group in groups.items()} == {"a": 1.0, "b": 0.0}
