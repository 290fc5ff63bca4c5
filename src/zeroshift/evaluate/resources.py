"""Peak memory of this process, and the number of BLAS threads."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["PeakMemory", "one_blas_thread", "release_free_memory"]


class PeakMemory:
    """Resident memory of this process. Only Linux can reset the peak; elsewhere it includes everything so far."""

    def __init__(self) -> None:
        self.resets = False

    def now(self) -> int:
        return self._status("VmRSS") if Path("/proc/self/status").exists() else self.peak()

    def reset(self) -> None:
        try:
            Path("/proc/self/clear_refs").write_text("5")
            self.resets = True
        except OSError:
            pass

    def peak(self) -> int:
        if self.resets:
            return self._status("VmHWM")
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

    @staticmethod
    def _status(name: str) -> int:
        line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
        return int(line.split()[1]) * 1024


def release_free_memory() -> None:
    """Return freed memory to the system (glibc only), so that it does not hide what the next run uses."""
    gc.collect()
    try:
        import ctypes

        ctypes.CDLL(None).malloc_trim(0)
    except (ImportError, OSError, AttributeError, TypeError):  # not glibc
        pass


class _Limit:
    """The limit of BLAS, which is one for the process."""

    lock = threading.Lock()
    users = 0
    """Blocks of `one_blas_thread` that have begun and not ended, in all threads."""
    limiter: Any = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread inside the block. If blocks overlap in several threads, the last one to end restores the
    number.

    Threads that wait for each other after every small product are slower: 1500 samples of OnlineADAPT in d = 256 took
    4 s with one thread and 4 to 26 s with two, depending on the load of the two cores.
    """
    with _Limit.lock:
        if not _Limit.users:
            _Limit.limiter = _controller().limit(limits=1, user_api="blas")
        _Limit.users += 1
    try:
        yield
    finally:
        with _Limit.lock:
            _Limit.users -= 1
            if not _Limit.users:
                _Limit.limiter.restore_original_limits()


@cache
def _controller() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
