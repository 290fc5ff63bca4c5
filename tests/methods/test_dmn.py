"""DMN against the authors' code, a plain version of it, and its own rules."""

import numpy as np
import pytest
import torch

from goldens import assert_golden, golden, problem, views
from plain import dmn as plain
from prompt_loops import noisy_views
from zeroshift.methods import DMN
from zeroshift.testing import make_problem

TOLERANCE = 2e-5
"""The authors' float32 is 4.6e-6 away from float64; ours may be as far on the other side."""

SETTINGS = {
    "text_probs": {"memory_weight": 0.0},
    "memory_probs": {"text_weight": 0.0},
    "fused1_probs": {},
    "mem8_memory_probs": {"text_weight": 0.0, "memory_size": 8},
}


@pytest.mark.parametrize("array", SETTINGS)
def test_the_authors_posteriors(array):
    given = problem()
    method = DMN(given["prototypes"], **SETTINGS[array])
    assert_golden(method.adapt_scores(given["features"]), golden("dmn")[array], TOLERANCE)
    if method.memory_size == 50:
        np.testing.assert_array_equal(method.bank_counts, golden("dmn")["memory_count"][:, 0])


@pytest.mark.parametrize("array", ["text_probs", "memory_probs", "fused1_probs"])
def test_the_authors_posteriors_of_views(array):
    given = views()
    method = DMN(given["prototypes"], **SETTINGS[array])
    assert_golden(method.adapt_views_scores(given["views"][:, :32]), golden("dmn_views")[array], TOLERANCE)


@pytest.mark.parametrize("memory_size", [50, 3, 1])
def test_the_plain_version_agrees(memory_size):
    given = make_problem(classes=7, dimension=24, samples=400, seed=memory_size)
    setting = {"logit_scale": 20.0, "beta": 4.0, "memory_weight": 3.0}
    ours = DMN(given.prototypes, memory_size=memory_size, **setting)
    tensors = torch.tensor(given.features), torch.tensor(given.prototypes)
    expected = plain.scores(*tensors, capacity=memory_size, **setting)
    np.testing.assert_allclose(ours.adapt_scores(given.features), expected / 4.0, rtol=0, atol=1e-10)


def test_the_plain_version_agrees_on_views():
    prototypes, images = noisy_views(80, views=20)
    ours = DMN(prototypes, logit_scale=20.0, memory_size=2).adapt_views_scores(images)
    expected = plain.scores(torch.tensor(images), torch.tensor(prototypes), logit_scale=20.0, capacity=2)
    np.testing.assert_allclose(ours, expected / 2.0, rtol=0, atol=1e-10)


def test_two_zero_weights_raise():
    with pytest.raises(ValueError, match=r"text_weight and memory_weight are both 0.*Fix"):
        DMN(np.eye(2), text_weight=0.0, memory_weight=0.0)
