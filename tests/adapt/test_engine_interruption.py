"""Engines that are interrupted half way: nothing is lost, nothing is learned twice."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from comparing import assert_same_bank, assert_same_scores, direct, make, stream_called
from zeroshift import OnlineADAPT
from zeroshift.adapt.bank import KnowledgeBank
from zeroshift.testing import make_problem


class Interrupted(BaseException):
    """As Ctrl-C, but harmless to the test runner."""


@pytest.mark.usefixtures("large")
class TestInterruption:
    """Ctrl-C, or no memory, in the middle: go on from `n_seen` and nothing was lost or learned twice."""

    @pytest.mark.parametrize(
        ("engine", "inside"),
        [
            ("streaming", "precision_dual.DualPrecision.insert"),
            ("streaming", "precision_primal.PrimalPrecision.insert"),
            ("streaming", "class_statistics.ClassSums.insert"),
            ("streaming", "class_statistics.ClassSums.bank_term"),
            ("replay", "class_statistics.ClassSums.insert"),
            ("replay", "replay_blocks.Story.advance"),
            ("replay", "replay_blocks.Story.problem"),
            ("auto", "replay_blocks.Story.problem"),
        ],
    )
    @pytest.mark.parametrize(
        "parameters", [pytest.param({}, marks=pytest.mark.slow), {"bank_size": 3, "batch_size": 4}], ids=str
    )
    def test_rows_interrupted_had_never_come(self, engine, inside, parameters, monkeypatch):
        stream = stream_called("negative cosines")
        expected, _ = direct("negative cosines", **parameters)
        method = make(stream, engine, **parameters)
        method.adapt(stream.features[:4])
        interruptions = 0
        for after in (0, 3, 7, 20):
            with monkeypatch.context() as patch:
                interrupt(patch, inside, after)
                try:
                    method.adapt(stream.features[method.n_seen : method.n_seen + 60])
                except Interrupted:
                    interruptions += 1
            undisturbed = make(stream, "direct", **parameters)
            undisturbed.adapt(stream.features[: method.n_seen])
            assert_same_bank(method, undisturbed)
            assert_same_scores(method.predict_scores(stream.features), undisturbed.predict_scores(stream.features))
        assert interruptions > 0
        done = method.n_seen
        assert_same_scores(method.adapt_scores(stream.features[done:]), expected[done:])

    @pytest.mark.parametrize(
        ("engine", "inside"),
        [
            ("streaming", "precision_primal.PrimalPrecision.insert"),
            ("streaming", "class_statistics.ClassSums.renew"),
            ("replay", "class_statistics.ClassSums.renew"),
            ("replay", "replay_blocks.Story.advance"),
        ],
    )
    @pytest.mark.parametrize("when", ["before", "after"])
    def test_nothing_of_the_interrupted_rows_stays(self, engine, inside, when, monkeypatch):
        """Raised before and after the work was done: bank bit for bit, everything that follows to 1e-9."""
        stream = stream_called("negative cosines")
        method, undisturbed = (make(stream, engine, bank_size=3) for _ in range(2))
        for twin in (method, undisturbed):
            twin.adapt(stream.features[:40])
            # Of all the engine derived from the bank, only rounding may change by deriving it again.
            twin._engine.refresh()
        with monkeypatch.context() as patch:
            interrupt(patch, inside, 0, when)
            with pytest.raises(Interrupted):
                method.adapt(stream.features[40:60])
        done = method.n_seen
        if done > 40:
            undisturbed.adapt(stream.features[40:done])
        assert_same_bank(method, undisturbed, rounding=0)
        assert_same_scores(
            method.adapt_scores(stream.features[done:]), undisturbed.adapt_scores(stream.features[done:])
        )
        np.testing.assert_allclose(method.means, undisturbed.means, rtol=0, atol=1e-12)


def interrupt(patch, inside, after, when="before"):
    """Raise in the given method of the engines, at its call number `after`."""
    module, owner, name = f"zeroshift.adapt.engines.{inside}".rsplit(".", 2)
    owner = getattr(importlib.import_module(module), owner)
    whole = getattr(owner, name)
    calls = iter(range(10**9))

    def interrupted(*arguments, **named):
        last = next(calls) == after
        if last and when == "before":
            raise Interrupted
        answer = whole(*arguments, **named)
        if last:
            raise Interrupted
        return answer

    patch.setattr(owner, name, interrupted)


@pytest.mark.parametrize("engine", ["direct", "streaming", "replay"])
@pytest.mark.parametrize("inside", ["pruned", "prune"])
def test_pruning_that_fails_half_way_is_made_up_for(engine, inside, monkeypatch, large):
    """While it is decided what stays, the samples had never come; from then on they count, and the bank is pruned."""
    features, prototypes, _ = make_problem(8, 16, 200, seed=72)
    settings = {"logit_scale": 20.0, "prune": (50, 0.5)}
    expected = OnlineADAPT(prototypes, engine="direct", **settings).adapt(features)
    method = OnlineADAPT(prototypes, engine=engine, **settings)

    def fail(self, *arguments):
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(KnowledgeBank, inside, fail)
        with pytest.raises(Interrupted):
            method.adapt(features[:60])
    done = method.n_seen
    assert done == 50 if inside == "prune" else done < 50
    np.testing.assert_allclose(method.adapt(features[done:]), expected[done:], rtol=0, atol=1e-6)


@pytest.mark.parametrize("asked", ["predict", "bank_counts", "means", "save", "adapt_views"])
def test_a_prune_that_was_interrupted_shows_nowhere(asked, monkeypatch, tmp_path):
    features, prototypes, _ = make_problem(8, 16, 60, seed=73)
    settings = {"logit_scale": 20.0, "batch_size": 4, "prune": (30, 0.5)}
    twin, method = (OnlineADAPT(prototypes, **settings) for _ in range(2))
    twin.adapt(features[:32])
    with monkeypatch.context() as patch:
        patch.setattr(KnowledgeBank, "prune", lambda self, left: (_ for _ in ()).throw(Interrupted))
        with pytest.raises(Interrupted):
            method.adapt(features)
    assert method.n_seen == 32
    if asked == "save":
        method.save(tmp_path / "state")
        method = OnlineADAPT.load(tmp_path / "state")
    answers = [
        {
            "predict": lambda one: one.predict(features),
            "bank_counts": lambda one: one.bank_counts,
            "means": lambda one: one.means,
            "save": lambda one: one.predict(features),
            "adapt_views": lambda one: one.adapt_views(features[32:].reshape(7, 4, 16)),
        }[asked](one)
        for one in (method, twin)
    ]
    np.testing.assert_allclose(*answers, rtol=0, atol=1e-9)
