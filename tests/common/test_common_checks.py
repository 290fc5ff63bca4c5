"""The common checks over every registered method, and over settings that change what it computes."""

from __future__ import annotations

import numpy as np
import pytest

from zeroshift import OnlineADAPT, OnlineAnchoredMixture, TransductiveADAPT, TransductiveAnchoredMixture
from zeroshift.methods import (
    BCA,
    DMN,
    DOTA,
    ECALP,
    GDACLIP,
    OGA,
    T3A,
    TDA,
    TIMO,
    Frolic,
    GDAPseudo,
    HistoTransCLIP,
    StatA,
    TipAdapter,
    TransCLIP,
    ZLaP,
    ZLaPInductive,
    list_methods,
)
from zeroshift.testing import CHECKS, Case, NotApplicable, checks


def own_prototypes(prototypes):
    """One labelled sample a class, the prototype itself: turns and permutes as the problem does."""
    return prototypes, np.arange(len(prototypes))


QUICKER = {"frolic": {"proxy_iterations": 60}}
"""Two thousand steps say no more here than sixty."""

USUAL = [(method.cls, QUICKER.get(method.name, {})) for method in list_methods()]

VARIANTS = [
    (OnlineADAPT, {"support": own_prototypes}),
    (TransductiveADAPT, {"support": own_prototypes}),
    (OnlineADAPT, {"support": own_prototypes, "bank_size": 0}),
    (OnlineADAPT, {"engine": "direct"}),
    (OnlineADAPT, {"engine": "streaming"}),
    (OnlineADAPT, {"engine": "replay"}),
    (OnlineADAPT, {"batch_size": 4}),
    (OnlineADAPT, {"bank_size": 0}),
    (OnlineADAPT, {"bank_size": 2, "beta": 1.0, "iterations": 3}),
    (OnlineADAPT, {"covariance": "per_class", "batch_size": 4, "prune": (30, 0.5)}),
    (TransductiveADAPT, {"iterations": 3, "beta": 2.0}),
    (TransductiveADAPT, {"bank_size": 0}),
    (TDA, {"released": True, "positive_capacity": 1}),
    (TDA, {"positive_capacity": 0, "negative_capacity": 1}),
    (DMN, {"memory_size": 2, "text_weight": 0.0}),
    (DOTA, {"initial_means": "text"}),
    (BCA, {"likelihood_count": 1, "prior_threshold": 0.2, "view_ratio": 1.0}),
    (OGA, {"batch_size": 4, "released": True}),
    (OGA, {"batch_size": 8, "covariance": "pinv", "capacity": 3, "released": True}),
    (T3A, {"batch_size": 4, "filter_size": 3}),
    (T3A, {"filter_size": None}),
    (ECALP, {"support": own_prototypes, "n_neighbors": 3}),
    (ZLaPInductive, {"sparse": True, "scale_similarities": True}),
    (TransCLIP, {"support": own_prototypes, "validation": own_prototypes}),
    (StatA, {"soft_counts": True}),
    (ZLaP, {"scale_similarities": True, "n_neighbors": 3}),
    (HistoTransCLIP, {"renormalise": True}),
    (Frolic, {"variant": "paper", **QUICKER["frolic"]}),
    (GDAPseudo, {"alpha": 10.0}),
    (GDACLIP, {"validation": own_prototypes}),
    (TIMO, {"validation": own_prototypes}),
    (TipAdapter, {"validation": own_prototypes, "search_steps": (5, 3)}),
    (OnlineAnchoredMixture, {"support": own_prototypes, "first_samples": 4}),
    (OnlineAnchoredMixture, {"staleness": 0.0}),
    (OnlineAnchoredMixture, {"staleness": 0.5, "relief": 0.0}),
    (OnlineAnchoredMixture, {"balance": (1.0, 1.0), "calm": 1.0, "spread_samples": 0.0}),
    (TransductiveAnchoredMixture, {"support": own_prototypes, "first_samples": 4}),
    (TransductiveAnchoredMixture, {"rounds": 1}),
    (TransductiveAnchoredMixture, {"chunk_size": 7, "balance": (1.0, 1.0), "spread_samples": 0.0}),
]
"""Other settings: those that take another way through the code than the defaults of their class."""

VARIED = {
    "answers_are_probabilities",
    "predict_is_pure",
    "predict_before_adapt_is_zero_shot",
    "reset_forgets",
    "class_order_does_not_matter",
    "axes_do_not_matter",
    "sample_order_does_not_matter_for_a_set",
    "chunks_do_not_show",
    "calls_do_not_show_in_a_stream",
    "views_all_alike_are_one_sample",
    "one_class",
    "one_sample",
    "all_samples_equal",
    "absent_class",
    "duplicate_prototypes",
    "numpy_precisions",
    "torch_equals_numpy",
    "saved_and_continued_bit_for_bit",
    "memory_is_bounded",
    "interrupted_adapt_learns_whole_samples",
}
"""Checks of what is computed and kept, which settings decide. What a class does with its arguments it does under every
setting: of that the defaults tell `make test`, and all settings `make test-all`."""


def params():
    for cases, quick in ((USUAL, set(CHECKS)), (VARIANTS, VARIED)):
        for cls, parameters in cases:
            case = f"{cls.name}-{parameters.get('engine', list(parameters)) or 'defaults'}"
            for name, call in checks(cls, parameters):
                yield pytest.param(call, id=f"{case}-{name}", marks=[] if name in quick else pytest.mark.slow)


@pytest.mark.parametrize("check", list(params()))
def test_check(check):
    try:
        check()
    except NotApplicable as reason:
        pytest.skip(str(reason))


def test_variants_are_checked_by_checks_there_are():
    assert set(CHECKS) > VARIED


@pytest.mark.parametrize(
    ("cls", "name"),
    [pytest.param(cls, name, id=f"{cls.name}-{name}") for cls, _ in USUAL for name in cls.check_exceptions],
)
def test_declared_exceptions_are_needed(cls, name):
    with pytest.raises(AssertionError):
        CHECKS[name](Case(cls))
