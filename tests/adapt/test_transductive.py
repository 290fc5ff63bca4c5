"""Transductive ADAPT compared with tests/oracle.py, an independent implementation of the specification."""

from __future__ import annotations

import functools
import itertools
import tracemalloc

import numpy as np
import pytest

import oracle
from streams import STREAMS, Stream
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
    np.testing.assert_allclose(method.precision_matrix, expected.precision, rtol=0, atol=TOLERANCE * scale)
    np.testing.assert_array_equal(method.bank_counts, expected.bank_counts)
    return method, expected


@pytest.mark.parametrize("name", STREAMS)
def test_every_set(name):
    assert_equals_oracle(STREAMS[name]())


@pytest.fixture(scope="module")
def stream():
    whole = STREAMS["medium"]()
    return whole._replace(features=whole.features[:120])


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
@pytest.mark.sampled(2)
def test_every_setting(stream, parameters, with_support):
    support = (make_problem(20, 32, 9, seed=99).features, np.array([0, 0, 1, 3, 3, 3, 3, 19, 1]))
    assert_equals_oracle(stream, **{"bank_size": 6, **parameters}, support=support if with_support else None)


@pytest.mark.parametrize(
    ("bank_size", "update_mean", "update_covariance"), list(itertools.product([0, 6], [False, True], [False, True]))
)
def test_the_eight_rows_of_table_5(stream, bank_size, update_mean, update_covariance):
    assert_equals_oracle(stream, bank_size=bank_size, update_mean=update_mean, update_covariance=update_covariance)


def test_adapt_starts_again_each_time(stream):
    method = TransductiveADAPT(stream.prototypes, logit_scale=20.0)
    expected = method.adapt(stream.features)
    method.adapt(stream.features[:50])
    assert method.n_seen == 50
    np.testing.assert_array_equal(method.adapt(stream.features), expected)


def test_predict_scores_new_features_with_what_was_learned(stream):
    method, answer = assert_equals_oracle(stream)
    others = make_problem(20, 32, 40, seed=5).features
    expected, _ = oracle.predict(others, answer, stream.prototypes, logit_scale=stream.logit_scale)
    np.testing.assert_allclose(method.predict(others), expected, rtol=0, atol=TOLERANCE)


def test_banks_hold_the_most_confident_samples_the_earlier_on_a_tie():
    """Three samples with equal logits and a bank of two: the first two rows stay, for any chunks."""
    features = np.array([[0.8, 0, 0.6, 0], [0.8, 0, 0, 0.6], [0.8, 0, -0.6, 0]])
    for chunk_size in (1, 2, 100):
        method = TransductiveADAPT(np.eye(2, 4), logit_scale=3.0, bank_size=2, chunk_size=chunk_size)
        method.adapt(features)
        np.testing.assert_array_equal(method.bank_counts, [2, 0])
        np.testing.assert_array_equal(method._evidence.features[0, :2], features[:2])


def test_an_interrupted_adapt_leaves_the_state_as_it_was(stream, monkeypatch):
    method = TransductiveADAPT(stream.prototypes, logit_scale=20.0)
    method.adapt(stream.features)
    before = fingerprint(method)
    monkeypatch.setattr("zeroshift.adapt.transductive.estimate", estimate_interrupted_after(0))
    with pytest.raises(Interrupted):
        method.adapt(stream.features[:100])
    monkeypatch.undo()
    assert fingerprint(method) == before


class Interrupted(BaseException):
    """Like Ctrl-C, but harmless to the test runner."""


def estimate_interrupted_after(calls):
    """`estimate`, interrupted at its (calls + 1)-th call, once."""
    from zeroshift.adapt.statistics import estimate

    count = iter(range(10**9))

    def interrupted(*arguments):
        if next(count) == calls:
            raise Interrupted
        return estimate(*arguments)

    return interrupted


def test_predict_memory_follows_the_chunk_size():
    """The bank term needs a cosine per row and slot; working memory depends on the chunks, not on the answer."""
    problem = make_problem(40, 8, 6000, seed=2)
    method = TransductiveADAPT(problem.prototypes, logit_scale=20.0, bank_size=100, chunk_size=16)
    method.adapt(problem.features)
    tracemalloc.start()
    method.predict(problem.features)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * problem.features.shape[0] * 40 * 8


def test_features_are_converted_chunk_by_chunk(tmp_path):
    """Memory-mapped float16 features: the conversion to float64 happens chunk by chunk."""
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


def test_budget_and_chunks_do_not_change_the_answer():
    """All rows in one chunk, chunks by budget, the smallest chunks; with and without stored log-normalisers."""
    for problem in (make_problem(12, 40, 600, seed=4), make_problem(12, 40, 600, seed=5, cone=0.0, gap=0.0)):
        make = functools.partial(TransductiveADAPT, problem.prototypes, logit_scale=20.0)
        expected = make().adapt_scores(problem.features)
        for changes in ({"chunk_size": 1}, {"chunk_size": 140}, {"memory_budget": 1}, {"memory_budget": 100_000}):
            method = make(**changes)
            np.testing.assert_allclose(method.adapt_scores(problem.features), expected, rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(method.predict_scores(problem.features), expected, rtol=1e-12, atol=1e-12)


def test_many_negative_cosines_at_size():
    """Many classes and rows, so that exact sums are computed both class by class and as one product."""
    for cone in (0.0, 0.7):
        problem = make_problem(80, 80, 400, seed=8, cone=cone)
        assert_equals_oracle(Stream(problem.features, problem.prototypes, 30.0), chunk_size=None)


def peak_without_answer(method, features):
    """Peak memory of `adapt` and of `predict` in bytes, without the answer."""
    peaks = []
    for call in (method.adapt, method.predict):
        tracemalloc.start()
        answer = call(features)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        peaks.append(peak - answer.nbytes)
    return peaks


@pytest.mark.parametrize("cone", [2.0, 0.0], ids=["no cosine negative", "half of the cosines negative"])
@pytest.mark.parametrize("budget", [8_000_000, pytest.param(16_000_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("bank_size", [0, 6])
def test_the_memory_budget_is_kept(cone, budget, bank_size):
    problem = make_problem(200, 64, 20_000, seed=6, cone=cone)
    method = TransductiveADAPT(problem.prototypes, logit_scale=20.0, memory_budget=budget, bank_size=bank_size)
    adapt, predict = peak_without_answer(method, problem.features.astype(np.float32))
    assert adapt < budget, f"adapt used {adapt / 1e6:.1f} MB"
    assert predict < budget, f"predict used {predict / 1e6:.1f} MB"


def test_memory_mapped_features_larger_than_the_budget(tmp_path):
    problem = make_problem(10, 128, 30_000, seed=7)
    np.save(tmp_path / "features.npy", problem.features.astype(np.float32))
    mapped = np.load(tmp_path / "features.npy", mmap_mode="r")
    budget = 6_000_000
    assert mapped.nbytes > 2 * budget
    method = TransductiveADAPT(problem.prototypes, logit_scale=20.0, memory_budget=budget)
    assert max(peak_without_answer(method, mapped)) < budget
    expected = TransductiveADAPT(problem.prototypes, logit_scale=20.0).adapt(np.array(mapped))
    np.testing.assert_allclose(method.adapt(mapped), expected, rtol=0, atol=1e-7)


def test_budget_can_change_when_loading(stream, tmp_path):
    method = TransductiveADAPT(stream.prototypes, logit_scale=20.0)
    method.adapt(stream.features)
    method.save(tmp_path / "state.safetensors")
    loaded = TransductiveADAPT.load(tmp_path / "state.safetensors", memory_budget=10**6)
    assert loaded.memory_budget == 10**6
    np.testing.assert_allclose(loaded.predict(stream.features), method.predict(stream.features), rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="memory_budget"):
        TransductiveADAPT(stream.prototypes, memory_budget=0)


@pytest.mark.parametrize("source", [np.float16, np.float32, np.float64])
def test_features_are_not_changed(source):
    problem = make_problem(6, 16, 300, seed=9)
    features = problem.features.astype(source)
    before = features.copy()
    features.flags.writeable = False
    TransductiveADAPT(problem.prototypes, logit_scale=20.0, chunk_size=64).adapt(features)
    np.testing.assert_array_equal(features, before)


def test_chunks_do_not_change_how_ties_are_resolved():
    """Permuting columns in which the prototypes are constant: confidences are equal up to rounding."""
    rng = np.random.default_rng(73)
    prototypes = np.concatenate([np.eye(4, 6), np.full((4, 10), 0.1)], axis=1)
    prototypes /= np.linalg.norm(prototypes, axis=1, keepdims=True)
    base = rng.normal(size=16) + 1.0
    features = np.stack([np.concatenate([base[:6], rng.permutation(base[6:])]) for _ in range(80)])
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    answers = [
        TransductiveADAPT(prototypes, logit_scale=10.0, bank_size=3, chunk_size=rows).adapt(features)
        for rows in (1, 7, 80)
    ]
    for answer in answers[1:]:
        np.testing.assert_allclose(answer, answers[0], rtol=0, atol=1e-9)
