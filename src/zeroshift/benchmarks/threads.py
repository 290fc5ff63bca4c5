"""The same number of threads for everything that is compared."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["THREAD_VARIABLES", "limited", "threads_in_use"]

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""What tells a fresh process how many threads its products may use."""


@contextmanager
def limited(threads: int | None) -> Iterator[None]:
    """Keep NumPy's and torch's products to `threads` threads inside the block; None leaves them as they are."""
    if threads is None:
        yield
        return
    from threadpoolctl import threadpool_limits

    torch = sys.modules.get("torch")
    before = None if torch is None else torch.get_num_threads()
    try:
        if torch is not None:
            torch.set_num_threads(threads)
        with threadpool_limits(threads, user_api="blas"):
            yield
    finally:
        if torch is not None:
            torch.set_num_threads(before)


def threads_in_use() -> int:
    """Threads a NumPy product may use now; the number of cores where that cannot be asked."""
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return os.cpu_count() or 1
    counts = [int(pool["num_threads"]) for pool in threadpool_info() if pool.get("user_api") == "blas"]
    return max(counts, default=os.cpu_count() or 1)
