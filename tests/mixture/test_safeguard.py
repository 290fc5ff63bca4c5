"""Streams that are not drawn from all classes alike: the online mixture stays within a point of zero-shot."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from zeroshift import OnlineAnchoredMixture, ZeroShot
from zeroshift.data import packs
from zeroshift.evaluate.streams import StreamSpec

ONE_POINT = 1.0
KINDS = ("class_sorted", "dirichlet", "few_classes", "long_tail", "few_confident", "random", "hard_to_easy")
QUICK = ("fmnist",)
PACKS = tuple(pack.name for pack in packs.list() if pack.n_views == 0)


@functools.cache
def loaded(name):
    return packs.load(name)


def correct(cls, pack, rows):
    method = cls(pack.prototypes_for(), logit_scale=pack.logit_scale)
    return 100 * float((method.adapt(pack.features[rows]).argmax(axis=1) == pack.labels[rows]).mean())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in PACKS]
)
def test_never_more_than_a_point_below_zero_shot(name, kind):
    pack = loaded(name)
    rows = StreamSpec(kind).stream(pack, seed=0).rows
    assert correct(OnlineAnchoredMixture, pack, rows) > correct(ZeroShot, pack, rows) - ONE_POINT


def test_classes_in_order_make_it_cautious_and_a_random_order_does_not():
    pack = loaded("cifar10")
    found = {}
    for kind in ("class_sorted", "random"):
        method = OnlineAnchoredMixture(pack.prototypes_for(), logit_scale=pack.logit_scale)
        method.adapt(pack.features[StreamSpec(kind).stream(pack, seed=0).rows])
        found[kind] = method.caution
    assert found["class_sorted"] > 0.9
    assert found["random"] < 0.05


def test_relief_brings_answers_to_a_sorted_stream_back_to_zero_shot():
    pack = loaded("fmnist")
    rows = StreamSpec("class_sorted").stream(pack, seed=0).rows
    answers = {}
    for relief in (0.0, 1.0):
        method = OnlineAnchoredMixture(pack.prototypes_for(), logit_scale=pack.logit_scale, relief=relief)
        answers[relief] = method.adapt(pack.features[rows]).argmax(axis=1)
    zero_shot = ZeroShot(pack.prototypes_for(), logit_scale=pack.logit_scale).adapt(pack.features[rows]).argmax(axis=1)
    agreement = {relief: float(np.mean(answer == zero_shot)) for relief, answer in answers.items()}
    assert agreement[1.0] > agreement[0.0]
