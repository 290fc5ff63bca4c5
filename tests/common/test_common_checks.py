"""Every registered method passes the common checks, with its defaults and with parameters that change the numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pytest

from zeroshift import OnlineADAPT, OnlineAnchoredMixture, StickyFilter, TransductiveADAPT, TransductiveAnchoredMixture
from zeroshift.method import Method
from zeroshift.methods import (
    APE,
    BCA,
    COSMIC,
    DMN,
    DOTA,
    DPE,
    ECALP,
    GDACLIP,
    OGA,
    T3A,
    TDA,
    TIMO,
    BoostAdapter,
    CLIPAdapter,
    CoOp,
    FreeTTA,
    Frolic,
    GDAPseudo,
    HistoTransCLIP,
    StatA,
    TaskRes,
    TipAdapter,
    TipAdapterF,
    TipX,
    TransCLIP,
    ZLaP,
    ZLaPInductive,
    list_methods,
)
from zeroshift.testing import CHECKS, Case, NotApplicable, checks, interrupts


def own_prototypes(prototypes):
    """One labelled sample per class, the prototype itself: it rotates and permutes with the problem."""
    return prototypes, np.arange(len(prototypes))


FASTER_PARAMETERS = {"frolic": {"proxy_iterations": 60}}
"""Two thousand steps show no more here than sixty."""

DEFAULTS = [(method.cls, FASTER_PARAMETERS.get(method.name, {})) for method in list_methods()]

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
    (BoostAdapter, {"view_feature": "image", "view_ratio": 0.5, "delta": None, "released": True}),
    (COSMIC, {"rebuild_every": 7, "memory_size": 2, "clique_weight": 0.3}),
    (DMN, {"memory_size": 2, "text_weight": 0.0}),
    (DOTA, {"initial_means": "text"}),
    (DPE, {"capacity": 1, "final": "views", "released": True}),
    (BCA, {"likelihood_count": 1, "prior_threshold": 0.2, "view_ratio": 1.0}),
    (OGA, {"batch_size": 4, "released": True}),
    (OGA, {"batch_size": 8, "covariance": "pinv", "capacity": 3, "released": True}),
    (T3A, {"batch_size": 4, "filter_size": 3}),
    (T3A, {"filter_size": None}),
    (ECALP, {"support": own_prototypes, "n_neighbors": 3}),
    (FreeTTA, {"covariance": "literal", "responsibilities": "fused"}),
    (ZLaPInductive, {"sparse": True, "scale_similarities": True}),
    (TransCLIP, {"support": own_prototypes, "validation": own_prototypes}),
    (StatA, {"soft_counts": True}),
    (ZLaP, {"scale_similarities": True, "n_neighbors": 3}),
    (HistoTransCLIP, {"renormalise": True}),
    (Frolic, {"variant": "paper", **FASTER_PARAMETERS["frolic"]}),
    (GDAPseudo, {"alpha": 10.0}),
    (GDACLIP, {"validation": own_prototypes}),
    (TIMO, {"validation": own_prototypes}),
    (CoOp, {"per_class": True, "epochs": 4}),
    (TipAdapter, {"validation": own_prototypes, "search_steps": (5, 3)}),
    (TipAdapterF, {"validation": own_prototypes, "search_steps": (5, 3), "selection": own_prototypes}),
    (TaskRes, {"validation": own_prototypes}),
    (CLIPAdapter, {"validation": own_prototypes, "optimizer": "adam"}),
    (APE, {"validation": own_prototypes, "search_steps": (5, 3), "gamma_steps": 2}),
    (TipX, {"validation": own_prototypes, "search_steps": (5, 3), "gamma_steps": 2}),
    (OnlineAnchoredMixture, {"support": own_prototypes, "first_samples": 4}),
    (OnlineAnchoredMixture, {"staleness": 0.0}),
    (OnlineAnchoredMixture, {"staleness": 0.5, "order": "none", "half_life": 20.0}),
    (OnlineAnchoredMixture, {"occurring": (1.0, 1.0), "varying": (1.0, 1.0), "calm": 1.0}),
    (StickyFilter.of(OnlineADAPT), {}),
    (StickyFilter.of(OnlineADAPT), {"batch_size": 4, "lag": 2}),
    (StickyFilter.of(ECALP), {}),
    (TransductiveAnchoredMixture, {"support": own_prototypes, "first_samples": 4}),
    (TransductiveAnchoredMixture, {"rounds": 1}),
    (
        TransductiveAnchoredMixture,
        {"chunk_size": 7, "occurring": (1.0, 1.0), "varying": (1.0, 1.0)},
    ),
]
"""Parameters that use other code than the defaults of their class."""

NUMERIC_CHECKS = {
    "answers_are_probabilities",
    "predict_is_pure",
    "frozen_head_equals_predict",
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
}
"""Checks of results and state, which depend on the parameters. For the other checks `make test` runs the defaults only,
and `make test-all` every variant."""

INTERRUPT_CHECKS = {check.__name__ for check in interrupts.CHECKS}
"""These are slow and mostly test the base class: `make test` runs them for one method per base class."""


def run_checks(cls: type[Method], parameters: Mapping[str, Any], names: Collection[str]) -> None:
    """Run the named checks and raise all failures together, each with the name of its check."""
    failures = []
    for name, check in checks(cls, parameters):
        if name in names:
            try:
                check()
            except NotApplicable:
                continue
            except Exception as error:
                error.add_note(f"check: {name}")
                failures.append(error)
    if failures:
        raise ExceptionGroup(f"{cls.__name__} fails {len(failures)} of {len(names)} common checks", failures)


def first_per_base() -> set[str]:
    """The names of the first registered method of every base class and protocol."""
    first: dict[tuple[type, str], str] = {}
    for method in list_methods():
        first.setdefault((method.cls.__base__, method.cls.protocol), method.name)
    return set(first.values())


def as_test_parameters(
    cases: list[tuple[type[Method], dict[str, Any]]], quick: Collection[str] | None = None
) -> list[Any]:
    """One test per method, slow unless `quick` has its name."""
    found = []
    for cls, parameters in cases:
        name = f"{cls.name}-{parameters.get('engine', list(parameters)) or 'defaults'}"
        marks = [] if quick is None or cls.name in quick else [pytest.mark.slow]
        found.append(pytest.param(cls, parameters, id=name, marks=marks))
    return found


@pytest.mark.parametrize(("cls", "parameters"), as_test_parameters(DEFAULTS))
def test_defaults(cls, parameters):
    run_checks(cls, parameters, set(CHECKS) - INTERRUPT_CHECKS)


@pytest.mark.parametrize(("cls", "parameters"), as_test_parameters(VARIANTS))
def test_numeric_checks_of_variants(cls, parameters):
    run_checks(cls, parameters, NUMERIC_CHECKS)


@pytest.mark.slow
@pytest.mark.parametrize(("cls", "parameters"), as_test_parameters(VARIANTS))
def test_contract_checks_of_variants(cls, parameters):
    run_checks(cls, parameters, set(CHECKS) - NUMERIC_CHECKS - INTERRUPT_CHECKS)


@pytest.mark.parametrize(
    ("cls", "parameters"), [*as_test_parameters(DEFAULTS, first_per_base()), *as_test_parameters(VARIANTS, [])]
)
def test_interrupts(cls, parameters):
    run_checks(cls, parameters, INTERRUPT_CHECKS)


def test_numeric_checks_exist():
    assert set(CHECKS) > NUMERIC_CHECKS


@pytest.mark.parametrize(
    ("cls", "name"),
    [pytest.param(cls, name, id=f"{cls.name}-{name}") for cls, _ in DEFAULTS for name in cls.check_exceptions],
)
def test_declared_exceptions_are_needed(cls, name):
    with pytest.raises(AssertionError):
        CHECKS[name](Case(cls))
