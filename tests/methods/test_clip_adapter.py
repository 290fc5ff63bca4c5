"""CLIP-Adapter: the authors' logits, losses and weights, and what is particular to it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from goldens import first_shots, golden, problem
from zeroshift import ZeroShot
from zeroshift.arrays import to_numpy
from zeroshift.methods import CLIPAdapter
from zeroshift.testing import make_problem

TOLERANCES = {"sgd": 5e-4, "adam": 5e-3}
"""Ten times the difference between an independent float64 version and the authors' float32 one."""

RUNS = json.loads(str(golden("clip_adapter")["hyperparameters_json"]))["runs"]


def other_problem(seed):
    """(prototypes, support, features, layers), d = 12 with three units between the layers."""
    made = make_problem(classes=5, dimension=12, samples=200, seed=seed)
    draw = np.random.default_rng(seed)
    layers = draw.uniform(-1, 1, size=(3, 12)) / 12**0.5, draw.uniform(-1, 1, size=(12, 3)) / 3**0.5
    return made.prototypes, (made.features[:60], made.labels[:60]), made.features[60:], layers


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize(("dtype", "convert"), [("float32", np.asarray), ("float64", torch.tensor)])
def test_authors_arrays(run, dtype, convert):
    given, theirs, hyper = problem(dtype), golden("clip_adapter"), RUNS[run]
    features, labels = first_shots(hyper["shots"], dtype)
    method = CLIPAdapter(
        convert(given["prototypes"]),
        support=(convert(features), labels),
        optimizer=hyper["optimiser"],
        rate=hyper["lr"],
        epochs=hyper["epochs"],
        batch_size=hyper["batch"],
        initial=(theirs["init_w1"], theirs["init_w2"]),
        order=theirs.get(f"{run}_order"),
    )
    answer = to_numpy(method.predict_scores(convert(given["features"])))
    assert answer.dtype == dtype
    tolerance = TOLERANCES[hyper["optimiser"]]
    np.testing.assert_allclose(answer, theirs[f"{run}_logits"], rtol=0, atol=tolerance)
    np.testing.assert_array_equal(answer.argmax(axis=1), theirs[f"{run}_logits"].argmax(axis=1))
    np.testing.assert_allclose(method.losses, theirs[f"{run}_loss"], rtol=0, atol=5e-5)
    for layer, name in zip(method.layers, ("w1", "w2"), strict=True):
        np.testing.assert_allclose(to_numpy(layer), theirs[f"{run}_{name}"], rtol=0, atol=tolerance / 10)


def test_without_the_layers_it_is_zero_shot():
    prototypes, support, features, _ = other_problem(1)
    expected = ZeroShot(prototypes).predict_scores(features)
    alone = CLIPAdapter(prototypes, support=support, ratio=0).predict_scores(features)
    np.testing.assert_allclose(alone, expected, rtol=0, atol=1e-10)


def test_layers_that_start_dead_stay_dead():
    prototypes, support, features, (first, second) = other_problem(2)
    parameters = {"weight_decay": 0.0, "initial": (first, 0 * second)}
    method = CLIPAdapter(prototypes, support=support, **parameters)
    np.testing.assert_array_equal(method.layers[0], first)
    np.testing.assert_array_equal(method.layers[1], 0 * second)
    np.testing.assert_allclose(
        method.predict_scores(features), ZeroShot(prototypes).predict_scores(features), rtol=0, atol=1e-10
    )


def test_initial_weights_follow_from_the_seed():
    prototypes, support, _, _ = other_problem(1)
    one, again, other = (CLIPAdapter(prototypes, support=support, epochs=0, seed=seed).layers for seed in (1, 1, 2))
    for layer, same, different, bound in zip(one, again, other, (12**-0.5, 3**-0.5), strict=True):
        np.testing.assert_array_equal(layer, same)
        assert (layer != different).all()
        assert 0.8 * bound < np.abs(layer).max() <= bound
    layers = CLIPAdapter(prototypes, support=support, reduction=40, epochs=0).layers
    assert [layer.shape for layer in layers] == [(1, 12), (12, 1)]


@pytest.mark.parametrize(
    ("initial", "error", "message"),
    [
        (np.ones((3, 12)), TypeError, "initial must be a pair of weights"),
        ((np.ones((3, 12)),), TypeError, "initial must be a pair of weights"),
        (
            (np.ones((4, 12)), np.ones((12, 4))),
            ValueError,
            r"initial first must have the shape \(3, 12\).*got \(4, 12\)",
        ),
        ((np.ones((3, 12)), np.ones((3, 12))), ValueError, r"initial second must have the shape \(12, 3\)"),
        ((np.full((3, 12), np.nan), np.ones((12, 3))), ValueError, "initial first must hold finite numbers"),
    ],
)
def test_initial_weights_that_are_refused(initial, error, message):
    prototypes, support, _, _ = other_problem(1)
    with pytest.raises(error, match=message):
        CLIPAdapter(prototypes, support=support, initial=initial)
