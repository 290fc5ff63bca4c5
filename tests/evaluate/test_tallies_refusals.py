"""Tallies: what they refuse, in which words, and that nothing is counted then."""

import numpy as np
import pytest

from zeroshift.evaluate.tallies import (
    Accuracy,
    Brier,
    Calibration,
    ClassAccuracy,
    Confusion,
    LogLoss,
    PairedGain,
    RejectCurve,
    Runs,
    Scorecard,
    worst_share,
)


@pytest.mark.parametrize(
    ("one", "other", "kind", "message"),
    [
        (Accuracy(1), Accuracy(5), ValueError, "top=5.*top=1"),
        (Calibration(15), Calibration(10), ValueError, "bins=10.*bins=15"),
        (Confusion(3), Confusion(4), ValueError, "classes=4.*classes=3"),
        (Scorecard(3), Scorecard(4), ValueError, "classes=4"),
        (LogLoss(), Brier(), TypeError, "other must be a LogLoss; got a Brier"),
    ],
    ids=["top", "bins", "classes", "scorecards", "kinds"],
)
def test_tallies_of_other_settings_are_not_merged(one, other, kind, message):
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
        (lambda: PairedGain().update(np.array([True]), np.array([True, False])), "second must be.*1 of them"),
        (lambda: PairedGain().update(np.array([1]), np.array([True])), "first must be a vector of True and False"),
        (lambda: RejectCurve().update(np.array([np.nan]), np.array([True])), "finite"),
        (lambda: RejectCurve().update(np.array([0.5]), np.array([1])), "positive must be a vector of True and False"),
        (lambda: Accuracy(0), "top must be an integer of at least 1"),
        (lambda: worst_share([]), "at least one"),
        (lambda: Runs().update([np.inf]), "finite"),
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
def test_what_is_refused(act, message):
    with pytest.raises(ValueError, match=message):
        act()


def test_a_refused_update_leaves_a_scorecard_as_it_was():
    card = Scorecard(2)
    card.update(np.eye(2), [0, 1])
    before = card.record()
    with pytest.raises(ValueError, match="sums to"):
        card.update(np.array([[2.0, 3.0]]), [0])
    assert card.record() == before
