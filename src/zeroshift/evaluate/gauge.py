"""Peak memory of this process between two moments."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

__all__ = ["HostGauge", "settle"]


class HostGauge:
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


def settle() -> None:
    """Give freed memory back to the system, where the C library can: kept pages would hide what the next run takes."""
    gc.collect()
    try:
        import ctypes

        ctypes.CDLL(None).malloc_trim(0)
    except (ImportError, OSError, AttributeError, TypeError):  # not glibc
        pass
