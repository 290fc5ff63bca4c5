"""Checks of the state after `adapt` or `adapt_views` was interrupted (Ctrl-C) or failed (no memory left)."""

from __future__ import annotations

import copy
import dis
import inspect
import linecache
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import zeroshift
from zeroshift.interrupts import _State
from zeroshift.method import Method, ViewMethod
from zeroshift.testing.case import Case, NotApplicable, assert_same

__all__ = ["CHECKS"]

TOLERANCE = 1e-9

POINTS, VIEW_POINTS = 12, 6
"""Lines of code to interrupt at, spread evenly over all lines that a call runs: for `adapt`, and for `adapt_views`."""

FEW_LINES = 150
"""A call that runs no more lines than this is interrupted at every one."""

VIEWS = 3
"""Views per image."""

PACKAGES = tuple(str(Path(zeroshift.__file__).parent / name) for name in ("methods", "adapt", "mixture", "method.py"))


class InjectedError(Exception):
    """Stands for any failure in the middle of a call."""


def interrupted_adapt_learns_whole_samples(case: Case) -> None:
    """Wherever SIGINT arrives during `adapt`, the method has learned exactly the `n_seen` samples it reports, and
    continues from there. A transductive method has the state from before the call or that of the whole set."""
    method, rows, probe = _started(case)
    _check_all(method, rows, probe, _interrupt, KeyboardInterrupt)


def interrupted_adapt_views_learns_whole_images(case: Case) -> None:
    """The same for `adapt_views`, in images."""
    if not issubclass(case.cls, ViewMethod):
        raise NotApplicable("the method takes no views")
    _check_traceable()
    problem = case.problem(samples=64, seed=9)
    method = case.create(problem.prototypes)
    size = method._adapted_together
    images = problem.features[: 20 * VIEWS].reshape(-1, VIEWS, problem.features.shape[1])
    start, stop = (9, 20) if case.cls.protocol == "transductive" else (min(3 * size, 10), min(5 * size, 20))
    _adapt(method, images[:start])
    _check_all(method, images[start:stop], problem.features[-4:], _interrupt, KeyboardInterrupt)


def failed_adapt_learns_whole_samples_or_refuses(case: Case) -> None:
    """Wherever `adapt` raises an exception, the method has learned whole samples, or it refuses calls until `reset`."""
    method, rows, probe = _started(case)
    _check_all(method, rows, probe, _fail, InjectedError)


def _started(case: Case) -> tuple[Method, np.ndarray, np.ndarray]:
    """A method that has seen samples, the rows it adapts to next, and rows to compare predictions on."""
    _check_traceable()
    problem = case.problem(samples=64, seed=8)
    method = case.create(problem.prototypes)
    size = method._adapted_together
    start, stop = (20, 50) if case.cls.protocol == "transductive" else (6 * size, 9 * size)
    method.adapt(problem.features[:start])
    return method, problem.features[start:stop], problem.features[:4]


def _check_traceable() -> None:
    if sys.gettrace() is not None:
        raise NotApplicable("a debugger or a coverage tool traces the lines already")
    if threading.current_thread() is not threading.main_thread():
        raise NotApplicable("signals reach the main thread only")
    if signal.getsignal(signal.SIGINT) is None:
        raise NotApplicable("SIGINT has a handler that was not installed from Python and could not be put back")


def _check_all(
    method: Method, rows: np.ndarray, probe: np.ndarray, action: Callable[[], None], raised: type[BaseException]
) -> None:
    start = method.n_seen
    transductive = type(method).protocol == "transductive"

    @cache
    def expected(n_seen: int) -> tuple[np.ndarray, np.ndarray]:
        reference = copy.deepcopy(method)
        if n_seen != start:
            _adapt(reference, rows if transductive else rows[: n_seen - start])
        return reference.predict(probe), reference.adapt(probe)

    for place, stopped in _stopped(method, rows, action, raised):
        if stopped._failure is not None:
            assert raised is InjectedError, f"interrupted at {place}: the state is incomplete"
            _check_refused(stopped, probe, place)
            continue
        n_seen = stopped.n_seen
        allowed = (start, len(rows)) if transductive else range(start, start + len(rows) + 1)
        assert n_seen in allowed, f"stopped at {place}: n_seen is {n_seen}, {start} before the call"
        answers = stopped.predict(probe), stopped.adapt(probe)
        if not transductive:
            assert stopped.n_seen == n_seen + len(probe), f"stopped at {place}: n_seen continues from another number"
        for call, answer, wanted in zip(("predict", "adapt"), answers, expected(n_seen), strict=True):
            what = f"stopped at {place} with n_seen = {n_seen} ({start} before): {call}"
            assert_same(answer, wanted, what, tolerance=TOLERANCE)


def _check_refused(method: Method, probe: np.ndarray, place: str) -> None:
    """A method with an incomplete state says so, and works again after a reset."""
    for call in (method.predict, method.adapt):
        message = ""
        try:
            call(probe)
        except RuntimeError as error:
            message = str(error)
        assert "reset" in message, f"failed at {place}: the state is incomplete, but {call.__name__} does not say so"
    method.reset()
    assert_same(method.predict(probe), method.clone().predict(probe), f"failed at {place}, then reset: predict")


def _stopped(
    method: Method, rows: np.ndarray, action: Callable[[], None], raised: type[BaseException]
) -> Iterator[tuple[str, Method]]:
    """(place, method) for copies that were stopped while they learned from the rows, each at another line."""
    lines, _ = _adapt_until(copy.deepcopy(method), rows, None, action, raised)
    points = lines if lines <= FEW_LINES else POINTS if rows.ndim == 2 else VIEW_POINTS
    for line in range(1, 1 + lines, -(-lines // points)):
        stopped = copy.deepcopy(method)
        _, place = _adapt_until(stopped, rows, line, action, raised)
        yield place, stopped


def _adapt_until(
    method: Method, rows: np.ndarray, stop: int | None, action: Callable[[], None], raised: type[BaseException]
) -> tuple[int, str]:
    """Adapt, with `action` before line number `stop` of those the call runs: how many lines began, and the last one."""
    files = _files(type(method))
    begun, place, ended = 0, "", False

    def follow(frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        return count if name.startswith(PACKAGES) or name in files else None

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal begun, place
        if event == "line" and not _is_guard(frame):
            begun += 1
            if begun == stop:
                place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                action()
        return count

    with _sigint_raises():
        sys.settrace(follow)
        try:
            _adapt(method, rows)
        except raised:
            ended = True
        finally:
            sys.settrace(None)
    assert ended or not place or action is not _interrupt, f"interrupted at {place}: the call did not end"
    assert not _State.depth, f"stopped at {place}: signals stay postponed"
    return begun, place


@contextmanager
def _sigint_raises() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also in a process that ignores it. A shell starts background processes so."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _is_guard(frame: FrameType) -> bool:
    """Whether the line belongs to the mechanism itself. Between the end of a `with` block and its `__exit__`, and at a
    line that does nothing (`pass`), a trace function can raise an exception, but none can occur otherwise."""
    if frame.f_code.co_code[frame.f_lasti] == NOTHING:
        return True  # Python 3.11 does not call `__exit__` if it raises in a `with` block
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    return frame.f_code.co_name in GUARDS or "_learning(" in line or "Watch(" in line


NOTHING = dis.opmap["NOP"]

GUARDS = ("__enter__", "__exit__", "__setattr__", "_check_usable", "_in_turn")
"""The functions that postpone signals."""


def _interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def _fail() -> None:
    raise InjectedError("injected by zeroshift.testing")


def _adapt(method: Method, rows: np.ndarray) -> None:
    """Learn from samples (n, d), or from images (n, V, d) through their views."""
    if rows.ndim == 2:
        method.adapt(rows)
    else:
        assert isinstance(method, ViewMethod)
        method.adapt_views(rows)


def _files(cls: type[Method]) -> set[str]:
    """Files that define the method's own functions, including a notebook's cell."""
    classes = [base for base in cls.__mro__ if issubclass(base, Method) and base is not Method]
    functions = [value for base in classes for value in vars(base).values() if inspect.isfunction(value)]
    return {function.__code__.co_filename for function in functions}


CHECKS = (
    interrupted_adapt_learns_whole_samples,
    interrupted_adapt_views_learns_whole_images,
    failed_adapt_learns_whole_samples_or_refuses,
)
