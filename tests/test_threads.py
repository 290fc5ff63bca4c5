"""Threads of our own: transductive methods compute parts of the rows at the same time, with the same answers."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from zeroshift import TransductiveADAPT, TransductiveAnchoredMixture, threads
from zeroshift.testing import make_problem


@pytest.fixture
def use_threads(monkeypatch):
    """A function that sets how many threads products have; small problems count as large."""
    monkeypatch.setattr(threads, "FEW_SCORES", 0)

    def use(count: int) -> None:
        monkeypatch.setattr(threads, "_blas_threads", lambda: count)

    return use


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("changes", [{}, {"chunk_size": 50}, {"memory_budget": 1}])
@pytest.mark.parametrize("cls", [TransductiveADAPT, TransductiveAnchoredMixture])
def test_answers_do_not_depend_on_the_number_of_threads(cls, changes, dtype, use_threads):
    problem = make_problem(12, 40, 1001, seed=4)
    features = problem.features.astype(dtype)
    answers = []
    for count in (1, 2, 3):
        use_threads(count)
        method = cls(problem.prototypes, logit_scale=20.0, **changes)
        answers.append((method.adapt(features), method.predict(features[:100]), method.predict_scores(features[:100])))
    tolerance = 1e-11 if dtype is np.float64 else 3e-5  # float32 sums over other chunks
    for other in answers[1:]:
        for found, expected in zip(other, answers[0], strict=True):
            np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("cls", [TransductiveADAPT, TransductiveAnchoredMixture])
def test_a_second_run_gives_the_same_bits(cls, use_threads):
    use_threads(3)
    problem = make_problem(12, 40, 1000, seed=5)
    first, second = (cls(problem.prototypes, logit_scale=20.0).adapt(problem.features) for _ in range(2))
    assert np.array_equal(first, second)


@pytest.mark.parametrize("cls", [TransductiveADAPT, TransductiveAnchoredMixture])
def test_a_second_encoder_and_views_in_parts(cls, use_threads):
    problem, other = make_problem(6, 24, 300, seed=6), make_problem(6, 24, 300, seed=7)
    views = np.stack([problem.features, other.features], axis=1)
    found = []
    for count in (1, 3):
        use_threads(count)
        method = cls(problem.prototypes, logit_scale=20.0)
        answers = [method.adapt_views(views)]
        if cls is TransductiveAnchoredMixture:
            answers.append(cls(problem.prototypes, logit_scale=20.0).adapt(problem.features, second=other.features))
        found.append(answers)
    for one, three in zip(*found, strict=True):
        np.testing.assert_allclose(three, one, rtol=0, atol=1e-9)


def test_equal_samples_in_all_parts_fill_the_bank_with_the_earliest(use_threads):
    """Confidences that are equal are decided by the row, also if another thread has seen the later rows first."""
    problem = make_problem(4, 16, 8, seed=8)
    features = np.tile(problem.features, (60, 1)).astype(np.float32)
    banks = []
    for count in (1, 4):
        use_threads(count)
        method = TransductiveADAPT(problem.prototypes, logit_scale=20.0, bank_size=3)
        method.adapt(features)
        banks.append(method._evidence.features)
    assert np.array_equal(*banks)


def test_work_is_shared_and_the_limit_is_taken_back(use_threads, monkeypatch):
    use_threads(3)
    limits, seen = [], set()
    monkeypatch.setattr(threads, "_set_threads", limits.append)
    barrier = threading.Barrier(3, timeout=10)

    def work(part: slice) -> int:
        barrier.wait()  # passes only if three threads work at the same time
        seen.add(threading.get_ident())
        return part.stop - part.start

    with threads.own_threads("numpy") as pool:
        assert sum(pool.map(work, pool.split(10))) == 10
    assert len(seen) == 3
    assert limits == [1, 3]


def test_few_scores_and_other_libraries_start_no_threads(monkeypatch):
    monkeypatch.setattr(threads, "_set_threads", lambda count: pytest.fail("the limit was changed"))
    with threads.own_threads("numpy", scores=threads.FEW_SCORES - 1) as pool:
        assert pool.count == 1
    with threads.own_threads("torch") as pool:
        assert pool.count == threads.count_threads("torch") == 1


def test_an_error_in_a_part_reaches_the_caller_and_the_object_stays_usable(use_threads, monkeypatch):
    use_threads(2)
    problem = make_problem(5, 16, 400, seed=9)
    method = TransductiveAnchoredMixture(problem.prototypes, logit_scale=20.0)
    expected = method.adapt(problem.features)
    count_part = TransductiveAnchoredMixture._count_part

    def fail(self, rows, part, *others, **options):
        if part.start:
            raise MemoryError("of the second part")
        return count_part(self, rows, part, *others, **options)

    monkeypatch.setattr(TransductiveAnchoredMixture, "_count_part", fail)
    with pytest.raises(MemoryError, match="of the second part"):
        method.adapt(problem.features[::-1])
    monkeypatch.undo()
    np.testing.assert_allclose(method.predict(problem.features), expected, rtol=0, atol=1e-12)
