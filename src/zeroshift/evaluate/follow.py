"""Feeding a method in order and watching it learn: a generator of steps, and the blocking call around it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from zeroshift.arrays import Array, check_matrix, to_numpy
from zeroshift.evaluate.threads import one_blas_thread
from zeroshift.method import Method
from zeroshift.parameters import Number

__all__ = ["Run", "Step", "follow", "run"]

EVERY = 64
"""Rows between two records: a few records a second where a sample takes milliseconds."""


@dataclass(frozen=True)
class Step:
    """What happened between two looks at a method."""

    start: int
    stop: int
    """The rows learned and predicted in this step, `start` to `stop` - 1."""
    probabilities: np.ndarray
    """Of these rows, (stop - start, K)."""
    bank_counts: np.ndarray | None
    """Bank entries of each class after these rows, (K,); None for a method that keeps none."""
    seconds: float
    """Time this step took."""


@dataclass(frozen=True)
class Run:
    """A method's answer on a whole set, with what was seen on the way."""

    probabilities: np.ndarray
    """(N, K)."""
    seconds: float
    rows_seen: np.ndarray
    """Rows seen at the end of each step, (S,)."""
    bank_history: np.ndarray | None
    """Bank entries of each class at the end of each step, (S, K); None for a method that keeps none."""


def follow(method: Method, features: Array, *, every: int = EVERY) -> Iterator[Step]:
    """Let `method` adapt to `features` in order; yield a record about every `every` rows.

    An online method is given slices of whole batches (`batch_size`, where it has one), so looking on never changes the
    answer beyond rounding. A transductive method needs the whole set at once and gives one record. Everything is
    checked before the first row is learned. Records hold NumPy arrays whatever library the features come from.

    >>> from zeroshift import OnlineADAPT
    >>> adapter = OnlineADAPT(np.eye(2), logit_scale=10.0)
    >>> for step in follow(adapter, np.eye(2)[[0, 1, 0, 0, 1]], every=2):
    ...     print(step.start, step.stop, step.probabilities.argmax(axis=1), step.bank_counts)
    0 2 [0 1] [1 1]
    2 4 [0 0] [3 1]
    4 5 [1] [3 2]
    """
    every = int(Number(1, integer=True).check("every", every))
    check_matrix("features", features, columns=method.dimension)
    n_rows = int(features.shape[0])
    if method.protocol == "transductive":
        return _steps(method, features, n_rows, nullcontext)
    batch_size = getattr(method, "batch_size", None) or 1
    return _steps(method, features, -(-every // batch_size) * batch_size, one_blas_thread)


def _steps(
    method: Method, features: Array, size: int, threads: Callable[[], AbstractContextManager[Any]]
) -> Iterator[Step]:
    n_rows = int(features.shape[0])
    for start in range(0, n_rows, size):
        stop = min(start + size, n_rows)
        began = time.perf_counter()
        with threads():
            probabilities = to_numpy(method.adapt(features[start:stop]))
        seconds = time.perf_counter() - began
        counts = getattr(method, "bank_counts", None)
        yield Step(start, stop, probabilities, None if counts is None else to_numpy(counts).copy(), seconds)


def run(method: Method, features: Array, progress: Callable[[Step], None] | None = None, *, every: int = EVERY) -> Run:
    """`follow` to the end; `progress` is called with each step as it is done.

    >>> from zeroshift import ZeroShot
    >>> run(ZeroShot(np.eye(2), logit_scale=10.0), np.eye(2)).probabilities.round(3)
    array([[1., 0.],
           [0., 1.]])
    """
    answer: np.ndarray | None = None
    seconds, rows_seen, history = 0.0, [], []
    for step in follow(method, features, every=every):
        if answer is None:
            answer = np.empty((int(features.shape[0]), step.probabilities.shape[1]), step.probabilities.dtype)
        answer[step.start : step.stop] = step.probabilities
        seconds += step.seconds
        rows_seen.append(step.stop)
        if step.bank_counts is not None:
            history.append(step.bank_counts)
        if progress is not None:
            progress(step)
    assert answer is not None  # `follow` refuses a set without rows
    return Run(answer, seconds, np.array(rows_seen), np.stack(history) if history else None)
