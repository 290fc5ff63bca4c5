"""Peak memory is that since the reset; limits of BLAS threads are restored."""

from pathlib import Path

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from fresh_memory import touch_memory
from zeroshift.evaluate.resources import PeakMemory, one_blas_thread, release_free_memory

MEGABYTE = 2**20


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak can be set back on Linux only")
def test_the_peak_is_that_since_the_reset():
    touch_memory(64 * MEGABYTE)
    release_free_memory()
    memory = PeakMemory()
    before = memory.now()
    memory.reset()
    if not memory.resets:
        pytest.skip("this system does not let it")
    assert memory.peak() - before < 8 * MEGABYTE
    touch_memory(32 * MEGABYTE)
    assert 28 * MEGABYTE < memory.peak() - before < 48 * MEGABYTE


def blas_threads():
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def test_blocks_that_overlap_restore_the_number_of_blas_threads():
    """As in two threads: the block that began first ends first."""
    with threadpool_limits(2, user_api="blas"):
        first, second = one_blas_thread(), one_blas_thread()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert blas_threads() == {1}
        second.__exit__(None, None, None)
        assert blas_threads() == {2}
