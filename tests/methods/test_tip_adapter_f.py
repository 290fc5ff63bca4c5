"""Tip-Adapter-F: the authors' logits, losses and keys, a plain version of it, and properties of the formula."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from goldens import first_shots, golden, problem
from plain import tip_adapter_f as plain
from zeroshift.arrays import to_numpy
from zeroshift.files import FileFormatError
from zeroshift.methods import TipAdapter, TipAdapterF
from zeroshift.methods._shared.training import cosine_rate
from zeroshift.tensor_files import read_tensors, write_tensors
from zeroshift.testing import check_method, make_problem
from zeroshift.testing.examples import example_support

TOLERANCE = 5e-4
"""Ten times the difference between an independent float64 version and the authors' float32 one."""

RUNS = json.loads(str(golden("tip_adapter_f")["hyperparameters_json"]))["runs"]


def other_problem(seed=0):
    """(prototypes, support, validation, features): classes with 0 to 12 support samples, class 3 without any."""
    made = make_problem(classes=7, dimension=12, samples=200, seed=seed)
    rows = np.array([i for i in range(60) if made.labels[i] != 3])
    support = made.features[rows], made.labels[rows]
    return made.prototypes, support, (made.features[60:120], made.labels[60:120]), made.features[120:]


@pytest.fixture(params=RUNS)
def run(request):
    return request.param


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    return request.param


@pytest.fixture(params=[np.asarray, torch.tensor], ids=["numpy", "torch"])
def convert(request):
    return request.param


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


def test_authors_last_epoch(run, dtype, convert):
    theirs = golden("tip_adapter_f")
    method, answer = authors_method(run, dtype, convert)
    assert answer.dtype == dtype
    assert_agrees(answer, theirs[f"{run}_logits"])
    np.testing.assert_allclose(method.losses, theirs[f"{run}_loss"], rtol=0, atol=2e-5)
    np.testing.assert_allclose(to_numpy(method.keys), theirs[f"{run}_keys"], rtol=0, atol=1e-5)
    assert method.chosen == {"beta": 1.0, "alpha": 1.17, "epochs": RUNS[run]["epochs"]}


def test_authors_search_with_the_keys_of_the_last_epoch(run, dtype, convert):
    method, answer = authors_method(run, dtype, convert, "validation")
    beta, alpha = RUNS[run]["searched_last_beta_alpha"]
    assert method.chosen == pytest.approx({"beta": beta, "alpha": alpha, "epochs": RUNS[run]["epochs"]}, abs=1e-12)
    assert_agrees(answer, golden("tip_adapter_f")[f"{run}_searched_last_logits"])


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


def test_authors_rates(run):
    expected = golden("tip_adapter_f")[f"{run}_lr"]
    found = [cosine_rate(step, len(expected), 1e-3) for step in range(len(expected))]
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert found[-1] > 0


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("batch", [256, 17])
def test_plain_version_on_other_problems(seed, batch):
    prototypes, support, val, features = other_problem(seed)
    order = np.stack([np.random.default_rng(k).permutation(len(support[1])) for k in range(12)])
    parameters = {
        "logit_scale": 30.0, "alpha": 2.0, "beta": 3.0, "rate": 5e-3, "epochs": 12,
        "search_scale": (20.0, 9.0), "search_steps": (30, 7),
    }  # fmt: skip
    details = {}
    expected = plain.scores(
        torch.tensor(features),
        torch.tensor(prototypes),
        support=tuple(map(torch.tensor, support)),
        validation=tuple(map(torch.tensor, val)),
        selection=tuple(map(torch.tensor, val)),
        batch=batch,
        order=torch.tensor(order),
        details=details,
        **parameters,
    )
    method = TipAdapterF(
        prototypes, support=support, validation=val, selection=val, batch_size=batch, order=order, **parameters
    )
    np.testing.assert_allclose(method.losses, details["losses"], rtol=0, atol=1e-10)
    np.testing.assert_allclose(method.accuracies, details["accuracies"], rtol=0, atol=1e-12)
    np.testing.assert_allclose(method.keys, details["keys"], rtol=0, atol=1e-9)
    assert {name: method.chosen[name] for name in ("alpha", "beta")} == pytest.approx(
        {name: details[name] for name in ("alpha", "beta")}, abs=1e-12
    )
    np.testing.assert_allclose(method.predict_scores(features), expected, rtol=0, atol=1e-8)


def test_gradient_against_differences():
    prototypes, (x, labels), _, _ = other_problem()
    method = TipAdapterF(prototypes, support=(x, labels), logit_scale=10.0, alpha=3.0, beta=2.0, epochs=0)
    keys = to_numpy(method._trained.parameters[0]) + 0.1
    _, (slope,) = method._gradient([keys], x, labels)
    expected = np.zeros_like(keys)
    for place in np.ndindex(*keys.shape):
        step = np.zeros_like(keys)
        step[place] = 1e-6
        above, below = (method._gradient([keys + sign * step], x, labels)[0] for sign in (1, -1))
        expected[place] = (above - below) / 2e-6
    np.testing.assert_allclose(slope, expected, rtol=0, atol=1e-8)
    assert (np.abs(expected).max(axis=1) > 1e-6).all()  # every key, by samples of all classes


def test_first_step_by_hand():
    """Two keys, scale 5, alpha and beta 1: a sample's own kernel is 1, the other's e^-0.04 = 0.960789. The logits
    of the first are (5, 3.960789), so each sample misses its class by 0.261303."""
    x = np.array([[0.8, 0.6], [0.6, 0.8]])
    method = TipAdapterF(np.eye(2), support=(x, np.array([0, 1])), logit_scale=5.0, alpha=1.0, epochs=1)
    np.testing.assert_allclose(method.losses, [0.302867], rtol=0, atol=2e-6)
    miss, other = 0.261303 / 2, 0.960789
    gradient = np.array([-miss * x[0] + other * miss * x[1], other * miss * x[0] - miss * x[1]])
    expected = x * (1 - 1e-3 * 0.01) - 1e-3 * gradient / (np.abs(gradient) + 1e-4)
    np.testing.assert_allclose(method.keys, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("parameters", [{"epochs": 0}, {"rate": 0}])
def test_without_training_it_is_tip_adapter(parameters):
    prototypes, support, val, features = other_problem()
    given = {"support": support, "validation": val, "search_steps": (5, 3)}
    method, expected = TipAdapterF(prototypes, **given, **parameters), TipAdapter(prototypes, **given)
    np.testing.assert_array_equal(method.keys, support[0])
    assert {name: method.chosen[name] for name in expected.chosen} == expected.chosen
    np.testing.assert_allclose(method.predict_scores(features), expected.predict_scores(features), rtol=0, atol=1e-10)


def test_training_lowers_the_loss_and_decay_shrinks_keys():
    prototypes, support, _, _ = other_problem()
    method = TipAdapterF(prototypes, support=support, logit_scale=20.0)
    assert method.losses[-1] < method.losses[0]
    decayed = TipAdapterF(prototypes, support=support, logit_scale=20.0, alpha=0, weight_decay=0.5)
    shrunk = np.prod([1 - 0.5 * cosine_rate(step, 20, 1e-3) for step in range(20)])
    np.testing.assert_allclose(decayed.keys, shrunk * support[0], rtol=0, atol=1e-12)


def test_keys_are_a_copy():
    prototypes, support, _, _ = other_problem()
    method = TipAdapterF(prototypes, support=support)
    before = method.keys
    method.keys[:] = 0
    np.testing.assert_array_equal(method.keys, before)


def test_keys_stay_short_enough_for_finite_votes():
    prototypes, support, _, features = other_problem()
    method = TipAdapterF(prototypes.astype("float32"), support=support, rate=1.0, beta=100.0, alpha=1e15)
    assert np.linalg.norm(method.keys, axis=1).max() <= 1.4 + 1e-6
    assert np.isfinite(method.predict(features.astype("float32"))).all()


def test_longer_keys_in_a_file_are_refused(tmp_path):
    prototypes, support, _, _ = other_problem()
    TipAdapterF(prototypes, support=support).save(tmp_path / "method")
    arrays, header = read_tensors(tmp_path / "method", kind="state", schema=2)
    arrays["state/parameters_0"] = 1e3 * arrays["state/parameters_0"]
    write_tensors(tmp_path / "edited", arrays, header)
    with pytest.raises(FileFormatError, match="the rows of the keys must be no longer than 41"):
        TipAdapterF.load(tmp_path / "edited")


def test_presets_are_those_of_tip_adapter_and_the_epochs():
    assert set(TipAdapterF.presets) == set(TipAdapter.presets)
    assert TipAdapterF.preset("eurosat") == {**TipAdapter.preset("eurosat"), "epochs": 100}
    assert TipAdapterF.preset("dtd") == {**TipAdapter.preset("dtd"), "epochs": 20}


@pytest.mark.parametrize("selection", [3, (np.eye(7, 12),), (np.eye(7, 12), np.full(7, 9))])
def test_a_selection_that_is_no_labelled_set_is_refused(selection):
    prototypes, support, _, _ = other_problem()
    with pytest.raises((TypeError, ValueError), match="selection"):
        TipAdapterF(prototypes, support=support, selection=selection)


@pytest.mark.slow  # tests/common runs the same checks one by one
@pytest.mark.parametrize("parameters", [{}, {"validation": example_support, "search_steps": (5, 3)}])
def test_common_checks(parameters):
    assert not check_method(TipAdapterF, parameters=parameters).failed
