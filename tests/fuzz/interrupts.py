"""Interrupts: a signal at any line of a call leaves whole samples learned, and whole files written."""

from __future__ import annotations

import copy
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from hypothesis import strategies as st

from fuzz.cases import METHODS, Stream, create, method_names, streams
from fuzz.harness import PACKAGE, fuzzed
from fuzz.oracles import assert_our_error, learned
from zeroshift import FeatureSet
from zeroshift.method import ViewMethod
from zeroshift.testing.interrupts import _is_guard

TOLERANCE = 1e-9
"""Of predictions after the same samples in other calls."""


class StoppedError(Exception):
    """Raised by the handler of a signal, as SIGTERM's often does."""


def _lines(call: Callable[[], Any], stop: int | None, number: int) -> tuple[int, bool]:
    """Lines of the library that began, and whether the call was stopped by a signal before line `stop`."""
    begun = 0

    def follow(frame: FrameType, event: str, argument: Any) -> Any:
        return count if frame.f_code.co_filename.startswith(str(PACKAGE)) else None

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal begun
        if event == "line" and not _is_guard(frame):
            begun += 1
            if begun == stop:
                signal.raise_signal(number)
        return count

    def handle(number: int, frame: Any) -> None:
        raise StoppedError

    before = signal.signal(number, handle)
    sys.settrace(follow)
    try:
        call()
    except StoppedError:
        return begun, True
    finally:
        sys.settrace(None)
        signal.signal(number, before)
    return begun, False


def _can_trace() -> bool:
    return sys.gettrace() is None and threading.current_thread() is threading.main_thread()


def _adapt(method: Any, rows: np.ndarray) -> None:
    if rows.ndim == 3:
        method.adapt_views(rows)
    else:
        method.adapt(rows)


@fuzzed(
    "interrupts",
    80,
    name=method_names,
    stream=streams(max_samples=10, max_dimension=5),
    views=st.booleans(),
    place=st.floats(0, 1),
    number=st.sampled_from([signal.SIGINT, signal.SIGTERM]),
)
def interrupted_calls_learn_whole_samples(name: str, stream: Stream, views: bool, place: float, number: int) -> None:
    if not _can_trace():
        return
    method = create(name, stream.prototypes)
    size = method._adapted_together
    rows = np.concatenate([stream.features] * size)
    if views and issubclass(METHODS[name], ViewMethod):
        rows = np.stack([rows, rows[::-1]], axis=1)
    transductive = METHODS[name].protocol == "transductive"
    if not transductive:
        _adapt(method, rows[:size])
    start, probe = method.n_seen, stream.features[:3]
    lines, _ = _lines(lambda: _adapt(copy.deepcopy(method), rows), None, number)
    stopped = copy.deepcopy(method)
    _, came_out = _lines(lambda: _adapt(stopped, rows), 1 + int(place * lines), number)
    allowed = [start, start + len(rows)] if transductive else range(start, start + len(rows) + 1)
    assert stopped.n_seen in allowed, f"{name}: n_seen is {stopped.n_seen} after an interrupt, {start} before"
    assert came_out or stopped.n_seen == start + len(rows), f"{name}: the signal was lost"
    reference = copy.deepcopy(method)
    if stopped.n_seen > start:
        _adapt(reference, rows[: stopped.n_seen - start])
    for call in ("predict", "adapt"):
        answer, wanted = getattr(stopped, call)(probe), getattr(reference, call)(probe)
        worst = np.abs(answer - wanted).max()
        assert worst <= TOLERANCE, (
            f"{name}: {call} after an interrupt at n_seen = {stopped.n_seen} differs by {worst:.2g}"
        )


@fuzzed("interrupts", 25, name=method_names, place=st.floats(0, 1), second=st.booleans())
def interrupted_saves_leave_whole_files(name: str, place: float, second: bool) -> None:
    if not _can_trace():
        return
    stream = Stream(classes=3, dimension=4, samples=8)
    method = create(name, stream.prototypes)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        method.save(path)
        old = path.read_bytes()
        method.adapt(stream.features)
        method.save(path)
        new = path.read_bytes()
        if second:
            path.write_bytes(old)
        else:
            path.unlink()
        state = learned(method)
        lines, _ = _lines(lambda: method.save(Path(folder) / "other.safetensors"), None, signal.SIGINT)
        (Path(folder) / "other.safetensors").unlink()
        _lines(lambda: method.save(path), 1 + int(place * lines), signal.SIGINT)
        left = sorted(entry.name for entry in Path(folder).iterdir())
        assert left in ([], [path.name]), f"{name}: an interrupted save leaves {left}"
        assert bool(left) or not second, f"{name}: an interrupted save removed the old file"
        assert not left or path.read_bytes() in ((old, new) if second else (new,)), f"{name}: half a file"
        assert learned(method) == state, f"{name}: an interrupted save changed the state"


@fuzzed("interrupts", 25, name=method_names, place=st.floats(0, 1))
def interrupted_resets_are_old_new_or_refused(name: str, place: float) -> None:
    if not _can_trace():
        return
    stream = Stream(classes=3, dimension=4, samples=8)
    method = create(name, stream.prototypes)
    method.adapt(stream.features)
    old, fresh = method.predict(stream.features), method.clone().predict(stream.features)
    lines, _ = _lines(lambda: copy.deepcopy(method).reset(), None, signal.SIGINT)
    _lines(method.reset, 1 + int(place * lines), signal.SIGINT)
    try:
        answer = method.predict(stream.features)
    except RuntimeError as error:
        assert_our_error(error, "reset", kinds=(RuntimeError,))
        method.reset()
        answer = method.predict(stream.features)
    expected = fresh if method.n_seen == 0 else old
    assert np.array_equal(answer, expected), f"{name}: an interrupted reset leaves a mixture of two states"


@fuzzed("interrupts", 15, place=st.floats(0, 1), second=st.booleans())
def interrupted_feature_files_are_whole(place: float, second: bool) -> None:
    if not _can_trace():
        return
    stream = Stream(classes=3, dimension=4, samples=8)
    made = FeatureSet(stream.features, prototypes=stream.prototypes)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "set.safetensors"
        made.save(path)
        new = path.read_bytes()
        if second:
            path.write_bytes(b"old")
        else:
            path.unlink()
        lines, _ = _lines(lambda: made.save(Path(folder) / "other.safetensors"), None, signal.SIGINT)
        (Path(folder) / "other.safetensors").unlink()
        _lines(lambda: made.save(path), 1 + int(place * lines), signal.SIGINT)
        left = sorted(entry.name for entry in Path(folder).iterdir())
        assert left in ([], [path.name]), f"an interrupted save leaves {left}"
        assert not left or path.read_bytes() in ((b"old", new) if second else (new,)), "half a file"
