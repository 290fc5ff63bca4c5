"""A pair of features and labels: errors name the argument, and the result is in the library of the prototypes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zeroshift import FeatureSet
from zeroshift.arrays import checked_labelled

PROTOTYPES = np.eye(3, 4)
FEATURES = np.eye(4)[[0, 1, 2, 3, 0]]
LABELS = np.array([0, 1, 2, 2, 0])


@pytest.mark.parametrize("pair", [None, FEATURES, (FEATURES,), {"features": FEATURES, "labels": LABELS}, "ab"])
def test_not_a_pair(pair):
    with pytest.raises(
        TypeError, match=rf"shots must be a pair \(features, labels\); got .*{type(pair).__name__}.*Fix: shots=\("
    ):
        checked_labelled("shots", pair, PROTOTYPES)


@pytest.mark.parametrize(
    ("features", "labels", "error", "message"),
    [
        (FEATURES.tolist(), LABELS, TypeError, "shots features must be a NumPy array or a torch tensor; got list"),
        (FEATURES[0], LABELS, ValueError, "shots features must have two dimensions"),
        (FEATURES[:, :3], LABELS, ValueError, "shots features has d = 3 columns"),
        (FEATURES * 3, LABELS, ValueError, "shots features row 0 has length 3"),
        (FEATURES, LABELS[:4], ValueError, r"shots labels must have one entry a row, shape \(5,\)"),
        (FEATURES, LABELS + 1, ValueError, "shots labels row 2 is 3; class indices go from 0 to 2 for 3 prototypes"),
        (FEATURES, LABELS * 1.0, TypeError, "shots labels must hold integers"),
        (FEATURES, ["cat"] * 5, TypeError, "shots labels must hold integers"),
        (FEATURES, None, TypeError, "shots labels must be a vector of class indices; got NoneType"),
    ],
)
def test_wrong_features_or_labels(features, labels, error, message):
    with pytest.raises(error, match=message):
        checked_labelled("shots", (features, labels), PROTOTYPES)


@pytest.mark.parametrize("labels", [LABELS, LABELS.tolist(), torch.tensor(LABELS), LABELS.astype(np.uint8)])
def test_labels_become_numpy_integers(labels):
    _, own = checked_labelled("shots", [FEATURES, labels], PROTOTYPES)
    assert type(own) is np.ndarray
    assert own.dtype == np.int64
    np.testing.assert_array_equal(own, LABELS)


def test_features_are_copied():
    features, labels = FEATURES.copy(), LABELS.copy()
    own = checked_labelled("shots", (features, labels), PROTOTYPES)
    features[:], labels[:] = 0, 0
    np.testing.assert_array_equal(own[0], FEATURES)
    np.testing.assert_array_equal(own[1], LABELS)


def test_features_keep_their_precision_in_the_library_of_the_prototypes():
    own, _ = checked_labelled("shots", (FEATURES.astype(np.float16), LABELS), torch.tensor(PROTOTYPES))
    assert isinstance(own, torch.Tensor)
    assert own.dtype == torch.float32
    own, _ = checked_labelled("shots", (torch.tensor(FEATURES), LABELS), PROTOTYPES)
    assert type(own) is np.ndarray
    assert own.dtype == np.float64


def test_the_error_for_a_feature_set_names_the_fix():
    pets = FeatureSet(FEATURES, prototypes=PROTOTYPES, labels=LABELS)
    with pytest.raises(TypeError, match=r"got FeatureSet\. Fix: shots=\(shots\.features, shots\.labels\)"):
        checked_labelled("shots", pets, PROTOTYPES)


def test_masked_labels_raise():
    masked = np.ma.masked_array(LABELS, mask=LABELS == 1)
    with pytest.raises(TypeError, match=r"shots labels must be a plain vector.*Fix: drop the rows"):
        checked_labelled("shots", (FEATURES, masked), PROTOTYPES)


@pytest.mark.parametrize(("labels", "fix"), [(LABELS * 1.0, r"astype\(int\)"), (LABELS + 0.7, "not class indices")])
def test_a_conversion_is_suggested_for_whole_numbers_only(labels, fix):
    with pytest.raises(TypeError, match=f"must hold integers.*float64.*{fix}"):
        checked_labelled("shots", (FEATURES, labels), PROTOTYPES)
