"""The filter around any online method: its definition, its life with the method's own state, and its names."""

from __future__ import annotations

import copy
import pickle
from typing import ClassVar

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from zeroshift import OnlineADAPT, StickyFilter, ZeroShot, methods
from zeroshift.arrays import Array
from zeroshift.data import packs
from zeroshift.evaluate.method_spec import MethodSpec
from zeroshift.files import FileFormatError
from zeroshift.methods import OGA, TDA, DPCore, OnlineMethod, TransCLIP
from zeroshift.parameters import state
from zeroshift.sticky import BALANCE, COOLING, LateAnswers, StickyClasses, smooth
from zeroshift.testing import check_method, make_problem
from zeroshift.zero_shot import posterior

SCALE = 20.0
TEMPERATURES = 2.0 ** (-np.arange(13) / 2.0)


class Nearest(OnlineMethod):
    """A user's own class, without a logit scale: running means of the samples nearest to each prototype."""

    name = "nearest"
    state_size = "K d"
    complexity = "O(K d)"
    check_exceptions: ClassVar = {"predict_before_adapt_is_zero_shot": "its scale is its own"}

    _sums: Array = state(lambda self: self.zeros(self.n_classes, self.dimension), merge="sum")

    def learn(self, x):
        self._sums[int((self.prototypes64 @ x).argmax())] += x

    def score(self, features):
        return 30.0 * features @ (self.prototypes64 + 0.1 * self._sums).T


def sorted_problem(samples=120, **geometry):
    problem = make_problem(samples=samples, **{"classes": 6, "noise": 0.7, **geometry})
    order = np.argsort(problem.labels, kind="stable")
    return problem.features[order], problem.prototypes, problem.labels[order]


def definition(probabilities, y):
    """(log-evidence, stay, chain after, filtered), with the temperatures written out sample by sample."""
    log_p = np.log(np.maximum(probabilities, 1e-30))
    evidence, reference, curve = [], 1.0, np.linspace(1.0, 0.0, 13)
    for row, zero_shot in zip(log_p, y, strict=True):
        exponent = np.exp(np.interp(reference, curve[::-1], np.log(TEMPERATURES[::-1])))
        evidence.append(exponent * row)
        reference += zero_shot[row.argmax()]
        powers = np.exp(np.outer(TEMPERATURES, row))
        curve = curve + powers.max(axis=1) / powers.sum(axis=1)
    stay, chain = StickyClasses(y.shape[1]).observe(y)
    balanced = balance(np.array(evidence), stay)
    filtered, chain = chain.filter(balanced, stay)
    return np.array(evidence), stay, chain, filtered


def balance(evidence, stay):
    sums, balanced = np.ones(evidence.shape[1]), []
    for row, a in zip(evidence, stay, strict=True):
        balanced.append(row - BALANCE * a * np.log(sums / sums.sum()))
        sums = sums + np.exp(row) / np.exp(row).sum()
    return np.array(balanced)


def cooled(log_posteriors, stay):
    powers = np.exp((1 - COOLING * stay)[:, None] * (log_posteriors - log_posteriors.max(axis=1, keepdims=True)))
    return powers / powers.sum(axis=1, keepdims=True)


def make(kind, prototypes):
    if kind is Nearest:
        return Nearest(prototypes)
    more = {"batch_size": 8} if kind is OGA else {}
    return kind(prototypes, logit_scale=SCALE, **more)


KINDS = [ZeroShot, OnlineADAPT, TDA, OGA, Nearest]


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_the_definition(kind):
    features, prototypes, _ = sorted_problem()
    method = make(kind, prototypes)
    filtered = StickyFilter(method)
    answers = filtered.adapt(features)
    y = posterior(features, prototypes, 100.0 if kind is Nearest else SCALE)
    _, stay, _, expected = definition(method.adapt(features), y)
    assert stay.max() > 0.5  # so that the order matters
    np.testing.assert_allclose(answers, cooled(expected, stay), atol=1e-9)
    np.testing.assert_allclose(StickyFilter(make(kind, prototypes)).adapt_scores(features), np.log(answers), atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_it_continues_and_learns_as_the_method_does(kind):
    features, prototypes, _ = sorted_problem()
    method = make(kind, prototypes)
    method.adapt(features[:64])
    filtered = StickyFilter(method, lag=2)
    before = filtered.predict(features)
    np.testing.assert_array_equal(before, method.predict(features))
    filtered.adapt(features[64:])
    np.testing.assert_array_equal(method.predict(features), before)
    method.adapt(features[64:])
    np.testing.assert_array_equal(filtered.predict_scores(features), method.predict_scores(features))
    assert filtered.n_seen == method.n_seen == len(features)
    assert isinstance(filtered, kind)
    assert repr(filtered).startswith(f"StickyFilter.of({kind.__name__})(<prototypes 6 x 16, numpy>")


def test_views_are_filtered_too():
    features, prototypes, _ = sorted_problem()
    views = np.stack([features, np.roll(features, 1, axis=1)], axis=1)
    method = TDA(prototypes, logit_scale=SCALE)
    answers = StickyFilter(method).adapt_views(views)
    _, stay, _, expected = definition(method.adapt_views(views), posterior(features, prototypes, SCALE))
    np.testing.assert_allclose(answers, cooled(expected, stay), atol=1e-9)


@pytest.mark.parametrize("name", ["zero_shot", "tda", "adapt_online"])
def test_order_helps_where_there_is_one_and_random_order_changes_no_label(name):
    pack = packs.load("cifar10")
    arguments = pack.prototypes_for(), {"logit_scale": pack.logit_scale}
    rows = np.arange(600)
    for order in (rows, rows[np.argsort(pack.labels[rows], kind="stable")]):
        with threadpool_limits(1):
            own = methods.create(name, arguments[0], **arguments[1]).adapt(pack.features[order]).argmax(axis=1)
            ours = methods.create(f"{name}+filter", arguments[0], **arguments[1]).adapt(pack.features[order])
        if order is rows:
            np.testing.assert_array_equal(ours.argmax(axis=1), own)
        else:
            gain = (ours.argmax(axis=1) == pack.labels[order]).mean() - (own == pack.labels[order]).mean()
            assert gain > 0.08


@pytest.mark.parametrize("lag", [0, 1, 3, 500])
@pytest.mark.parametrize("cuts", [(120,), (1, 2, 0, 77, 120), (40, 41, 42, 120)])
def test_late_answers(lag, cuts):
    features, prototypes, _ = sorted_problem()
    filtered = StickyFilter(ZeroShot(prototypes, logit_scale=SCALE), lag=lag)
    answers, start = [], 0
    for stop in cuts:
        if stop > start:
            answers.append(filtered.adapt_late(features[start:stop]))
            start = stop
        assert sum(map(len, answers)) == max(0, start - lag)
    answers.append(filtered.finish())
    y = posterior(features, prototypes, SCALE)
    evidence, stay, _, expected = definition(y, y)
    late, rest = LateAnswers(6, lag).add(expected, balance(evidence, stay), stay)
    late = np.concatenate([late, rest.finish()[0]])
    np.testing.assert_allclose(np.concatenate(answers), cooled(late, stay), atol=1e-9)
    assert filtered.finish().shape == (0, 6)
    assert filtered.n_seen == 120


def test_smoothing_uses_every_sample():
    features, prototypes, _ = sorted_problem()
    method = OnlineADAPT(prototypes, logit_scale=SCALE)
    filtered = StickyFilter(method)
    answers = filtered.smooth(features)
    evidence, _, chain, _ = definition(method.adapt(features), posterior(features, prototypes, SCALE))
    stay = np.full(len(features), chain.stay)
    mean = (1 + (np.exp(evidence) / np.exp(evidence).sum(axis=1, keepdims=True)).sum(axis=0)) / (6 + len(evidence))
    balanced = evidence - BALANCE * stay[:, None] * np.log(mean)
    expected = smooth(StickyClasses(6).filter(balanced, stay)[0], balanced, stay)
    np.testing.assert_allclose(answers, cooled(expected, stay), atol=1e-9)
    assert method.n_seen == filtered.n_seen
    # A recording that follows a stream.
    follows, alone = (StickyFilter(ZeroShot(prototypes, logit_scale=SCALE)) for _ in range(2))
    follows.adapt(features[:90])
    assert not np.allclose(follows.smooth(features[90:]), alone.smooth(features[90:]))


@pytest.mark.parametrize("call", ["adapt", "smooth", "adapt_scores"])
def test_answers_at_once_wait_until_late_ones_are_given(call):
    features, prototypes, _ = sorted_problem()
    method = StickyFilter(ZeroShot(prototypes, logit_scale=SCALE), lag=3)
    method.adapt_late(features[:5])
    with pytest.raises(RuntimeError, match=r"3 answers of adapt_late are still due.*finish\(\)"):
        getattr(method, call)(features[5:])
    assert method.n_seen == 5
    assert len(method.finish()) == 3
    getattr(method, call)(features[5:])
    assert method.n_seen == 120


@pytest.mark.parametrize("kind", KINDS)
def test_files_copies_and_pickles_continue_with_late_answers_due(kind, tmp_path):
    features, prototypes, _ = sorted_problem()
    method = StickyFilter(make(kind, prototypes), lag=4)
    method.adapt_late(features[:64])
    method.save(tmp_path / "state")
    twins = [copy.copy(method), pickle.loads(pickle.dumps(method)), type(method).load(tmp_path / "state")]
    if kind is not Nearest:
        twins.append(methods.load(tmp_path / "state"))
    expected, rest, stay = method.adapt_late(features[64:]), method.finish(), method.stay
    for twin in twins:
        assert type(twin) is type(method)
        np.testing.assert_array_equal(twin.adapt_late(features[64:]), expected)
        np.testing.assert_array_equal(twin.finish(), rest)
        assert twin.stay == stay
    with pytest.raises(TypeError, match=r"zeroshift\.methods\.load"):
        StickyFilter.load(tmp_path / "state")


def test_merged_filters_add_what_they_know():
    features, prototypes, _ = sorted_problem()
    first, second = StickyFilter(Nearest(prototypes)), StickyFilter(Nearest(prototypes))
    whole = Nearest(prototypes)
    first.adapt(features[:60])
    second.adapt(features[60:])
    whole.adapt(features)
    first.merge(second)
    np.testing.assert_allclose(first.predict(features), whole.predict(features), atol=1e-12)
    assert first.n_seen == 120
    assert first.stay > 0.5
    assert np.isfinite(first.adapt(features)).all()


def test_what_cannot_be_merged():
    features, prototypes, _ = sorted_problem()
    pair = [StickyFilter(Nearest(prototypes), lag=2) for _ in range(2)]
    pair[1].adapt_late(features[:9])
    with pytest.raises(ValueError, match=r"2 late answers are still due.*finish\(\)"):
        pair[0].merge(pair[1])
    assert pair[0].n_seen == 0
    tda = StickyFilter(TDA(prototypes))
    with pytest.raises(TypeError, match="cannot be merged"):
        tda.merge(tda.clone())


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda t: StickyFilter(), TypeError, "method must be an online method; got nothing"),
        (lambda t: StickyFilter(t), TypeError, "method must be an online method; got ndarray"),
        (lambda t: StickyFilter(TransCLIP(t)), ValueError, "it is transductive, it answers for a whole set"),
        (
            lambda t: StickyFilter(StickyFilter(ZeroShot(t))),
            ValueError,
            "zero_shot.filter uses the order of its samples",
        ),
        (lambda t: StickyFilter(ZeroShot(t), lag=-1), ValueError, "lag must be an integer of at least 0; got -1"),
        (lambda t: StickyFilter(ZeroShot(t), lag=1.5), ValueError, "lag must be an integer"),
        (lambda t: StickyFilter(ZeroShot(t), lagg=1), TypeError, "Did you mean 'lag'"),
        (lambda t: StickyFilter(TDA(t), positive_capacity=1), TypeError, "give it to that method"),
        (lambda t: StickyFilter.of("tda"), TypeError, "method must be a class of methods; got 'tda'"),
        (lambda t: StickyFilter.of(DPCore), ValueError, "encodes images itself"),
        (lambda t: methods.create("transclip+filter", t), ValueError, "transclip cannot be filtered.*Fix: choose an"),
        (lambda t: methods.create("tpt+filter", t), ValueError, "tpt cannot be filtered: it is episodic"),
        (lambda t: methods.create("tip_adapter+filter", t), ValueError, "it is few-shot"),
        (lambda t: methods.create("tad+filter", t), ValueError, "Did you mean 'tda'"),
        (lambda t: methods.create("tda+fitler", t), ValueError, "Did you mean .tda.filter"),
        (
            lambda t: methods.create("tda+filter+filter", t),
            ValueError,
            "tda.filter uses the order of its samples by itself",
        ),
    ],
)
def test_mistakes_are_answered(call, error, words):
    with pytest.raises(error, match=words):
        call(np.eye(3, 8))


class Failing(ZeroShot):
    """Fails at the second block of a call, or before the first."""

    name = "failing"

    def _adapt_scores(self, rows):
        for block, x in rows.blocks(10):
            if block.start:
                raise ArithmeticError("a failure")
            with self._learning(10):
                pass
            yield block, self._predict_scores(x)


def test_a_failure_between_blocks_leaves_whole_blocks():
    features, prototypes, _ = sorted_problem()
    method = StickyFilter(Failing(prototypes, logit_scale=SCALE))
    with pytest.raises(ArithmeticError):
        method.adapt(features)
    assert method.n_seen == 10
    expected = StickyFilter(ZeroShot(prototypes, logit_scale=SCALE))
    expected.adapt(features[:10])
    np.testing.assert_array_equal(method.adapt(features[10:20]), expected.adapt(features[10:20]))


def test_an_error_of_the_method_before_it_learned_leaves_the_filter_usable():
    features, prototypes, _ = sorted_problem()
    method = methods.create("tca+filter", prototypes, logit_scale=SCALE)
    method.adapt(features[:4])
    with pytest.raises(ValueError, match="tokens have the shape"):
        method.adapt_tokens(features[4:8], np.ones((4, 2, 5)))
    assert method.n_seen == 4
    method.adapt(features[4:])


def test_states_that_no_samples_lead_to_are_refused(tmp_path):
    features, prototypes, _ = sorted_problem()
    method = StickyFilter(ZeroShot(prototypes, logit_scale=SCALE))
    method.adapt(features)
    method.n_seen = 5
    method.save(tmp_path / "state")
    with pytest.raises(FileFormatError, match="from 0 to"):
        methods.load(tmp_path / "state")


@pytest.mark.parametrize("method", ["tda+filter", StickyFilter.of(Nearest)])
def test_common_checks(method):
    check_method(method)


def test_the_filter_joins_what_the_method_says_of_itself():
    info, own = methods.get("tda+filter"), methods.get("tda")
    assert {"lag", "positive_capacity"} <= {parameter.name for parameter in info.parameters}
    assert (info.name, info.protocol, info.presets) == ("tda+filter", "online", own.presets)
    assert "tda+filter" not in [method.name for method in methods.list_methods()]
    assert MethodSpec.named("tda+views+filter", {"lag": 2}).label == "tda+filter+views lag=2"
