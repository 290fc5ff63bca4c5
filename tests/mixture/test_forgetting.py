"""A half-life: equal to the transcription, bounded on a long stream, and merged, saved and divided like any stream."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mixture import transcription
from mixture.sets import class_sorted, few_classes, first_rows, make_support
from zeroshift import OnlineAnchoredMixture
from zeroshift.testing import make_problem

TOLERANCE = 1e-8
STREAMS = {"mixed": lambda: first_rows("medium"), "sorted by class": class_sorted, "a third": few_classes}


def create(stream, **parameters):
    return OnlineAnchoredMixture(stream.prototypes, logit_scale=stream.logit_scale, **parameters)


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("staleness", [0.0, 0.5])
@pytest.mark.parametrize("half_life", [16.0, 100.0])
def test_streams_equal_the_transcription(name, staleness, half_life):
    stream = STREAMS[name]()
    parameters = {"half_life": half_life, "staleness": staleness, "support": make_support(stream)}
    method = create(stream, **parameters)
    run = transcription.online(stream.features, stream.prototypes, logit_scale=stream.logit_scale, **parameters)
    found = np.concatenate([method.adapt(rows) for rows in np.array_split(stream.features, 4)])
    np.testing.assert_allclose(found, run.probabilities, rtol=0, atol=TOLERANCE)
    # The counts also contain the samples since the last update.
    labelled = len(parameters["support"][1])
    assert method.counts.sum() == pytest.approx(sum(one.weight for one in run.memory.samples) + labelled)


def test_a_sample_counts_half_after_the_half_life():
    stream = first_rows("small")
    method = create(stream, half_life=20.0, staleness=0.0)
    method.adapt(stream.features[:1])
    first = method.counts
    method.adapt(stream.features[1:21])
    assert method.counts.sum() == pytest.approx(sum(0.5 ** (age / 20) for age in range(21)))
    expected = sum(0.5 ** (age / 20) for age in range(20))
    assert method.counts.sum() - expected == pytest.approx(first.sum() / 2)


def test_a_long_stream_weighs_no_more_than_the_half_life_allows():
    """1.44 half-lives: the sum of 2^(-age/n) is below n / ln 2 + 1."""
    problem = make_problem(6, 12, 3000, seed=80)
    method = OnlineAnchoredMixture(problem.prototypes, logit_scale=20.0, half_life=100.0)
    method.adapt(problem.features)
    weight = method.counts.sum()
    assert 100 < weight < 100 / math.log(2) + 2
    assert method.reliability < 1.5 * 100 / (1.5 * 100 + 32 * 6)
    assert method.n_seen == 3000
    assert method._stream.n_counted + method._stream.n_pending == 3000
    forever = OnlineAnchoredMixture(problem.prototypes, logit_scale=20.0)
    forever.adapt(problem.features)
    assert forever.counts.sum() == pytest.approx(3000)


def test_what_is_forgotten_no_longer_matters():
    """The same samples after different pasts lead to nearly the same classes."""
    problem = make_problem(6, 12, 400, seed=81)
    pasts = [make_problem(6, 12, 100, seed=seed).features for seed in (82, 83)]
    means = {}
    for half_life in (None, 20.0):
        learned = []
        for past in pasts:
            method = OnlineAnchoredMixture(problem.prototypes, logit_scale=20.0, half_life=half_life, order="none")
            method.adapt(past)
            method.adapt(problem.features)
            learned.append(method.means)
        means[half_life] = np.abs(learned[0] - learned[1]).max()
    assert means[20.0] < 0.01 * means[None]


@pytest.mark.parametrize("staleness", [0.0, 0.03125])
def test_merged_streams_predict_and_continue_like_the_transcription(staleness):
    stream = class_sorted()
    first, second, rest = np.array_split(stream.features, [43, 70])
    given = {"logit_scale": stream.logit_scale, "half_life": 25.0, "staleness": staleness}
    one, other = (OnlineAnchoredMixture(stream.prototypes, **given) for _ in range(2))
    one.adapt(first)
    other.adapt(second)
    one.merge(other)
    parts = [transcription.online(part, stream.prototypes, **given).memory for part in (first, second)]
    memory = parts[0].joined(parts[1])
    settings = transcription.Settings(logit_scale=stream.logit_scale, half_life=25.0)
    expected = transcription.predict(rest, memory, [], stream.prototypes, settings)
    np.testing.assert_allclose(one.predict(rest), expected, rtol=0, atol=TOLERANCE)
    run = transcription.online(rest, stream.prototypes, memory=memory, **given)
    np.testing.assert_allclose(one.adapt(rest), run.probabilities, rtol=0, atol=TOLERANCE)


def test_streams_with_other_half_lives_are_not_merged():
    stream = first_rows("small")
    with pytest.raises(ValueError, match=r"another half_life \(50\.0\)"):
        create(stream).merge(create(stream, half_life=50.0))
