"""How little a sample is like any of the classes: "none of these", which a softmax over the classes cannot say."""

from __future__ import annotations

import numpy as np

from zeroshift.feature_checks import blocks
from zeroshift.features import FeatureSet

__all__ = ["reject_scores"]


def reject_scores(features: FeatureSet, prompt: str | None = None) -> np.ndarray:
    """(N,) one less the largest cosine to a prototype: 0 on top of one, the higher the less it is like any.

    Scores of one set can be ranked and cut at a threshold; where to cut differs from encoder to encoder. It does not
    depend on the logit scale, nor on what a method has learned.

    >>> pets = FeatureSet(np.array([[1.0, 0.0], [0.6, 0.8]]), prototypes=np.array([[1.0, 0.0]]))
    >>> reject_scores(pets).tolist()
    [0.0, 0.4]
    """
    if not isinstance(features, FeatureSet):
        raise TypeError(
            f"features must be a FeatureSet; got {type(features).__name__}. "
            "Fix: zeroshift.FeatureSet(features, prototypes=prototypes)."
        )
    prototypes = features.prototypes_for(prompt).astype(np.float32)
    scores = np.empty(features.n_samples, np.float32)
    for rows in blocks(features.n_samples, max(features.n_classes, features.dimension)):
        cosines = np.asarray(features.features[rows], np.float32) @ prototypes.T
        scores[rows] = np.maximum(1 - cosines.max(axis=1), 0)  # rounding makes some rows a little longer than one
    return scores.astype(np.float64).round(6)
