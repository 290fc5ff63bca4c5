"""The common checks over every registered method, and over broken ones that each check must catch."""

from __future__ import annotations

import numpy as np
import pytest

from zeroshift import OnlineADAPT, TransductiveADAPT, ZeroShot
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
from zeroshift.testing import CHECKS, Case, NotApplicable, check_method, checks, make_problem
from zeroshift.view_method import ViewMethod


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


class Sound(ZeroShot):
    """Base of the broken ones below; prototypes and logit_scale are as for `ZeroShot`.

    >>> 1
    1
    """

    name = "sound"


class RemembersPredictions(Sound):
    def _predict_scores(self, features):
        self.seen = getattr(self, "seen", 0) + len(features)
        return super()._predict_scores(features)


class DividesByZero(Sound):
    def _predict_scores(self, features):
        scores = super()._predict_scores(features)
        return scores / (1.0 if features.shape[0] > 1 else np.nan)


class FavoursTheFirstClass(Sound):
    def _adapt_scores(self, rows):
        for block, scores in super()._adapt_scores(rows):
            scores[:, 0] += 0.5
            yield block, scores


class FavoursTheFirstAxis(Sound):
    def _adapt_scores(self, rows):
        for block, x in rows.blocks(100):
            self.n_seen += len(x)
            yield block, self._predict_scores(x) * (1 + x[:, :1])


class KeepsTheCallersArray(Sound):
    def __init__(self, prototypes, *, logit_scale=100.0):
        super().__init__(prototypes, logit_scale=logit_scale)
        vars(self)["prototypes"] = prototypes


class WritesIntoItsInput(Sound):
    def adapt(self, features):
        answer = super().adapt(features)
        if features.flags.writeable:
            features[...] = 0
        return answer


class TakesLabels(Sound):
    def adapt(self, features, labels=None):
        return super().adapt(features)


class KeepsEverything(Sound):
    def _begin(self):
        self.everything = []

    def _adapt_scores(self, rows):
        for block, scores in super()._adapt_scores(rows):
            self.everything.append(rows[block])
            yield block, scores

    def _state(self):
        return {"everything": np.concatenate(self.everything)} if self.everything else {}, {}


class HoardsQuietly(Sound):
    def _begin(self):
        self.hoard = []

    def _adapt_scores(self, rows):
        for block, scores in super()._adapt_scores(rows):
            self.hoard.append(np.zeros((64, 64)))
            yield block, scores


class IgnoresItsScale(Sound):
    def __init__(self, prototypes, *, logit_scale=100.0):
        super().__init__(prototypes, logit_scale=20.0)


class BreaksUnderAutocast(Sound):
    def adapt(self, features):
        return features @ self.prototypes.T


class Forgets(OnlineADAPT):
    name = "forgets"

    def _restore(self, arrays, values):
        pass


class RollsDice(Sound):
    dice = np.random.default_rng(0)

    def _predict_scores(self, features):
        return super()._predict_scores(features) * (1 + 1e-9 * self.dice.normal())


class LearnsFromPrototypesFirst(Sound):
    def _predict_scores(self, features):
        return 1.01 * super()._predict_scores(features)


class AcceptsAnyScale(Sound):
    constraints = {}  # noqa: RUF012


class OrderMatters(TransductiveADAPT):
    name = "order_matters"

    def _adapt_scores(self, rows):
        for block, scores in super()._adapt_scores(rows):
            yield block, scores * (1 + 0.01 * np.arange(len(scores))[:, None])


class CountsAfterLearning(Sound):
    def _begin(self):
        self.sharper = 1.0

    def _adapt_scores(self, rows):
        for block, x in rows.blocks(1):
            self.sharper += 0.01
            self.n_seen += 1
            yield block, self._predict_scores(x)

    def _predict_scores(self, features):
        return self.sharper * super()._predict_scores(features)


class CountsImagesAfterLearning(Sound, ViewMethod):
    def _begin(self):
        self.sharper = 1.0

    def _adapt_view(self, views):
        self.sharper += 0.01
        return self._predict_scores(views[:1])[0]

    def _predict_scores(self, features):
        return self.sharper * super()._predict_scores(features)


@pytest.mark.parametrize(
    ("broken", "caught_by"),
    [
        (RemembersPredictions, "predict_is_pure"),
        (DividesByZero, "one_sample"),
        (FavoursTheFirstClass, "class_order_does_not_matter"),
        (FavoursTheFirstAxis, "axes_do_not_matter"),
        (KeepsTheCallersArray, "inputs_are_untouched_and_not_aliased"),
        (WritesIntoItsInput, "inputs_are_untouched_and_not_aliased"),
        (TakesLabels, "labels_are_accepted_nowhere"),
        (KeepsEverything, "memory_is_bounded"),
        (HoardsQuietly, "memory_is_bounded"),
        (IgnoresItsScale, "constructor_stores_its_parameters"),
        (BreaksUnderAutocast, "torch_modes_do_not_matter"),
        (Forgets, "saved_and_continued_bit_for_bit"),
        (RollsDice, "same_inputs_same_bits"),
        (LearnsFromPrototypesFirst, "predict_before_adapt_is_zero_shot"),
        (AcceptsAnyScale, "constructor_refuses_bad_parameters"),
        (OrderMatters, "sample_order_does_not_matter_for_a_set"),
        (OrderMatters, "chunks_do_not_show"),
        (CountsAfterLearning, "interrupted_adapt_learns_whole_samples"),
        (CountsImagesAfterLearning, "interrupted_adapt_views_learns_whole_images"),
    ],
)
def test_broken_methods_are_caught(broken, caught_by):
    try:
        CHECKS[caught_by](Case(broken))
    except AssertionError:
        return
    except NotApplicable as reason:
        pytest.skip(str(reason))
    pytest.fail(f"{caught_by} did not notice {broken.__name__}")


def test_check_method_lists_every_failure_by_name():
    with pytest.raises(AssertionError, match=r"(?s)TakesLabels fails 1 of \d+ checks:.*labels_are_accepted_nowhere"):
        check_method(TakesLabels)


@pytest.mark.parametrize("given", [Sound(np.eye(2)), 3, dict], ids=["instance", "number", "other class"])
def test_check_method_takes_a_method_class_or_a_name(given):
    with pytest.raises(TypeError, match=r"method must be a subclass .*Fix: check_method\(type\(method\)"):
        check_method(given)


def test_problems_need_classes_and_samples():
    with pytest.raises(ValueError, match="classes must be an integer of at least 1; got 0"):
        make_problem(classes=0)


def test_an_exception_may_be_declared_with_a_reason():
    class Declared(TakesLabels):
        """Takes prototypes and logit_scale.

        >>> 1
        1
        """

        check_exceptions = {"labels_are_accepted_nowhere": "they are ignored"}  # noqa: RUF012

    report = check_method(Declared)
    assert report.declared == {"labels_are_accepted_nowhere": "they are ignored"}
    assert "labels_are_accepted_nowhere" not in report.passed
    assert report.skipped["chunks_do_not_show"] == "the method has no chunk_size"


def test_a_needless_or_unknown_exception_is_a_failure():
    class Needless(Sound):
        """Takes prototypes and logit_scale.

        >>> 1
        1
        """

        check_exceptions = {"one_class": "not true"}  # noqa: RUF012

    with pytest.raises(AssertionError, match="remove the declaration"):
        check_method(Needless)
    Needless.check_exceptions = {"no_such_check": "?"}
    with pytest.raises(ValueError, match="which is no check"):
        check_method(Needless)
