"""The oracle: an independent transcription agrees, labels are said to be used, and it is above what it bounds."""

import math

import numpy as np
import pytest

from experiments.tables import column, found, remarks
from zeroshift.data import packs
from zeroshift.experiments import Options
from zeroshift.experiments.oracle import EXPERIMENT, variants
from zeroshift.experiments.parts.oracle_adapt import oracle_adapt, oracle_scores
from zeroshift.testing import make_problem


def transcribed(x, labels, t, scale, size, alpha, everywhere):
    """Algorithm 2, a sample at a time, y one-hot wherever statistics are made."""
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
    entries = (
        [(i, labels[i]) for i in range(len(x))] if everywhere else [(j, k) for k in range(n_classes) for j in banks[k]]
    )
    sigma = sum(np.outer(x[i] - means[k], x[i] - means[k]) for i, k in entries) / len(entries)
    precision = d * np.linalg.inv((len(entries) - 1) * sigma + np.trace(sigma) * np.eye(d))
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
    told = oracle_scores(x, features.labels, t, features.logit_scale).argmax(axis=1)
    misled = oracle_scores(x, swapped, t, features.logit_scale).argmax(axis=1)
    assert np.mean(told == features.labels) > np.mean(misled == features.labels) + 0.2
    with pytest.raises(ValueError, match="banks, all"):
        oracle_scores(x, swapped, t, 1.0, covariance="none")


def test_a_set_without_labels_is_refused():
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
    lacking = [row.cells[5].value for row in gap.rows]
    assert any("lacks here" in text for text in remarks(chapter, "warning")) == (max(lacking) > 5)
    assert any("EuroSAT (56.51 against 68.19" in text for text in remarks(chapter))


def test_the_paper_prints_an_oracle_for_one_task_only():
    rows = {variant.label: variant.paper for variant in variants(Options())}
    assert rows["oracle (uses labels)"] == {"Task 1": None, "Task 2": None, "Task 3": 77.09}
    assert rows["ADAPT, transductive"] == {"Task 1": 67.09, "Task 2": 30.29, "Task 3": 72.43}
