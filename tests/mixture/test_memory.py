"""Working memory: it stays within the budget and does not grow with the stream."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from zeroshift import OnlineAnchoredMixture, TransductiveAnchoredMixture
from zeroshift.testing import make_problem


def peak_beyond_answer(call, features):
    """Peak number of bytes allocated during the call, without the answer."""
    tracemalloc.start()
    answer = call(features)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak - answer.nbytes


@pytest.mark.parametrize("budget", [6_000_000, 12_000_000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_memory_stays_within_the_budget(budget, dtype):
    problem = make_problem(200, 64, 8000, seed=6)
    features = problem.features.astype(dtype)
    method = TransductiveAnchoredMixture(problem.prototypes, logit_scale=20.0, memory_budget=budget, rounds=3)
    for call in (method.adapt, method.predict):
        peak = peak_beyond_answer(call, features)
        assert peak < budget, f"{call.__name__} used {peak / 1e6:.1f} MB"


def test_memory_mapped_features_larger_than_the_budget(tmp_path):
    problem = make_problem(10, 128, 20_000, seed=7)
    np.save(tmp_path / "features.npy", problem.features.astype(np.float32))
    mapped = np.load(tmp_path / "features.npy", mmap_mode="r")
    budget = 4_000_000
    assert mapped.nbytes > 2 * budget
    method = TransductiveAnchoredMixture(problem.prototypes, logit_scale=20.0, memory_budget=budget, rounds=2)
    assert peak_beyond_answer(method.adapt, mapped) < budget
    expected = TransductiveAnchoredMixture(problem.prototypes, logit_scale=20.0, rounds=2).adapt(np.array(mapped))
    np.testing.assert_allclose(method.adapt(mapped), expected, rtol=0, atol=1e-6)


def test_budget_and_chunk_size_do_not_change_the_scores():
    problem = make_problem(12, 40, 1000, seed=4)
    expected = TransductiveAnchoredMixture(problem.prototypes, logit_scale=20.0).adapt_scores(problem.features)
    for changes in ({"chunk_size": 7}, {"chunk_size": 700}, {"memory_budget": 1}):
        method = TransductiveAnchoredMixture(problem.prototypes, logit_scale=20.0, **changes)
        np.testing.assert_allclose(method.adapt_scores(problem.features), expected, rtol=0, atol=1e-9)


def test_memory_does_not_grow_with_the_stream():
    """From 8192 samples on, the largest number of samples is counted together."""
    problem = make_problem(10, 16, 20_000, seed=8)
    peaks = []
    for samples in (10_000, 20_000):
        method = OnlineAnchoredMixture(problem.prototypes, logit_scale=20.0)
        peaks.append(peak_beyond_answer(method.adapt, problem.features[:samples]))
    assert peaks[1] < 1.2 * peaks[0], f"{peaks[0] / 1e6:.1f} MB, then {peaks[1] / 1e6:.1f} MB for twice as many"
