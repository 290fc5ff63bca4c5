"""Tip-Adapter-F: the authors' logits, losses and keys, and what is particular to it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from goldens import first_shots, golden, problem
from labelled_problem import unbalanced
from zeroshift.arrays import to_numpy
from zeroshift.methods import TipAdapter, TipAdapterF
from zeroshift.older_states import as_written_now
from zeroshift.tensor_files import read_tensors, write_tensors

TOLERANCE = 5e-4
"""Ten times the difference between an independent float64 version and the authors' float32 one."""

RUNS = json.loads(str(golden("tip_adapter_f")["hyperparameters_json"]))["runs"]

runs = pytest.mark.parametrize("run", RUNS)
kinds = pytest.mark.parametrize(("dtype", "convert"), [("float32", np.asarray), ("float64", torch.tensor)])


def authors_method(run, dtype, convert, *names):
    """The method of a run, given the sets of these names, and what it answers."""
    given, hyper = problem(dtype), RUNS[run]
    features, labels = first_shots(hyper["shots"], dtype)
    sets = {"validation": ("val_features", "val_labels"), "selection": ("features", "labels")}
    method = TipAdapterF(
        convert(given["prototypes"]),
        support=(convert(features), labels),
        epochs=hyper["epochs"],
        batch_size=hyper["batch"],
        order=golden("tip_adapter_f").get(f"{run}_order"),
        **{name: (convert(given[sets[name][0]]), given[sets[name][1]]) for name in names},
    )
    return method, to_numpy(method.predict_scores(convert(given["features"])))


def assert_agrees(answer, expected):
    np.testing.assert_allclose(answer, expected, rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(answer.argmax(axis=1), expected.argmax(axis=1))


@runs
@kinds
def test_authors_last_epoch(run, dtype, convert):
    theirs = golden("tip_adapter_f")
    method, answer = authors_method(run, dtype, convert)
    assert answer.dtype == dtype
    assert_agrees(answer, theirs[f"{run}_logits"])
    np.testing.assert_allclose(method.losses, theirs[f"{run}_loss"], rtol=0, atol=2e-5)
    np.testing.assert_allclose(to_numpy(method.keys), theirs[f"{run}_keys"], rtol=0, atol=1e-5)
    assert method.chosen == {"beta": 1.0, "alpha": 1.17, "epochs": RUNS[run]["epochs"]}


@runs
def test_authors_search_with_the_keys_of_the_last_epoch(run):
    method, answer = authors_method(run, "float32", np.asarray, "validation")
    beta, alpha = RUNS[run]["searched_last_beta_alpha"]
    assert method.chosen == pytest.approx({"beta": beta, "alpha": alpha, "epochs": RUNS[run]["epochs"]}, abs=1e-12)
    assert_agrees(answer, golden("tip_adapter_f")[f"{run}_searched_last_logits"])


@runs
@kinds
def test_authors_released_protocol(run, dtype, convert):
    """The epoch is chosen on the test set, which only a caller who has its labels can repeat."""
    theirs = golden("tip_adapter_f")
    method, answer = authors_method(run, dtype, convert, "validation", "selection")
    beta, alpha = RUNS[run]["official_beta_alpha"]
    epoch = RUNS[run]["best_epoch_on_test"] + 1
    assert method.chosen == pytest.approx({"beta": beta, "alpha": alpha, "epochs": epoch}, abs=1e-12)
    assert_agrees(answer, theirs[f"{run}_official_logits"])
    np.testing.assert_allclose(to_numpy(method.keys), theirs[f"{run}_best_keys"], rtol=0, atol=1e-5)
    # In one epoch of the longest run, a single sample is decided by rounding.
    allowed = 100 / 600 if run == "long16" else 0
    difference = np.abs(100 * method.accuracies - theirs[f"{run}_epoch_test_accuracy"])
    assert difference.max() <= allowed + 1e-9
    assert (difference > 1e-9).sum() <= 1


@pytest.mark.parametrize("parameters", [{"epochs": 0}, {"rate": 0}])
def test_without_training_it_is_tip_adapter(parameters):
    prototypes, support, val, features = unbalanced()
    given = {"support": support, "validation": val, "search_steps": (5, 3)}
    method, expected = TipAdapterF(prototypes, **given, **parameters), TipAdapter(prototypes, **given)
    np.testing.assert_array_equal(method.keys, support[0])
    assert {name: method.chosen[name] for name in expected.chosen} == expected.chosen
    np.testing.assert_allclose(method.predict_scores(features), expected.predict_scores(features), rtol=0, atol=1e-10)


def test_keys_are_a_copy():
    prototypes, support, _, _ = unbalanced()
    method = TipAdapterF(prototypes, support=support)
    before = method.keys
    method.keys[:] = 0
    np.testing.assert_array_equal(method.keys, before)


def test_keys_stay_short_enough_for_finite_votes():
    prototypes, support, _, features = unbalanced()
    method = TipAdapterF(prototypes.astype("float32"), support=support, rate=1.0, beta=100.0, alpha=1e15)
    assert np.linalg.norm(method.keys, axis=1).max() <= 1.4 + 1e-6
    assert np.isfinite(method.predict(features.astype("float32"))).all()


def test_longer_keys_in_a_file_are_shortened(tmp_path):
    prototypes, support, _, features = unbalanced()
    TipAdapterF(prototypes, support=support, beta=100.0).save(tmp_path / "method")
    arrays, header = read_tensors(tmp_path / "method", kind="state", schema=2)
    arrays["state/parameters"] = 1e9 * arrays["state/parameters"]
    write_tensors(tmp_path / "edited", arrays, header)
    assert np.isfinite(TipAdapterF.load(tmp_path / "edited").predict(features)).all()


def test_keys_saved_by_size_and_place_in_their_class_come_back_in_the_order_of_the_support_samples():
    """As version 0.2.0 saved them: class 0 with one sample first, then the samples of classes with two."""
    labels, saved = np.array([2, 1, 0, 1, 2]), np.array([[2.0], [1.0], [0.0], [3.0], [4.0]])
    tensors = {"state/parameters_0": saved, "parameter/support/1": labels}
    order = [2, 1, 0, 3, 4]
    np.testing.assert_array_equal(as_written_now("tip_adapter_f", tensors)["state/parameters"][order], saved)


@pytest.mark.parametrize("selection", [3, (np.eye(7, 12),), (np.eye(7, 12), np.full(7, 9))])
def test_a_selection_that_is_no_labelled_set_is_refused(selection):
    prototypes, support, _, _ = unbalanced()
    with pytest.raises((TypeError, ValueError), match="selection"):
        TipAdapterF(prototypes, support=support, selection=selection)
