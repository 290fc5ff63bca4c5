"""AWT against its authors' results, and what it is in simpler cases."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from goldens import golden
from zeroshift import normalize
from zeroshift.methods.awt import AWT, replaced_entropy
from zeroshift.testing import make_problem
from zeroshift.views import entropy
from zeroshift.zero_shot import posterior, softmax

LOGITS = 4e-5
"""Difference between an independent float64 version and the authors' float32."""

SETTINGS = {
    "default": (64, 16, {}),
    "v51": (51, 16, {}),
    "t1": (64, 16, {"image_temperature": 1.0, "text_temperature": 0.25}),
    "v1": (1, 16, {}),
    "p1": (64, 1, {}),
}
"""Views, prompts and parameters of each golden."""

both_libraries = pytest.mark.parametrize("library", [np.asarray, torch.tensor], ids=["numpy", "torch"])


@both_libraries
@pytest.mark.parametrize("key", SETTINGS)
def test_the_authors_logits(key, library):
    n_views, n_prompts, parameters = SETTINGS[key]
    given, expected = golden("problem_views"), golden("awt")
    method = AWT(library(given["prototypes"]), prompts=library(given["descriptors"][:, :n_prompts]), **parameters)
    scores = np.asarray(method.adapt_views_scores(library(given["views"][:, :n_views])))
    np.testing.assert_allclose(scores, expected[f"logits_{key}"], rtol=0, atol=LOGITS)
    np.testing.assert_array_equal(scores.argmax(axis=1), expected[f"pred_{key}"])


def make_views(classes=5, images=12, n_views=7, n_prompts=4, seed=3):
    problem = make_problem(classes=classes, samples=images * n_views, seed=seed)
    rng = np.random.default_rng(seed)
    prompts = normalize((problem.prototypes[:, None] + 0.1 * rng.normal(size=(classes, n_prompts, 16))).reshape(-1, 16))
    return problem.features.reshape(images, n_views, 16), problem.prototypes, prompts.reshape(classes, n_prompts, 16)


def test_each_image_stops_by_itself():
    views, prototypes, prompts = make_views(images=30)
    method = AWT(prototypes, prompts=prompts, logit_scale=20.0, regularisation=0.02, tolerance=0.3)
    one_by_one = np.stack([method.predict_views_scores(image) for image in views])
    np.testing.assert_allclose(method.predict_views_scores(views), one_by_one, rtol=0, atol=1e-12)
    other = AWT(prototypes, prompts=prompts, logit_scale=20.0, regularisation=0.02, tolerance=0.0)
    assert (np.abs(other.predict_views_scores(views) - one_by_one).max(axis=1) > 1e-6).any()


def test_one_view_weights_descriptions_only():
    """AWT* of the ADAPT paper: sum_p b_kp z_kp."""
    views, prototypes, prompts = make_views(n_views=1)
    method = AWT(prototypes, prompts=prompts, logit_scale=20.0)
    cosines = np.einsum("nd,kpd->nkp", views[:, 0], prompts)
    weights = softmax(-replaced_entropy(20 * cosines.mean(axis=-1), 20 * cosines) / 0.5)
    expected = 20 * (weights * cosines).sum(axis=-1)
    np.testing.assert_allclose(method.adapt_scores(views[:, 0]), expected, rtol=0, atol=1e-12)


def test_one_prompt_weights_views_only():
    views, prototypes, _ = make_views()
    method = AWT(prototypes, prompts=prototypes[:, None, :], logit_scale=20.0)
    logits = 20 * views @ prototypes.T
    expected = np.einsum("nv,nvk->nk", softmax(-entropy(logits) / 0.5), logits)
    # The prompts are scaled last: the weights of the views are met only as well as the rounds allow.
    tight = AWT(prototypes, prompts=prototypes[:, None, :], logit_scale=20.0, tolerance=1e-12)
    np.testing.assert_allclose(tight.adapt_views_scores(views), expected, rtol=0, atol=1e-10)
    np.testing.assert_allclose(method.adapt_views_scores(views), expected, rtol=0, atol=1e-10)


def test_one_view_and_one_prompt_is_zero_shot():
    views, prototypes, _ = make_views(n_views=1)
    method = AWT(prototypes, prompts=prototypes[:, None, :], logit_scale=20.0)
    expected = posterior(views[:, 0], prototypes, 20.0)
    np.testing.assert_allclose(method.adapt_views(views), expected, rtol=0, atol=1e-12)


@both_libraries
@pytest.mark.parametrize("scale", [1.0, 30.0, 2000.0])
@pytest.mark.parametrize("classes", [1, 2, 9])
def test_replaced_entropy_equals_that_of_the_replaced_vector(classes, scale, library):
    rng = np.random.default_rng(classes)
    base, logits = scale * rng.normal(size=(4, classes)), scale * rng.normal(size=(4, classes, 3))
    expected = np.zeros_like(logits)
    for n, k, p in np.ndindex(*logits.shape):
        replaced = base[n].copy()
        replaced[k] = logits[n, k, p]
        expected[n, k, p] = entropy(replaced)
    actual = np.asarray(replaced_entropy(library(base), library(logits)))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-14)


def test_replaced_entropy_without_a_dominant_class():
    """Without the class that has all but e^-60 of the sum, two equal ones remain; subtraction would lose them."""
    base = np.array([60.0, 0.0, 0.0])
    np.testing.assert_allclose(replaced_entropy(base, np.full((3, 1), -60.0))[0], np.log(2), rtol=1e-12)


def test_errors_name_bad_prompts():
    with pytest.raises(TypeError, match=r"prompts must be an array of shape \(K, P, d\) = \(3, P, 8\)"):
        AWT(np.eye(3, 8), prompts=None)
    with pytest.raises(ValueError, match=r"prompts must have the shape .* got \(2, 1, 8\)"):
        AWT(np.eye(3, 8), prompts=np.eye(2, 8)[:, None, :])
    with pytest.raises(ValueError, match=r"regularisation must be a number of at least 0\.01; got 0\.001"):
        AWT(np.eye(3, 8), prompts=np.eye(3, 8)[:, None, :], regularisation=0.001)


def test_smallest_regularisation_stays_finite():
    views, prototypes, prompts = make_views(seed=4)
    opposite = np.concatenate([views, -views], axis=1)
    method = AWT(prototypes, prompts=prompts, regularisation=0.01, text_temperature=1e-3, image_temperature=1e-3)
    assert np.isfinite(method.adapt_views_scores(opposite)).all()
