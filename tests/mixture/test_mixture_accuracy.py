"""Accuracy and calibration of the mixture on the bundled packs, compared with ADAPT, and on real CLIP features."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from zeroshift import FeatureSet, OnlineADAPT, OnlineAnchoredMixture, TransductiveADAPT, TransductiveAnchoredMixture
from zeroshift.data import packs
from zeroshift.evaluate.metrics.functions import expected_calibration_error
from zeroshift.evaluate.streams import random_order

CLIP = Path(__file__).parents[2].parent / "shared" / "packs" / "clip"
CLIP_PACKS = ("dtd_test_clip_vitb32", "stanford_cars_val_clip_vitb32", "whurs19_clip_rn50", "whurs19_clip_vitb32")
BUNDLED = tuple(pack.name for pack in packs.list() if pack.n_views == 0)
N_ORDERS = 3


def accuracy_and_error(cls, pack, rows):
    """Accuracy and calibration error, in percent."""
    answer = cls(pack.prototypes_for(), logit_scale=pack.logit_scale).adapt(pack.features[rows])
    labels = pack.labels[rows]
    return 100 * np.array([(answer.argmax(axis=1) == labels).mean(), expected_calibration_error(answer, labels)])


def mean_results(cls, sets, orders):
    """Means over sets and, for online methods, over random orders of each."""
    runs = range(orders if cls.protocol == "online" else 1)
    return np.mean(
        [accuracy_and_error(cls, pack, random_order(pack.n_samples, seed).rows) for pack in sets for seed in runs], 0
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cls", "peer"),
    [(OnlineAnchoredMixture, OnlineADAPT), (TransductiveAnchoredMixture, TransductiveADAPT)],
    ids=["online", "transductive"],
)
def test_accuracy_exceeds_adapt_on_the_bundled_packs(cls, peer):
    sets = [packs.load(name) for name in BUNDLED]
    assert len(sets) == 6
    ours, theirs = mean_results(cls, sets, 1), mean_results(peer, sets, 1)
    assert ours[0] > theirs[0]
    assert ours[1] < theirs[1]


@pytest.mark.slow
@pytest.mark.skipif(not CLIP.is_dir(), reason=f"real CLIP features may not be redistributed; none at {CLIP}")
@pytest.mark.parametrize(
    ("cls", "accuracy", "error"),
    [(OnlineAnchoredMixture, 73.5, 7.0), (TransductiveAnchoredMixture, 78.0, 8.0)],
    ids=["online", "transductive"],
)
def test_accuracy_on_real_clip_features(cls, accuracy, error):
    """The smallest mean accuracy and the largest mean calibration error allowed."""
    found = mean_results(cls, [FeatureSet.load(CLIP / f"{name}.npz") for name in CLIP_PACKS], N_ORDERS)
    assert found[0] >= accuracy
    assert found[1] <= error
