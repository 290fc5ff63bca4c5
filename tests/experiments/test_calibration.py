"""Calibration: bins put together keep what they say, and whoever is worse than zero-shot is named."""

import numpy as np
import pytest

from experiments.tables import column, found, remarks
from zeroshift import ZeroShot
from zeroshift.data import packs
from zeroshift.evaluate import expected_calibration_error
from zeroshift.experiments import Suite
from zeroshift.experiments.calibration import EXPERIMENT


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
    assert len(panels) == 5
    answers, labels = [], []
    for member in small_suite.members:
        features = member.entry.load()
        answers.append(ZeroShot(features.prototypes_for(), logit_scale=features.logit_scale).predict(features.features))
        labels.append(features.labels)
    answers, labels = np.concatenate(answers), np.concatenate(labels)
    plain = panels[0]
    assert plain.label == "zero-shot"
    assert plain.error == pytest.approx(expected_calibration_error(answers, labels))
    right = answers.argmax(axis=1) == labels
    assert np.dot(plain.share, plain.accuracy) == pytest.approx(right.mean())
    assert np.dot(plain.share, plain.confidence) == pytest.approx(answers.max(axis=1).mean())
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
