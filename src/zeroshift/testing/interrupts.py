"""Checks that an interrupt (Ctrl-C, no memory left) in the middle of `adapt`, or of `adapt_views`, leaves a method that
can go on."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import zeroshift
from zeroshift.method import Method, ViewMethod
from zeroshift.testing.case import Case, NotApplicable, assert_same

__all__ = ["CHECKS"]

TOLERANCE = 1e-9

POINTS, VIEW_POINTS = 40, 20
"""Lines interrupted at, at most, spread evenly over all that are run: of `adapt`, and of `adapt_views`."""

VIEWS = 3
"""Of an image, where it comes with several."""

FOLDERS = tuple(str(Path(zeroshift.__file__).parent / name) for name in ("methods", "adapt", "mixture"))


class Interrupted(BaseException):
    """No Exception, as KeyboardInterrupt is none: nobody may take it for an error of their own."""


def interrupted_adapt_learns_whole_samples(case: Case) -> None:
    """Wherever `adapt` is interrupted, the method answers and goes on as one that saw the `n_seen` samples it says."""
    if sys.gettrace() is not None:
        raise NotApplicable("a debugger, or a measurement of coverage, follows the lines already")
    problem = case.problem(samples=64, seed=8)
    method = case.create(problem.prototypes)
    size = getattr(method, "batch_size", None) or 1
    start, probe = 6 * size, problem.features[:4]
    several, one = problem.features[start : start + 5 * size], problem.features[start : start + 1]
    if case.cls.protocol == "transductive":
        _all_or_nothing(method, several, probe)
        return
    method.adapt(problem.features[:start])
    for rows in (several, one):
        _whole_samples(method, rows, probe)


def interrupted_adapt_views_learns_whole_images(case: Case) -> None:
    """The same of `adapt_views`, by images."""
    if sys.gettrace() is not None:
        raise NotApplicable("a debugger, or a measurement of coverage, follows the lines already")
    if not issubclass(case.cls, ViewMethod):
        raise NotApplicable("the method takes no views")
    problem = case.problem(samples=64, seed=9)
    method = case.create(problem.prototypes)
    size = getattr(method, "batch_size", None) or 1
    images = problem.features[: 20 * VIEWS].reshape(-1, VIEWS, problem.features.shape[1])
    probe, start, stop = problem.features[-4:], min(3 * size, 10), min(5 * size, 20)
    if case.cls.protocol == "transductive":
        _all_or_nothing(method, images[start:stop], probe)
        return
    _adapt(method, images[:start])
    _whole_samples(method, images[start:stop], probe)


def _whole_samples(method: Method, rows: np.ndarray, probe: np.ndarray) -> None:
    start = method.n_seen

    @cache
    def expected(n_seen: int) -> tuple[np.ndarray, np.ndarray]:
        twin = copy.deepcopy(method)
        if n_seen > start:
            _adapt(twin, rows[: n_seen - start])
        return twin.predict(probe), twin.adapt(probe)

    for place, stopped in _interrupted(method, rows):
        n_seen = stopped.n_seen
        assert start <= n_seen <= start + len(rows), f"interrupted at {place}: n_seen is {n_seen}"
        answers = stopped.predict(probe), stopped.adapt(probe)
        assert stopped.n_seen == n_seen + len(probe), f"interrupted at {place}: n_seen goes on from another number"
        for call, answer, wanted in zip(("predict", "adapt"), answers, expected(n_seen), strict=True):
            what = f"interrupted at {place} with n_seen = {n_seen} ({start} before): {call}"
            assert_same(answer, wanted, what, tolerance=TOLERANCE)


def _all_or_nothing(method: Method, rows: np.ndarray, probe: np.ndarray) -> None:
    """Of a set that is learned as one: half of it teaches nothing."""
    learned = copy.deepcopy(method)
    _adapt(learned, rows)
    before, after = method.predict(probe), learned.predict(probe)
    for place, stopped in _interrupted(method, rows):
        answer = stopped.predict(probe)
        nearest = min(float(np.abs(answer - wanted).max()) for wanted in (before, after))
        assert nearest <= TOLERANCE, f"interrupted at {place}: predict is neither as before nor as after the set"


def _interrupted(method: Method, rows: np.ndarray) -> Iterator[tuple[str, Method]]:
    """(place, method) for copies that were interrupted while they learned from the rows, each at another line."""
    lines, _ = _adapt_until(copy.deepcopy(method), rows, None)
    points = POINTS if rows.ndim == 2 else VIEW_POINTS
    for stop in range(1, 1 + lines, -(-lines // points)):
        stopped = copy.deepcopy(method)
        _, place = _adapt_until(stopped, rows, stop)
        yield place, stopped


def _adapt_until(method: Method, rows: np.ndarray, stop: int | None) -> tuple[int, str]:
    """Adapt, interrupted before line number `stop` of those the method runs: how many were begun, and the last."""
    files = _files(type(method))
    begun, place = 0, ""

    def follow(frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        return count if name.startswith(FOLDERS) or name in files else None

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal begun, place
        if event == "line":
            begun += 1
            if begun == stop:
                place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                raise Interrupted
        return count

    sys.settrace(follow)
    try:
        _adapt(method, rows)
    except Interrupted:
        pass
    finally:
        sys.settrace(None)
    return begun, place


def _adapt(method: Method, rows: np.ndarray) -> None:
    """Learn from samples (n, d), or from images (n, V, d) by their views."""
    if rows.ndim == 2:
        method.adapt(rows)
    else:
        assert isinstance(method, ViewMethod)
        method.adapt_views(rows)


def _files(cls: type[Method]) -> set[str]:
    """Where the method's own functions are written, a notebook's cell too."""
    classes = [base for base in cls.__mro__ if issubclass(base, Method) and base is not Method]
    functions = [value for base in classes for value in vars(base).values() if inspect.isfunction(value)]
    return {function.__code__.co_filename for function in functions}


CHECKS = (interrupted_adapt_learns_whole_samples, interrupted_adapt_views_learns_whole_images)
