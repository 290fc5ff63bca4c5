"""Samples that hardly differ: the precision of the mixture is bounded, and sums lose no digits that matter."""

from __future__ import annotations

import numpy as np
import pytest

from mixture import transcription
from zeroshift import OnlineAnchoredMixture, TransductiveAnchoredMixture
from zeroshift.linalg import SMALLEST_TRACE

TOLERANCE = 1e-6


def still_scene(distance: float) -> tuple[np.ndarray, np.ndarray]:
    """120 samples between two prototypes, about as far as `distance` from each other."""
    rng = np.random.default_rng(0)
    prototypes = rng.normal(size=(4, 16)) + 0.5
    prototypes /= np.linalg.norm(prototypes, axis=1, keepdims=True)
    features = prototypes[0] + prototypes[1] + distance * rng.normal(size=(120, 16))
    return features / np.linalg.norm(features, axis=1, keepdims=True), prototypes


@pytest.mark.parametrize("anchor", [1.0, 1e-3, 1e-6])
@pytest.mark.parametrize("distance", [1e-2, 1e-3, 1e-5, 1e-7, 1e-9])
def test_the_sums_give_what_the_samples_give(distance, anchor):
    features, prototypes = still_scene(distance)
    parameters = {"logit_scale": 20.0, "anchor_count": anchor, "cautious_anchor_count": anchor}
    online = OnlineAnchoredMixture(prototypes, **parameters).adapt(features)
    expected = transcription.online(features, prototypes, **parameters).probabilities
    np.testing.assert_allclose(online, expected, rtol=0, atol=TOLERANCE)
    transductive = TransductiveAnchoredMixture(prototypes, rounds=3, **parameters).adapt(features)
    expected, _ = transcription.transductive(features, prototypes, rounds=3, **parameters)
    np.testing.assert_allclose(transductive, expected, rtol=0, atol=TOLERANCE)


def test_the_precision_is_bounded():
    features, prototypes = still_scene(1e-5)
    method = TransductiveAnchoredMixture(prototypes, anchor_count=1e-6, cautious_anchor_count=1e-6)
    method.adapt(features)
    largest = np.linalg.eigvalsh(method.precision_matrix)[-1]
    assert 0 < largest <= 16 / (method.shrinkage * SMALLEST_TRACE)
