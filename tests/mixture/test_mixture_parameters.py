"""Invalid parameters of the mixture are refused with name, value and fix."""

from __future__ import annotations

import re

import numpy as np
import pytest

from zeroshift import OnlineAnchoredMixture, TransductiveAnchoredMixture
from zeroshift.testing import make_problem

BOTH = pytest.mark.parametrize("cls", [OnlineAnchoredMixture, TransductiveAnchoredMixture], ids=lambda cls: cls.name)
PROBLEM = make_problem(4, 8, 12)


@BOTH
@pytest.mark.parametrize("name", ["occurring", "varying", "spread_range"])
def test_pairs_in_the_wrong_order_are_rejected(cls, name):
    message = f"{name} must be two numbers, the smaller first; got (0.8, 0.4). Fix: (0.4, 0.8)."
    with pytest.raises(ValueError, match=re.escape(message)):
        cls(PROBLEM.prototypes, **{name: (0.8, 0.4)})
    assert getattr(cls(PROBLEM.prototypes, **{name: (0.5, 0.5)}), name) == (0.5, 0.5)


@BOTH
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("anchor_count", 0.0),
        ("cautious_anchor_count", -1.0),
        ("spread_range", (-0.1, 1.0)),
        ("spread_range", (0.0, 0.0)),
        ("spread_range", 1.0),
        ("occurring", (0.5, 1.5)),
        ("varying", (-0.1, 0.5)),
        ("shrinkage", 0.0),
        ("shrinkage", 1.5),
        ("shrinkage_samples", float("nan")),
        ("reliability_samples", "many"),
        ("weight", -0.5),
        ("first_samples", 0),
        ("first_samples", 2.5),
        ("calm", 2.0),
        ("view_ratio", 0.0),
    ],
)
def test_numbers_out_of_range_are_rejected(cls, name, value):
    with pytest.raises((ValueError, TypeError), match=name):
        cls(PROBLEM.prototypes, **{name: value})


@pytest.mark.parametrize(
    ("cls", "name", "value"),
    [
        (OnlineAnchoredMixture, "staleness", 1.5),
        (OnlineAnchoredMixture, "order", "sorted"),
        (OnlineAnchoredMixture, "relative_samples", 0.0),
        (OnlineAnchoredMixture, "balance", -0.1),
        (OnlineAnchoredMixture, "half_life", 8.0),
        (OnlineAnchoredMixture, "lag", -1),
        (TransductiveAnchoredMixture, "few_classes_weight", 1.5),
        (TransductiveAnchoredMixture, "proportions", -1.0),
        (TransductiveAnchoredMixture, "rounds", 0),
        (TransductiveAnchoredMixture, "chunk_size", 0),
        (TransductiveAnchoredMixture, "memory_budget", 0),
    ],
)
def test_numbers_out_of_range_of_one_class_are_rejected(cls, name, value):
    with pytest.raises(ValueError, match=f"{name} must be"):
        cls(PROBLEM.prototypes, **{name: value})


@pytest.mark.parametrize("name", ["order", "relative_samples", "balance", "half_life", "lag", "staleness"])
def test_the_transductive_mixture_has_no_parameters_about_order(name):
    with pytest.raises(TypeError, match=name):
        TransductiveAnchoredMixture(PROBLEM.prototypes, **{name: 0.5})


@pytest.mark.parametrize("name", ["few_classes_weight", "proportions", "rounds"])
def test_the_online_mixture_has_no_parameters_about_whole_sets(name):
    with pytest.raises(TypeError, match=name):
        OnlineAnchoredMixture(PROBLEM.prototypes, **{name: 0.5})


@BOTH
@pytest.mark.parametrize(
    ("support", "error", "message"),
    [
        (PROBLEM.features, TypeError, r"support must be a pair \(features, labels\); got ndarray.*Fix: support="),
        ((PROBLEM.features,), TypeError, "support must be a pair"),
        ((PROBLEM.features, PROBLEM.labels[:3]), ValueError, "support labels"),
        ((PROBLEM.features, np.full(12, 4)), ValueError, "support labels"),
        ((PROBLEM.features[:, :5], PROBLEM.labels), ValueError, "support features"),
        ((2 * PROBLEM.features, PROBLEM.labels), ValueError, "support features row 0 has length 2"),
    ],
    ids=["no pair", "no labels", "too few labels", "no such class", "other dimension", "not of unit length"],
)
def test_invalid_support_is_rejected(cls, support, error, message):
    with pytest.raises(error, match=message):
        cls(PROBLEM.prototypes, support=support)
