"""Checks that several threads may share one method: no sample is lost, and no call sees part of another."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zeroshift.arrays import Array, to_numpy
from zeroshift.method import Method
from zeroshift.testing.case import Case, fingerprint
from zeroshift.turns import Turns

__all__ = ["CHECKS", "ThreadedRun", "adapt_in_threads", "assert_serial"]

SWITCH_INTERVAL = 1e-6
"""Seconds after which Python lets another thread run: nearly after every instruction."""

ADAPTING, PREDICTING = 4, 2
"""Threads of the check that call `adapt`, and that call `predict` meanwhile."""

CALLS = 12
"""Calls of `adapt` in the check, divided among its threads."""


@dataclass
class ThreadedRun:
    """What happened when several threads adapted one method to parts of the data."""

    order: list[int] = field(default_factory=list)
    """The numbers of the parts in the order in which they were learned."""
    answers: dict[int, Array] = field(default_factory=dict)
    """What `adapt` returned for each part."""
    predictions: list[Array] = field(default_factory=list)
    """What `predict` returned meanwhile."""
    errors: list[BaseException] = field(default_factory=list)


class _RecordedTurns(Turns):
    """Records the order of the calls that change the object."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[int] = []
        self.current = threading.local()
        """`part`: the part that this thread passes to `adapt`."""

    def run(self, exclusive: bool, function: Callable[..., Any], *arguments: Any) -> Any:
        if not exclusive:
            return super().run(False, function, *arguments)
        return super().run(True, self._recorded, function, arguments)

    def _recorded(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        self.order.append(self.current.part)
        return function(*arguments)


def adapt_in_threads(
    method: Method, parts: Sequence[Array], probe: Array, *, adapting: int, predicting: int
) -> ThreadedRun:
    """Adapt the method to every part, in `adapting` threads, while `predicting` others predict the probe."""
    turns = method._turns = _RecordedTurns()
    run = ThreadedRun(turns.order)
    start, done = threading.Barrier(adapting + predicting), threading.Event()

    def adapt(first: int) -> None:
        start.wait()
        for part in range(first, len(parts), adapting):
            turns.current.part = part
            run.answers[part] = method.adapt(parts[part])

    def predict() -> None:
        start.wait()
        while not done.is_set():
            run.predictions.append(method.predict(probe))

    def record_errors(function: Callable[..., None], *arguments: Any) -> None:
        try:
            function(*arguments)
        except BaseException as error:
            run.errors.append(error)

    learners = [threading.Thread(target=record_errors, args=(adapt, number)) for number in range(adapting)]
    readers = [threading.Thread(target=record_errors, args=(predict,)) for _ in range(predicting)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL)
    try:
        for thread in (*learners, *readers):
            thread.start()
        for thread in learners:
            thread.join()
    finally:
        done.set()
        for thread in readers:
            thread.join()
        sys.setswitchinterval(before)
    return run


def assert_serial(run: ThreadedRun, method: Method, reference: Method, parts: Sequence[Array], probe: Array) -> None:
    """Assert that the method has learned, bit for bit, what `reference` learns from the parts in the recorded order,
    and that every prediction belongs to a state between two calls."""
    if run.errors:
        raise AssertionError(f"a thread failed: {run.errors[0]!r}") from run.errors[0]
    assert sorted(run.order) == list(range(len(parts))), "some calls were lost or ran twice"
    allowed = {_bytes(reference.predict(probe))}
    for part in run.order:
        answer = reference.adapt(parts[part])
        assert _bytes(run.answers[part]) == _bytes(answer), f"adapt in a thread: another answer for part {part}"
        allowed.add(_bytes(reference.predict(probe)))
    assert method.n_seen == reference.n_seen, f"n_seen is {method.n_seen} instead of {reference.n_seen}"
    assert fingerprint(method) == fingerprint(reference), "the state is not that of the calls in the order they ran"
    for prediction in run.predictions:
        assert _bytes(prediction) in allowed, "predict in a thread: the answer belongs to no state between two calls"


def _bytes(array: Array) -> bytes:
    return to_numpy(array).tobytes()


def threads_may_share_a_method(case: Case) -> None:
    """Concurrent calls of `adapt` learn what the same calls do one after the other, in the order in which they ran;
    `predict` in other threads changes nothing and never sees part of a call."""
    problem = case.problem(samples=48, seed=10)
    method = case.create(problem.prototypes)
    parts = np.array_split(problem.features, CALLS)
    probe = problem.features[:3]
    run = adapt_in_threads(method, parts, probe, adapting=ADAPTING, predicting=PREDICTING)
    assert_serial(run, method, case.create(problem.prototypes), parts, probe)


CHECKS = (threads_may_share_a_method,)
