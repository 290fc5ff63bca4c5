"""The estimate of order for many samples at once equals the recursion."""

from __future__ import annotations

import numpy as np
import pytest

from zeroshift import OnlineAnchoredMixture
from zeroshift.arrays import Backend
from zeroshift.data import packs
from zeroshift.evaluate.streams import class_sorted
from zeroshift.mixture import online
from zeroshift.sticky import StickyClasses
from zeroshift.sticky_blocks import observe_together
from zeroshift.zero_shot import posterior


def posteriors(order=None):
    pack = packs.load("cifar10")
    y = posterior(pack.features.astype(np.float64), pack.prototypes_for().astype(np.float64), pack.logit_scale)
    return y if order is None else y[order(pack.labels, seed=1).rows]


def assert_equal(found, expected):
    (stay, chain), (expected_stay, expected_chain) = found, expected
    np.testing.assert_allclose(stay, expected_stay, rtol=0, atol=1e-11)
    for name, array in expected_chain.state()[0].items():
        np.testing.assert_allclose(getattr(chain, name), array, rtol=0, atol=1e-9, err_msg=name)
    assert chain.follows


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("rows", [16, 100, 256])
def test_random_order(library, rows):
    if library == "torch":
        pytest.importorskip("torch", reason="torch is not installed")
    y, chain = posteriors(), StickyClasses(10)
    backend = Backend.named(library, "cpu")
    for start in range(0, 1024, rows):
        block = y[start : start + rows]
        expected = chain.observe(block)
        assert_equal(observe_together(chain, backend.asarray(block)), expected)
        chain = expected[1]


def test_sorted_classes_settle_or_are_left_to_the_recursion():
    y, chain, settled = posteriors(class_sorted), StickyClasses(10), 0
    for start in range(0, 1024, 32):
        block = y[start : start + 32]
        expected = chain.observe(block)
        found = observe_together(chain, block)
        if found is not None:
            settled += 1
            assert_equal(found, expected)
        chain = expected[1]
    assert settled > 20
    assert chain.stay > 0.8


def test_after_a_merge_the_first_sample_follows_none():
    y = posteriors()
    _, first = StickyClasses(10).observe(y[:100])
    _, second = StickyClasses(10).observe(y[100:200])
    chain = first.merged(second)
    assert_equal(observe_together(chain, y[200:260]), chain.observe(y[200:260]))
    assert observe_together(chain, y[200:260])[0][0] == 0.0


@pytest.mark.parametrize("order", [None, class_sorted], ids=["random order", "sorted by class"])
def test_the_mixture_gives_the_same_answers(order, monkeypatch):
    """As on a GPU, but with torch on the CPU."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    pack = packs.load("cifar10")
    rows = slice(900) if order is None else order(pack.labels, seed=1).rows[:900]
    features, prototypes = (torch.tensor(array).double() for array in (pack.features[rows], pack.prototypes_for()))
    plain = OnlineAnchoredMixture(prototypes, logit_scale=pack.logit_scale)
    expected = plain.adapt(features)
    calls = []

    def together(chain, y):
        calls.append(observe_together(chain, y))
        return calls[-1]

    monkeypatch.setattr(online, "observe_together", together)
    monkeypatch.setattr(Backend, "on_gpu", True)
    method = OnlineAnchoredMixture(prototypes, logit_scale=pack.logit_scale)
    np.testing.assert_allclose(method.adapt(features), expected, rtol=0, atol=1e-9)
    assert method.stay == pytest.approx(plain.stay, abs=1e-9)
    assert any(call is not None for call in calls)
