"""Transductive ADAPT against the independent transcription of the specification."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import oracle
from streams import STREAMS
from zeroshift import TransductiveADAPT
from zeroshift.testing import make_problem
from zeroshift.testing.case import fingerprint

TOLERANCE = 1e-9


def assert_equals_oracle(stream, chunk_size=37, **parameters):
    method = TransductiveADAPT(stream.prototypes, logit_scale=stream.logit_scale, chunk_size=chunk_size, **parameters)
    expected = oracle.transductive(stream.features, stream.prototypes, logit_scale=stream.logit_scale, **parameters)
    np.testing.assert_allclose(method.adapt(stream.features), expected.probabilities, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(method.means, expected.means, rtol=0, atol=TOLERANCE)
    scale = np.abs(expected.precision).max()
    np.testing.assert_allclose(method.precision, expected.precision, rtol=0, atol=TOLERANCE * scale)
    np.testing.assert_array_equal(method.bank_counts, expected.bank_counts)
    return method, expected


@pytest.mark.parametrize("name", STREAMS)
def test_every_set(name):
    assert_equals_oracle(STREAMS[name]())


@pytest.fixture(scope="module")
def stream():
    return STREAMS["medium"]()


@pytest.mark.parametrize(
    "parameters",
    [
        {"alpha": 0.0},
        {"alpha": 1.0, "bank_size": 1},
        {"beta": 2.0},
        {"iterations": 2},
        {"iterations": 50, "beta": 1.0},
        {"covariance": "per_class"},
        {"use_bank_term": False},
        {"bank_size": 1000},
        {"bank_size": 0},
        {"bank_size": 0, "iterations": 6},
        {"iterations": 3, "chunk_size": None},
    ],
    ids=str,
)
@pytest.mark.parametrize("with_support", [False, True], ids=["zero-shot", "few-shot"])
def test_every_switch(stream, parameters, with_support):
    support = (make_problem(20, 32, 9, seed=99).features, np.array([0, 0, 1, 3, 3, 3, 3, 19, 1]))
    assert_equals_oracle(stream, **{"bank_size": 6, **parameters}, support=support if with_support else None)


@pytest.mark.parametrize(
    ("bank_size", "update_mean", "update_covariance"), list(itertools.product([0, 6], [False, True], [False, True]))
)
def test_the_eight_rows_of_table_5(stream, bank_size, update_mean, update_covariance):
    assert_equals_oracle(stream, bank_size=bank_size, update_mean=update_mean, update_covariance=update_covariance)


def test_adapt_starts_afresh_each_time(stream):
    method = TransductiveADAPT(stream.prototypes, logit_scale=20.0)
    expected = method.adapt(stream.features)
    method.adapt(stream.features[:50])
    assert method.n_seen == 50
    np.testing.assert_array_equal(method.adapt(stream.features), expected)


def test_predict_scores_new_features_with_what_the_set_taught(stream):
    method, answer = assert_equals_oracle(stream)
    others = make_problem(20, 32, 40, seed=5).features
    expected, _ = oracle.predict(others, answer, stream.prototypes, logit_scale=stream.logit_scale)
    np.testing.assert_allclose(method.predict(others), expected, rtol=0, atol=TOLERANCE)


def test_the_surest_of_each_class_are_banked_the_earlier_on_a_tie():
    """Three samples the prototypes cannot tell apart and room for two: the first two rows stay, whatever the chunks."""
    features = np.array([[0.8, 0, 0.6, 0], [0.8, 0, 0, 0.6], [0.8, 0, -0.6, 0]])
    for chunk_size in (1, 2, 100):
        method = TransductiveADAPT(np.eye(2, 4), logit_scale=3.0, bank_size=2, chunk_size=chunk_size)
        method.adapt(features)
        np.testing.assert_array_equal(method.bank_counts, [2, 0])
        np.testing.assert_array_equal(method._evidence.features[0, :2], features[:2])


def test_an_interrupted_adapt_has_learned_nothing(stream, monkeypatch):
    method = TransductiveADAPT(stream.prototypes, logit_scale=20.0)
    method.adapt(stream.features)
    fresh = fingerprint(method.clone())
    monkeypatch.setattr("zeroshift.adapt.transductive.estimate", raising_after(1))
    with pytest.raises(Interrupted):
        method.adapt(stream.features[:100])
    monkeypatch.undo()
    assert fingerprint(method) == fresh


class Interrupted(BaseException):
    """As Ctrl-C, but harmless to the test runner."""


def raising_after(calls):
    """`estimate`, interrupted at its (calls + 1)-th call, once."""
    from zeroshift.adapt.gaussians import estimate

    count = iter(range(10**9))

    def interrupted(*arguments):
        if next(count) == calls:
            raise Interrupted
        return estimate(*arguments)

    return interrupted


def test_predict_keeps_to_the_chunk_size():
    """The bank term needs a cosine for every row and slot; work space follows the chunks, not the answer."""
    import tracemalloc

    problem = make_problem(40, 8, 6000, seed=2)
    method = TransductiveADAPT(problem.prototypes, logit_scale=20.0, bank_size=100, chunk_size=16)
    method.adapt(problem.features)
    tracemalloc.start()
    method.predict(problem.features)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * problem.features.shape[0] * 40 * 8


def test_features_larger_than_one_chunk_are_never_held_whole(tmp_path):
    """Memory-mapped float16 features: the conversion to float64 happens chunk by chunk."""
    import tracemalloc

    problem = make_problem(4, 64, 20_000, seed=3)
    np.save(tmp_path / "features.npy", problem.features.astype(np.float16))
    mapped = np.load(tmp_path / "features.npy", mmap_mode="r")
    method = TransductiveADAPT(problem.prototypes, logit_scale=20.0, chunk_size=256)
    tracemalloc.start()
    method.adapt(mapped)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    whole = mapped.size * 8
    assert peak < whole / 2, f"peak {peak / 1e6:.1f} MB; the features in float64 are {whole / 1e6:.1f} MB"
