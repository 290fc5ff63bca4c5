"""Times of calls and of single samples, agreement with the definition, and limits on threads."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from zeroshift.adapt import OnlineADAPT
from zeroshift.arrays import Array, Backend, to_numpy
from zeroshift.precision import FLOAT32_TOLERANCE

__all__ = [
    "THREAD_VARIABLES",
    "Clock",
    "TimedSteps",
    "agreement",
    "latency_percentiles",
    "limit_threads",
    "threads_in_use",
    "time_spread",
    "time_steps",
    "time_stream",
]

T = TypeVar("T")


class Clock:
    """Times calls, including work that is queued on the device."""

    def __init__(self, array_backend: Backend) -> None:
        self._wait: Callable[[], object] = lambda: None
        if array_backend.library == "torch" and array_backend.device.type == "cuda":
            synchronize, device = sys.modules["torch"].cuda.synchronize, array_backend.device
            self._wait = lambda: synchronize(device)

    def time(self, call: Callable[..., T], *arguments: Any) -> tuple[float, T]:
        """(seconds, answer) of one call."""
        self._wait()
        began = time.perf_counter()
        answer = call(*arguments)
        self._wait()
        return time.perf_counter() - began, answer


def time_spread(seconds: Sequence[float]) -> dict[str, float]:
    """
    >>> time_spread([1.0, 4.0, 2.0])
    {'median': 2.0, 'least': 1.0, 'most': 4.0, 'repeats': 3}
    """
    return {
        "median": float(np.median(seconds)),
        "least": float(min(seconds)),
        "most": float(max(seconds)),
        "repeats": len(seconds),
    }


def latency_percentiles(seconds: np.ndarray) -> dict[str, float] | None:
    """Percentiles of times of single samples; None if there are none."""
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


@dataclass(frozen=True)
class TimedSteps:
    rows: np.ndarray
    seconds: np.ndarray
    """Time of each step, (n,)."""
    probabilities: np.ndarray
    """(n, K), as the engine answered."""
    scores: np.ndarray | None = None
    """(n, K), with float64 products, if requested."""
    float64_seconds: np.ndarray | None = None
    """Time of each step with float64 products, (n,), if the scores were requested."""


def time_steps(
    state: Path, engine: str, features: Array, rows: np.ndarray, array_backend: Backend, *, scores: bool = False
) -> TimedSteps:
    """Adapt to `rows` of `features` from a saved state, one sample per call; with `scores`, again in float64."""
    adapter = OnlineADAPT.load(state, library=array_backend.library, device=str(array_backend.device), engine=engine)
    # Lazily built parts are built before the clock starts; within a stream they already exist.
    adapter.predict(features[0])
    clock = Clock(array_backend)
    seconds, answers = [], []
    for row in rows:
        taken, answer = clock.time(adapter.adapt, features[int(row)])
        seconds.append(taken)
        answers.append(to_numpy(answer).astype(np.float64))
    found = TimedSteps(rows, np.array(seconds), np.array(answers).reshape(len(rows), adapter.n_classes))
    if not scores:
        return found
    adapter = OnlineADAPT.load(state, library=array_backend.library, device=str(array_backend.device), engine=engine)
    wide = array_backend.asarray(features[[int(row) for row in rows]], array_backend.xp.float64)
    adapter.predict(wide[0])
    timed = [clock.time(adapter.adapt_scores, wide[i]) for i in range(len(rows))]
    return replace(
        found,
        scores=np.array([to_numpy(one) for _, one in timed]).reshape(len(rows), adapter.n_classes),
        float64_seconds=np.array([seconds for seconds, _ in timed]),
    )


def time_stream(adapter: OnlineADAPT, features: Array, keep: np.ndarray, array_backend: Backend) -> TimedSteps:
    """Adapt to all of `features`, one sample per call; the answers to the rows in `keep` are kept."""
    clock = Clock(array_backend)
    kept = set(keep.tolist())
    seconds = np.zeros(features.shape[0])
    answers = {}
    for row in range(features.shape[0]):
        seconds[row], answer = clock.time(adapter.adapt, features[row])
        if row in kept:
            answers[row] = to_numpy(answer).astype(np.float64)
    probabilities = np.array([answers[row] for row in keep.tolist()]).reshape(len(keep), adapter.n_classes)
    return TimedSteps(keep, seconds, probabilities)


NEAR_TIE = 2 * FLOAT32_TOLERANCE


def agreement(
    probabilities: np.ndarray,
    definition: np.ndarray,
    scores: np.ndarray | None = None,
    definition_scores: np.ndarray | None = None,
) -> dict[str, float]:
    """Differences to the definition on the same samples, so that an engine that is fast and wrong is noticed.

    Predictions may differ where the two highest probabilities are closer than `NEAR_TIE`, because float32 products may
    change each of them by half of that.

    Probabilities of ADAPT are close to 0 or 1, above all early in a stream, and barely show an error; scores do. They
    are compared as differences to the largest of the row, relative if they are large.
    """
    ordered = np.sort(definition, axis=1)
    near_tie = ordered[:, -1] - ordered[:, -2] < NEAR_TIE if definition.shape[1] > 1 else True
    found: dict[str, float] = {
        "samples": len(definition),
        "largest_difference": float(np.abs(probabilities - definition).max(initial=0.0)),
        "argmax_equal": float(np.mean((probabilities.argmax(axis=1) == definition.argmax(axis=1)) | near_tie)),
    }
    if scores is not None and definition_scores is not None:
        one, other = (each - each.max(axis=1, keepdims=True) for each in (scores, definition_scores))
        relative = np.abs(one - other) / np.maximum(1.0, np.abs(other))
        found["largest_score_difference"] = float(relative.max(initial=0.0))
    return found


THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables that limit the threads of a new process."""


@contextmanager
def limit_threads(threads: int | None) -> Iterator[None]:
    """Limit the products of NumPy and torch to `threads` threads inside the block; None changes nothing."""
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
    """Threads that a NumPy product may use; the number of cores if that is not known."""
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return os.cpu_count() or 1
    counts = [int(pool["num_threads"]) for pool in threadpool_info() if pool.get("user_api") == "blas"]
    return max(counts, default=os.cpu_count() or 1)
