"""Calibration: merged bins, and remarks on methods that are worse than zero-shot."""

import numpy as np
import pytest

from experiments.fake_results import chapter_with, nothing
from experiments.reading import column, found, remarks
from zeroshift import FeatureSet, ZeroShot, methods
from zeroshift.data import packs
from zeroshift.evaluate import Analysis, expected_calibration_error
from zeroshift.experiments import Suite
from zeroshift.experiments.calibration import EXPERIMENT, MEASURES, METHODS, untempered
from zeroshift.experiments.calibration import UNTEMPERED_METHODS as UNTEMPERED


def test_adapting_makes_probabilities_over_confident_and_the_report_says_so(investigated):
    chapter = investigated(EXPERIMENT)
    errors = column(found(chapter, "calibration"), "calibration error")
    assert errors["ADAPT (online)"].value > errors["zero-shot"].value
    (warning,) = remarks(chapter, "warning")
    worse = {label for label, cell in errors.items() if cell.value > errors["zero-shot"].value}
    assert "ADAPT (online)" in worse
    for label in worse:
        assert f"{label} (" in warning
    assert "zero-shot (" not in warning
    assert [label for label, cell in errors.items() if cell.best] == [min(errors, key=lambda name: errors[name].value)]


def test_bins_of_several_sets_together_are_those_of_their_samples_together(investigated, small_suite):
    panels = found(investigated(EXPERIMENT), "reliability").panels
    assert [panel.label for panel in panels] == list(METHODS.values())
    results, labels = [], []
    for member in small_suite.members:
        features = member.dataset.load()
        results.append(ZeroShot(features.prototypes_for(), logit_scale=features.logit_scale).predict(features.features))
        labels.append(features.labels)
    results, labels = np.concatenate(results), np.concatenate(labels)
    plain = panels[0]
    assert plain.label == "zero-shot"
    assert plain.error == pytest.approx(expected_calibration_error(results, labels))
    right = results.argmax(axis=1) == labels
    assert np.dot(plain.share, plain.accuracy) == pytest.approx(right.mean())
    assert np.dot(plain.share, plain.confidence) == pytest.approx(results.max(axis=1).mean())
    for panel in panels:
        assert sum(panel.share) == pytest.approx(1)
        assert np.all(np.diff(panel.confidence) > 0)
        assert panel.error == pytest.approx(np.dot(panel.share, np.abs(np.subtract(panel.accuracy, panel.confidence))))


def test_of_one_set_the_figure_and_the_table_agree(investigated):
    suite = Suite.of({"fog": packs.load("cifar10c_fog_5").subset(slice(0, 300))})
    chapter = investigated(EXPERIMENT, suite)
    errors = column(found(chapter, "calibration"), "calibration error")
    for panel in found(chapter, "reliability").panels:
        assert panel.error == pytest.approx(errors[panel.label].value)


def made_up(errors, *, without=()):
    """Records with these calibration errors, by method; the other measures are level."""
    bins = {"count": [10], "confidence": [0.9], "accuracy": [0.8]}

    def record(job):
        method = f"{job.parameters['method']} untempered" if isinstance(job, Analysis) else job.spec.method
        if (method, job.features) in without:
            return None
        level = dict.fromkeys(MEASURES, 0.5)
        error = errors.get(method, 0.083)
        return {"accuracy": 0.8, **level, "calibration_error": error, "detail": {"reliability": bins}}

    return record


def test_what_the_table_shows_as_the_same_is_not_called_worse(small_suite):
    chapter = chapter_with(EXPERIMENT, small_suite, made_up({"adapt_online": 0.0834, "tda": 0.06}))
    assert remarks(chapter, "warning") == []
    (message,) = remarks(chapter)
    assert message.startswith("On the mean of the sets none of the three measures is worse")
    worse = chapter_with(EXPERIMENT, small_suite, made_up({"adapt_online": 0.0841}))
    assert "ADAPT (online) (calibration error 8.4% against 8.3%)" in remarks(worse, "warning")[0]


def test_a_method_that_failed_on_a_set_is_not_compared(small_suite):
    lost = (("tda", "fmnist"), ("transclip", "cifar10"))
    chapter = chapter_with(EXPERIMENT, small_suite, made_up({"adapt_online": 0.2}, without=lost))
    table = found(chapter, "calibration")
    assert column(table, "calibration error")["TDA"] is None
    assert not [
        cell for title in ("accuracy", "calibration") for cell in column(table, title).values() if cell and cell.best
    ]
    assert [panel.label for panel in found(chapter, "reliability").panels] == [
        label for label in METHODS.values() if label not in ("TDA", "TransCLIP")
    ]
    assert "No result on some set, and so no mean: TDA, TransCLIP." in remarks(chapter, "warning")
    assert not any("TDA (" in text for text in remarks(chapter))


def test_without_zero_shot_nothing_is_compared_and_without_results_nothing_reported(small_suite):
    without = [("zero_shot", member.name) for member in small_suite.members]
    chapter = chapter_with(EXPERIMENT, small_suite, made_up({}, without=without))
    assert remarks(chapter) == ["No result on some set, and so no mean: zero-shot."]
    assert len(chapter_with(EXPERIMENT, small_suite, nothing).findings) == 1


@pytest.mark.parametrize("name", UNTEMPERED)
def test_an_untempered_mixture_has_the_same_labels_and_is_over_confident(name):
    """Untempered predictions to the power of the temperature equal the method's predictions, also online."""
    pack = packs.load("cifar10c_fog_5").subset(slice(0, 200))
    features = np.asarray(pack.features, np.float64)
    raw = UNTEMPERED[name](pack.prototypes_for(), logit_scale=pack.logit_scale)
    usual = methods.create(name, pack.prototypes_for(), logit_scale=pack.logit_scale)
    loud, calm = raw.adapt(features), usual.adapt(features)
    np.testing.assert_array_equal(loud.argmax(axis=1), calm.argmax(axis=1))
    assert raw.temperature == 1.0
    assert usual.temperature < 0.7
    assert loud.max(axis=1).mean() > calm.max(axis=1).mean() + 0.02
    powers = raw.predict(features) ** usual.temperature
    np.testing.assert_allclose(powers / powers.sum(axis=1)[:, None], usual.predict(features), atol=1e-9)


def test_untempered_records_are_those_of_a_run_in_the_same_order():
    pack = packs.load("cifar10").subset(slice(0, 120))
    name = "anchored_mixture_online"
    record = untempered(pack, prompt=pack.default_prompt, method=name, seed=3)
    order = np.random.default_rng(3).permutation(120)
    method = UNTEMPERED[name](pack.prototypes_for(), logit_scale=pack.logit_scale)
    results = method.adapt(pack.features[order])
    assert record["calibration_error"] == pytest.approx(expected_calibration_error(results, pack.labels[order]))
    assert record["accuracy"] == np.mean(results.argmax(axis=1) == pack.labels[order])
    assert sum(record["detail"]["reliability"]["count"]) == 120
    with pytest.raises(ValueError, match="method must be one of anchored_mixture_online"):
        untempered(pack, prompt=pack.default_prompt, method="tda", seed=0)
    unlabelled = FeatureSet(pack.features, prototypes=pack.prototypes_for())
    with pytest.raises(ValueError, match="features must be labelled"):
        untempered(unlabelled, prompt="default", method=name, seed=0)


def test_the_temperature_improves_the_calibration_of_the_mixtures(investigated):
    errors = column(found(investigated(EXPERIMENT), "calibration"), "calibration error")
    for protocol in ("online", "transductive"):
        assert errors[f"mixture ({protocol})"].value < errors[f"mixture ({protocol}), untempered"].value
