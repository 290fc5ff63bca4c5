"""What the tests of the engines share: the same stream by different engines, and what must then be the same."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from streams import ADVERSARIAL, STREAMS, Stream
from zeroshift import OnlineADAPT
from zeroshift.adapt.bank import KnowledgeBank
from zeroshift.arrays import to_numpy

SCORES, PROBABILITIES = 1e-6, 1e-6
"""The engines promise 1e-7 on the scores; rounding comes on top."""

TIED = 1e-9
"""Two best scores this close are a tie, which rounding may break either way."""


@cache
def stream_called(name: str) -> Stream:
    return {**STREAMS, **ADVERSARIAL}[name]()


@cache
def support(classes: int, dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Five labelled samples, two of one class; some classes have none."""
    rng = np.random.default_rng(99)
    features = rng.normal(size=(5, dimension)) + 1.0
    return features / np.linalg.norm(features, axis=1, keepdims=True), np.array([0, 0, 1, 2, 1]) % classes


def make(stream: Stream, engine: str, **parameters: Any) -> OnlineADAPT:
    if parameters.get("support") is True:
        parameters["support"] = support(*stream.prototypes.shape)
    return OnlineADAPT(stream.prototypes, logit_scale=stream.logit_scale, engine=engine, **parameters)


def treat_as_large(patch: pytest.MonkeyPatch) -> None:
    """Small problems are computed in simple ways; make engines maintain an inverse, cones and blocks for them too."""
    patch.setattr("zeroshift.adapt.engines.streaming.RECOMPUTE_WORK", 0)
    patch.setattr("zeroshift.adapt.engines.class_statistics.SMALL_BANK", 0)
    patch.setattr("zeroshift.adapt.engines.replay.REPLAY_FROM", 20)


_direct: dict[tuple[str, str], tuple[np.ndarray, OnlineADAPT]] = {}


def direct(name: str, rows: int | None = None, **parameters: Any) -> tuple[np.ndarray, OnlineADAPT]:
    """Scores of a stream by the definition, and the method after it. Kept: many tests need the same."""
    key = (name, repr((rows, parameters)))
    if key not in _direct:
        stream = stream_called(name)
        method = make(stream, "direct", **parameters)
        _direct[key] = (method.adapt_scores(stream.features[:rows]), method)
    return _direct[key]


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def assert_same_scores(actual: Any, expected: np.ndarray, *, tolerance: float = SCORES) -> None:
    actual = to_numpy(actual)
    assert np.isfinite(actual).all()
    # A bank with next to no spread has a precision beyond all measure: scores beyond 1e6 are held to ten digits.
    size = np.abs(expected).max(axis=1, keepdims=True)
    error = np.abs(actual - expected)
    assert (error <= tolerance + 1e-10 * np.maximum(size - 1e6, 0)).all(), f"scores differ by up to {error.max()}"
    np.testing.assert_allclose(softmax(actual), softmax(expected), rtol=0, atol=PROBABILITIES)
    best = np.sort(expected, axis=1)[:, -2:]
    decided = best[:, -1] - best[:, 0] > TIED if expected.shape[1] > 1 else np.full(len(expected), True)
    np.testing.assert_array_equal(actual.argmax(axis=1)[decided], expected.argmax(axis=1)[decided])


def bank(method: OnlineADAPT) -> dict[str, np.ndarray]:
    """Without slots no class uses: an interrupted call may leave room behind, but nothing in it."""
    evidence = method._evidence
    assert isinstance(evidence, KnowledgeBank)
    arrays = {name: to_numpy(array) for name, array in evidence.state()[0].items()}
    room = evidence.pinned + arrays["bank_sample_counts"].max()
    for name in ("bank_features", "bank_weights", "bank_confidences"):
        assert not arrays[name][:, room:].any()
        arrays[name] = arrays[name][:, :room]
    return arrays


def assert_same_bank(method: OnlineADAPT, other: OnlineADAPT, *, rounding: float = 1e-12) -> None:
    """The same samples in the same slots, bit for bit; probability and confidence as products of other shapes round."""
    mine, theirs = bank(method), bank(other)
    for name in ("bank_features", "bank_pinned_counts", "bank_sample_counts"):
        np.testing.assert_array_equal(mine[name], theirs[name])
    for name in ("bank_weights", "bank_confidences"):
        np.testing.assert_allclose(mine[name], theirs[name], rtol=0, atol=rounding)


def assert_same_statistics(method: OnlineADAPT, other: OnlineADAPT) -> None:
    assert method.n_seen == other.n_seen
    np.testing.assert_allclose(to_numpy(method.means), other.means, rtol=0, atol=1e-9)
    scale = np.abs(other.precision).max()
    np.testing.assert_allclose(to_numpy(method.precision), other.precision, rtol=0, atol=1e-7 * scale)
