"""TIMO: the authors' text weights and logits, a plain version of it, and properties of the formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from goldens import first_shots, golden, problem
from plain import timo as plain
from zeroshift.arrays import normalize, to_numpy
from zeroshift.methods import TIMO
from zeroshift.testing import check_method, make_problem
from zeroshift.testing.examples import example_support

TOLERANCE = 1e-3
"""Three times the difference between an independent float64 version and the authors' float32 one."""

FOUND = {16: 10.0, 4: 100.0}
"""The alphas that the authors' code finds, by number of shots."""


def validation(dtype="float32"):
    given = problem(dtype)
    return given["val_features"], given["val_labels"]


def other_problem(seed, prompts=4):
    """(prototypes, prompts, support, validation, features)."""
    made = make_problem(classes=5, dimension=12, samples=200, seed=seed)
    noise = np.random.default_rng(seed).normal(size=(5, prompts, 12))
    spread = normalize((made.prototypes[:, None, :] + 0.2 * noise).reshape(-1, 12)).reshape(noise.shape)
    parts = [(made.features[a:b], made.labels[a:b]) for a, b in ((0, 60), (60, 120))]
    return made.prototypes, spread, *parts, made.features[120:]


@pytest.mark.parametrize("shots", [16, 4])
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.parametrize("convert", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_authors_logits(shots, dtype, convert):
    given = problem(dtype)
    features, labels = first_shots(shots, dtype)
    method = TIMO(
        convert(given["prototypes"]),
        prompts=convert(given["prompts"]),
        support=(convert(features), labels),
        validation=(convert(validation(dtype)[0]), validation()[1]),
    )
    assert method.chosen == {"alpha": FOUND[shots]}
    answer = to_numpy(method.adapt_scores(convert(given["features"])))
    expected = golden("timo")[f"shots{shots}_logits"]
    assert answer.dtype == dtype
    np.testing.assert_allclose(answer, expected, rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(answer.argmax(axis=1), expected.argmax(axis=1))


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_authors_text_weights(dtype):
    given = problem(dtype)
    method = TIMO(given["prototypes"], prompts=given["prompts"], support=first_shots(16, dtype))
    np.testing.assert_allclose(method.text, golden("timo")["igt_weights16"].T, rtol=0, atol=1e-6)
    before = method.text
    method.text[:] = 0
    np.testing.assert_array_equal(method.text, before)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("transferred", [None, 1, 3, 7])
def test_plain_version_on_other_problems(seed, transferred):
    prototypes, prompts, support, val, features = other_problem(seed)
    given = {"gamma": 20.0}
    method = TIMO(prototypes, prompts=prompts, support=support, validation=val, transferred=transferred, **given)
    details = {}
    expected = plain.scores(
        torch.tensor(features),
        prompts=torch.tensor(prompts),
        support=tuple(map(torch.tensor, support)),
        validation=tuple(map(torch.tensor, val)),
        copies=transferred,
        details=details,
        **given,
    )
    assert method.chosen == {"alpha": details["alpha"]}
    np.testing.assert_allclose(method.predict_scores(features), expected, rtol=0, atol=1e-9 * method.chosen["alpha"])


def test_a_single_prompt_is_the_text():
    prototypes, _, support, _, _ = other_problem(0)
    method = TIMO(prototypes, prompts=prototypes[:, None, :], support=support)
    np.testing.assert_allclose(method.text, prototypes, rtol=0, atol=1e-12)


def test_gamma_moves_from_the_mean_of_the_prompts_to_the_best_of_them():
    prototypes, prompts, support, _, _ = other_problem(0)
    means = normalize(prompts.mean(axis=1))
    np.testing.assert_allclose(
        TIMO(prototypes, prompts=prompts, support=support, gamma=0).text, means, rtol=0, atol=1e-12
    )
    anchors = np.stack([support[0][support[1] == k].mean(axis=0) for k in range(5)])
    best = np.einsum("kd,kpd->kp", anchors, prompts).argmax(axis=1)
    sharp = TIMO(prototypes, prompts=prompts, support=support, gamma=1e5).text
    np.testing.assert_allclose(sharp, prompts[np.arange(5), best], rtol=0, atol=1e-6)


def test_without_text_only_the_gaussians_remain():
    """Their scores do not depend on gamma; only the text does."""
    prototypes, prompts, support, _, features = other_problem(0)
    few, many = (
        TIMO(prototypes, prompts=prompts, support=support, alpha=0, gamma=gamma).predict_scores(features)
        for gamma in (1.0, 100.0)
    )
    np.testing.assert_array_equal(few, many)


def test_a_class_without_support_is_fitted_to_its_prompts():
    prototypes, prompts, (features, labels), val, stream = other_problem(1)
    kept = labels != 2
    method = TIMO(prototypes, prompts=prompts, support=(features[kept], labels[kept]), validation=val)
    assert np.isfinite(method.predict(stream)).all()
    np.testing.assert_allclose(np.linalg.norm(method.text, axis=1), 1, rtol=0, atol=1e-12)
    # The same weights as from an average image of the other classes.
    others = normalize(np.stack([features[labels == k].mean(axis=0) for k in (0, 1, 3, 4)])).mean(axis=0)
    average = np.tile(normalize(others), (3, 1)), np.full(3, 2)
    average_method = TIMO(prototypes, prompts=prompts, support=average)
    np.testing.assert_allclose(method.text[2], average_method.text[2], rtol=0, atol=1e-12)


def test_prompts_orthogonal_to_the_images_have_equal_weights():
    """All matching scores of a class are zero: nothing to divide by."""
    prompts = np.eye(6)[[[4, 5], [2, 3]]]
    support = np.eye(6)[[0, 1]], np.array([0, 1])
    method = TIMO(np.eye(2, 6), prompts=prompts, support=support)
    np.testing.assert_allclose(method.text, prompts.sum(axis=1) / 2**0.5, rtol=0, atol=1e-12)
    assert np.isfinite(method.predict(np.eye(6))).all()


def test_presets():
    assert {name: TIMO.preset(name)["gamma"] for name in TIMO.presets} == {"imagenet": 1.0, "oxford_flowers": 100.0}


@pytest.mark.slow  # tests/common runs the same checks one by one
@pytest.mark.parametrize("parameters", [{}, {"validation": example_support}])
def test_common_checks(parameters):
    assert not check_method(TIMO, parameters=parameters).failed
