"""Streams with an order: the filter, b, late answers and smoothing, against the transcription and on bundled packs."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest

from mixture import transcription
from mixture.sets import class_sorted, few_classes, first_rows, repeated_samples
from zeroshift import OnlineAnchoredMixture, ZeroShot
from zeroshift.data import packs
from zeroshift.evaluate.streams import StreamSpec

TOLERANCE = 1e-9
STREAMS = {
    "sorted by class": class_sorted,
    "every sample three times": repeated_samples,
    "mixed": lambda: first_rows("medium"),
    "a third": few_classes,
}
NAMES = pytest.mark.parametrize("name", STREAMS)


def create(stream, **parameters):
    return OnlineAnchoredMixture(stream.prototypes, logit_scale=stream.logit_scale, **parameters)


def transcribed(stream, rows=slice(None), **parameters):
    return transcription.online(stream.features[rows], stream.prototypes, logit_scale=stream.logit_scale, **parameters)


def late_answers(method, features, cuts):
    parts = [method.adapt_late(features[a:b]) for a, b in itertools.pairwise([0, *cuts, len(features)]) if b > a]
    return np.concatenate([*parts, method.finish()])


@NAMES
def test_the_estimate_of_staying(name):
    """Also for streams without order, in which it is zero from the first sample to the last."""
    stream = STREAMS[name]()
    method, chain = create(stream), transcription.Chain(len(stream.prototypes))
    for x in stream.features:
        assert method.stay == pytest.approx(chain.stay(), abs=TOLERANCE)
        method.adapt(x)
        log_y = transcription.log_zero_shot(
            x, stream.prototypes, transcription.Settings(logit_scale=stream.logit_scale)
        )
        chain.observe(np.exp(log_y))
    ordered = name in ("sorted by class", "every sample three times")
    assert (method.stay > 0.5) == ordered
    assert (method.stay == 0.0) != ordered
    assert method.caution >= min(1.0, 2 * method.stay)


def test_before_there_is_a_mixture_answers_are_filtered_zero_shot():
    """With f the answer before: f' is proportional to (a f + (1 - a)/K) y / b^(0.75 g)."""
    stream = class_sorted()
    method = create(stream, first_samples=10**6)
    answers = method.adapt(stream.features)
    chain, before, classes = transcription.Chain(5), np.full(5, 0.2), 5
    y = np.exp(
        [
            transcription.log_zero_shot(x, stream.prototypes, transcription.Settings(logit_scale=60.0))
            for x in stream.features
        ]
    )
    for i in range(len(y)):
        a, g = chain.stay_and_order_of_next()
        b = (1 + y[:i].sum(axis=0)) / (classes + i)
        expected = (a * before + (1 - a) / classes) * y[i] / b ** (0.75 * g)
        before = expected / expected.sum()
        np.testing.assert_allclose(answers[i], before, rtol=0, atol=1e-12)
        chain.observe(y[i])
    assert np.abs(answers - y).max() > 0.02


def test_the_filter_uses_the_answer_before():
    """Two streams that differ in one sample answer the next one differently, if there is an order."""
    stream = class_sorted()
    x = stream.features[-1]
    answers = {}
    for order in ("auto", "none"):
        one, other = create(stream, order=order), create(stream, order=order)
        one.adapt(stream.features[:71])
        other.adapt(np.concatenate([stream.features[:70], stream.features[:1]]))
        answers[order] = np.abs(one.adapt(x) - other.adapt(x)).max()
    assert answers["auto"] > 10 * answers["none"]


def test_predict_divides_by_what_zero_shot_favours_but_has_no_sample_before():
    stream = class_sorted()
    method = create(stream)
    run = transcribed(stream)
    method.adapt(stream.features)
    settings = transcription.Settings(logit_scale=stream.logit_scale)
    expected = transcription.predict(stream.features, run.memory, [], stream.prototypes, settings, found=run.found)
    np.testing.assert_allclose(method.predict(stream.features), expected, rtol=0, atol=TOLERANCE)
    rows = np.arange(len(stream.features))[::-1]
    np.testing.assert_allclose(method.predict(stream.features[rows]), expected[rows], rtol=0, atol=TOLERANCE)
    without = create(stream, balance=0.0)
    without.adapt(stream.features)
    assert np.abs(without.predict(stream.features) - expected).max() > 1e-3


@NAMES
@pytest.mark.parametrize("lag", [0, 1, 7, 200])
@pytest.mark.sampled(3)
def test_late_answers_equal_the_transcription_however_the_stream_is_divided(name, lag):
    stream = STREAMS[name]()
    expected = transcription.late(transcribed(stream), lag)
    n = len(stream.features)
    for cuts in ((), (1, 2, 40)):
        method = create(stream, lag=lag)
        found = late_answers(method, stream.features, cuts)
        np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)
        assert method.n_seen == n


def test_late_answers_learn_as_answers_at_once_do():
    stream = class_sorted()
    at_once, late = create(stream), create(stream, lag=3)
    answers = at_once.adapt(stream.features)
    assert late.adapt_late(stream.features[:20]).shape == (17, 5)
    assert late.adapt_late(stream.features[20:]).shape == (60, 5)
    assert late.finish().shape == (3, 5)
    np.testing.assert_allclose(late.predict(stream.features), at_once.predict(stream.features), rtol=0, atol=1e-12)
    np.testing.assert_allclose(create(stream, lag=3).adapt(stream.features), answers, rtol=0, atol=1e-12)


def test_a_lag_longer_than_the_stream_answers_at_the_end():
    stream = class_sorted()
    method = create(stream, lag=100)
    assert method.adapt_late(stream.features).shape == (0, 5)
    smoothed = method.finish()
    assert smoothed.shape == (80, 5)
    np.testing.assert_allclose(smoothed, transcription.late(transcribed(stream), 100), rtol=0, atol=TOLERANCE)
    assert method.finish().shape == (0, 5)


def test_one_sample_and_no_sample():
    stream = class_sorted()
    method = create(stream, lag=1)
    assert method.finish().shape == (0, 5)
    assert method.adapt_late(stream.features[0]).shape == (0, 5)
    assert method.adapt_late(stream.features[1]).shape == (1, 5)
    for call in (method.adapt_late, method.smooth):
        assert call(stream.features[:0]).shape == (0, 5)
    assert method.n_seen == 2


@pytest.mark.parametrize("call", ["adapt", "adapt_scores", "smooth", "adapt_views"])
def test_answers_at_once_are_refused_while_late_ones_are_due(call):
    stream = class_sorted()
    method = create(stream, lag=2)
    method.adapt_late(stream.features[:10])
    rows = stream.features[10:14]
    with pytest.raises(RuntimeError, match=r"2 answers of adapt_late are still due, .*Fix: call finish\(\) first"):
        getattr(method, call)(np.repeat(rows[:, None], 2, axis=1) if call == "adapt_views" else rows)
    assert method.n_seen == 10
    method.predict(rows)
    method.finish()
    method.adapt(rows)
    assert method.n_seen == 14


@NAMES
@pytest.mark.parametrize("parameters", [{}, {"order": "none"}, {"balance": 0.3}, {"first_samples": 60}], ids=str)
def test_smooth_equals_the_transcription(name, parameters):
    stream = STREAMS[name]()
    settings = transcription.Settings(logit_scale=stream.logit_scale, **parameters)
    method = create(stream, **parameters)
    first, run = slice(30), transcribed(stream, slice(30), **parameters)
    expected = transcription.smooth(run, settings)
    np.testing.assert_allclose(method.smooth(stream.features[first]), expected, rtol=0, atol=TOLERANCE)


def test_a_recording_may_follow_a_stream():
    """With staleness 0 no sample waits for the next update, so that the transcription can be continued."""
    stream = class_sorted()
    method = create(stream, staleness=0.0)
    method.adapt(stream.features[:35])
    run = transcribed(stream, slice(35), staleness=0.0)
    run = transcribed(stream, slice(35, None), staleness=0.0, memory=run.memory)
    assert run.follows
    settings = transcription.Settings(logit_scale=stream.logit_scale)
    expected = transcription.smooth(run, settings)
    np.testing.assert_allclose(method.smooth(stream.features[35:]), expected, rtol=0, atol=TOLERANCE)
    assert method.n_seen == 80


def test_numpy_and_torch_agree_on_late_answers():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    stream = class_sorted()
    tensors = stream._replace(prototypes=torch.from_numpy(stream.prototypes))
    expected = late_answers(create(stream, lag=4), stream.features, (30,))
    method = create(tensors, lag=4)
    parts = [method.adapt_late(torch.from_numpy(stream.features)), method.finish()]
    assert all(isinstance(part, torch.Tensor) for part in parts)
    np.testing.assert_allclose(torch.cat(parts).numpy(), expected, rtol=0, atol=TOLERANCE)
    found = create(tensors).smooth(torch.from_numpy(stream.features).float())
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), create(stream).smooth(stream.features), rtol=0, atol=1e-4)


@functools.cache
def load_pack(name):
    return packs.load(name)


def answers_and_accuracy(call, pack, rows):
    found = np.asarray(call(pack.features[rows])).argmax(axis=1)
    return found, 100 * float((found == pack.labels[rows]).mean())


@pytest.mark.parametrize("name", ["cifar10", pytest.param("fmnist", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["class_sorted", "bursts"])
def test_order_is_worth_several_points_on_a_pack(name, kind):
    """And later answers are better on the whole: smoothing is above the answers at once."""
    pack = load_pack(name)
    rows = StreamSpec(kind).stream(pack, seed=0).rows
    given = {"logit_scale": pack.logit_scale}
    _, zero_shot = answers_and_accuracy(ZeroShot(pack.prototypes_for(), **given).adapt, pack, rows)
    method = OnlineAnchoredMixture(pack.prototypes_for(), **given)
    _, at_once = answers_and_accuracy(method.adapt, pack, rows)
    _, without = answers_and_accuracy(
        OnlineAnchoredMixture(pack.prototypes_for(), order="none", **given).adapt, pack, rows
    )
    _, smoothed = answers_and_accuracy(OnlineAnchoredMixture(pack.prototypes_for(), **given).smooth, pack, rows)
    assert method.stay > 0.5
    assert at_once > max(zero_shot, without) + 2
    assert smoothed > at_once


@pytest.mark.parametrize("name", ["cifar10", "fmnist"])
@pytest.mark.parametrize("kind", ["random", "some_classes"])
def test_the_filter_changes_no_label_in_random_order(name, kind):
    pack = load_pack(name)
    rows = StreamSpec(kind).stream(pack, seed=1).rows
    labels = {}
    for order in ("none", "auto"):
        method = OnlineAnchoredMixture(pack.prototypes_for(), logit_scale=pack.logit_scale, order=order)
        labels[order], _ = answers_and_accuracy(method.adapt, pack, rows)
    np.testing.assert_array_equal(labels["auto"], labels["none"])
    assert method.stay == 0.0
