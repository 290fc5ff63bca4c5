"""Gains are differences to the baseline on the same features, and can be negative."""

import dataclasses

import numpy as np
import pytest

from evaluate.fake_methods import TwoEncoders
from zeroshift import FeatureSet, OnlineADAPT, TransductiveADAPT, ZeroShot
from zeroshift.evaluate import compare, mean_accuracy, zero_shot_baseline


def three(clusters):
    prototypes, scale = clusters.prototypes_for(), clusters.logit_scale
    return [cls(prototypes, logit_scale=scale) for cls in (ZeroShot, OnlineADAPT, TransductiveADAPT)]


def test_results_are_those_of_the_methods_alone(clusters):
    comparison = compare(clusters, three(clusters), name="clusters")
    assert [result.method for result in comparison.results] == ["zero_shot", "adapt_online", "adapt_transductive"]
    for result, method in zip(comparison.results, three(clusters), strict=True):
        predictions = method.adapt(clusters.features).argmax(axis=1)
        np.testing.assert_array_equal(result.predictions, predictions)
        assert result.accuracy == pytest.approx(np.mean(predictions == clusters.labels))
    assert comparison.baseline.accuracy == pytest.approx(clusters.zero_shot_accuracy())


def test_gain_and_changed_by_hand():
    # The baseline's prototypes are right; the other method's are swapped, and so is every one of its answers.
    features = FeatureSet(np.eye(2)[[0, 1, 1]], prototypes=np.eye(2), labels=[0, 1, 0])
    comparison = compare(features, [ZeroShot(np.eye(2)), ZeroShot(np.eye(2)[::-1])])
    worse = comparison.results[1]
    assert comparison.gain(worse) == pytest.approx(100 * (1 / 3 - 2 / 3))
    assert comparison.changed(worse) == 3
    np.testing.assert_allclose(comparison.class_gain(worse), [100 * (1 / 2 - 1 / 2), 100 * (0 - 1)])
    assert comparison.gain(comparison.baseline) == 0.0


def test_without_labels_there_is_no_accuracy_but_there_are_predictions(clusters):
    unlabelled = FeatureSet(clusters.features, prototypes=clusters.prototypes_for(), logit_scale=clusters.logit_scale)
    comparison = compare(unlabelled, three(clusters)[:2])
    result = comparison.results[1]
    assert result.accuracy is None
    assert comparison.gain(result) is None
    assert comparison.class_gain(result) is None
    assert comparison.changed(result) == np.sum(result.predictions != comparison.baseline.predictions) > 0
    with pytest.raises(ValueError, match="labels"):
        mean_accuracy([comparison])


def test_parameters_are_plain_values(clusters):
    parameters = compare(clusters, three(clusters)).result("adapt_online").parameters
    assert parameters["bank_size"] == 16
    assert "prototypes" not in parameters
    assert "support" not in parameters


def test_progress_names_the_method(clusters):
    seen = []
    compare(clusters, three(clusters), every=75, progress=lambda method, step: seen.append((method.name, step.stop)))
    assert seen == [
        ("zero_shot", 75), ("zero_shot", 150), ("adapt_online", 75), ("adapt_online", 150), ("adapt_transductive", 150)
    ]  # fmt: skip


def test_mean_counts_every_set_the_same(clusters):
    first = compare(clusters, three(clusters))
    second = compare(clusters.subset(slice(0, 30)), three(clusters))
    means = mean_accuracy([first, second])
    for name in ("zero_shot", "adapt_online", "adapt_transductive"):
        assert means[name] == pytest.approx((first.result(name).accuracy + second.result(name).accuracy) / 2)
    with pytest.raises(ValueError, match="same methods"):
        mean_accuracy([first, dataclasses.replace(second, results=second.results[:2])])


def test_the_zero_shot_baseline_a_method_shares_its_prototypes_and_scale(clusters):
    baseline = zero_shot_baseline(OnlineADAPT(clusters.prototypes_for(), logit_scale=3.0), clusters)
    assert baseline.logit_scale == 3.0
    np.testing.assert_array_equal(baseline.prototypes, clusters.prototypes_for())


def test_an_unknown_method_and_an_empty_list_are_rejected(clusters):
    with pytest.raises(KeyError, match="zero_shot, adapt_online"):
        compare(clusters, three(clusters)).result("adapt")
    with pytest.raises(ValueError, match="baseline"):
        compare(clusters, [])


def test_rows_per_call_depend_on_the_method(clusters):
    def sizes(**given):
        method = OnlineADAPT(clusters.prototypes_for(), logit_scale=3.0, **given)
        done = compare(clusters, [zero_shot_baseline(method, clusters), method])
        return [np.diff(result.run.rows_seen, prepend=0).max() for result in done.results]

    rows = clusters.n_samples
    assert rows > 64
    assert sizes() == sizes(engine="replay") == [64, rows]
    assert sizes(engine="streaming") == sizes(bank_size=0) == [64, 64]


def test_methods_that_take_a_second_encoder_are_given_the_named_one(clusters):
    both = clusters.with_extra("dinov2", np.eye(clusters.n_samples)).with_extra("vit", np.eye(clusters.n_samples, 200))
    taking, zero_shot = TwoEncoders(clusters.prototypes_for()), ZeroShot(clusters.prototypes_for())
    compare(both, [zero_shot, taking], second="vit")
    np.testing.assert_array_equal(np.concatenate(taking.seconds), both.extra["vit"])
    with pytest.raises(ValueError, match=r"extra features of the set \(dinov2, vit\); got 'vut'. Did you mean 'vit'"):
        compare(both, [zero_shot, taking], second="vut")
