"""TIMO-S: the authors' text weights and logits, the result of their search, and a plain version of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from goldens import first_shots, golden, problem
from plain import timo as plain
from zeroshift.arrays import normalize, to_numpy
from zeroshift.methods import TIMO, TIMOS, create
from zeroshift.testing import check_method, make_problem

TOLERANCE = 1e-3
"""Four times the difference between an independent float64 version and the authors' float32 one."""


def method_for(shots, dtype="float32", convert=np.asarray):
    """TIMO-S with the inputs of the authors' output."""
    given = problem(dtype)
    features, labels = first_shots(shots, dtype)
    return TIMOS(
        convert(given["prototypes"]),
        prompts=convert(given["prompts"]),
        support=(convert(features), labels),
        validation=(convert(given["val_features"]), given["val_labels"]),
    )


def other_problem(seed):
    """(prototypes, prompts, support, validation, features)."""
    made = make_problem(classes=5, dimension=12, samples=200, seed=seed)
    noise = np.random.default_rng(seed).normal(size=(5, 7, 12))
    spread = normalize((made.prototypes[:, None, :] + 0.4 * noise).reshape(-1, 12)).reshape(noise.shape)
    parts = [(made.features[a:b], made.labels[a:b]) for a, b in ((0, 60), (60, 120))]
    return made.prototypes, spread, *parts, made.features[120:]


@pytest.mark.parametrize("shots", [16, 4])
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.parametrize("convert", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_authors_logits(shots, dtype, convert):
    method = method_for(shots, dtype, convert)
    answer = to_numpy(method.adapt_scores(convert(problem(dtype)["features"])))
    expected = golden("timo")[f"timo_s_shots{shots}_logits"]
    assert answer.dtype == dtype
    np.testing.assert_allclose(answer, expected, rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(answer.argmax(axis=1), expected.argmax(axis=1))


def test_authors_search():
    method = method_for(16)
    assert (method.chosen["transferred"], method.chosen["alpha"]) == (1, 100.0)
    np.testing.assert_allclose(method.text, golden("timo")["igt_weights16_search"].T, rtol=0, atol=1e-6)


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
@pytest.mark.parametrize("candidates", [10, 4])
def test_plain_version_on_other_problems(seed, candidates):
    prototypes, prompts, support, val, features = other_problem(seed)
    method = TIMOS(prototypes, prompts=prompts, support=support, validation=val, candidates=candidates)
    details = {}
    expected = plain.searched_scores(
        torch.tensor(features),
        prompts=torch.tensor(prompts),
        support=tuple(map(torch.tensor, support)),
        validation=tuple(map(torch.tensor, val)),
        candidates=candidates,
        details=details,
    )
    assert (method.chosen["transferred"], method.chosen["alpha"]) == (details["copies"], details["alpha"])
    np.testing.assert_allclose(method.text, details["igt_weights"].T, rtol=0, atol=1e-9)
    np.testing.assert_allclose(method.predict_scores(features), expected, rtol=0, atol=1e-9 * method.chosen["alpha"])


def test_timo_with_the_chosen_parameters_is_the_same():
    prototypes, prompts, support, val, features = other_problem(5)
    searched = TIMOS(prototypes, prompts=prompts, support=support, validation=val)
    given = TIMO(prototypes, prompts=prompts, support=support, **searched.chosen)
    np.testing.assert_array_equal(given.predict(features), searched.predict(features))


def test_more_candidates_than_numbers_of_prompts():
    prototypes, prompts, support, val, _ = other_problem(6)
    few, many = (
        TIMOS(prototypes, prompts=prompts[:, :2], support=support, validation=val, candidates=candidates).chosen
        for candidates in (4, 50)
    )
    assert few == many


def test_validation_is_required():
    prototypes, prompts, support, _, _ = other_problem(0)
    with pytest.raises(TypeError, match=r"validation must be a pair .* got None. Fix: pass one, or use TIMO"):
        TIMOS(prototypes, prompts=prompts, support=support, validation=None)
    with pytest.raises(TypeError, match="TIMOS needs validation"):
        create("timo_s", prototypes, prompts=prompts, support=support)


@pytest.mark.slow  # tests/common runs the same checks one by one
def test_common_checks():
    assert not check_method(TIMOS).failed
