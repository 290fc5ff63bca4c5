"""TPS against the authors' code, torch's own gradients and AdamW, and its own rules."""

import math

import numpy as np
import pytest
import torch

from goldens import golden
from prompt_loops import noisy_views
from zeroshift import method as method_module
from zeroshift import normalize
from zeroshift.methods import ZeroShot
from zeroshift.methods._shared.tuning import AdamW
from zeroshift.methods.tps import TPS
from zeroshift.testing import check_method

SETTINGS = {
    "default": {},
    "shared": {"shift": "shared"},
    "steps2": {"steps": 2},
    "lr1e3": {"rate": 1e-3},
}

TOLERANCES = {"default": 1e-3, "shared": 4e-4, "steps2": 1.43e-3, "lr1e3": 4e-4}
"""The golden is float32: torch's own float32 lands 5e-4 (one step) and 1.4e-3 (two) from it, see the test below."""

EPS = 1e-8


def given(dtype="float64"):
    problem = golden("problem_views")
    return problem["prototypes"].astype(dtype), problem["views"].astype(dtype)


@pytest.mark.parametrize("library", [np.asarray, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.parametrize("setting", SETTINGS)
def test_the_authors_logits(setting, dtype, library):
    prototypes, views = given(dtype)
    scores = TPS(library(prototypes), **SETTINGS[setting]).adapt_views_scores(library(views))
    gap = np.abs(np.asarray(scores) - golden("tps")[f"logits_{setting}"])
    assert gap.max() < TOLERANCES[setting]
    assert np.quantile(gap, 0.9) < 3e-5
    np.testing.assert_array_equal(np.asarray(scores).argmax(axis=1), golden("tps")[f"pred_{setting}"])


@pytest.mark.parametrize("setting", ["default", "lr1e3"])
def test_the_authors_logits_agree_up_to_float32_rounding(setting):
    """The golden was computed in float32. Where a gradient is as small as AdamW's 1e-8, its rounding shows: no logit is
    farther off than an error of 2e-6 of the largest coordinate of the gradient would take it."""
    prototypes, views = given()
    method = TPS(prototypes, **SETTINGS[setting])
    gradient = method._shift_gradient(views, np.zeros((40, 12, 64))).gradient
    rounding = 2e-6 * np.abs(gradient).max(axis=2, keepdims=True)
    moved = [(g / (np.abs(g) + EPS)) for g in (gradient - rounding, gradient, gradient + rounding)]
    reach = method.rate * np.maximum(moved[1] - moved[0], moved[2] - moved[1])
    allowed = 3e-5 + 100 * np.sum(reach * np.abs(views[:, :1, :]), axis=2)
    gap = np.abs(method.adapt_views_scores(views) - golden("tps")[f"logits_{setting}"])
    assert (gap <= allowed).all()


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_authors_views_and_losses(setting):
    """Those of the last step are compared."""
    prototypes, views = given()
    method = TPS(prototypes, **SETTINGS[setting])
    shifts = np.zeros((40, 1 if setting == "shared" else 12, 64))
    step = method._shift_gradient(views, shifts)
    if method.steps == 2:
        first = step.kept
        step = method._shift_gradient(views, AdamW(method.rate).step(shifts, step.gradient))
        assert (np.sort(step.kept) != np.sort(first)).any(), "no view was selected again"
    np.testing.assert_array_equal(np.sort(step.kept), np.sort(golden("tps")[f"selected_{setting}"]))
    np.testing.assert_allclose(step.loss, golden("tps")[f"loss_{setting}"], rtol=0, atol=5e-6)


def traced(prototypes, views, *, steps, rate, weight_decay, shared, scale, ratio):
    """TPS image by image, with torch's gradients and AdamW."""
    answers = []
    for image in torch.tensor(views):
        text = torch.tensor(prototypes)
        shift = torch.zeros(text.shape[1:] if shared else text.shape, dtype=torch.float64, requires_grad=True)
        optimiser = torch.optim.AdamW([shift], lr=rate, weight_decay=weight_decay)
        for _ in range(steps):
            logits = scale * image @ torch.nn.functional.normalize(text + shift, dim=1).T
            entropies = torch.distributions.Categorical(logits=logits).entropy()
            kept = torch.argsort(entropies.detach(), stable=True)[: max(1, int(len(image) * ratio))]
            optimiser.zero_grad()
            mean = logits[kept].softmax(dim=1).mean(dim=0)
            (-(mean * mean.log()).sum()).backward()
            optimiser.step()
        with torch.no_grad():
            answers.append(scale * torch.nn.functional.normalize(text + shift, dim=1) @ image[0])
    return torch.stack(answers).numpy()


@pytest.mark.parametrize("library", [np.asarray, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("shift", ["class", "shared"])
@pytest.mark.parametrize(("steps", "rate", "weight_decay", "ratio"), [(1, 5e-3, 0.01, 0.1), (4, 0.05, 0.5, 0.3)])
def test_torchs_own_gradients_and_adamw(steps, rate, weight_decay, ratio, shift, library):
    prototypes, views = noisy_views(12)
    setting = {"steps": steps, "rate": rate, "weight_decay": weight_decay}
    expected = traced(prototypes, views, **setting, shared=shift == "shared", scale=20.0, ratio=ratio)
    method = TPS(library(prototypes), logit_scale=20.0, view_ratio=ratio, shift=shift, **setting)
    np.testing.assert_allclose(method.adapt_views_scores(library(views)), expected, rtol=0, atol=1e-9)


def test_rate_zero_is_zero_shot_of_the_image():
    prototypes, views = noisy_views(12)
    expected = ZeroShot(prototypes).predict_scores(views[:, 0])
    np.testing.assert_allclose(TPS(prototypes, rate=0.0, steps=3).adapt_views_scores(views), expected, atol=1e-12)


def test_a_first_step_moves_every_coordinate_by_the_rate():
    """So each prototype moves by rate * sqrt(d), a logit by at most scale times that and a little for its length."""
    prototypes, views = noisy_views(12, dimension=64)
    text = TPS(prototypes, logit_scale=20.0)
    shifts = AdamW(5e-3).step(np.zeros((12, 5, 64)), text._shift_gradient(views, np.zeros((12, 5, 64))).gradient)
    assert np.median(np.abs(shifts)) == pytest.approx(5e-3, rel=1e-3)
    assert np.abs(shifts).max() <= 5e-3
    moved = np.abs(text.adapt_views_scores(views) - 20.0 * views[:, 0] @ prototypes.T)
    assert 0 < moved.max() < 20.0 * 5e-3 * math.sqrt(64) * 1.1


def test_a_step_makes_the_mean_prediction_more_confident():
    prototypes, views = noisy_views(12)
    method = TPS(prototypes, logit_scale=20.0, rate=1e-4)
    before = method._shift_gradient(views, np.zeros((12, 5, 16)))
    after = method._shift_gradient(views, AdamW(1e-4).step(np.zeros((12, 5, 16)), before.gradient))
    assert (after.loss < before.loss).all()


def test_the_order_of_the_other_views_does_not_matter():
    prototypes, views = noisy_views(12)
    order = np.concatenate([[0], 1 + np.random.default_rng(1).permutation(views.shape[1] - 1)])
    method = TPS(prototypes, logit_scale=20.0)
    np.testing.assert_allclose(method.adapt_views(views[:, order]), method.adapt_views(views), rtol=0, atol=1e-12)


def test_with_fewer_than_ten_views_the_most_confident_is_kept():
    prototypes, views = noisy_views(12, views=4)
    step = TPS(prototypes, logit_scale=20.0)._shift_gradient(views, np.zeros((12, 5, 16)))
    y = np.exp(20.0 * views @ prototypes.T)
    y /= y.sum(axis=2, keepdims=True)
    np.testing.assert_array_equal(step.kept[:, 0], (-(y * np.log(y)).sum(axis=2)).argmin(axis=1))


def test_images_in_small_blocks_agree(monkeypatch):
    prototypes, views = noisy_views(12)
    method = TPS(prototypes, logit_scale=20.0, steps=2)
    expected = method.predict_views(views)
    monkeypatch.setattr("zeroshift.methods.tps.WORK_NUMBERS", 1)
    assert method._images_per_block(20) == 1
    np.testing.assert_allclose(method.predict_views(views), expected, rtol=0, atol=1e-12)


def test_memory_of_the_shifts_is_bounded():
    method = TPS(normalize(np.random.default_rng(0).normal(size=(1000, 512)).astype("float32")))
    assert method._images_per_block(64) * 1000 * 512 <= method_module.WORK_NUMBERS


def test_gradient_steps():
    assert TPS(np.eye(2)).gradient_steps == 1
    assert TPS(np.eye(2), steps=3).gradient_steps == 3


@pytest.mark.parametrize("parameters", [{}, {"shift": "shared", "steps": 2}])
def test_common_checks(parameters):
    check_method(TPS, parameters=parameters)
