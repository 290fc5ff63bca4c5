"""Non-i.i.d. streams: the accuracy of the mixtures is at most one point below zero-shot."""

from __future__ import annotations

import functools

import pytest

from zeroshift import OnlineAnchoredMixture, TransductiveAnchoredMixture, ZeroShot
from zeroshift.data import packs
from zeroshift.evaluate.streams import StreamSpec

ONE_POINT = 1.0
KINDS = ("class_sorted", "bursts", "dirichlet", "few_classes", "long_tail", "few_confident", "random", "hard_to_easy")
QUICK_PACKS = ("fmnist",)
PACKS = tuple(pack.name for pack in packs.list() if pack.n_views == 0)


@functools.cache
def load_pack(name):
    return packs.load(name)


def accuracy_percent(cls, pack, rows):
    method = cls(pack.prototypes_for(), logit_scale=pack.logit_scale)
    return 100 * float((method.adapt(pack.features[rows]).argmax(axis=1) == pack.labels[rows]).mean())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK_PACKS else pytest.mark.slow) for name in PACKS]
)
def test_at_most_one_point_below_zero_shot(name, kind):
    pack = load_pack(name)
    rows = StreamSpec(kind).stream(pack, seed=0).rows
    assert accuracy_percent(OnlineAnchoredMixture, pack, rows) > accuracy_percent(ZeroShot, pack, rows) - ONE_POINT


def test_caution_is_high_for_sorted_and_low_for_random_streams():
    pack = load_pack("cifar10")
    found = {}
    for kind in ("class_sorted", "random", "long_tail", "some_classes"):
        method = OnlineAnchoredMixture(pack.prototypes_for(), logit_scale=pack.logit_scale)
        method.adapt(pack.features[StreamSpec(kind).stream(pack, seed=0).rows])
        found[kind] = (method.caution, method.few_classes)
    assert found["class_sorted"][0] > 0.9
    assert found["random"] == (0.0, 0.0)
    assert found["long_tail"][0] > 0.1
    assert found["long_tail"][1] == 0.0
    assert found["some_classes"][1] > 0.5


@pytest.mark.parametrize("cls", [OnlineAnchoredMixture, TransductiveAnchoredMixture], ids=lambda cls: cls.name)
@pytest.mark.parametrize(
    ("names", "seeds"), [(("cifar10",), 1), pytest.param(PACKS, 2, marks=pytest.mark.slow)], ids=["one", "all"]
)
def test_a_third_of_the_classes_is_better_than_zero_shot_on_the_mean(cls, names, seeds):
    """Single draws may be worse: docs/anchored-mixture.md says how much."""
    gains = []
    for name in names:
        pack = load_pack(name)
        for seed in range(seeds):
            rows = StreamSpec("some_classes").stream(pack, seed=seed).rows
            gains.append(accuracy_percent(cls, pack, rows) - accuracy_percent(ZeroShot, pack, rows))
    assert sum(gains) / len(gains) > ONE_POINT
