"""Support and validation samples: errors name the argument, and few-shot methods copy and save the samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zeroshift.arrays import UnitLengthError
from zeroshift.methods import GDACLIP
from zeroshift.methods._shared import few_shot
from zeroshift.methods._shared.few_shot import accuracy, correct, most_accurate
from zeroshift.testing import make_problem

MADE = make_problem(classes=4, dimension=8, samples=60)
FEATURES, PROTOTYPES, LABELS = MADE


def build(name, value):
    """A method with `value` as the argument `name`, and otherwise valid support."""
    return GDACLIP(PROTOTYPES, **{"support": (FEATURES, LABELS), name: value})


@pytest.mark.parametrize("name", ["support", "validation"])
class TestRefusals:
    @pytest.mark.parametrize("pair", [FEATURES, (FEATURES,), (FEATURES, LABELS, LABELS), "both", 3, {}])
    def test_no_pair(self, name, pair):
        with pytest.raises(
            TypeError, match=rf"{name} must be a pair \(features, labels\); got .*{type(pair).__name__}"
        ):
            build(name, pair)

    def test_labels_that_are_too_few(self, name):
        with pytest.raises(ValueError, match=rf"{name} labels must have one entry per row, shape \(60,\)"):
            build(name, (FEATURES, LABELS[:-1]))

    @pytest.mark.parametrize("label", [4, -1])
    def test_labels_of_no_class(self, name, label):
        labels = LABELS.copy()
        labels[7] = label
        with pytest.raises(ValueError, match=f"{name} labels row 7 is {label}; class indices go from 0 to 3"):
            build(name, (FEATURES, labels))

    def test_labels_that_are_no_integers(self, name):
        with pytest.raises(TypeError, match=f"{name} labels must hold integers"):
            build(name, (FEATURES, LABELS.astype(float)))

    def test_another_dimension(self, name):
        with pytest.raises(ValueError, match=f"{name} features has d = 7 columns .* prototypes have d = 8"):
            build(name, (FEATURES[:, :-1], LABELS))

    def test_no_samples(self, name):
        with pytest.raises(ValueError, match=f"{name} features is empty"):
            build(name, (FEATURES[:0], LABELS[:0]))

    def test_rows_that_are_not_of_unit_length(self, name):
        with pytest.raises(UnitLengthError, match=f"{name} features row 0"):
            build(name, (2 * FEATURES, LABELS))

    def test_rows_that_are_no_numbers(self, name):
        broken = FEATURES.copy()
        broken[5, 2] = np.nan
        with pytest.raises(ValueError, match=f"{name} features row 5 holds NaN"):
            build(name, (broken, LABELS))


def test_support_is_required():
    with pytest.raises(TypeError, match=r"support must be a pair \(features, labels\); got NoneType"):
        build("support", None)


def test_samples_are_copied():
    features, labels = FEATURES.copy(), LABELS.copy()
    method = GDACLIP(PROTOTYPES, support=(features, labels), validation=(features, labels))
    expected = method.predict(FEATURES)
    features[:], labels[:] = 0, 0
    method.reset()
    np.testing.assert_array_equal(method.predict(FEATURES), expected)
    method.get_params()["support"][0][:] = 0
    method.reset()
    np.testing.assert_array_equal(method.predict(FEATURES), expected)


def test_samples_of_another_library_are_converted():
    expected = build("validation", None).predict(FEATURES)
    support = torch.tensor(FEATURES), torch.tensor(LABELS)
    np.testing.assert_allclose(build("support", support).predict(FEATURES), expected, rtol=0, atol=1e-12)
    there = GDACLIP(torch.tensor(PROTOTYPES), support=(FEATURES, LABELS.tolist())).predict(FEATURES)
    np.testing.assert_allclose(there, expected, rtol=0, atol=1e-12)


def test_saved_files_contain_the_samples(tmp_path):
    method = build("validation", (FEATURES, LABELS))
    method.save(tmp_path / "method")
    again = GDACLIP.load(tmp_path / "method")
    assert again.chosen == method.chosen
    np.testing.assert_array_equal(again.predict(FEATURES), method.predict(FEATURES))
    np.testing.assert_array_equal(again.validation[1], LABELS)


@pytest.mark.parametrize("convert", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_accuracy(convert):
    scores = convert(np.array([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7], [0.5, 0.5]]))
    assert accuracy(scores, np.array([1, 0, 0, 0])) == 0.75
    assert correct(scores, convert(np.array([1, 0, 0, 0]))) == 3  # of tied classes the first is predicted


def test_the_first_of_the_most_accurate_combinations_is_chosen(monkeypatch):
    """Also if the samples are counted in several blocks."""
    weights, (base, term) = (0.0, 1e-4, 0.5, 2.5, 40.0), np.random.default_rng(1).normal(size=(2, 4, 8))
    grid = {"power": (1, 2), "weight": weights}
    candidates = [(power, weight) for power in (1, 2) for weight in weights]
    right = [
        accuracy(FEATURES @ base.T + weight * (FEATURES @ term.T) ** power, LABELS) for power, weight in candidates
    ]
    power, weight = candidates[int(np.argmax(right))]

    def scores(x):
        return lambda power, weight: x @ base.T + weight * (x @ term.T) ** power

    assert most_accurate((FEATURES, LABELS), 8, grid, scores) == {"power": power, "weight": weight}
    blocks = few_shot.blocks
    monkeypatch.setattr(few_shot, "blocks", lambda rows, width: blocks(rows, 2**22 // 7))
    assert most_accurate((FEATURES, LABELS), 8, grid, scores) == {"power": power, "weight": weight}
    assert most_accurate((FEATURES, LABELS), 8, {"power": (1,), "weight": (0.5, 0.5)}, scores)["weight"] == 0.5
