"""The metrics against scikit-learn's metrics on the same predictions, updated in shards."""

import numpy as np
import pytest

from zeroshift.evaluate import (
    accuracy,
    auroc,
    brier_score,
    false_positive_rate,
    negative_log_likelihood,
    top_k_accuracy,
)
from zeroshift.evaluate.metrics import Calibration, RejectCurve, Scorecard

metrics = pytest.importorskip("sklearn.metrics")

CLASSES = 7


@pytest.fixture(scope="module", params=[np.float32, np.float64], ids=["float32", "float64"])
def predictions(request):
    """Probabilities (400, 7) that are right rather often, labels with classes of very different size."""
    rng = np.random.default_rng(11)
    labels = rng.choice(CLASSES, size=400, p=np.array([40, 20, 15, 10, 8, 5, 2]) / 100)
    scores = rng.normal(size=(400, CLASSES)) * 2 + 2.5 * np.eye(CLASSES)[labels]
    probabilities = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    return probabilities.astype(request.param), labels


@pytest.fixture
def card(predictions):
    """Updated in five shards of different sizes, then merged."""
    whole = Scorecard(CLASSES)
    for rows in np.split(np.random.default_rng(0).permutation(400), [10, 60, 61, 300]):
        shard = Scorecard(CLASSES)
        shard.update(predictions[0][rows], predictions[1][rows])
        whole.merge(shard)
    return whole


def test_accuracies(predictions, card):
    probabilities, labels = predictions
    predicted = probabilities.argmax(axis=1)
    assert card.top1.value == accuracy(probabilities, labels) == metrics.accuracy_score(labels, predicted)
    for k in (1, 2, 5):
        expected = metrics.top_k_accuracy_score(labels, probabilities, k=k, labels=range(CLASSES))
        assert top_k_accuracy(probabilities, labels, k) == pytest.approx(expected, abs=1e-12)
    assert card.top5.value == pytest.approx(
        metrics.top_k_accuracy_score(labels, probabilities, k=5, labels=range(CLASSES)), abs=1e-12
    )
    assert card.by_class.mean == pytest.approx(metrics.balanced_accuracy_score(labels, predicted))
    np.testing.assert_allclose(card.by_class.values, metrics.recall_score(labels, predicted, average=None))


def test_confusion(predictions, card):
    probabilities, labels = predictions
    predicted = probabilities.argmax(axis=1)
    np.testing.assert_array_equal(card.confusion.counts, metrics.confusion_matrix(labels, predicted))
    np.testing.assert_allclose(card.confusion.fractions, metrics.confusion_matrix(labels, predicted, normalize="true"))


def test_log_loss_and_brier(predictions, card):
    probabilities, labels = predictions
    exact = probabilities.astype(np.float64)
    exact /= exact.sum(axis=1, keepdims=True)  # scikit-learn wants float64 rows that sum to 1 to the last digit
    assert card.log_loss.value == pytest.approx(metrics.log_loss(labels, exact), rel=1e-6)
    assert negative_log_likelihood(probabilities, labels) == pytest.approx(card.log_loss.value)
    by_hand = np.mean(((exact - np.eye(CLASSES)[labels]) ** 2).sum(axis=1))
    assert card.brier.value == pytest.approx(by_hand, rel=1e-6)
    assert brier_score(probabilities, labels) == pytest.approx(card.brier.value)


def test_brier_of_two_classes_is_twice_that_of_one():
    rng = np.random.default_rng(5)
    chance, labels = rng.uniform(size=100), rng.integers(0, 2, size=100)
    ours = brier_score(np.stack([1 - chance, chance], axis=1), labels)
    assert ours == pytest.approx(2 * metrics.brier_score_loss(labels, chance))


def test_reliability_against_the_calibration_curve():
    """For two classes and bins that begin at a half, confidence and accuracy are those of `calibration_curve`."""
    calibration_curve = pytest.importorskip("sklearn.calibration").calibration_curve
    rng = np.random.default_rng(6)
    confidence = rng.uniform(0.5, 1, size=500)
    right = rng.uniform(size=500) < confidence**2
    metric = Calibration(bins=10)
    metric.update(np.stack([confidence, 1 - confidence], axis=1), np.where(right, 0, 1))
    share_right, mean_confidence = calibration_curve(right, confidence, n_bins=10, strategy="uniform")
    found = metric.reliability
    np.testing.assert_allclose(found["accuracy"], share_right)
    np.testing.assert_allclose(found["confidence"], mean_confidence)
    by_hand = np.dot(np.array(found["count"]) / 500, np.abs(share_right - mean_confidence))
    assert metric.error == pytest.approx(by_hand)


@pytest.mark.parametrize("ties", [False, True], ids=["all differ", "many ties"])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.9])
def test_reject_curve(ties, share):
    rng = np.random.default_rng(7)
    positive = rng.uniform(size=300) < share
    scores = rng.normal(size=300) + positive
    scores = scores.round(0 if ties else 12)
    metric = RejectCurve()
    for rows in np.split(np.arange(300), [1, 150]):
        shard = RejectCurve()
        shard.update(scores[rows], positive[rows])
        metric.merge(shard)
    expected = metrics.roc_auc_score(positive, scores)
    assert metric.auroc == pytest.approx(expected, abs=1e-12)
    assert auroc(scores, positive) == metric.auroc
    false, true, _ = metrics.roc_curve(positive, scores, drop_intermediate=False)
    for tpr in (0.5, 0.8, 0.95, 1.0):
        assert metric.false_positive_rate(tpr) == pytest.approx(false[np.argmax(true >= tpr)], abs=1e-12)
        assert false_positive_rate(scores, positive, tpr) == metric.false_positive_rate(tpr)


def test_errors_are_reported_by_one_less_the_largest_probability(predictions, card):
    probabilities, labels = predictions
    wrong = probabilities.argmax(axis=1) != labels
    expected = metrics.roc_auc_score(wrong, 1 - probabilities.max(axis=1).astype(np.float64))
    assert card.record()["error_auroc"] == pytest.approx(expected, abs=1e-4)  # float32 rows sum to 1 only nearly
    assert expected > 0.6  # or there would be nothing to see


def test_errors_are_reported_even_where_every_largest_probability_rounds_to_one():
    """One minus a probability of 1.0 is 0 for all; the sum of the other probabilities still ranks them."""
    rest = np.array([1e-30, 1e-20, 1e-25, 1e-12], np.float32)
    probabilities = np.stack([1 - rest, rest], axis=1)
    assert (probabilities[:, 0] == 1).all()
    card = Scorecard(2)
    card.update(probabilities, [0, 1, 0, 1])
    assert card.record()["error_auroc"] == 1.0
    assert card.record()["error_fpr95"] == 0.0


@pytest.mark.parametrize("metric", [auroc, false_positive_rate])
def test_one_kind_alone_cannot_be_distinguished(metric):
    with pytest.raises(ValueError, match="both True and False"):
        metric(np.arange(3.0), np.ones(3, bool))
