"""Peak memory of this process, and the number of BLAS threads."""

from __future__ import annotations

import gc
import sys
from contextlib import AbstractContextManager
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


def one_blas_thread() -> AbstractContextManager[Any]:
    """Limit BLAS to one thread inside the block.

    Threads that wait for each other after every small product are slower: 1500 samples of OnlineADAPT in d = 256 took
    4 s with one thread and 4 to 26 s with two, depending on the load of the two cores.
    """
    return _controller().limit(limits=1, user_api="blas")


@cache
def _controller() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
