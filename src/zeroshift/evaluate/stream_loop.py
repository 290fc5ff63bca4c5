"""Running a method over a stream: a generator of steps, and a function that runs them all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from zeroshift.arrays import Array, as_array, check_matrix, to_numpy
from zeroshift.evaluate.resources import one_blas_thread
from zeroshift.features.checks import blocks
from zeroshift.method import Method, ViewMethod
from zeroshift.methods.inputs import SECOND
from zeroshift.parameters import Number, Optional
from zeroshift.views import as_images, check_unit_views

__all__ = ["StreamRun", "StreamStep", "run_stream", "stream_steps"]

EVERY = 64
"""Default number of rows per step: few enough to follow the stream, and as a live stream might bring them."""

VIEW_NUMBERS = 4_000_000
"""Numbers of views copied per step, as many as 64 images with 64 views in d = 1024."""


@dataclass(frozen=True)
class StreamStep:
    """One step over the stream."""

    start: int
    stop: int
    """Rows `start` to `stop` - 1."""
    probabilities: np.ndarray
    """(stop - start, K) predictions of these rows."""
    bank_counts: np.ndarray | None
    """(K,) bank entries per class after these rows; None for a method without a bank."""
    seconds: float
    """Duration of this step."""


@dataclass(frozen=True)
class StreamRun:
    """The predictions of a method for a whole stream, and its history."""

    probabilities: np.ndarray
    """(N, K)."""
    seconds: float
    rows_seen: np.ndarray
    """(S,) rows processed at the end of each step."""
    bank_history: np.ndarray | None
    """(S, K) bank entries per class at the end of each step; None for a method without a bank."""


def stream_steps(
    method: Method,
    features: Array,
    *,
    rows: np.ndarray | None = None,
    every: int | None = EVERY,
    second: Array | None = None,
) -> Iterator[StreamStep]:
    """Let `method` adapt to `features` in order; yield one step for about every `every` rows.

    An online method gets slices of whole batches (`batch_size`, where it has one), so that `every` changes predictions
    only by rounding; with None it gets all rows in one step, which is fastest. A transductive method always does. All
    rows are validated before the first step. Steps hold NumPy arrays for any library.

    Features (N, V, d) are V views of each image, view 0 being the image itself, for methods with `adapt_views`. `rows`
    selects and orders the rows; they are copied step by step. `second` (N, d2) has features of the same images from a
    second encoder, for methods that take them.

    >>> from zeroshift import OnlineADAPT
    >>> adapter = OnlineADAPT(np.eye(2), logit_scale=10.0)
    >>> for step in stream_steps(adapter, np.eye(2)[[0, 1, 0, 0, 1]], every=2):
    ...     print(step.start, step.stop, step.probabilities.argmax(axis=1), step.bank_counts)
    0 2 [0 1] [1 1]
    2 4 [0 0] [3 1]
    4 5 [1] [3 2]
    """
    Optional(Number(1, integer=True)).check("every", every)
    features = as_array("features", features)
    adapt = _adapt_function(method, features)
    if second is not None:
        second = _checked_second(method, features, second)
    if rows is not None:
        _check_rows(rows, int(features.shape[0]))
    n_rows = int(features.shape[0]) if rows is None else len(rows)
    if method.protocol == "transductive":
        return _steps(method, adapt, features, second, rows, n_rows, nullcontext)
    numbers = int(np.prod(tuple(features.shape[1:])))
    size = n_rows if every is None else int(every)
    size = min(size, max(1, VIEW_NUMBERS // numbers)) if len(features.shape) == 3 else size
    batch_size = method._adapted_together
    return _steps(method, adapt, features, second, rows, -(-size // batch_size) * batch_size, one_blas_thread)


def _check_rows(rows: Any, n_rows: int) -> None:
    fine = isinstance(rows, np.ndarray) and rows.ndim == 1 and rows.dtype.kind in "iu" and rows.size
    if not fine or rows.min() < 0 or rows.max() >= n_rows:
        raise ValueError(
            f"rows must be a NumPy array of at least one row number from 0 to {n_rows - 1}; got {rows!r}. "
            "Fix: rows=numpy.arange(len(features)), or None for all in order."
        )


def _checked_second(method: Method, features: Array, second: Array) -> Array:
    if SECOND not in method.takes:
        raise TypeError(f"{method.name} takes no second encoder; got second. Fix: second=None, or another method.")
    if len(features.shape) != 2 and not getattr(method, "views_with_second", False):
        raise TypeError("second cannot be given together with views. Fix: features[:, 0], the images themselves.")
    second = check_matrix("second", second)
    if second.shape[0] != features.shape[0]:
        raise ValueError(
            f"second has {second.shape[0]} rows, but features has {features.shape[0]}: one row for each image, in the "
            "same order. Fix: encode the same images with both encoders."
        )
    return second


def _adapt_function(method: Method, features: Array) -> Callable[..., Array]:
    """`adapt` or `adapt_views`, after validating all features."""
    if len(features.shape) != 3:
        check_matrix("features", features, columns=method.dimension, classes=method.n_classes)
        return method.adapt
    if not isinstance(method, ViewMethod):
        raise TypeError(
            f"{method.name} takes no views; got features of shape {tuple(features.shape)}. "
            "Fix: features[:, 0], the images themselves."
        )
    views, _ = as_images(features, method.dimension)
    for images in blocks(views.shape[0], views.shape[1] * views.shape[2]):
        check_unit_views(views[images], images.start)
    return method.adapt_views


def _steps(
    method: Method,
    adapt: Callable[..., Array],
    features: Array,
    second: Array | None,
    rows: np.ndarray | None,
    size: int,
    threads: Callable[[], AbstractContextManager[Any]],
) -> Iterator[StreamStep]:
    n_rows = int(features.shape[0]) if rows is None else len(rows)
    for start in range(0, n_rows, size):
        stop = min(start + size, n_rows)
        chosen = slice(start, stop) if rows is None else rows[start:stop]
        some, other = features[chosen], {} if second is None else {SECOND: second[chosen]}
        started = time.perf_counter()
        with threads():
            probabilities = to_numpy(adapt(some, **other))
        seconds = time.perf_counter() - started
        counts = getattr(method, "bank_counts", None)
        yield StreamStep(start, stop, probabilities, None if counts is None else to_numpy(counts).copy(), seconds)


def run_stream(
    method: Method,
    features: Array,
    progress: Callable[[StreamStep], None] | None = None,
    *,
    every: int | None = EVERY,
    second: Array | None = None,
) -> StreamRun:
    """Run all `stream_steps`; `progress` is called after each step.

    >>> from zeroshift import ZeroShot
    >>> run_stream(ZeroShot(np.eye(2), logit_scale=10.0), np.eye(2)).probabilities.round(3)
    array([[1., 0.],
           [0., 1.]])
    """
    features = as_array("features", features)
    probabilities: np.ndarray | None = None
    seconds, rows_seen, history = 0.0, [], []
    for step in stream_steps(method, features, every=every, second=second):
        if probabilities is None:
            probabilities = np.empty((int(features.shape[0]), step.probabilities.shape[1]), step.probabilities.dtype)
        probabilities[step.start : step.stop] = step.probabilities
        seconds += step.seconds
        rows_seen.append(step.stop)
        if step.bank_counts is not None:
            history.append(step.bank_counts)
        if progress is not None:
            progress(step)
    assert probabilities is not None  # `stream_steps` rejects a set without rows
    return StreamRun(probabilities, seconds, np.array(rows_seen), np.stack(history) if history else None)
