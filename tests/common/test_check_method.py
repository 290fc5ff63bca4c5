"""`check_method` itself: it finds methods that break one rule each, and exceptions that are declared needlessly."""

from __future__ import annotations

import signal
import time

import numpy as np
import pytest

from zeroshift import OnlineADAPT, TransductiveADAPT, ZeroShot
from zeroshift.method import OnlineMethod, ViewMethod
from zeroshift.parameters import Parameter, state
from zeroshift.testing import CHECKS, Case, NotApplicable, check_method, make_problem
from zeroshift.zero_shot import log_posterior, softmax


class Sound(ZeroShot):
    """Base class of the broken methods below; prototypes and logit_scale are as for `ZeroShot`.

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
    def _prepare(self):
        self.everything = []

    def _adapt_scores(self, rows):
        for block, scores in super()._adapt_scores(rows):
            self.everything.append(rows[block])
            yield block, scores

    def _state(self):
        return {"everything": np.concatenate(self.everything)} if self.everything else {}, {}


class GrowsUndeclared(Sound):
    def _prepare(self):
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


class SavesNoState(OnlineADAPT):
    name = "forgets"

    def _restore(self, arrays, values):
        pass


class PredictsAtRandom(Sound):
    dice = np.random.default_rng(0)

    def _predict_scores(self, features):
        return super()._predict_scores(features) * (1 + 1e-9 * self.dice.normal())


class LearnsFromPrototypesFirst(Sound):
    def _predict_scores(self, features):
        return 1.01 * super()._predict_scores(features)


class AcceptsAnyScale(Sound):
    logit_scale: float = Parameter(None, "Anything.", 100.0)


class OrderMatters(TransductiveADAPT):
    name = "order_matters"

    def _scores_float64(self, rows, learned, log_normalisers, part):
        for block, scores in super()._scores_float64(rows, learned, log_normalisers, part):
            yield block, scores * (1 + 0.01 * np.arange(len(scores))[:, None])


class CountsAfterLearning(Sound):
    def _prepare(self):
        self.sharper = 1.0

    def _adapt_scores(self, rows):
        for block, x in rows.blocks(1):
            self.sharper += 0.01
            self.n_seen += 1
            yield block, self._predict_scores(x)

    def _predict_scores(self, features):
        return self.sharper * super()._predict_scores(features)


class IgnoresInterrupts(Sound):
    def adapt(self, features):
        while True:
            try:
                return super().adapt(features)
            except KeyboardInterrupt:
                continue


class CountsImagesAfterLearning(Sound, ViewMethod):
    def _prepare(self):
        self.sharper = 1.0

    def _adapt_view(self, views):
        self.sharper += 0.01
        return self._predict_scores(views[:1])[0]

    def _predict_scores(self, features):
        return self.sharper * super()._predict_scores(features)


class PredictsOutOfTurn(OnlineMethod):
    """`predict` does not go through the base class, and sees samples that are half learned."""

    name = "predicts_out_of_turn"
    _sharper = state(1.0)

    def learn(self, x):
        sharper, self._sharper = self._sharper, -1.0
        time.sleep(0.001)
        self._sharper = sharper + 0.01

    def score(self, features):
        return self._sharper * log_posterior(features, self.prototypes64, 20.0)

    def predict(self, features):
        return softmax(self.score(features))


class UsesOneBuffer(Sound):
    """Calls of `predict` share memory, which is empty between calls."""

    def _prepare(self):
        self._buffer = []

    def _predict_scores(self, features):
        self._buffer.append(super()._predict_scores(features))
        time.sleep(0.001)
        scores = sum(self._buffer)
        self._buffer.pop()
        return scores


class WritesADifferentFile(Sound):
    calls = 0

    def _predict_scores(self, features):
        type(self).calls += 1
        return super()._predict_scores(features)

    def _state(self):
        return {}, {"calls": self.calls}


@pytest.mark.parametrize(
    ("broken", "failing_check"),
    [
        (RemembersPredictions, "predict_is_pure"),
        (DividesByZero, "one_sample"),
        (FavoursTheFirstClass, "class_order_does_not_matter"),
        (FavoursTheFirstAxis, "axes_do_not_matter"),
        (KeepsTheCallersArray, "inputs_are_untouched_and_not_aliased"),
        (WritesIntoItsInput, "inputs_are_untouched_and_not_aliased"),
        (TakesLabels, "labels_are_accepted_nowhere"),
        (KeepsEverything, "memory_is_bounded"),
        (GrowsUndeclared, "memory_is_bounded"),
        (IgnoresItsScale, "constructor_stores_its_parameters"),
        (BreaksUnderAutocast, "torch_modes_do_not_matter"),
        (SavesNoState, "saved_and_continued_bit_for_bit"),
        (PredictsAtRandom, "same_inputs_same_bits"),
        (LearnsFromPrototypesFirst, "predict_before_adapt_is_zero_shot"),
        (AcceptsAnyScale, "constructor_refuses_bad_parameters"),
        (OrderMatters, "sample_order_does_not_matter_for_a_set"),
        (OrderMatters, "chunks_do_not_show"),
        (CountsAfterLearning, "interrupted_adapt_learns_whole_samples"),
        (IgnoresInterrupts, "interrupted_adapt_learns_whole_samples"),
        (CountsImagesAfterLearning, "interrupted_adapt_views_learns_whole_images"),
        (PredictsOutOfTurn, "threads_may_share_a_method"),
        (UsesOneBuffer, "threads_may_share_a_method"),
        (WritesADifferentFile, "predict_is_pure"),
    ],
)
def test_broken_methods_fail_the_check(broken, failing_check):
    try:
        CHECKS[failing_check](Case(broken))
    except AssertionError:
        return
    except NotApplicable as reason:
        pytest.skip(str(reason))
    pytest.fail(f"{failing_check} did not notice {broken.__name__}")


def test_interrupts_are_checked_where_the_process_ignores_them():
    # As in a background process of a shell.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(AssertionError, match=r"stopped at test_check_method\.py"):
            CHECKS["interrupted_adapt_learns_whole_samples"](Case(CountsAfterLearning))
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_check_method_lists_every_failure_by_name():
    with pytest.raises(AssertionError, match=r"(?s)TakesLabels fails 1 of \d+ checks:.*labels_are_accepted_nowhere"):
        check_method(TakesLabels)


@pytest.mark.parametrize("given", [Sound(np.eye(2)), 3, dict], ids=["instance", "number", "other class"])
def test_check_method_accepts_a_class_or_a_name(given):
    with pytest.raises(TypeError, match=r"method must be a subclass .*Fix: check_method\(type\(method\)"):
        check_method(given)


def test_make_problem_rejects_empty_problems():
    with pytest.raises(ValueError, match="classes must be an integer of at least 1; got 0"):
        make_problem(classes=0)


def test_an_exception_can_be_declared_with_a_reason():
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


def test_an_unnecessary_or_unknown_exception_is_a_failure():
    class Needless(Sound):
        """Takes prototypes and logit_scale.

        >>> 1
        1
        """

        check_exceptions = {"one_class": "not true"}  # noqa: RUF012

    with pytest.raises(AssertionError, match="remove the declaration"):
        check_method(Needless)
    Needless.check_exceptions = {"no_such_check": "?"}
    with pytest.raises(ValueError, match="which is not a check"):
        check_method(Needless)
