"""TPS against the authors' code, torch's own gradients and AdamW, and its own rules."""

import numpy as np
import pytest
import torch

from goldens import golden
from prompt_loops import noisy_views
from zeroshift.methods import ZeroShot
from zeroshift.methods.tps import TPS
from zeroshift.testing import check_method

SETTINGS = {
    "default": {},
    "shared": {"shift": "shared"},
    "steps2": {"steps": 2},
    "lr1e3": {"rate": 1e-3},
}

TOLERANCES = {"default": 1e-3, "shared": 4e-4, "steps2": 1.43e-3, "lr1e3": 4e-4}
"""The golden is float32: torch's own float32 lands 5e-4 (one step) and 1.4e-3 (two) from it."""


@pytest.mark.parametrize("library", [np.asarray, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_the_authors_logits(setting, library):
    given = golden("problem_views")
    method = TPS(library(given["prototypes"]), **SETTINGS[setting])
    scores = method.adapt_views_scores(library(given["views"]))
    gap = np.abs(np.asarray(scores) - golden("tps")[f"logits_{setting}"])
    assert gap.max() < TOLERANCES[setting]
    assert np.quantile(gap, 0.9) < 3e-5
    np.testing.assert_array_equal(np.asarray(scores).argmax(axis=1), golden("tps")[f"pred_{setting}"])


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


@pytest.mark.parametrize("shift", ["class", "shared"])
@pytest.mark.parametrize(("steps", "weight_decay", "ratio"), [(1, 0.01, 0.01), (4, 0.5, 0.3)])
def test_torchs_own_gradients_and_adamw(steps, weight_decay, ratio, shift):
    """Also where the share of the views that is kept is less than one view."""
    prototypes, views = noisy_views(12)
    setting = {"steps": steps, "rate": 0.05, "weight_decay": weight_decay}
    expected = traced(prototypes, views, **setting, shared=shift == "shared", scale=20.0, ratio=ratio)
    method = TPS(prototypes, logit_scale=20.0, view_ratio=ratio, shift=shift, **setting)
    np.testing.assert_allclose(method.adapt_views_scores(views), expected, rtol=0, atol=1e-9)


def test_rate_zero_is_zero_shot_of_the_image():
    prototypes, views = noisy_views(12)
    expected = ZeroShot(prototypes).predict_scores(views[:, 0])
    np.testing.assert_allclose(TPS(prototypes, rate=0.0, steps=3).adapt_views_scores(views), expected, atol=1e-12)


def test_the_order_of_the_other_views_does_not_matter():
    prototypes, views = noisy_views(12)
    order = np.concatenate([[0], 1 + np.random.default_rng(1).permutation(views.shape[1] - 1)])
    method = TPS(prototypes, logit_scale=20.0)
    np.testing.assert_allclose(method.adapt_views(views[:, order]), method.adapt_views(views), rtol=0, atol=1e-12)


def test_gradient_steps():
    assert TPS(np.eye(2)).gradient_steps == 1
    assert TPS(np.eye(2), steps=3).gradient_steps == 3


def test_common_checks_of_shared_shifts():
    check_method(TPS, parameters={"shift": "shared", "steps": 2})
