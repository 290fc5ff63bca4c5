"""TaskRes: the authors' logits, losses and residuals, a plain version of it, and properties of the formula."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from goldens import first_shots, golden, problem
from plain import taskres as plain
from zeroshift import ZeroShot
from zeroshift.arrays import to_numpy
from zeroshift.methods import TaskRes
from zeroshift.methods._shared.training import warm_cosine_rate
from zeroshift.testing import check_method, make_problem
from zeroshift.testing.examples import example_support

TOLERANCE = 5e-4
"""Five times the difference between an independent float64 version and the authors' float32 one."""

RUNS = json.loads(str(golden("taskres")["hyperparameters_json"]))["runs"]


def other_problem(seed):
    """(prototypes, support, features): class 3 has no support samples."""
    made = make_problem(classes=5, dimension=12, samples=200, seed=seed)
    rows = np.flatnonzero(made.labels[:60] != 3)
    return made.prototypes, (made.features[rows], made.labels[rows]), made.features[60:]


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("convert", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_authors_arrays(run, dtype, convert):
    given, theirs, hyper = problem(dtype), golden("taskres"), RUNS[run]
    features, labels = first_shots(hyper["shots"], dtype)
    method = TaskRes(
        convert(given["prototypes"]),
        support=(convert(features), labels),
        alpha=hyper["alpha"],
        base_norm=hyper["base_multiplier"],
        rate=hyper["lr"],
        # Two hundred epochs for sixteen samples per class, one hundred for four, follow from the support.
        epochs=None if run in ("shots16", "shots4") else hyper["epochs"],
        batch_size=hyper["batch"],
        order=theirs.get(f"{run}_order"),
    )
    answer = to_numpy(method.predict_scores(convert(given["features"])))
    assert answer.dtype == dtype
    np.testing.assert_allclose(answer, theirs[f"{run}_logits"], rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(answer.argmax(axis=1), theirs[f"{run}_logits"].argmax(axis=1))
    np.testing.assert_allclose(method.losses, theirs[f"{run}_loss"], rtol=0, atol=2e-5)
    np.testing.assert_allclose(to_numpy(method.residual), theirs[f"{run}_residual"], rtol=0, atol=2e-5)


@pytest.mark.parametrize("run", RUNS)
def test_authors_rates(run):
    hyper = RUNS[run]
    per_step = np.repeat(np.arange(hyper["epochs"]), hyper["batches_per_epoch"])
    found = [warm_cosine_rate(int(epoch), hyper["epochs"], hyper["lr"]) for epoch in per_step]
    np.testing.assert_allclose(found, golden("taskres")[f"{run}_lr"], rtol=1e-9)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("batch", [256, 11])
def test_plain_version_on_other_problems(seed, batch):
    prototypes, support, features = other_problem(seed)
    order = np.stack([np.random.default_rng(k).permutation(len(support[1])) for k in range(30)])
    details = {}
    parameters = {"logit_scale": 30.0, "alpha": 0.7, "base_norm": 2.0, "rate": 5e-3, "epochs": 30}
    expected = plain.scores(
        torch.tensor(features),
        torch.tensor(prototypes),
        support=tuple(map(torch.tensor, support)),
        batch=batch,
        order=torch.tensor(order),
        details=details,
        **parameters,
    )
    method = TaskRes(prototypes, support=support, batch_size=batch, order=order, **parameters)
    np.testing.assert_allclose(method.losses, details["losses"], rtol=0, atol=1e-10)
    np.testing.assert_allclose(method.residual, details["residual"], rtol=0, atol=1e-9)
    np.testing.assert_allclose(method.predict_scores(features), expected, rtol=0, atol=1e-8)


def test_gradient_against_differences():
    prototypes, (x, labels), _ = other_problem(0)
    method = TaskRes(prototypes, support=(x, labels), logit_scale=10.0, alpha=0.7, base_norm=3.0, epochs=0)
    residual = np.random.default_rng(0).normal(size=prototypes.shape)
    _, (slope,) = method._gradient([residual], x, labels)
    expected = np.zeros_like(residual)
    for place in np.ndindex(*residual.shape):
        step = np.zeros_like(residual)
        step[place] = 1e-6
        above, below = (method._gradient([residual + sign * step], x, labels)[0] for sign in (1, -1))
        expected[place] = (above - below) / 2e-6
    np.testing.assert_allclose(slope, expected, rtol=0, atol=1e-8)


def test_first_step_by_hand():
    """One sample (0.8, 0.6) of class 0, scale 5: probabilities (0.731059, 0.268941). Residuals move only across their
    prototypes, and the first step of Adam moves each coordinate by the learning rate, 1e-5 in the first epoch."""
    method = TaskRes(np.eye(2), support=(np.array([[0.8, 0.6]]), np.array([0])), logit_scale=5.0, epochs=1)
    np.testing.assert_allclose(method.losses, [0.313262], rtol=0, atol=1e-6)
    np.testing.assert_allclose(method.residual, [[0, 1e-5], [-1e-5, 0]], rtol=0, atol=1e-12)


def test_without_residuals_it_is_zero_shot():
    prototypes, support, features = other_problem(1)
    method = TaskRes(prototypes, support=support, alpha=0)
    expected = ZeroShot(prototypes).predict_scores(features)
    np.testing.assert_allclose(method.predict_scores(features), expected, rtol=0, atol=1e-10)
    np.testing.assert_array_equal(method.residual, np.zeros_like(prototypes))
    assert (method.losses == method.losses[0]).all()


def test_the_first_loss_is_that_of_zero_shot():
    prototypes, (x, labels), _ = other_problem(2)
    probabilities = ZeroShot(prototypes).predict(x)
    expected = -np.log(probabilities[np.arange(len(labels)), labels]).mean()
    assert TaskRes(prototypes, support=(x, labels)).losses[0] == pytest.approx(expected, abs=1e-10)


def test_training_lowers_the_loss_and_moves_classes_without_support():
    prototypes, support, _ = other_problem(3)
    method = TaskRes(prototypes, support=support, logit_scale=20.0)
    assert method.losses[-1] < 0.7 * method.losses[0]
    assert np.linalg.norm(method.residual[3]) > 0.01
    before = method.residual
    method.residual[:] = 0
    np.testing.assert_array_equal(method.residual, before)


@pytest.mark.parametrize(("shots", "epochs"), [(1, 100), (4, 100), (5, 200), (16, 200)])
def test_epochs_follow_from_the_samples_per_class(shots, epochs):
    method = TaskRes(problem()["prototypes"], support=first_shots(shots))
    assert len(method.losses) == epochs
    assert method.chosen == {"epochs": epochs}


def test_a_longer_base_moves_less():
    given = problem("float64")
    support = first_shots(4, "float64")
    zero_shot = ZeroShot(given["prototypes"]).predict_scores(given["features"])
    one, ten = (
        np.abs(
            TaskRes(given["prototypes"], support=support, base_norm=norm).predict_scores(given["features"]) - zero_shot
        ).mean()
        for norm in (1.0, 10.0)
    )
    assert ten < one / 3


@pytest.mark.slow  # tests/common runs the same checks one by one
@pytest.mark.parametrize("parameters", [{}, {"validation": example_support}])
def test_common_checks(parameters):
    assert not check_method(TaskRes, parameters=parameters).failed
