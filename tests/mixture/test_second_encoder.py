"""A second encoder: equal to the transcription, useless features hardly count, and what is refused."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from mixture import transcription
from mixture.sets import class_sorted, few_classes, first_rows, make_support, pack_stream
from zeroshift import OnlineAnchoredMixture, TransductiveAnchoredMixture, normalize
from zeroshift.testing import make_problem

TOLERANCE = 1e-9
STREAMS = {"mixed": lambda: first_rows("small"), "sorted by class": class_sorted, "a third": few_classes}
NAMES = pytest.mark.parametrize("name", STREAMS)
BOTH = pytest.mark.parametrize("cls", [OnlineAnchoredMixture, TransductiveAnchoredMixture], ids=lambda cls: cls.name)


def useful(stream, dimension=7, noise=0.1):
    """Features of another encoder for the same images: theirs in other coordinates, with noise."""
    draw = np.random.default_rng(70)
    seen = (stream.features - stream.features.mean(axis=0)) @ draw.normal(size=(stream.features.shape[1], dimension))
    return normalize(seen + noise * draw.normal(size=seen.shape))


def useless(n, dimension=7):
    return normalize(np.random.default_rng(71).normal(size=(n, dimension)))


def create(cls, stream, **parameters):
    return cls(stream.prototypes, logit_scale=stream.logit_scale, **parameters)


@NAMES
@pytest.mark.parametrize(
    "parameters",
    [{}, {"staleness": 0.0}, {"support": True}, {"first_samples": 30}],
    ids=str,
)
def test_streams_equal_the_transcription(name, parameters):
    stream = STREAMS[name]()
    if parameters.get("support"):
        parameters = {"support": make_support(stream)}
    second = useful(stream)
    method = create(OnlineAnchoredMixture, stream, **parameters)
    given = {"logit_scale": stream.logit_scale, **parameters}
    run = transcription.online(stream.features, stream.prototypes, second=second, **given)
    found = np.concatenate(
        [method.adapt(stream.features[rows], second=second[rows]) for rows in (slice(33), slice(33, None))]
    )
    np.testing.assert_allclose(found, run.probabilities, rtol=0, atol=1e-8)
    assert method.second_weight == pytest.approx(run.found.omega, abs=1e-8)


@NAMES
@pytest.mark.parametrize("parameters", [{}, {"rounds": 1}, {"rounds": 2}, {"support": True}], ids=str)
def test_sets_equal_the_transcription(name, parameters):
    stream = STREAMS[name]()
    if parameters.get("support"):
        parameters = {"support": make_support(stream)}
    second = useful(stream)
    method = create(TransductiveAnchoredMixture, stream, chunk_size=37, **parameters)
    given = {"logit_scale": stream.logit_scale, **parameters}
    expected, memory = transcription.transductive(stream.features, stream.prototypes, second=second, **given)
    np.testing.assert_allclose(method.adapt(stream.features, second=second), expected, rtol=0, atol=TOLERANCE)
    labelled = transcription.one_hot(parameters.get("support"), len(stream.prototypes))
    settings = transcription.transductive_settings(logit_scale=stream.logit_scale)
    found = transcription.statistics(memory, labelled, stream.prototypes, settings)
    assert method.second_weight == pytest.approx(found.omega, abs=TOLERANCE)
    others = make_problem(*stream.prototypes.shape, 20, seed=72).features
    expected = transcription.predict(others, memory, labelled, stream.prototypes, settings)
    np.testing.assert_allclose(method.predict(others), expected, rtol=0, atol=TOLERANCE)


@BOTH
def test_features_that_show_the_classes_count_and_useless_ones_do_not(cls):
    stream = pack_stream(300)
    draw = np.random.default_rng(73)
    labels = create(cls, stream).predict(stream.features).argmax(axis=1)
    helpful = normalize(np.eye(10)[labels] + 0.1 * draw.normal(size=(300, 10)))
    weights, answers = {}, {}
    for name, second in {"none": None, "helpful": helpful, "useless": useless(300, 64)}.items():
        method = create(cls, stream)
        answers[name] = method.adapt(stream.features, second=second).argmax(axis=1)
        weights[name] = method.second_weight
    assert weights["none"] == 0.0
    assert weights["useless"] < 0.01
    assert weights["helpful"] > 0.3
    assert (answers["useless"] == answers["none"]).mean() > 0.99


@BOTH
def test_a_copy_of_the_first_encoder_changes_little(cls):
    stream = pack_stream(300)
    alone, twice = create(cls, stream), create(cls, stream)
    expected = alone.adapt(stream.features).argmax(axis=1)
    assert (twice.adapt(stream.features, second=stream.features).argmax(axis=1) == expected).mean() > 0.97


@BOTH
def test_one_sample_scores_and_torch(cls):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    stream = first_rows("small")
    second = useful(stream)
    plain = create(cls, stream)
    expected = plain.adapt(stream.features, second=second)
    scores = create(cls, stream).adapt_scores(stream.features, second=second)
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    np.testing.assert_allclose(odds / odds.sum(axis=1, keepdims=True), expected, rtol=0, atol=TOLERANCE)
    one = plain.predict(stream.features[3], second=second[3])
    assert one.shape == (5,)
    np.testing.assert_allclose(plain.predict(stream.features[3:4], second=second[3:4])[0], one, rtol=0, atol=1e-14)
    tensors = cls(torch.from_numpy(stream.prototypes), logit_scale=stream.logit_scale)
    found = tensors.adapt(torch.from_numpy(stream.features), second=torch.from_numpy(second))
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=TOLERANCE)
    found = tensors.predict_scores(torch.from_numpy(stream.features), second=torch.from_numpy(second))
    expected = plain.predict_scores(stream.features, second=second)
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-8)


@BOTH
def test_predict_with_and_without_the_second_encoder_changes_nothing(cls):
    stream = first_rows("small")
    second = useful(stream, noise=0.0)
    method = create(cls, stream)
    method.adapt(stream.features, second=second)
    before, _ = copy.deepcopy(method._state())
    with_second, without = method.predict(stream.features, second=second), method.predict(stream.features)
    assert np.abs(with_second - without).max() > 1e-6
    for name, array in method._state()[0].items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)


def test_surveys_of_parts_equal_adapt():
    stream = few_classes()
    second = useful(stream)
    whole = create(TransductiveAnchoredMixture, stream, rounds=3)
    expected = whole.adapt(stream.features, second=second)
    method = whole.clone()
    for _ in range(3):
        first, last = (
            method.survey(stream.features[rows], second=second[rows]) for rows in (slice(30), slice(30, None))
        )
        method = first.merge(last)
    found = method.predict(stream.features, second=second)
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)
    assert method.second_weight == pytest.approx(whole.second_weight, abs=TOLERANCE)


def test_merged_streams_add_what_both_encoders_learned():
    stream = class_sorted()
    second = useful(stream)
    one, other = (create(OnlineAnchoredMixture, stream) for _ in range(2))
    one.adapt(stream.features[:50], second=second[:50])
    other.adapt(stream.features[50:], second=second[50:])
    given = {"logit_scale": stream.logit_scale}
    parts = [
        transcription.online(stream.features[rows], stream.prototypes, second=second[rows], **given).memory
        for rows in (slice(50), slice(50, None))
    ]
    fresh = create(OnlineAnchoredMixture, stream).merge(one)
    np.testing.assert_allclose(fresh.counts, one.counts)
    one.merge(other)
    memory = parts[0].joined(parts[1])
    expected = transcription.predict(
        stream.features, memory, [], stream.prototypes, transcription.Settings(**given), second
    )
    np.testing.assert_allclose(one.predict(stream.features, second=second), expected, rtol=0, atol=TOLERANCE)


STREAM = first_rows("small")
SECOND = useful(STREAM)


@BOTH
@pytest.mark.parametrize(
    ("features", "second", "message"),
    [
        (STREAM.features[:5], SECOND[:4], "second has 4 rows, but features has 5.*Fix: features of the same images"),
        (STREAM.features[0], SECOND[:1], r"second has 2 dimension\(s\), but features has 1.*Fix: one row of each"),
        (STREAM.features[:5], SECOND[0], r"second has 1 dimension\(s\), but features has 2"),
        (STREAM.features[:5], 2 * SECOND[:5], "second row 0 has length 2.*Fix: zeroshift.normalize"),
        (STREAM.features[:5], np.full((5, 7), np.nan), "second"),
        (STREAM.features[:5, :3], SECOND[:5], "features"),
        (STREAM.features[:5], np.zeros((5, 0)), "second is empty"),
    ],
    ids=["rows", "one sample", "one row", "length", "not a number", "columns", "no columns"],
)
def test_invalid_features_are_refused_before_anything_is_learned(cls, features, second, message):
    method = create(cls, STREAM)
    ordered = [method.adapt_late, method.smooth] if cls is OnlineAnchoredMixture else [method.survey]
    for call in (method.adapt, method.adapt_scores, method.predict, method.predict_scores, *ordered):
        with pytest.raises(ValueError, match=message):
            call(features, second=second)
    assert method.n_seen == 0


def test_a_stream_has_the_second_encoder_for_all_samples_or_for_none():
    method = create(OnlineAnchoredMixture, STREAM, lag=2)
    method.adapt(STREAM.features[:20], second=SECOND[:20])
    rows = STREAM.features[20:30]
    views = np.repeat(rows[:, None], 2, axis=1)
    for call, given in (
        (method.adapt, rows),
        (method.adapt_late, rows),
        (method.smooth, rows),
        (method.adapt_views, views),
    ):
        with pytest.raises(ValueError, match=r"second is missing: the 20 samples before.*Fix: second=\.\.\., or reset"):
            call(given)
    narrow = useful(STREAM, dimension=3)[20:30]
    for call in (method.adapt, method.predict):
        with pytest.raises(
            ValueError, match=r"second has 3 columns, but for the 20 samples before it had 7 columns. Fix: "
        ):
            call(rows, second=narrow)
    assert method.n_seen == 20
    method.adapt(rows, second=SECOND[20:30])
    method.reset()
    method.adapt(rows)
    for call in (method.adapt, method.predict):
        with pytest.raises(
            ValueError, match=r"second has 3 columns, but for the 10 samples before it was not given. Fix: "
        ):
            call(rows, second=narrow)
    method.reset()
    method.predict(rows, second=narrow)  # nothing is learned yet, so that any encoder may come
    method.adapt(rows, second=narrow)


def test_a_set_may_have_another_second_encoder_than_the_set_before():
    method = create(TransductiveAnchoredMixture, STREAM)
    narrow = useful(STREAM, dimension=3)
    for second in (SECOND, narrow, None, SECOND):
        fresh = create(TransductiveAnchoredMixture, STREAM).adapt(STREAM.features, second=second)
        np.testing.assert_array_equal(method.adapt(STREAM.features, second=second), fresh)
    for call in (method.predict, method.survey):
        with pytest.raises(ValueError, match=r"second has 3 columns, but for the 80 samples before it had 7 columns"):
            call(STREAM.features, second=narrow)
    with pytest.raises(ValueError, match="second is missing"):
        method.survey(STREAM.features)


@BOTH
def test_methods_with_other_encoders_are_not_merged(cls):
    parts = {}
    for name, second in {"seven": SECOND, "three": useful(STREAM, dimension=3), "none": None}.items():
        parts[name] = create(cls, STREAM)
        parts[name].adapt(STREAM.features, second=second)
    before = parts["seven"].predict(STREAM.features)
    for other in ("three", "none"):
        with pytest.raises(
            ValueError, match=r"columns of a second encoder.*Fix: second=.* from the same encoder for both"
        ):
            parts["seven"].merge(parts[other])
    np.testing.assert_array_equal(parts["seven"].predict(STREAM.features), before)
    assert parts["seven"].n_seen == 80
