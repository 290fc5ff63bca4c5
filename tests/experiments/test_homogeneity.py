"""Covariances of classes: distances compared with NumPy, and the reference for equal covariances."""

import numpy as np
import pytest

from experiments.reading import column, found, remarks
from zeroshift import FeatureSet
from zeroshift.data import packs
from zeroshift.evaluate import JobOutcome
from zeroshift.experiments import Investigation, Suite
from zeroshift.experiments.homogeneity import EXPERIMENT, covariance_spread


def made_up(scales, sizes, dimension=12):
    draws = np.random.default_rng(4)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    rows = draws.standard_normal((len(labels), dimension)) * 0.05 * np.asarray(scales)[labels][:, None]
    rows[:, 0] += 1.0
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return FeatureSet(rows, prototypes=np.eye(len(sizes), dimension), labels=labels)


def test_distances_are_to_the_pooled_within_class_covariance():
    features = made_up([1.0, 1.5, 0.5], [20, 35, 15])
    record = covariance_spread(features, prompt="default")
    x, y = np.asarray(features.features), features.labels
    covariances = [np.cov(x[y == k].T) for k in range(3)]
    pooled = sum((n - 1) * c for n, c in zip([20, 35, 15], covariances, strict=True)) / 67
    assert record["pooled_norm"] == pytest.approx(np.linalg.norm(pooled))
    np.testing.assert_allclose(record["distances"], [np.linalg.norm(c - pooled) for c in covariances])
    np.testing.assert_allclose(record["traces"], [np.trace(c) for c in covariances])
    apart = np.linalg.norm(covariances[0] - covariances[2]) / np.linalg.norm(pooled)
    assert record["dissimilarity"][0][2] == pytest.approx(apart, abs=1e-6)


def test_the_reference_distinguishes_one_covariance_from_several():
    sizes = [60] * 12
    same = covariance_spread(made_up([1.0] * 12, sizes), prompt="default")
    assert same["share_beyond_sampling"] <= 0.25
    np.testing.assert_allclose(np.mean(same["distances"]), np.mean(same["sampling"]), rtol=0.1)
    unique_titles = covariance_spread(made_up(np.linspace(0.5, 2.0, 12), sizes), prompt="default")
    assert unique_titles["share_beyond_sampling"] > 0.5
    assert np.mean(unique_titles["distances"]) > 1.3 * np.mean(unique_titles["sampling"])


def test_classes_without_two_samples_are_skipped_and_counted():
    record = covariance_spread(made_up([1.0] * 4, [10, 1, 9, 0]), prompt="default")
    assert record["classes"] == [0, 2]
    assert record["left_out"] == 2
    assert record["paired"] == record["pictured"] == [0, 2], "indices of the set's classes, not of those kept"
    with pytest.raises(ValueError, match="no class has two samples"):
        covariance_spread(made_up([1.0, 1.0], [1, 1]), prompt="default")


def test_the_bundled_features_differ_in_covariance_and_the_report_says_so(investigated, small_suite):
    chapter = investigated(EXPERIMENT)
    table = found(chapter, "distances")
    ours, yardstick = column(table, "relative distance"), column(table, "by sampling alone")
    for member in small_suite.members:
        assert ours[member.name].value > yardstick[member.name].value > 0
    beyond = [cell.value for cell in column(table, "classes beyond sampling").values()]
    warned = any("farther from the pooled covariance than sampling" in text for text in remarks(chapter, "warning"))
    assert warned == (np.mean(beyond) > 0.1)
    maps = found(chapter, "covariances-1")
    assert maps.maps[0].values.shape == (32, 32)
    assert np.trace(found(chapter, "dissimilarity-1").maps[0].values) == 0


def test_the_baseline_is_of_the_analysed_samples():
    features = made_up([1.0] * 3, [6, 1, 5])
    kept = features.subset(features.labels != 1)
    assert kept.zero_shot_accuracy() != features.zero_shot_accuracy()
    record = covariance_spread(features, prompt=features.default_prompt)
    assert record["zero_shot_accuracy"] == kept.zero_shot_accuracy()


def test_records_hold_indices_and_names_come_from_the_set(investigated, small_suite):
    """The digest of a set does not contain class names, so records must not either."""
    cifar = packs.load("cifar10").subset(slice(0, 300))
    renamed = FeatureSet(
        cifar.features,
        prototypes=cifar.prototypes_for(),
        labels=cifar.labels,
        class_names=[f"number {k}" for k in range(10)],
    )
    plain = FeatureSet(cifar.features, prototypes=cifar.prototypes_for(), labels=cifar.labels)
    for features, name in ((plain, plain.class_names[0]), (renamed, "number 0")):
        chapter = investigated(EXPERIMENT, Suite.of({"mine": features}))
        assert found(chapter, "traces-1").bars[0].label == name
    assert "class_names" not in covariance_spread(cifar, prompt="ensemble")


def test_two_antipodal_points_have_a_trace_above_one():
    pair = np.eye(4)[[0, 0, 1, 1]] * np.array([1, -1, 1, -1])[:, None]
    features = FeatureSet(pair, prototypes=np.eye(2, 4), labels=[0, 0, 1, 1])
    record = covariance_spread(features, prompt=features.default_prompt)
    assert record["traces"] == pytest.approx([2.0, 2.0]), "n / (n - 1)"


def test_shares_are_reported_as_of_sets_that_count_the_same(investigated, small_suite):
    texts = remarks(investigated(EXPERIMENT))
    assert any("a trace of at most n / (n - 1)" in text for text in texts)
    assert any("on the mean of 3 sets, weighted equally" in text for text in texts)
    alone = remarks(investigated(EXPERIMENT, Suite(small_suite.members[:1])))
    assert not any("weighted equally" in text for text in alone)


def test_failed_runs_are_not_taken_for_classes_of_one_sample(small_suite):
    def message(suite):
        investigation = Investigation.of([EXPERIMENT], suite)
        outcomes = [JobOutcome(job, None, "out of memory", False) for job in investigation.jobs]
        return remarks(investigation.chapters(outcomes)[0], "warning")

    assert message(small_suite) == ["There is no result: every run failed."]
    single = Suite.of({"single": made_up([1.0, 1.0], [1, 1])})
    assert message(single) == ["No set has a class with two samples, which a covariance needs."]
