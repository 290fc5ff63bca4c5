"""Tip-Adapter: the authors' logits, the result of their search, a plain version, and properties of the formula."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from goldens import first_shots, golden, problem
from plain import tip_adapter as plain
from zeroshift import ZeroShot
from zeroshift.arrays import to_numpy
from zeroshift.methods import TipAdapter, tip_adapter
from zeroshift.methods._shared import few_shot as weight_search
from zeroshift.testing import check_method, make_problem
from zeroshift.testing.examples import example_support

TOLERANCE = 2e-4
"""Five times the difference between an independent float64 version and the authors' float32 one."""


def validation(dtype="float32"):
    given = problem(dtype)
    return given["val_features"], given["val_labels"]


def unbalanced(seed=0):
    """(prototypes, support, validation, features): classes with 0 to 12 support samples, class 3 without any."""
    made = make_problem(classes=7, dimension=12, samples=200, seed=seed)
    rows = np.array([i for i in range(60) if made.labels[i] != 3])
    support = made.features[rows], made.labels[rows]
    return made.prototypes, support, (made.features[60:120], made.labels[60:120]), made.features[120:]


@pytest.mark.parametrize("shots", [16, 4])
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.parametrize("convert", [np.asarray, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("searched", [True, False], ids=["searched", "initial"])
def test_authors_logits(shots, dtype, convert, searched):
    given = problem(dtype)
    features, labels = first_shots(shots, dtype)
    val = (convert(validation(dtype)[0]), validation()[1]) if searched else None
    method = TipAdapter(convert(given["prototypes"]), support=(convert(features), labels), validation=val)
    answer = to_numpy(method.adapt_scores(convert(given["features"])))
    expected = golden("tip_adapter")[f"{'shots' if searched else 'init'}{shots}_logits"]
    assert answer.dtype == dtype
    np.testing.assert_allclose(answer, expected, rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(answer.argmax(axis=1), expected.argmax(axis=1))


@pytest.mark.parametrize("shots", [16, 4])
def test_the_search_finds_what_the_authors_find(shots):
    found = TipAdapter(problem()["prototypes"], support=first_shots(shots), validation=validation()).chosen
    beta, alpha = json.loads(str(golden("tip_adapter")["hyperparameters_json"]))[f"best{shots}_beta_alpha"]
    assert found == pytest.approx({"beta": beta, "alpha": alpha}, abs=1e-12)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_plain_version_on_other_problems(seed):
    prototypes, support, val, features = unbalanced(seed)
    method = TipAdapter(prototypes, support=support, validation=val, search_scale=(20.0, 9.0), search_steps=(30, 7))
    details = {}
    expected = plain.scores(
        torch.tensor(features),
        torch.tensor(prototypes),
        support=tuple(map(torch.tensor, support)),
        validation=tuple(map(torch.tensor, val)),
        search_scale=(20.0, 9.0),
        search_steps=(30, 7),
        details=details,
    )
    assert method.chosen == pytest.approx(details, abs=1e-12)
    np.testing.assert_allclose(method.predict_scores(features), expected, rtol=0, atol=1e-10)


def test_without_votes_it_is_zero_shot():
    prototypes, support, _, features = unbalanced()
    zero_shot = ZeroShot(prototypes).predict_scores(features)
    np.testing.assert_array_equal(TipAdapter(prototypes, support=support, alpha=0).predict_scores(features), zero_shot)
    logits = TipAdapter(prototypes, support=support).predict_scores(features)
    np.testing.assert_array_equal(logits[:, 3], zero_shot[:, 3])  # a class without support
    assert (logits[:, [0, 1, 2, 4, 5, 6]] > zero_shot[:, [0, 1, 2, 4, 5, 6]]).all()


def test_a_flat_kernel_counts_the_samples_of_each_class():
    prototypes, support, _, features = unbalanced()
    added = TipAdapter(prototypes, support=support, beta=0, alpha=2.0).predict_scores(features)
    added -= ZeroShot(prototypes).predict_scores(features)
    counts = np.bincount(support[1], minlength=7)
    np.testing.assert_allclose(added, np.tile(2.0 * counts, (len(features), 1)), rtol=0, atol=1e-10)


def test_a_sample_given_twice_votes_twice():
    prototypes, support, _, features = unbalanced()
    zero_shot = ZeroShot(prototypes).predict_scores(features)
    one = TipAdapter(prototypes, support=(support[0][:1], support[1][:1])).predict_scores(features) - zero_shot
    rows = [0, 0]
    two = TipAdapter(prototypes, support=(support[0][rows], support[1][rows])).predict_scores(features) - zero_shot
    np.testing.assert_allclose(two, 2 * one, rtol=0, atol=1e-10)


def test_block_size_does_not_change_results(monkeypatch):
    """Neither while searching nor while predicting."""
    prototypes, support, val, features = unbalanced()
    whole = TipAdapter(prototypes, support=support, validation=val)
    expected = whole.predict(features)
    monkeypatch.setattr(weight_search, "WORK_NUMBERS", 7 * len(support[1]))
    monkeypatch.setattr(tip_adapter, "KERNEL_NUMBERS", 3 * len(support[1]))
    pieces = TipAdapter(prototypes, support=support, validation=val)
    sizes = []
    scores = pieces._predict_scores
    pieces._predict_scores = lambda x: sizes.append(len(x)) or scores(x)
    assert pieces.chosen == whole.chosen
    np.testing.assert_allclose(pieces.predict(features), expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(pieces.adapt(features), expected, rtol=0, atol=1e-12)
    assert max(sizes) == 3


def test_the_first_of_equally_good_pairs_is_chosen():
    """With prototypes that are always right, all pairs are equally good."""
    prototypes = np.eye(4)
    support = np.eye(4), np.arange(4)
    method = TipAdapter(prototypes, support=support, validation=support)
    assert method.chosen == {"beta": 0.1, "alpha": 0.1}


def test_presets_are_complete_and_valid():
    prototypes, support, _, _ = unbalanced()
    assert len(TipAdapter.presets) == 11
    for name in TipAdapter.presets:
        TipAdapter(prototypes, support=support, **TipAdapter.preset(name))
    assert TipAdapter.preset("oxford_flowers") == {"beta": 1.0, "alpha": 10.0, "search_scale": (50.0, 50.0)}


def test_a_search_that_ends_before_it_starts_raises():
    prototypes, support, _, _ = unbalanced()
    with pytest.raises(ValueError, match="search_scale must be a pair"):
        TipAdapter(prototypes, support=support, search_scale=(0.05, 3.0))


@pytest.mark.slow  # tests/common runs the same checks one by one
@pytest.mark.parametrize("parameters", [{}, {"search_steps": (5, 3)}], ids=["given", "searched"])
def test_common_checks(parameters):
    if parameters:
        parameters = {**parameters, "validation": example_support}
    assert not check_method(TipAdapter, parameters=parameters).failed
