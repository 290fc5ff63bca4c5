"""The oracle: equal to an independent transcription, marked as using labels, and above ADAPT."""

import math

import numpy as np
import pytest

from experiments.fake_results import chapter_with_accuracies
from experiments.reading import column, found, remarks
from zeroshift.data import packs
from zeroshift.evaluate import Analysis
from zeroshift.experiments import Options, Suite
from zeroshift.experiments.oracle import EXPERIMENT, oracle_adapt, oracle_scores, variants
from zeroshift.testing import make_problem


def transcribed(x, labels, t, scale, size, alpha, everywhere):
    """Algorithm 2, one sample at a time, with one-hot y in all statistics."""
    n_classes, d = t.shape
    log_y = np.zeros((len(x), n_classes))
    for i, row in enumerate(x):
        logits = [scale * float(t_k @ row) for t_k in t]
        top = max(logits)
        total = top + math.log(sum(math.exp(v - top) for v in logits))
        log_y[i] = [v - total for v in logits]
    sureness = [sum(math.exp(v) * v for v in row) for row in log_y]
    means, banks = t.copy(), []
    for k in range(n_classes):
        own = [i for i in range(len(x)) if labels[i] == k]
        bank = sorted(own, key=lambda i: -sureness[i])[:size]
        banks.append(bank)
        if own:
            mean = (sum(x[i] for i in own) + sum(x[j] for j in bank)) / (len(own) + len(bank))
            means[k] = alpha * mean + (1 - alpha) * t[k]
    datasets = (
        [(i, labels[i]) for i in range(len(x))] if everywhere else [(j, k) for k in range(n_classes) for j in banks[k]]
    )
    sigma = sum(np.outer(x[i] - means[k], x[i] - means[k]) for i, k in datasets) / len(datasets)
    precision = d * np.linalg.inv((len(datasets) - 1) * sigma + np.trace(sigma) * np.eye(d))
    scores = log_y.copy()
    for i, row in enumerate(x):
        for k in range(n_classes):
            scores[i, k] += means[k] @ precision @ row - 0.5 * means[k] @ precision @ means[k]
            scores[i, k] += sum(max(0.0, float(row @ x[j])) for j in banks[k])
    return scores


@pytest.mark.parametrize("covariance", ["banks", "all"])
def test_an_independent_transcription_gives_the_same_scores(covariance):
    x, t, labels = (np.asarray(a) for a in make_problem(classes=5, dimension=12, samples=60))
    labels = np.where(labels == 4, 3, labels)  # a class without a sample keeps its prototype
    x, t = x.astype(np.float64), t.astype(np.float64)
    ours = oracle_scores(x, labels, t, 20.0, covariance=covariance, bank_size=3, alpha=0.8)
    np.testing.assert_allclose(ours, transcribed(x, labels, t, 20.0, 3, 0.8, covariance == "all"), rtol=1e-9, atol=1e-9)


def test_it_follows_the_labels_it_is_given():
    features = packs.load("fmnist").subset(slice(0, 300))
    x, t = np.asarray(features.features, dtype=np.float64), np.asarray(features.prototypes_for())
    swapped = (features.labels + 1) % features.n_classes
    outcome_text = oracle_scores(x, features.labels, t, features.logit_scale).argmax(axis=1)
    misled = oracle_scores(x, swapped, t, features.logit_scale).argmax(axis=1)
    assert np.mean(outcome_text == features.labels) > np.mean(misled == features.labels) + 0.2
    with pytest.raises(ValueError, match="banks, all"):
        oracle_scores(x, swapped, t, 1.0, covariance="none")


def test_a_set_without_labels_is_rejected():
    features = packs.load("fmnist").subset(slice(0, 5))
    object.__setattr__(features, "labels", None)
    with pytest.raises(ValueError, match="has none"):
        oracle_adapt(features, prompt="ensemble")


def test_the_oracle_is_above_adapt_and_marked_as_using_labels(investigated, small_suite):
    chapter = investigated(EXPERIMENT, orders=1)
    table, gap = found(chapter, "oracle"), found(chapter, "gap")
    for title in ("Task 1", "Task 2", "Task 3"):
        accuracy = column(table, title)
        assert accuracy["oracle (uses labels)"].value > accuracy["ADAPT, transductive"].value
        assert all("labels" in name for name in accuracy if name.startswith("oracle"))
        assert all(cell.paper is None for cell in accuracy.values())
    first = gap.rows[0].cells
    natural = {name: cell.value for name, cell in column(table, "Task 1").items()}
    reach = natural["oracle (uses labels)"] - natural["zero-shot"]
    assert first[1].value == pytest.approx(100 * reach)
    assert first[3].value == pytest.approx((natural["ADAPT, transductive"] - natural["zero-shot"]) / reach)
    (elsewhere,) = [text for text in remarks(chapter, "note") if "the paper claims nothing" in text]
    assert f"natural shift, {gap.rows[0].cells[5].value:.1f} points below it" in elsewhere
    assert "fine-grained" not in elsewhere
    assert any("EuroSAT (56.51 against 68.19" in text for text in remarks(chapter))


def test_the_paper_prints_an_oracle_for_one_task_only():
    rows = {variant.label: variant.paper for variant in variants(Options())}
    assert rows["oracle (uses labels)"] == {"Task 1": None, "Task 2": None, "Task 3": 77.09}
    assert rows["ADAPT, transductive"] == {"Task 1": 67.09, "Task 2": 30.29, "Task 3": 72.43}


def scored(adapt: float | None, oracle: float | None):
    """The same accuracies on every set."""

    def accuracy(job):
        if isinstance(job, Analysis):
            return oracle
        return 0.5 if job.spec.method == "zero_shot" else adapt

    return accuracy


@pytest.mark.parametrize(
    ("adapt", "oracle", "kind", "message"),
    [
        (0.70, 0.74, "note", "Confirmed here: transductive (4.0 points from 70.0% to 74.0%)"),
        (0.70, 0.76, "note", "Too close to call here: transductive (6.0 points"),
        (0.60, 0.90, "warning", "Not confirmed here: transductive (30.0 points"),
        (0.70, 0.60, "warning", "it is not a bound there"),
    ],
)
def test_the_papers_claim_is_judged_on_fine_grained_sets(small_suite, adapt, oracle, kind, message):
    chapter = chapter_with_accuracies(EXPERIMENT, small_suite, scored(adapt, oracle), orders=1)
    (text,) = [text for text in remarks(chapter, kind) if message in text]
    assert "fine-grained sets" in text
    assert all("fine-grained" in other for other in remarks(chapter) if "within 5%" in other)


@pytest.mark.parametrize("missing", ["the task", "the oracle", "ADAPT"])
def test_without_the_numbers_nothing_is_claimed(small_suite, missing):
    members = [m for m in small_suite.members if missing != "the task" or m.task != "fine_grained"]
    accuracies = scored(None if missing == "ADAPT" else 0.7, None if missing == "the oracle" else 0.72)
    chapter = chapter_with_accuracies(EXPERIMENT, Suite(tuple(members)), accuracies, orders=1)
    assert not any("within 5" in text for text in remarks(chapter))
