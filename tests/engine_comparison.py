"""Helpers for the engine tests: run one stream with different engines and compare the results."""

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
"""The documented tolerance of the scores is 1e-7; rounding errors add to it."""

TIED = 1e-9
"""Two best scores this close are a tie, which rounding may break either way."""


@cache
def get_stream(name: str) -> Stream:
    return {**STREAMS, **ADVERSARIAL}[name]()


@cache
def support(classes: int, dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Five labelled samples, two of one class; some classes have none."""
    rng = np.random.default_rng(99)
    features = rng.normal(size=(5, dimension)) + 1.0
    return features / np.linalg.norm(features, axis=1, keepdims=True), np.array([0, 0, 1, 2, 1]) % classes


def make_method(stream: Stream, engine: str, **parameters: Any) -> OnlineADAPT:
    if parameters.get("support") is True:
        parameters["support"] = support(*stream.prototypes.shape)
    return OnlineADAPT(stream.prototypes, logit_scale=stream.logit_scale, engine=engine, **parameters)


def treat_as_large(patch: pytest.MonkeyPatch) -> None:
    """Small problems have shortcuts; make the engines maintain an inverse, cones and blocks for them too."""
    patch.setattr("zeroshift.adapt.engines.streaming.RECOMPUTE_WORK", 0)
    patch.setattr("zeroshift.adapt.engines.class_statistics.SMALL_BANK", 0)
    patch.setattr("zeroshift.adapt.engines.replay.REPLAY_FROM", 20)


_direct_results: dict[tuple[str, str], tuple[np.ndarray, OnlineADAPT]] = {}


def run_direct(name: str, rows: int | None = None, **parameters: Any) -> tuple[np.ndarray, OnlineADAPT]:
    """Scores of a stream with engine "direct", and the method afterwards. Cached, because many tests need them."""
    key = (name, repr((rows, parameters)))
    if key not in _direct_results:
        stream = get_stream(name)
        method = make_method(stream, "direct", **parameters)
        _direct_results[key] = (method.adapt_scores(stream.features[:rows]), method)
    return _direct_results[key]


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def assert_same_scores(actual: Any, expected: np.ndarray, *, tolerance: float = SCORES) -> None:
    actual = to_numpy(actual)
    assert np.isfinite(actual).all()
    # A bank with almost no spread has an enormous precision: scores above 1e6 are compared to ten digits.
    size = np.abs(expected).max(axis=1, keepdims=True)
    error = np.abs(actual - expected)
    assert (error <= tolerance + 1e-10 * np.maximum(size - 1e6, 0)).all(), f"scores differ by up to {error.max()}"
    np.testing.assert_allclose(softmax(actual), softmax(expected), rtol=0, atol=PROBABILITIES)
    best = np.sort(expected, axis=1)[:, -2:]
    decided = best[:, -1] - best[:, 0] > TIED if expected.shape[1] > 1 else np.full(len(expected), True)
    np.testing.assert_array_equal(actual.argmax(axis=1)[decided], expected.argmax(axis=1)[decided])


def bank_arrays(method: OnlineADAPT) -> dict[str, np.ndarray]:
    """The arrays of the bank without slots that no class uses: an interrupted call may leave empty slots."""
    evidence = method._evidence
    assert isinstance(evidence, KnowledgeBank)
    arrays = {name: to_numpy(array) for name, array in evidence.state()[0].items()}
    used = evidence.pinned + arrays["bank_sample_counts"].max()
    for name in ("bank_features", "bank_weights", "bank_confidences"):
        assert not arrays[name][:, used:].any()
        arrays[name] = arrays[name][:, :used]
    return arrays


def assert_same_bank(method: OnlineADAPT, other: OnlineADAPT, *, rounding: float = 1e-12) -> None:
    """The same samples in the same slots, bit for bit; probabilities and confidences up to rounding."""
    arrays, expected = bank_arrays(method), bank_arrays(other)
    for name in ("bank_features", "bank_pinned_counts", "bank_sample_counts"):
        np.testing.assert_array_equal(arrays[name], expected[name])
    for name in ("bank_weights", "bank_confidences"):
        np.testing.assert_allclose(arrays[name], expected[name], rtol=0, atol=rounding)


def assert_same_statistics(method: OnlineADAPT, other: OnlineADAPT) -> None:
    assert method.n_seen == other.n_seen
    np.testing.assert_allclose(to_numpy(method.means), other.means, rtol=0, atol=1e-9)
    scale = np.abs(other.precision_matrix).max()
    np.testing.assert_allclose(to_numpy(method.precision_matrix), other.precision_matrix, rtol=0, atol=1e-7 * scale)
