"""TIMO and TIMO-S: the authors' text weights, logits and choices, and what is particular to them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from goldens import first_shots, golden, problem
from plain import timo as plain
from zeroshift.arrays import normalize, to_numpy
from zeroshift.methods import TIMO, TIMOS, create
from zeroshift.testing import make_problem

TOLERANCE = 1e-3
"""Three times the difference between an independent float64 version and the authors' float32 one."""

kinds = pytest.mark.parametrize(("dtype", "convert"), [("float32", np.asarray), ("float64", torch.tensor)])


def authors_method(cls, shots, dtype="float32", convert=np.asarray):
    """The method with the inputs of the authors' output."""
    given = problem(dtype)
    features, labels = first_shots(shots, dtype)
    return cls(
        convert(given["prototypes"]),
        prompts=convert(given["prompts"]),
        support=(convert(features), labels),
        validation=(convert(given["val_features"]), given["val_labels"]),
    )


def other_problem(seed, prompts=7):
    """(prototypes, prompts, support, validation, features)."""
    made = make_problem(classes=5, dimension=12, samples=200, seed=seed)
    noise = np.random.default_rng(seed).normal(size=(5, prompts, 12))
    spread = normalize((made.prototypes[:, None, :] + 0.4 * noise).reshape(-1, 12)).reshape(noise.shape)
    parts = [(made.features[a:b], made.labels[a:b]) for a, b in ((0, 60), (60, 120))]
    return made.prototypes, spread, *parts, made.features[120:]


@kinds
@pytest.mark.parametrize(
    ("cls", "shots", "array", "chosen"),
    [
        (TIMO, 16, "shots16_logits", {"alpha": 10.0}),
        (TIMO, 4, "shots4_logits", {"alpha": 100.0}),
        (TIMOS, 16, "timo_s_shots16_logits", {"transferred": 1, "alpha": 100.0}),
        (TIMOS, 4, "timo_s_shots4_logits", {}),
    ],
)
def test_authors_logits_and_choices(cls, shots, array, chosen, dtype, convert):
    method = authors_method(cls, shots, dtype, convert)
    assert chosen.items() <= method.chosen.items()
    answer = to_numpy(method.adapt_scores(convert(problem(dtype)["features"])))
    expected = golden("timo")[array]
    assert answer.dtype == dtype
    np.testing.assert_allclose(answer, expected, rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(answer.argmax(axis=1), expected.argmax(axis=1))


@pytest.mark.parametrize(("cls", "array"), [(TIMO, "igt_weights16"), (TIMOS, "igt_weights16_search")])
def test_authors_text_weights(cls, array):
    method = authors_method(cls, 16)
    np.testing.assert_allclose(method.text, golden("timo")[array].T, rtol=0, atol=1e-6)
    before = method.text
    method.text[:] = 0
    np.testing.assert_array_equal(method.text, before)


@pytest.mark.parametrize("transferred", [1, 3, 12])
def test_plain_version_with_other_numbers_of_prompts(transferred):
    prototypes, prompts, support, val, features = other_problem(1)
    method = TIMO(prototypes, prompts=prompts, support=support, validation=val, transferred=transferred, gamma=20.0)
    expected = plain.scores(
        torch.tensor(features),
        prompts=torch.tensor(prompts),
        support=tuple(map(torch.tensor, support)),
        validation=tuple(map(torch.tensor, val)),
        copies=transferred,
        gamma=20.0,
    )
    np.testing.assert_allclose(method.predict_scores(features), expected, rtol=0, atol=1e-9 * method.chosen["alpha"])


@pytest.mark.parametrize("candidates", [10, 4])
def test_the_plain_search_of_timo_s(candidates):
    prototypes, prompts, support, val, features = other_problem(2)
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
    np.testing.assert_allclose(method.predict_scores(features), expected, rtol=0, atol=1e-9 * method.chosen["alpha"])
    given = TIMO(prototypes, prompts=prompts, support=support, **method.chosen)
    np.testing.assert_array_equal(given.predict(features), method.predict(features))


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


def test_more_candidates_than_numbers_of_prompts():
    prototypes, prompts, support, val, _ = other_problem(6, prompts=2)
    few, many = (
        TIMOS(prototypes, prompts=prompts, support=support, validation=val, candidates=candidates).chosen
        for candidates in (4, 50)
    )
    assert few == many


def test_timo_s_requires_validation():
    prototypes, prompts, support, _, _ = other_problem(0)
    with pytest.raises(TypeError, match=r"validation must be a pair .* got None. Fix: pass one, or use TIMO"):
        TIMOS(prototypes, prompts=prompts, support=support, validation=None)
    with pytest.raises(TypeError, match="TIMOS needs validation"):
        create("timo_s", prototypes, prompts=prompts, support=support)
