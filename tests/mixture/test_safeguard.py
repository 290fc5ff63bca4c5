"""Non-i.i.d. streams: the accuracy of the online mixture is at most one point below zero-shot."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from zeroshift import OnlineAnchoredMixture, ZeroShot
from zeroshift.data import packs
from zeroshift.evaluate.streams import StreamSpec

ONE_POINT = 1.0
KINDS = ("class_sorted", "dirichlet", "few_classes", "long_tail", "few_confident", "random", "hard_to_easy")
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
    for kind in ("class_sorted", "random"):
        method = OnlineAnchoredMixture(pack.prototypes_for(), logit_scale=pack.logit_scale)
        method.adapt(pack.features[StreamSpec(kind).stream(pack, seed=0).rows])
        found[kind] = method.caution
    assert found["class_sorted"] > 0.9
    assert found["random"] < 0.05


def test_relief_makes_answers_on_a_sorted_stream_more_like_zero_shot():
    pack = load_pack("fmnist")
    rows = StreamSpec("class_sorted").stream(pack, seed=0).rows
    answers = {}
    for relief in (0.0, 1.0):
        method = OnlineAnchoredMixture(pack.prototypes_for(), logit_scale=pack.logit_scale, relief=relief)
        answers[relief] = method.adapt(pack.features[rows]).argmax(axis=1)
    zero_shot = ZeroShot(pack.prototypes_for(), logit_scale=pack.logit_scale).adapt(pack.features[rows]).argmax(axis=1)
    agreement = {relief: float(np.mean(answer == zero_shot)) for relief, answer in answers.items()}
    assert agreement[1.0] > agreement[0.0]
