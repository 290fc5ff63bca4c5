"""Class names, prompts and perturbed contexts for the tests of prompt tuning."""

from __future__ import annotations

import numpy as np

NAMES = ["cat", "dog", "hot_dog", "Small frog"]


def prompts(words="a photo of a", names=NAMES):
    return [f"{words} {name.replace('_', ' ')}." for name in names]


def moved(text, seed=0):
    return text.context + np.random.default_rng(seed).normal(scale=0.1, size=text.context.shape)


def upstream(text, seed=1):
    return np.random.default_rng(seed).normal(size=(text.n_classes, text.dimension))


def close(found, expected, atol):
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)
