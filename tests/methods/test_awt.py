"""AWT against its authors' results, a plain loop written from the specification, and its closed forms."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch

from goldens import golden
from zeroshift import normalize
from zeroshift.methods.awt import AWT, ClassTransports, confidence_weights, replaced_entropy
from zeroshift.testing import make_problem
from zeroshift.views import entropy
from zeroshift.zero_shot import posterior, softmax

LOGITS = 4e-5
"""Difference between an independent float64 version and the authors' float32."""
WEIGHTS = 4e-6

SETTINGS = {
    "default": (64, 16, {}),
    "v51": (51, 16, {}),
    "t1": (64, 16, {"image_temperature": 1.0, "text_temperature": 0.25}),
    "v1": (1, 16, {}),
    "p1": (64, 1, {}),
}
"""Views, prompts and parameters of each golden."""

both_libraries = pytest.mark.parametrize("library", [np.asarray, torch.tensor], ids=["numpy", "torch"])


def given(n_views, n_prompts, dtype="float32"):
    problem = golden("problem_views")
    views, prompts = problem["views"][:, :n_views], problem["descriptors"][:, :n_prompts]
    return views.astype(dtype), problem["prototypes"].astype(dtype), prompts.astype(dtype)


@both_libraries
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.parametrize("key", SETTINGS)
def test_golden(key, dtype, library):
    n_views, n_prompts, parameters = SETTINGS[key]
    views, prototypes, prompts = given(n_views, n_prompts, dtype)
    method = AWT(library(prototypes), prompts=library(prompts), **parameters)
    actual = np.asarray(method.adapt_views_scores(library(views)))
    np.testing.assert_allclose(actual, golden("awt")[f"logits_{key}"], rtol=0, atol=LOGITS)
    np.testing.assert_array_equal(actual.argmax(axis=1), golden("awt")[f"pred_{key}"])


@pytest.mark.parametrize("key", ["default", "v51"])
def test_golden_weights(key):
    views, prototypes, prompts = given(*SETTINGS[key][:2], "float64")
    method = AWT(prototypes, prompts=prompts)
    view_weights, prompt_weights = method._weights(views, ClassTransports(views, prompts, 0.1).first_cosines())
    np.testing.assert_allclose(view_weights, golden("awt")[f"image_weights_{key}"], rtol=0, atol=WEIGHTS)
    np.testing.assert_allclose(prompt_weights, golden("awt")[f"text_weights_{key}"], rtol=0, atol=WEIGHTS)
    np.testing.assert_allclose(view_weights.sum(axis=-1), 1, rtol=1e-12)
    np.testing.assert_allclose(prompt_weights.sum(axis=-1), 1, rtol=1e-12)


def plain(views, prompts, scale, *, image=0.5, text=0.5, eps=0.1, iterations=100, tolerance=1e-2):
    """The specification's steps for one image, loop by loop: scores (K,) and the number of rounds."""
    classes, n_prompts, _ = prompts.shape
    z = scale * np.einsum("md,kpd->mpk", views, prompts)
    a = softmax(-np.array([entropy(z[m].mean(axis=0)) for m in range(len(views))]) / image)
    base = z[0].mean(axis=0)
    b = np.zeros((classes, n_prompts))
    for k in range(classes):
        entropies = []
        for p in range(n_prompts):
            replaced = base.copy()
            replaced[k] = z[0, p, k]
            entropies.append(entropy(replaced))
        b[k] = softmax(-np.array(entropies) / text)
    kernels = [np.exp(-(1 - z[:, :, k] / scale) / eps) for k in range(classes)]
    r, c = np.ones((classes, len(views))), np.ones((classes, n_prompts))
    rounds, moved = 0, np.inf
    while rounds < iterations and moved >= tolerance:
        rounds += 1
        before = r.copy()
        for k in range(classes):
            r[k] = a / (kernels[k] @ c[k])
            c[k] = b[k] / (kernels[k].T @ r[k])
        moved = np.abs(r - before).mean()
    plans = [r[k][:, None] * kernels[k] * c[k] for k in range(classes)]
    return np.array([(plans[k] * z[:, :, k]).sum() for k in range(classes)]), rounds


def make_views(classes=5, images=12, n_views=7, n_prompts=4, seed=3):
    problem = make_problem(classes=classes, samples=images * n_views, seed=seed)
    rng = np.random.default_rng(seed)
    prompts = normalize((problem.prototypes[:, None] + 0.1 * rng.normal(size=(classes, n_prompts, 16))).reshape(-1, 16))
    return problem.features.reshape(images, n_views, 16), problem.prototypes, prompts.reshape(classes, n_prompts, 16)


@both_libraries
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({}, {}),
        ({"tolerance": 0.3}, {"tolerance": 0.3}),
        ({"tolerance": 0.0, "iterations": 3}, {"tolerance": 0.0, "iterations": 3}),
        ({"image": 2.0, "text": 0.05, "eps": 0.03}, {"image_temperature": 2.0, "text_temperature": 0.05}),
    ],
    ids=["defaults", "stops early", "never stops", "temperatures"],
)
def test_a_plain_loop(theirs, ours, library):
    views, prototypes, prompts = make_views()
    ours = {**ours, "regularisation": theirs.get("eps", 0.1)}
    method = AWT(library(prototypes), prompts=library(prompts), logit_scale=20.0, **ours)
    expected = [plain(image, prompts, 20.0, **theirs)[0] for image in views]
    np.testing.assert_allclose(np.asarray(method.adapt_views_scores(library(views))), expected, rtol=0, atol=1e-10)


def test_each_image_stops_by_itself():
    views, prototypes, prompts = make_views(images=30)
    expected, rounds = zip(*(plain(image, prompts, 20.0, eps=0.02, tolerance=0.3) for image in views), strict=True)
    assert len(set(rounds)) > 10
    method = AWT(prototypes, prompts=prompts, logit_scale=20.0, regularisation=0.02, tolerance=0.3)
    np.testing.assert_allclose(method.predict_views_scores(views), expected, rtol=0, atol=1e-10)
    one_by_one = np.stack([method.predict_views_scores(image) for image in views])
    np.testing.assert_allclose(method.predict_views_scores(views), one_by_one, rtol=0, atol=1e-12)


def test_one_view_weights_descriptions_only():
    """AWT* of the ADAPT paper: sum_p b_kp z_kp."""
    views, prototypes, prompts = make_views(n_views=1)
    method = AWT(prototypes, prompts=prompts, logit_scale=20.0)
    cosines = np.einsum("nd,kpd->nkp", views[:, 0], prompts)
    weights = confidence_weights(replaced_entropy(20 * cosines.mean(axis=-1), 20 * cosines), 0.5)
    expected = 20 * (weights * cosines).sum(axis=-1)
    np.testing.assert_allclose(method.adapt_scores(views[:, 0]), expected, rtol=0, atol=1e-12)


def test_one_prompt_weights_views_only():
    views, prototypes, _ = make_views()
    method = AWT(prototypes, prompts=prototypes[:, None, :], logit_scale=20.0)
    logits = 20 * views @ prototypes.T
    expected = np.einsum("nv,nvk->nk", confidence_weights(entropy(logits), 0.5), logits)
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


@both_libraries
@pytest.mark.parametrize("work_numbers", [1, 60, 300])
def test_kernels_computed_in_every_round_agree_with_cached_ones(work_numbers, library):
    views, _, prompts = make_views(images=3)
    weights = library(np.full((3, 7), 1 / 7)), library(np.full((3, 5, 4), 0.25))
    rules = {"iterations": 20, "tolerance": 0.1}
    arrays = library(views), library(prompts)
    cached = ClassTransports(*arrays, 0.1)
    recomputed = ClassTransports(*arrays, 0.1, work_numbers=work_numbers)
    assert cached._cached is not None
    assert recomputed._cached is None
    np.testing.assert_allclose(np.asarray(recomputed.first_cosines()), np.asarray(cached.first_cosines()), atol=1e-15)
    expected = np.asarray(cached.mean_cosines(*weights, **rules))
    np.testing.assert_allclose(np.asarray(recomputed.mean_cosines(*weights, **rules)), expected, rtol=0, atol=1e-14)


def test_memory_is_bounded_by_a_few_kernels():
    """K = 1000, 51 views, 51 prompts: five arrays of K V P numbers, where one of K^2 P would be 400 MB."""
    rng = np.random.default_rng(0)
    prompts = normalize(rng.normal(size=(51_000, 8)) + 2).reshape(1000, 51, 8)
    method = AWT(normalize(prompts.mean(axis=1)), prompts=prompts, iterations=2)
    views = normalize(rng.normal(size=(102, 8)) + 2).reshape(2, 51, 8)
    tracemalloc.start()
    method.adapt_views(views)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5 * 8 * 1000 * 51 * 51


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
