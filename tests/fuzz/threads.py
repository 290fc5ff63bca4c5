"""Threads: one object shared by several threads, which are stopped at chosen lines while the others run on.

No call fails, `n_seen` is exact, the state is that of the calls in the order in which they were served, every answer
of `adapt` is the one of that order, and every answer of `predict` is that of a state between two calls.
"""

from __future__ import annotations

import copy
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from hypothesis import strategies as st

from fuzz.cases import METHODS, Stream, create, method_names
from fuzz.harness import PACKAGE, fuzzed
from fuzz.oracles import learned

PAUSE_SECONDS = 0.004
"""How long a thread stands still at a line where it is stopped, unless all others have ended."""

END_SECONDS = 60.0
"""Time after which threads count as blocked for ever."""

CALLS = ("adapt", "adapt", "adapt", "predict", "predict", "save", "deepcopy", "repr", "n_seen", "reset", "clone")


@dataclass(frozen=True)
class Thread:
    """The calls of a thread, and the lines of the library at which it pauses, counted from its start."""

    calls: tuple[str, ...]
    pauses: tuple[int, ...] = ()


threads = st.builds(
    Thread,
    st.lists(st.sampled_from(CALLS), min_size=1, max_size=3).map(tuple),
    st.lists(st.one_of(st.integers(1, 60), st.integers(1, 600)), max_size=3).map(tuple),
)


def recorded(name: str) -> tuple[type, list[tuple[int, int]]]:
    """A subclass of the method that records which calls learn, in the order in which they do."""
    order: list[tuple[int, int]] = []
    cls = METHODS[name]

    def recording(name: str) -> Any:
        def call(self: Any, *arguments: Any, **options: Any) -> Any:
            number = getattr(_CALL, "number", None)  # None in the constructor, which resets
            if number is not None and number not in order:  # one of these functions may call another
                order.append(number)
            return getattr(cls, name)(self, *arguments, **options)

        return call

    learning = ("_adapt_scores", "_adapt_view_scores", "_reset")
    own = {name: recording(name) for name in learning if hasattr(cls, name)}
    return type(cls.__name__, (cls,), {**own, "__doc__": None}), order


_CALL = threading.local()


class Run:
    """Starts the threads together and collects what their calls return or raise."""

    def __init__(self, work: list[list[Callable[[], Any]]], pauses: list[tuple[int, ...]]) -> None:
        self.results: dict[tuple[int, int], Any] = {}
        self.errors: list[tuple[tuple[int, int], BaseException]] = []
        self._work, self._pauses = work, pauses
        self._start = threading.Barrier(len(work))
        self._running = len(work)
        self._last = threading.Event()
        """Set when one thread or none is left."""

    def __call__(self) -> None:
        started = [threading.Thread(target=self._run, args=(i,), daemon=True) for i in range(len(self._work))]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join(END_SECONDS)
        assert not any(thread.is_alive() for thread in started), "the threads block each other for ever"
        for (i, j), error in self.errors:
            raise AssertionError(f"call {j} of thread {i} raised {type(error).__name__}: {error}") from error

    def _run(self, i: int) -> None:
        self._start.wait()
        try:
            sys.settrace(self._tracer(self._pauses[i]))
            for j, call in enumerate(self._work[i]):
                _CALL.number = (i, j)
                try:
                    self.results[i, j] = call()
                except BaseException as error:
                    self.errors.append(((i, j), error))
        finally:
            sys.settrace(None)
            self._running -= 1
            if self._running <= 1:
                self._last.set()

    def _tracer(self, pauses: tuple[int, ...]) -> Any:
        begun = 0

        def follow(frame: FrameType, event: str, argument: Any) -> Any:
            return count if pauses and frame.f_code.co_filename.startswith(str(PACKAGE)) else None

        def count(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal begun
            if event == "line":
                begun += 1
                if begun in pauses:
                    self._last.wait(PAUSE_SECONDS)
            return count

        return follow


def _call(method: Any, what: str, rows: np.ndarray, probe: np.ndarray, path: Path) -> Any:
    match what:
        case "adapt":
            return method.adapt(rows)
        case "predict":
            return method.predict(probe)
        case "save":
            return method.save(path)
        case "deepcopy":
            return copy.deepcopy(method).predict(probe)
        case "repr":
            return repr(method)
        case "reset":
            return method.reset()
        case "clone":
            return type(method).__mro__[1](**method.get_params()).n_seen
    return method.n_seen


def _share(
    name: str, stream: Stream, work: list[tuple[str, ...]], pauses: list[tuple[int, ...]], rows_per_call: int
) -> None:
    cls, order = recorded(name)
    parameters = create(name, stream.prototypes).get_params()
    method, probe = cls(**parameters), stream.features[:3]
    size = rows_per_call * method._adapted_together
    rows: dict[tuple[int, int], np.ndarray] = {}
    for i, calls in enumerate(work):
        for j, _ in enumerate(calls):
            start = len(rows) * size % max(1, stream.samples - size)
            rows[i, j] = stream.features[start : start + size]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        calls = [
            [partial(_call, method, what, rows[i, j], probe, path / f"{i}-{j}") for j, what in enumerate(whats)]
            for i, whats in enumerate(work)
        ]
        run = Run(calls, pauses)
        run()
    changing = [(i, j) for i, calls in enumerate(work) for j, what in enumerate(calls) if what in ("adapt", "reset")]
    assert sorted(order) == changing, f"{name}: learned from the calls {order}, of {changing}"
    serial = METHODS[name](**parameters)
    between = [serial.predict(probe)]
    counts = [0]
    for number in order:
        if work[number[0]][number[1]] == "reset":
            serial.reset()
        else:
            expected = serial.adapt(rows[number])
            assert np.array_equal(run.results[number], expected), f"{name}: an answer of adapt is not that of its turn"
        between.append(serial.predict(probe))
        counts.append(serial.n_seen)
    assert method.n_seen == serial.n_seen, f"{name}: n_seen is {method.n_seen}, not {serial.n_seen}"
    assert learned(method) == learned(serial), f"{name}: the state is not that of the calls in their order"
    for (i, j), answer in run.results.items():
        what = work[i][j]
        if what in ("predict", "deepcopy"):
            assert any(np.array_equal(answer, one) for one in between), (
                f"{name}: {what} saw a state between two samples"
            )
        if what == "n_seen":
            assert answer in counts, f"{name}: n_seen was {answer}, none of {counts}"


@fuzzed(
    "threads",
    80,
    name=method_names,
    seed=st.integers(0, 20),
    shared_by=st.lists(threads, min_size=2, max_size=4),
    rows_per_call=st.integers(1, 3),
)
def threads_share_an_object(name: str, seed: int, shared_by: list[Thread], rows_per_call: int) -> None:
    stream = Stream(classes=3, dimension=4, samples=40, seed=seed)
    _share(name, stream, [thread.calls for thread in shared_by], [thread.pauses for thread in shared_by], rows_per_call)


@fuzzed(
    "threads", 12, name=method_names, seed=st.integers(0, 20), count=st.integers(2, 8), predicting=st.integers(0, 2)
)
def many_short_calls_in_many_threads(name: str, seed: int, count: int, predicting: int) -> None:
    """With the shortest interval at which Python switches between threads."""
    work = [("adapt",) * 8 for _ in range(count)] + [("predict",) * 8 for _ in range(predicting)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        _share(name, Stream(classes=3, dimension=4, samples=90, seed=seed), work, [()] * len(work), 1)
    finally:
        sys.setswitchinterval(before)
