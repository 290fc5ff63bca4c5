"""A few functions at the same time, in threads whose matrix products use one thread each.

The threads of a BLAS wait for each other in a loop. On a machine whose cores are busy with other programs, most of the
time is then spent in waiting, and a product with two threads is slower than with one. Threads of our own, each with its
own products, wait for nothing until their functions end. They also share what a BLAS does not: small products and
element-wise work. The result does not depend on how busy the machine is.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

__all__ = ["Threads", "count_threads", "own_threads"]

Item = TypeVar("Item")
Result = TypeVar("Result")

MOST_THREADS = 4
"""Threads of our own, at most. On a machine with more cores than that, the products of each use several."""

FEW_SCORES = 500_000
"""Fewer scores are computed by the present thread: starting others takes longer than they save."""


class Threads:
    """Applies a function to several items at the same time; in the present thread if `pool` is None."""

    def __init__(self, count: int = 1, pool: ThreadPoolExecutor | None = None) -> None:
        self.count = count
        self._pool = pool

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """The results in the order of the items. The present thread takes part.

        >>> Threads().map(abs, [-1, 2])
        [1, 2]
        """
        if self._pool is None:
            return [function(item) for item in items]
        waiting = deque(enumerate(items))
        results: dict[int, Result] = {}

        def work() -> None:
            while waiting:
                try:
                    index, item = waiting.popleft()
                except IndexError:  # another thread took the last one
                    return
                try:
                    results[index] = function(item)
                except BaseException:
                    waiting.clear()
                    raise

        others = [self._pool.submit(work) for _ in range(min(self.count, len(waiting)) - 1)]
        work()
        for other in others:
            other.result()
        return [results[index] for index in sorted(results)]

    def split(self, rows: int) -> list[slice]:
        """Nearly equal parts of so many rows, one for each thread.

        >>> Threads().split(5)
        [slice(0, 5, None)]
        """
        ends = [rows * i // self.count for i in range(self.count + 1)]
        return [slice(start, stop) for start, stop in pairwise(ends) if start < stop]


class _Limit:
    """How many calls use threads of our own, and the number of threads that products used before."""

    lock = threading.Lock()
    users = 0
    before = 1


def count_threads(library: str) -> int:
    """How many threads `own_threads` uses now for large work.

    >>> 1 <= count_threads("numpy") <= MOST_THREADS
    True
    """
    if library != "numpy":
        return 1
    with _Limit.lock:
        return min(_Limit.before if _Limit.users else _blas_threads(), MOST_THREADS)


@contextmanager
def own_threads(library: str, *, scores: int | None = None) -> Iterator[Threads]:
    """Threads for the products of this library; only the present one if products already use a single thread, or if
    only a few `scores` are to be computed.

    Meanwhile the products of NumPy use as many threads as are left for each, usually one, in the whole process.
    Several calls may do this at the same time; after the last one everything is as it was.
    """
    if library != "numpy" or (scores is not None and scores < FEW_SCORES):
        yield Threads()
        return
    with _Limit.lock:
        if not _Limit.users:
            _Limit.before = _blas_threads()
            _set_threads(_Limit.before // min(_Limit.before, MOST_THREADS))
        _Limit.users += 1
    count = min(_Limit.before, MOST_THREADS)
    try:
        if count == 1:
            yield Threads()
            return
        with ThreadPoolExecutor(count - 1, thread_name_prefix="zeroshift") as pool:
            yield Threads(count, pool)
    finally:
        with _Limit.lock:
            _Limit.users -= 1
            if not _Limit.users:
                _set_threads(_Limit.before)


def _blas_pools() -> list[Any]:
    """The libraries that compute products of matrices: NumPy's, and SciPy's own once it is loaded."""
    return _loaded_pools("scipy.linalg" in sys.modules)


@cache
def _loaded_pools(_scipy: bool) -> list[Any]:
    from threadpoolctl import ThreadpoolController

    return [pool for pool in ThreadpoolController().lib_controllers if pool.user_api == "blas"]


def _blas_threads() -> int:
    return max((pool.get_num_threads() for pool in _blas_pools()), default=1)


def _set_threads(count: int) -> None:
    for pool in _blas_pools():
        pool.set_num_threads(count)


def _after_fork() -> None:
    _Limit.lock, _Limit.users = threading.Lock(), 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
