"""The geometry of a dual encoder's features in a few numbers: how alike made-up and real ones are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zeroshift.benchmarks.clip_like import ClipLike
from zeroshift.zero_shot import posterior

__all__ = ["Geometry", "describe"]

ROWS = 1500
"""Images compared with each other; drawn at random where there are more."""


@dataclass(frozen=True)
class Geometry:
    between: float
    """Mean cosine of two images of different classes."""
    within: float
    """Mean cosine of two images of one class."""
    negative: float
    """Share of image pairs with a negative cosine: what the bank term's max(0, .) would act on."""
    matched: float
    """Mean cosine of an image and the text of its class."""
    unmatched: float
    """Mean cosine of an image and the text of another class."""
    top_axis: float
    """Share of the variance within classes that lies along its first principal axis."""
    axes: float
    """Axes that hold that variance, as (sum of variances)^2 / sum of their squares."""
    accuracy: float
    """Zero-shot top-1."""
    confidence: float
    """Mean of the largest zero-shot probability."""


def describe(problem: ClipLike) -> Geometry:
    features, prototypes = problem.features.astype(np.float64), problem.prototypes.astype(np.float64)
    labels = problem.labels
    some = np.sort(np.random.default_rng(0).permutation(len(features))[:ROWS])
    x, y = features[some], labels[some]
    images, texts = x @ x.T, x @ prototypes.T
    same = y[:, None] == y
    pairs = ~np.eye(len(x), dtype=bool)
    own = np.zeros(texts.shape, dtype=bool)
    own[np.arange(len(x)), y] = True
    z = posterior(x, prototypes, problem.logit_scale)
    variances = _within_variances(features, labels)
    return Geometry(
        between=float(images[~same].mean()),
        within=float(images[same & pairs].mean()),
        negative=float((images < 0).mean()),
        matched=float(texts[own].mean()),
        unmatched=float(texts[~own].mean()),
        top_axis=float(variances.max() / variances.sum()),
        axes=float(variances.sum() ** 2 / (variances**2).sum()),
        accuracy=float(((features @ prototypes.T).argmax(axis=1) == labels).mean()),
        confidence=float(z.max(axis=1).mean()),
    )


def _within_variances(features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Variances along the principal axes of what is left when each class's mean is taken off."""
    _, place, counts = np.unique(labels, return_inverse=True, return_counts=True)
    sums = np.zeros((len(counts), features.shape[1]))
    np.add.at(sums, place, features)
    centred = features - (sums / counts[:, None])[place]
    return np.linalg.eigvalsh(centred.T @ centred / len(features))
