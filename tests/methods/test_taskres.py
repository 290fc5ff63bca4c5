"""TaskRes: the authors' logits, losses and residuals, and what is particular to it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from goldens import first_shots, golden, problem
from zeroshift import ZeroShot
from zeroshift.arrays import to_numpy
from zeroshift.methods import TaskRes
from zeroshift.testing import make_problem

TOLERANCE = 5e-4
"""Five times the difference between an independent float64 version and the authors' float32 one."""

RUNS = json.loads(str(golden("taskres")["hyperparameters_json"]))["runs"]


def other_problem(seed):
    """(prototypes, support, features): class 3 has no support samples."""
    made = make_problem(classes=5, dimension=12, samples=200, seed=seed)
    rows = np.flatnonzero(made.labels[:60] != 3)
    return made.prototypes, (made.features[rows], made.labels[rows]), made.features[60:]


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize(("dtype", "convert"), [("float32", np.asarray), ("float64", torch.tensor)])
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


def test_without_residuals_it_is_zero_shot():
    prototypes, support, features = other_problem(1)
    method = TaskRes(prototypes, support=support, alpha=0)
    expected = ZeroShot(prototypes).predict_scores(features)
    np.testing.assert_allclose(method.predict_scores(features), expected, rtol=0, atol=1e-10)
    np.testing.assert_array_equal(method.residual, np.zeros_like(prototypes))
    np.testing.assert_allclose(method.losses, method.losses[0], rtol=0, atol=1e-12)


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
