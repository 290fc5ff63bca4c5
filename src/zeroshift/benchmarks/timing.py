"""Time a call takes, work queued on a device included; and many such times in a few numbers."""

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
from zeroshift.arrays import Array, Home, to_numpy

__all__ = [
    "THREAD_VARIABLES",
    "Clock",
    "Steps",
    "agreement",
    "latencies",
    "limited",
    "scores_along",
    "spread",
    "steps_from",
    "stream",
    "threads_in_use",
]

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


# One sample at a time through an engine, every step timed: a stretch from a saved state, or a whole stream.


@dataclass(frozen=True)
class Steps:
    rows: np.ndarray
    seconds: np.ndarray
    """Of each step, (n,)."""
    probabilities: np.ndarray
    """(n, K), as the engine answered."""
    scores: np.ndarray | None = None
    """(n, K), float64, where they were asked for."""


def steps_from(
    state: Path, engine: str, features: Array, rows: np.ndarray, home: Home, *, scores: bool = False
) -> Steps:
    """Adapt to `rows` of `features`, one sample a call, from a saved state; with `scores`, once more for the scores."""
    adapter = OnlineADAPT.load(state, library=home.library, device=str(home.device), engine=engine)
    # What is built when it is first needed is built before the clock runs; a stream has it long since.
    adapter.predict(features[0])
    clock = Clock(home)
    seconds, answers = [], []
    for row in rows:
        taken, answer = clock.time(adapter.adapt, features[int(row)])
        seconds.append(taken)
        answers.append(to_numpy(answer).astype(np.float64))
    found = Steps(rows, np.array(seconds), np.array(answers).reshape(len(rows), adapter.n_classes))
    if not scores:
        return found
    # A second time, unobserved: asking an engine for more than its answer could change what its next step costs.
    adapter = OnlineADAPT.load(state, library=home.library, device=str(home.device), engine=engine)
    wide = [adapter.adapt_scores(home.bring(features[int(row)], home.xp.float64)) for row in rows]
    return replace(found, scores=np.array([to_numpy(one) for one in wide]).reshape(len(rows), adapter.n_classes))


def stream(adapter: OnlineADAPT, features: Array, keep: np.ndarray, home: Home) -> Steps:
    """Adapt to all of `features`, one sample a call; the answers to the rows in `keep` are kept."""
    clock = Clock(home)
    kept = set(keep.tolist())
    seconds = np.zeros(features.shape[0])
    answers = {}
    for row in range(features.shape[0]):
        seconds[row], answer = clock.time(adapter.adapt, features[row])
        if row in kept:
            answers[row] = to_numpy(answer).astype(np.float64)
    probabilities = np.array([answers[row] for row in keep.tolist()]).reshape(len(keep), adapter.n_classes)
    return Steps(keep, seconds, probabilities)


def scores_along(adapter: OnlineADAPT, features: Array, rows: np.ndarray, home: Home) -> np.ndarray:
    """Scores of `rows`, in float64, from one call with the whole stream."""
    wide = adapter.adapt_scores(home.bring(features, home.xp.float64))
    return to_numpy(wide)[rows]


def agreement(
    probabilities: np.ndarray,
    definition: np.ndarray,
    scores: np.ndarray | None = None,
    definition_scores: np.ndarray | None = None,
) -> dict[str, float]:
    """How far answers are from those of the definition on the same samples: fast and wrong must not pass unseen.

    ADAPT's probabilities are so sure, early in a stream above all, that they hardly show an error; its scores do. They
    are compared as differences to the row's largest, relative where they are large.
    """
    found: dict[str, float] = {
        "samples": len(definition),
        "largest_difference": float(np.abs(probabilities - definition).max(initial=0.0)),
        "argmax_equal": float(np.mean(probabilities.argmax(axis=1) == definition.argmax(axis=1))),
    }
    if scores is not None and definition_scores is not None:
        one, other = (each - each.max(axis=1, keepdims=True) for each in (scores, definition_scores))
        relative = np.abs(one - other) / np.maximum(1.0, np.abs(other))
        found["largest_score_difference"] = float(relative.max(initial=0.0))
    return found


# The same number of threads for everything that is compared.


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
