"""The scores in a record are consistent with each other."""

import json

import numpy as np
import pytest

from zeroshift.evaluate.metrics import score_run


def test_a_sheet_holds_what_its_curves_and_counts_say():
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 40, size=250)
    sharp, blunt = (rng.dirichlet(np.ones(40) * 0.1, size=250) + np.eye(40)[labels] * weight for weight in (0.6, 0.2))
    sharp, blunt = (matrix / matrix.sum(axis=1, keepdims=True) for matrix in (sharp, blunt))
    groups = np.repeat([2, 0], 125)
    sheet = score_run(sharp, blunt, labels, groups, ("fog", "snow", "rain"))
    json.dumps(sheet, allow_nan=False)
    curve = sheet["detail"]["curve"]
    assert len(curve["rows"]) == 100
    assert curve["rows"][-1] == 250
    assert (np.diff(curve["rows"]) > 0).all()
    right = sharp.argmax(axis=1) == labels
    assert curve["accuracy"] == pytest.approx([right[:rows].mean() for rows in curve["rows"]])
    assert curve["accuracy"][-1] == sheet["accuracy"] > curve["zero_shot"][-1] == sheet["zero_shot_accuracy"]
    both, only, lost, neither = sheet["paired"]
    assert both + only == pytest.approx(250 * sheet["accuracy"])
    assert both + lost == pytest.approx(250 * sheet["zero_shot_accuracy"])
    assert sum(sheet["paired"]) == both + only + lost + neither == 250
    assert set(sheet["groups"]) == {"fog", "rain"}  # nothing came of snow
    assert sheet["groups"]["rain"] == {
        "scored": 125,
        "accuracy": right[:125].mean(),
        "zero_shot_accuracy": (blunt.argmax(axis=1) == labels)[:125].mean(),
    }
    assert sheet["detail"]["confusion"] is None  # forty classes are too many to be read
    few = score_run(np.eye(3), np.eye(3), np.arange(3))
    assert (few["groups"], few["detail"]["curve"]["rows"]) == ({}, [1, 2, 3])
    assert few["error_auroc"] is None
    assert few["detail"]["zero_shot_confusion"] == np.eye(3, dtype=int).tolist()
