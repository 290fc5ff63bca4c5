"""Metrics compared with values computed by hand, and properties for any input."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from zeroshift.evaluate import (
    accuracy,
    auroc,
    brier_score,
    class_accuracy,
    expected_calibration_error,
    false_positive_rate,
    negative_log_likelihood,
    running_accuracy,
    top_k_accuracy,
)

OF_PROBABILITIES = [expected_calibration_error, negative_log_likelihood, brier_score]


@st.composite
def predictions(draw):
    """Probabilities (N, K) and labels (N,)."""
    n, k = draw(st.integers(1, 40)), draw(st.integers(1, 6))
    scores = draw(hnp.arrays(np.float64, (n, k), elements=st.floats(-8, 8)))
    exponentials = np.exp(scores)
    labels = draw(hnp.arrays(np.int64, n, elements=st.integers(0, k - 1)))
    return exponentials / exponentials.sum(axis=1, keepdims=True), labels


def test_accuracy_by_hand():
    probabilities = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4], [0.5, 0.4, 0.1]])
    assert accuracy(probabilities, np.array([0, 1, 0, 1])) == 0.5
    assert accuracy(probabilities, [0, 1, 2, 0]) == 1.0


def test_ties_go_to_the_first_class():
    assert accuracy(np.array([[0.5, 0.5]]), [0]) == 1.0
    assert accuracy(np.array([[0.5, 0.5]]), [1]) == 0.0


def test_torch_tensors_are_accepted():
    torch = pytest.importorskip("torch")
    assert accuracy(torch.tensor([[0.9, 0.1], [0.8, 0.2]], dtype=torch.bfloat16), torch.tensor([0, 1])) == 0.5
    assert running_accuracy(torch.tensor([True, False])).tolist() == [1.0, 0.5]


def test_class_accuracy_by_hand():
    predicted, labels = [0, 1, 1, 1, 0], [0, 0, 1, 1, 2]
    np.testing.assert_allclose(class_accuracy(np.eye(4)[predicted], labels), [1 / 2, 2 / 2, 0 / 1, np.nan])


@given(predictions())
def test_class_accuracies_weighted_by_class_size_give_accuracy(case):
    probabilities, labels = case
    sizes = np.bincount(labels, minlength=probabilities.shape[1])
    by_class = class_accuracy(probabilities, labels)
    assert (np.isnan(by_class) == (sizes == 0)).all()
    assert np.nansum(by_class * sizes) / len(labels) == pytest.approx(accuracy(probabilities, labels))


def test_running_accuracy_by_hand():
    correct = np.array([True, False, False, True, True])
    np.testing.assert_allclose(running_accuracy(correct), [1, 1 / 2, 1 / 3, 2 / 4, 3 / 5])
    np.testing.assert_allclose(running_accuracy(correct, window=3), [1, 1 / 2, 1 / 3, 1 / 3, 2 / 3])


@given(hnp.arrays(bool, st.integers(1, 60)), st.integers(1, 80))
def test_running_accuracy_is_the_mean_of_what_it_covers(correct, window):
    for i, (so_far, lately) in enumerate(
        zip(running_accuracy(correct), running_accuracy(correct, window), strict=True), start=1
    ):
        assert so_far == pytest.approx(correct[:i].mean())
        assert lately == pytest.approx(correct[max(0, i - window) : i].mean())


def test_calibration_error_by_hand():
    # Two bins. (0, 0.5]: nothing. (0.5, 1]: confidences 0.6, 0.8, 1.0 (mean 0.8), two of three right: |2/3 - 0.8|.
    probabilities = np.array([[0.6, 0.4], [0.2, 0.8], [1.0, 0.0]])
    assert expected_calibration_error(probabilities, [0, 0, 0], bins=2) == pytest.approx(0.8 - 2 / 3)
    # Ten bins: every sample alone, gaps 0.4 (right at 0.6), 0.8 (wrong at 0.8) and 0.
    assert expected_calibration_error(probabilities, [0, 0, 0], bins=10) == pytest.approx((0.4 + 0.8 + 0) / 3)


def test_bins_are_closed_above():
    # 0.75 ends the third of four bins, so it is not together with 0.9: the gaps do not cancel.
    probabilities = np.array([[0.75, 0.25], [0.9, 0.1]])
    apart = expected_calibration_error(probabilities, [0, 1], bins=4)
    assert apart == pytest.approx((0.25 + 0.9) / 2)


@settings(max_examples=60)
@given(predictions(), st.integers(1, 30))
def test_calibration_error_is_bounded_and_independent_of_order(case, bins):
    probabilities, labels = case
    error = expected_calibration_error(probabilities, labels, bins)
    assert -1e-12 <= error <= 1 + 1e-12
    assert expected_calibration_error(probabilities[::-1], labels[::-1], bins) == pytest.approx(error)
    # Splitting a bin can only reveal gaps that cancelled each other.
    assert expected_calibration_error(probabilities, labels, 1) <= error + 1e-12


def test_certain_and_right_is_perfect():
    assert expected_calibration_error(np.eye(3), [0, 1, 2]) == 0.0
    assert expected_calibration_error(np.eye(3), [1, 2, 0]) == 1.0


@given(predictions())
def test_top_k_grows_with_k_from_accuracy_to_all(case):
    probabilities, labels = case
    classes = probabilities.shape[1]
    shares = [top_k_accuracy(probabilities, labels, k) for k in range(1, classes + 3)]
    assert shares[0] == accuracy(probabilities, labels)
    assert shares == sorted(shares)
    assert shares[classes - 1 :] == [1.0] * 3


def test_log_likelihood_and_brier_score_by_hand():
    probabilities = np.array([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]])
    assert negative_log_likelihood(probabilities, [1, 1]) == pytest.approx(np.log(4) / 2)
    assert brier_score(probabilities, [0, 1]) == pytest.approx((0.25 + 2 * 0.0625) / 2)
    assert brier_score(probabilities[1:], [0]) == 2.0  # certain and wrong: the worst there is


@pytest.mark.parametrize("metric", [accuracy, class_accuracy, top_k_accuracy, *OF_PROBABILITIES])
@pytest.mark.parametrize(
    ("probabilities", "labels", "message"),
    [
        (np.eye(2)[0], [0], "matrix"),
        (np.eye(2), [0], "shape"),
        (np.eye(2), [0, 2], "class indices go from 0 to 1"),
        (np.array([[0.5, 0.5], [np.nan, 1.0]]), [0, 1], "row 1 holds NaN"),
        (np.eye(2, dtype=int), [0, 1], "floating-point"),
        (np.empty((0, 2)), [], "at least one row"),
    ],
)
def test_bad_predictions_are_rejected(metric, probabilities, labels, message):
    with pytest.raises((ValueError, TypeError), match=message):
        metric(probabilities, labels)


@pytest.mark.parametrize("metric", OF_PROBABILITIES)
def test_scores_are_rejected_as_probabilities(metric):
    with pytest.raises(ValueError, match="row 0 sums to 5"):
        metric(np.array([[2.0, 3.0]]), [0])


@pytest.mark.parametrize("correct", [np.array([]), np.array([0, 1]), np.array([[True]])])
def test_running_accuracy_wants_a_vector_of_booleans(correct):
    with pytest.raises(ValueError, match="True and False"):
        running_accuracy(correct)


def test_window_bins_and_k_are_at_least_one():
    with pytest.raises(ValueError, match=r"k must be an integer of at least 1; got 0. Fix: k=5"):
        top_k_accuracy(np.eye(2), [0, 1], k=0)
    with pytest.raises(ValueError, match="window must be an integer of at least 1"):
        running_accuracy(np.array([True]), window=0)
    with pytest.raises(ValueError, match="bins must be an integer of at least 1"):
        expected_calibration_error(np.eye(2), [0, 1], bins=0)


P, LABELS = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1]]), np.array([0, 1])

WRONG = {
    "labels beyond the columns": (lambda: accuracy(P, LABELS + 5), "labels row 0 is 5; .* 0 to 2, as probabilities"),
    "labels below 0": (lambda: brier_score(P, LABELS - 1), "labels row 0 is -1; .*Fix: number the classes"),
    "too few labels": (lambda: accuracy(P, LABELS[:1]), r"labels .* row of probabilities, shape \(2,\); got .*Fix"),
    "one label": (lambda: accuracy(P, 1), r"labels must be a vector of class indices.*; got 1\. Fix"),
    "ragged labels": (lambda: accuracy(P, [[0], [0, 1]]), r"labels must be a vector.*; got \[\[0\], \[0, 1\]\].*Fix"),
    "ragged rows": (lambda: accuracy([[0.5, 0.5], [1.0]], [0, 1]), "probabilities must be .*; got .*not an array. Fix"),
    "one row": (
        lambda: accuracy(P[0], [0]),
        r"probabilities must be .*got shape \(3,\).*Fix: probabilities\[None, :\]",
    ),
    "whole numbers": (lambda: accuracy(np.eye(2, dtype=int), [0, 1]), "got shape .* of int.*Fix: numpy.asarray"),
    "negative": (lambda: negative_log_likelihood(-P, LABELS), "row 0 sums to -1 .*none below 0 and sums to 1.*Fix"),
    "half a k": (lambda: top_k_accuracy(P, LABELS, k=1.5), "k must be an integer of at least 1; got 1.5. Fix: k=5"),
    "k is no number": (lambda: top_k_accuracy(P, LABELS, k="5"), "k must be an integer .*; got '5'. Fix: k=5"),
    "bins": (
        lambda: expected_calibration_error(P, LABELS, bins=10**11),
        "bins must be at most 100,000; got 100000000000: most bins would hold at most one sample. Fix: bins=15",
    ),
    "no score": (lambda: auroc([], []), "scores must hold .*; got none. Fix: scores of"),
    "no score of flags": (lambda: auroc([], np.array([], bool)), "scores must hold .*; got none. Fix: scores of"),
    "one kind": (lambda: auroc([0.5, 0.4], [True, True]), "positive must hold both .*; got only True.*Fix: add"),
    "one score": (lambda: auroc(0.5, [True]), r"scores must be a list of .*; got 0.5. Fix: scores=\[0.5\]"),
    "lengths": (lambda: auroc([0.5, 0.4], [True]), "positive .* each of scores, 2 of them; got 1. Fix: scores and"),
    "zeros and ones": (lambda: auroc([0.5, 0.4], [1, 0]), "positive must be .*True and False.*of int.*Fix: .* == 1"),
    "other numbers": (lambda: auroc([0.5, 0.4], [1, 7]), "positive must be .*True and False.*Fix: predicted == labels"),
    "tpr": (
        lambda: false_positive_rate([0.5, 0.4], [True, False], tpr=0),
        "tpr must be a number above 0 and at most 1; got 0. Fix: tpr=0.95",
    ),
    "window": (lambda: running_accuracy([True], window=0), "window must be .*; got 0. Fix: window=100, or None"),
    "no sample": (lambda: running_accuracy([]), "correct must be .* at least one sample; got none. Fix: correct ="),
}


@pytest.mark.parametrize(("call", "message"), WRONG.values(), ids=WRONG)
def test_wrong_calls_report_the_argument_and_a_fix(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_errors_name_only_given_arguments():
    with pytest.raises(ValueError, match="labels") as caught:
        accuracy(P, LABELS + 5)
    assert "prototypes" not in str(caught.value)
    with pytest.raises(ValueError, match="probabilities") as caught:
        negative_log_likelihood(-P, LABELS)
    assert "calibration" not in str(caught.value)


def test_whole_numbers_as_floats_count_as_they_do_for_methods():
    assert top_k_accuracy(P, LABELS, k=2.0) == top_k_accuracy(P, LABELS, k=2)


def test_a_window_longer_than_the_stream_is_the_stream():
    assert running_accuracy([True, False], window=10**12).tolist() == [1.0, 0.5]
