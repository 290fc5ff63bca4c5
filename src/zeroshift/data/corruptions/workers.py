"""One function over many tasks, in this process or shared among others; answers in the order of the tasks."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

__all__ = ["each"]

CHUNK = 4
"""Tasks sent at a time: sending costs far less than corrupting an image, and the progress bar should move."""

Task = TypeVar("Task")
Answer = TypeVar("Answer")


def each(function: Callable[[Task], Answer], tasks: Sequence[Task], workers: int = 0) -> Iterator[Answer]:
    """`function(task)` for every task; by `workers` processes, or with 0 in this one.

    >>> list(each(abs, [-1, 2, -3]))
    [1, 2, 3]
    """
    if workers < 0:
        raise ValueError(f"workers must be at least 0; got {workers}. Fix: 0 works in this process.")
    if workers == 0:
        yield from map(function, tasks)
        return
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    # Started afresh, not forked: a fork of a process that runs threads (BLAS, torch) may hang.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(workers, max(1, len(tasks))), mp_context=context, initializer=_leave_interrupts)
    try:
        yield from pool.map(function, tasks, chunksize=CHUNK)
    except BrokenProcessPool as error:
        raise OSError(
            "a worker process ended unexpectedly, often for want of memory. "
            "Fix: fewer workers; what is written is kept, so the same command goes on."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _leave_interrupts() -> None:
    """Ctrl-C reaches every process of a terminal; the one that started the workers stops them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
