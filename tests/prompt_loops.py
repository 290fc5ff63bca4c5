"""Helpers for tests that repeat prompt tuning in a simple torch loop: images with views, and text features."""

from __future__ import annotations

import numpy as np

from zeroshift import normalize
from zeroshift.testing import make_problem


def images(n_images, n_views, seed=3):
    """Prototypes (5, 12), and views (N, V, 12), view 0 the image."""
    given = make_problem(classes=5, dimension=12, samples=n_images, seed=seed, noise=1.5)
    draw = np.random.default_rng(seed)
    views = given.features[:, None, :] + 0.1 * draw.normal(size=(n_images, n_views, 12))
    views[:, 0] = given.features
    return given.prototypes, views / np.linalg.norm(views, axis=2, keepdims=True)


def in_torch(text):
    """The example text as a torch function, for gradients by torch."""
    import torch

    prototypes, directions = torch.tensor(text._prototypes), torch.tensor(text._directions)
    start, mixing = torch.tensor(text.context), torch.tensor(text._mixing)

    def features(context):
        weights = torch.tanh(mixing @ (context - start).reshape(-1))
        raw = prototypes + (weights[:, None, None] * directions).sum(0)
        return raw / raw.norm(dim=1, keepdim=True)

    return features


def noisy_views(images, views=20, classes=5, dimension=16, seed=0):
    """Prototypes, and views (N, V, d) of generated features: view 0 is the feature, the others add noise to it."""
    features, prototypes, _ = make_problem(classes, dimension, images, seed=seed)
    noise = 0.15 * np.random.default_rng(seed).normal(size=(images, views, dimension))
    noise[:, 0] = 0
    return prototypes, normalize((features[:, None, :] + noise).reshape(-1, dimension)).reshape(noise.shape)
