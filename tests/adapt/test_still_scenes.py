"""Still scenes: samples so close to each other that the covariance nearly vanishes.

The precision is bounded then, and the fast engines compute every insertion directly. The answers are compared with
`direct`, and `direct` with the definition in extended precision.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import extended_precision as extended
from extended_precision import needs_extended_precision
from zeroshift import OnlineADAPT, TransductiveADAPT
from zeroshift.adapt.engines.precision_primal import PrimalPrecision
from zeroshift.linalg import SMALLEST_TRACE

ENGINES_TOLERANCE = 1e-6
"""Documented for the scores of the engines compared with `direct`, in docs/engines.md."""

ROUNDING = 1e-5
"""Documented for the scores of `direct` compared with exact arithmetic, in docs/adapt.md."""

ALPHAS = [0.1, 0.5, 0.9, 0.99, 0.999, 1.0]
DISTANCES = [1e-3, 1e-5, 1e-7, 1e-9]


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def still_scenes(classes: int, dimension: int, samples: int, distance: float, seed: int = 0):
    """Samples about as far as `distance` from one of a few points. Each point is between two prototypes, so that
    the samples of a point enter both banks and nearly equal means compete."""
    rng = np.random.default_rng(seed)
    prototypes = unit(rng.normal(size=(classes, dimension)) + 0.5)
    pairs = classes // 2
    points = unit(prototypes[0 : 2 * pairs : 2] + prototypes[1 : 2 * pairs : 2]) if pairs else prototypes
    scene = np.arange(samples) % len(points)
    noise = rng.normal(size=(samples, dimension)) / dimension**0.5
    return unit(points[scene] + distance * noise), prototypes


@pytest.fixture
def maintained(monkeypatch):
    """Small problems use the form that large ones use."""
    monkeypatch.setattr("zeroshift.adapt.engines.streaming.RECOMPUTE_WORK", 0)


def compare_with_direct(features, prototypes, engine, **parameters):
    """Adapt with an engine, then compare its scores with those of `direct` for the same banks."""
    method, direct = (OnlineADAPT(prototypes, engine=name, **parameters) for name in (engine, "direct"))
    first = len(features) - 20
    method.adapt(features[:first])
    arrays, _ = method._evidence.state()
    direct._evidence.restore({name: array.copy() for name, array in arrays.items()}, {})
    direct._engine.refresh()
    for call in (OnlineADAPT.predict_scores, OnlineADAPT.adapt_scores):
        actual, expected = call(method, features[first:]), call(direct, features[first:])
        assert np.isfinite(actual).all()
        np.testing.assert_allclose(actual, expected, rtol=0, atol=ENGINES_TOLERANCE)
        np.testing.assert_allclose(extended.softmax(actual), extended.softmax(expected), rtol=0, atol=ENGINES_TOLERANCE)
    return method


@pytest.mark.parametrize("engine", ["streaming", "replay"])
@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.sampled(5)
def test_the_engines_stay_with_direct(alpha, distance, engine, maintained):
    features, prototypes = still_scenes(6, 64, 260, distance)
    method = compare_with_direct(features, prototypes, engine, alpha=alpha, bank_size=30)
    assert isinstance(method._engine._precision, PrimalPrecision)


@pytest.mark.parametrize("engine", ["streaming", "replay"])
def test_labels_differ_between_engines_only_where_classes_tie(engine, maintained):
    """As docs/engines.md says about near duplicates."""
    features, prototypes = still_scenes(6, 64, 260, 1e-9)
    answers, expected = (
        OnlineADAPT(prototypes, engine=name, alpha=1.0, bank_size=30).adapt(features) for name in (engine, "direct")
    )
    np.testing.assert_allclose(answers, expected, rtol=0, atol=ENGINES_TOLERANCE)
    highest = np.sort(expected, axis=1)[:, -2:]
    tied = highest[:, 1] - highest[:, 0] <= 2 * ENGINES_TOLERANCE
    assert tied.any()
    assert np.array_equal(answers.argmax(axis=1)[~tied], expected.argmax(axis=1)[~tied])


@pytest.mark.parametrize("engine", ["streaming", "replay"])
@pytest.mark.parametrize(("alpha", "distance"), [(1.0, 1e-3), (1.0, 1e-7), (0.999, 1e-5), (0.9, 1e-5)])
@pytest.mark.sampled(5)
def test_the_engines_stay_with_direct_in_512_dimensions(alpha, distance, engine, monkeypatch):
    monkeypatch.setattr("zeroshift.adapt.engines.streaming.StreamingEngine._dual_limit", 40)
    features, prototypes = still_scenes(4, 512, 80, distance)
    method = compare_with_direct(features, prototypes, engine, alpha=alpha, bank_size=20)
    assert isinstance(method._engine._precision, PrimalPrecision)


@needs_extended_precision
@pytest.mark.parametrize("engine", ["direct", "streaming", "replay"])
@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.sampled(5)
def test_scores_are_right_to_the_documented_digits(alpha, distance, engine, maintained):
    features, prototypes = still_scenes(6, 64, 200, distance)
    method = OnlineADAPT(prototypes, engine=engine, alpha=alpha)
    method.adapt(features)
    assert_right(method.predict_scores(features[:20]), extended.scores(method, features[:20]))


@needs_extended_precision
@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_transductive_scores_are_right_to_the_documented_digits(alpha, distance):
    features, prototypes = still_scenes(6, 64, 200, distance)
    method = TransductiveADAPT(prototypes, alpha=alpha)
    actual = method.adapt_scores(features)[:20]
    assert_right(actual, extended.scores(method, features[:20], soft=features))


def assert_right(actual, expected):
    np.testing.assert_allclose(actual, expected.astype(np.float64), rtol=0, atol=ROUNDING)
    np.testing.assert_allclose(extended.softmax(actual), extended.softmax(expected), rtol=0, atol=ROUNDING)


@needs_extended_precision
@settings(max_examples=60, deadline=None)
@given(
    alpha=st.one_of(st.sampled_from([0.0, 0.9, 1.0]), st.floats(1e-12, 1.0)),
    exponent=st.floats(-10.0, 0.0),
    dimension=st.integers(2, 24),
    classes=st.integers(1, 8),
    bank_size=st.integers(1, 8),
    engine=st.sampled_from(["direct", "streaming", "replay"]),
    seed=st.integers(0, 1000),
)
def test_any_spread_gives_the_definition(alpha, exponent, dimension, classes, bank_size, engine, seed):
    features, prototypes = still_scenes(classes, dimension, 60, 10.0**exponent, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("zeroshift.adapt.engines.streaming.RECOMPUTE_WORK", 0)
        method = OnlineADAPT(prototypes, engine=engine, alpha=alpha, bank_size=bank_size)
        method.adapt(features)
        actual = method.predict_scores(features[-10:])
    assert_right(actual, extended.scores(method, features[-10:]))


@pytest.mark.parametrize("engine", ["direct", "streaming", "replay", "auto"])
@pytest.mark.parametrize("large", [True, False])
def test_the_precision_is_bounded_and_the_diagnostics_count_it(engine, large, monkeypatch):
    if large:
        monkeypatch.setattr("zeroshift.adapt.engines.streaming.RECOMPUTE_WORK", 0)
    features, prototypes = still_scenes(6, 16, 200, 1e-6)
    method = OnlineADAPT(prototypes, engine=engine, alpha=1.0)
    method.adapt(features)
    assert method.diagnostics.bounded_precisions > 50
    largest = np.linalg.eigvalsh(method.precision_matrix)[-1]
    assert largest == pytest.approx(16 / SMALLEST_TRACE, rel=1e-6)
    if large and engine != "direct":
        assert method.diagnostics.scatter_rebuilds > 20


@pytest.mark.parametrize("engine", ["direct", "streaming", "replay", "auto"])
def test_ordinary_streams_are_not_bounded(engine):
    features, prototypes = still_scenes(6, 16, 200, 0.5)
    method = OnlineADAPT(prototypes, engine=engine)
    method.adapt(features)
    assert method.diagnostics.bounded_precisions == 0


@pytest.mark.parametrize("engine", ["streaming", "replay", "auto"])
def test_a_stream_that_comes_to_rest_and_moves_again(engine, maintained):
    """The inverse is maintained, then every insertion is computed directly, then it is maintained again."""
    still, prototypes = still_scenes(6, 32, 150, 1e-7)
    moving, _ = still_scenes(6, 32, 150, 0.5)
    features = np.concatenate([moving[:60], still, moving[60:]])
    parameters = {"alpha": 1.0, "bank_size": 12, "prune": (40, 1.0)}
    method, direct = (OnlineADAPT(prototypes, engine=name, **parameters) for name in (engine, "direct"))
    actual, expected = method.adapt_scores(features), direct.adapt_scores(features)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=ENGINES_TOLERANCE)
    assert 0 < direct.diagnostics.bounded_precisions < len(features)


def test_equal_samples_still_have_the_identity():
    _, prototypes = still_scenes(4, 8, 1, 0.0)
    method = OnlineADAPT(prototypes, alpha=1.0)
    method.adapt(np.repeat(unit(prototypes[:1]), 30, axis=0))
    np.testing.assert_array_equal(method.precision_matrix, np.eye(8))
    assert method.diagnostics.bounded_precisions == 0
