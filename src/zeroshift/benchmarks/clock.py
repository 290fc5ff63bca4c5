"""Time a call takes, work queued on a device included; and many such times in a few numbers."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from zeroshift.arrays import Home

__all__ = ["Clock", "latencies", "spread"]

T = TypeVar("T")


class Clock:
    """Times calls whose work happens at `home`."""

    def __init__(self, home: Home) -> None:
        self._wait: Callable[[], object] = lambda: None
        if home.library == "torch" and home.device.type == "cuda":
            synchronize, device = sys.modules["torch"].cuda.synchronize, home.device
            self._wait = lambda: synchronize(device)

    def time(self, call: Callable[..., T], *arguments: Any) -> tuple[float, T]:
        """(seconds, answer) of one call."""
        self._wait()
        began = time.perf_counter()
        answer = call(*arguments)
        self._wait()
        return time.perf_counter() - began, answer


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """
    >>> spread([1.0, 4.0, 2.0])
    {'median': 2.0, 'least': 1.0, 'most': 4.0, 'repeats': 3}
    """
    return {
        "median": float(np.median(seconds)),
        "least": float(min(seconds)),
        "most": float(max(seconds)),
        "repeats": len(seconds),
    }


def latencies(seconds: np.ndarray) -> dict[str, float] | None:
    """Percentiles of times of single samples; None where there are none."""
    if len(seconds) == 0:
        return None
    p50, p90, p99 = np.percentile(seconds, [50, 90, 99])
    return {
        "p50": float(p50),
        "p90": float(p90),
        "p99": float(p99),
        "max": float(seconds.max()),
        "mean": float(seconds.mean()),
        "samples": len(seconds),
    }
