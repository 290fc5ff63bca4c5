"""Late answers and recordings of the mixture with a second encoder."""

from __future__ import annotations

import numpy as np
import pytest

from zeroshift import OnlineAnchoredMixture, normalize

K, D, E = 5, 8, 6


@pytest.fixture(scope="module")
def stream():
    """Prototypes, and features of two encoders in runs of ten samples of a class."""
    rng = np.random.default_rng(0)
    prototypes = normalize(rng.normal(size=(K, D)))
    labels = np.repeat(rng.integers(K, size=30), 10)
    features = normalize(prototypes[labels] + 0.4 * rng.normal(size=(300, D)))
    second = normalize(np.eye(K, E)[labels] + 0.3 * rng.normal(size=(300, E)))
    return prototypes, features, second


def mixture(stream, **parameters):
    return OnlineAnchoredMixture(stream[0], logit_scale=10.0, **parameters)


def test_without_a_lag_late_answers_with_a_second_encoder_are_those_of_adapt(stream):
    _, features, second = stream
    expected = mixture(stream).adapt(features, second=second)
    assert np.abs(expected - mixture(stream).adapt(features)).max() > 1e-4
    np.testing.assert_allclose(mixture(stream).adapt_late(features, second=second), expected, atol=1e-12)


def test_late_answers_with_a_second_encoder_do_not_depend_on_the_calls(stream):
    _, features, second = stream
    whole, parts = mixture(stream, lag=3), mixture(stream, lag=3)
    expected = np.concatenate([whole.adapt_late(features, second=second), whole.finish()])
    answers = [parts.adapt_late(features[0], second=second[0])]
    for rows in (slice(1, 90), slice(90, 92), slice(92, 300)):
        answers.append(parts.adapt_late(features[rows], second=second[rows]))
    assert [len(part) for part in answers] == [0, 87, 2, 208]
    np.testing.assert_allclose(np.concatenate([*answers, parts.finish()]), expected, atol=1e-12)


def test_a_recording_with_a_second_encoder_is_learned_as_by_adapt(stream):
    _, features, second = stream
    recording, adapted = mixture(stream), mixture(stream)
    answers = recording.smooth(features, second=second)
    adapted.adapt(features, second=second)
    assert recording.second_weight == pytest.approx(adapted.second_weight) != 0
    np.testing.assert_allclose(
        recording.predict(features, second=second), adapted.predict(features, second=second), atol=1e-12
    )
    assert np.abs(answers - mixture(stream).smooth(features)).max() > 1e-4


@pytest.mark.parametrize("call", ["adapt_late", "smooth"])
def test_a_second_encoder_is_checked(stream, call):
    _, features, second = stream
    method = mixture(stream)
    with pytest.raises(ValueError, match="second has 10 rows, but features has 300"):
        getattr(method, call)(features, second=second[:10])
    assert method.n_seen == 0
    getattr(method, call)(features, second=second)
    with pytest.raises(ValueError, match="second is missing: the 300 samples before"):
        getattr(method, call)(features)
