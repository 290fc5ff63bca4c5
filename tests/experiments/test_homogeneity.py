"""Covariances of classes: distances are what NumPy says, and the yardstick tells one covariance from several."""

import numpy as np
import pytest

from experiments.tables import column, found, remarks
from zeroshift import FeatureSet
from zeroshift.experiments.homogeneity import EXPERIMENT
from zeroshift.experiments.parts.covariance_spread import covariance_spread


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


def test_the_yardstick_tells_one_covariance_from_several():
    sizes = [60] * 12
    same = covariance_spread(made_up([1.0] * 12, sizes), prompt="default")
    assert same["share_beyond_sampling"] <= 0.25
    np.testing.assert_allclose(np.mean(same["distances"]), np.mean(same["sampling"]), rtol=0.1)
    unlike = covariance_spread(made_up(np.linspace(0.5, 2.0, 12), sizes), prompt="default")
    assert unlike["share_beyond_sampling"] > 0.5
    assert np.mean(unlike["distances"]) > 1.3 * np.mean(unlike["sampling"])


def test_classes_without_two_samples_are_left_out_and_counted():
    record = covariance_spread(made_up([1.0] * 4, [10, 1, 9, 0]), prompt="default")
    assert record["classes"] == [0, 2]
    assert record["left_out"] == 2
    with pytest.raises(ValueError, match="no class has two samples"):
        covariance_spread(made_up([1.0, 1.0], [1, 1]), prompt="default")


def test_the_bundled_features_differ_in_covariance_and_the_report_says_so(investigated, small_suite):
    chapter = investigated(EXPERIMENT)
    table = found(chapter, "distances")
    ours, yardstick = column(table, "relative distance"), column(table, "relative, by sampling")
    for member in small_suite.members:
        assert ours[member.name].value > yardstick[member.name].value > 0
    beyond = [cell.value for cell in column(table, "classes beyond sampling").values()]
    warned = any("farther from the pooled covariance than sampling" in text for text in remarks(chapter, "warning"))
    assert warned == (np.mean(beyond) > 0.1)
    maps = found(chapter, "covariances-1")
    assert maps.maps[0].values.shape == (32, 32)
    assert np.trace(found(chapter, "dissimilarity-1").maps[0].values) == 0
