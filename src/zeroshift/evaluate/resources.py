"""Peak memory of this process between two moments."""

from __future__ import annotations

import gc
import sys
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["PeakMemory", "one_blas_thread", "release_free_memory"]


class PeakMemory:
    """Resident memory of this process; on Linux its peak can be set back, elsewhere loading counts too."""

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
    """Give freed memory back to the system, where the C library can: kept pages would hide what the next run takes."""
    gc.collect()
    try:
        import ctypes

        ctypes.CDLL(None).malloc_trim(0)
    except (ImportError, OSError, AttributeError, TypeError):  # not glibc
        pass


# BLAS threads: many small products one after the other are faster with one, many times so on a busy machine.


def one_blas_thread() -> AbstractContextManager[Any]:
    """Keep BLAS to one thread inside the block.

    Threads that wait for each other after every product of a few hundred columns cost more than they bring: 1500
    samples of OnlineADAPT in d = 256 took 4 s with one thread, and 4 to 26 s with two, by what else the two cores did.
    """
    return _controller().limit(limits=1, user_api="blas")


@cache
def _controller() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
