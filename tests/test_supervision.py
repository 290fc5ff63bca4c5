"""Answers as supervision's `Classifications`."""

from __future__ import annotations

import numpy as np
import pytest

from zeroshift import OnlineAnchoredMixture
from zeroshift.data import packs

supervision = pytest.importorskip("supervision", reason="the extra `test` brings it")

from zeroshift.supervision import from_method, from_probabilities  # noqa: E402


@pytest.fixture(scope="module")
def pack():
    return packs.load("cifar10").subset(slice(0, 60))


def test_from_probabilities():
    one = from_probabilities(np.array([0.2, 0.7, 0.1], dtype=np.float32))
    assert isinstance(one, supervision.Classifications)
    ids, confidences = one.get_top_k(2)
    assert ids.tolist() == [1, 0]
    np.testing.assert_allclose(confidences, [0.7, 0.2], atol=1e-6)


def test_one_object_per_image(pack):
    mixture = OnlineAnchoredMixture(pack.prototypes_for(), logit_scale=pack.logit_scale)
    probabilities = mixture.adapt(pack.features)
    found = from_probabilities(probabilities)
    assert len(found) == 60
    assert [int(one.get_top_k(1)[0][0]) for one in found] == probabilities.argmax(axis=1).tolist()
    found[0].confidence[:] = 0
    assert probabilities[0].sum() == pytest.approx(1, abs=1e-6)  # a copy


def test_from_method_and_frozen_head(pack):
    mixture = OnlineAnchoredMixture(pack.prototypes_for(), logit_scale=pack.logit_scale)
    mixture.adapt(pack.features)
    expected = from_probabilities(mixture.predict(pack.features))
    assert from_method(mixture, pack.features) == expected
    assert mixture.n_seen == 60
    one = from_method(mixture.freeze(), pack.features[0])
    np.testing.assert_allclose(one.confidence, expected[0].confidence, atol=1e-6)


def test_torch_probabilities(pack):
    torch = pytest.importorskip("torch", reason="the extra `torch` brings it")
    assert from_probabilities(torch.tensor([0.4, 0.6])).class_id.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("probabilities", "kind", "message"),
    [(np.zeros((2, 2, 2)), ValueError, r"\(K,\) or \(N, K\); got \(2, 2, 2\)"), ([0.5, 0.5], TypeError, "list")],
)
def test_wrong_probabilities(probabilities, kind, message):
    with pytest.raises(kind, match=message):
        from_probabilities(probabilities)
