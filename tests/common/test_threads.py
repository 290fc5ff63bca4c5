"""Threads of our own: results in order, errors reported, products back to their threads afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from zeroshift.threads import Threads, own_threads


def product_threads():
    return max(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")


@pytest.fixture
def two_threads():
    with threadpool_limits(2, user_api="blas"):
        if product_threads() != 2:
            pytest.skip("this BLAS has no second thread")
        yield


@pytest.mark.usefixtures("two_threads")
class TestTwoThreads:
    def test_results_come_in_the_order_of_the_items(self):
        with own_threads("numpy") as threads:
            assert threads.count == 2
            assert threads.map(lambda n: n * n, range(50)) == [n * n for n in range(50)]
            assert threads.map(abs, []) == []

    def test_both_threads_work(self):
        both = threading.Barrier(2, timeout=30)
        with own_threads("numpy") as threads:
            threads.map(lambda _: both.wait(), range(2))

    def test_products_use_one_thread_meanwhile(self):
        with own_threads("numpy") as threads:
            assert product_threads() == 1
            with own_threads("numpy") as inner:
                assert inner.count == threads.count == 2
            assert product_threads() == 1
        assert product_threads() == 2

    @pytest.mark.parametrize("failing", [0, 7])
    def test_an_error_ends_the_call(self, failing):
        def fail(n):
            if n == failing:
                raise IndexError("as expected")
            return n

        with own_threads("numpy") as threads, pytest.raises(IndexError, match="as expected"):
            threads.map(fail, range(8))
        assert product_threads() == 2


def test_one_thread_if_products_use_one():
    with threadpool_limits(1, user_api="blas"), own_threads("numpy") as threads:
        assert threads.count == 1
        here = threading.get_ident()
        assert set(threads.map(lambda _: threading.get_ident(), range(4))) == {here}


LOADED_LATER = """
import numpy
from threadpoolctl import threadpool_info
from zeroshift.threads import own_threads
with own_threads("numpy"):
    pass
import scipy.linalg
with own_threads("numpy"):
    print(*(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"))
"""


def test_a_library_that_is_loaded_later_uses_one_thread_too():
    pytest.importorskip("scipy")
    threads = {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", LOADED_LATER], env=os.environ | threads, capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) == {"1"}


def test_other_libraries_use_their_own_threads():
    with own_threads("torch") as threads:
        assert threads.count == 1


def test_parts_cover_all_rows():
    for rows in range(7):
        parts = Threads(3).split(rows)
        assert np.concatenate([np.arange(rows)[part] for part in parts] or [[]]).tolist() == list(range(rows))
        assert all(part.start < part.stop for part in parts)
