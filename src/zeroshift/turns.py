"""Calls from several threads on one object: those that change it run one at a time, those that read it together.

`Turns` is a lock for readers and writers that serves calls in the order of their arrival. A call that changes the
object waits for all calls before it; a call that reads waits for the changes before it. No call is overtaken, so none
waits for ever.

A signal handler may raise an exception in the main thread after any call of a function, but not during a call of a
built-in one. A turn therefore begins and ends with one operation of a `deque`. Only the wake-up of the next call can be
lost; waiting calls look again after `RECHECK_SECONDS`.
"""

from __future__ import annotations

import os
from _thread import LockType, allocate_lock, get_ident
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self, SupportsIndex, TypeVar

__all__ = ["Shared", "Turns"]

T = TypeVar("T")

RECHECK_SECONDS = 0.05
"""A waiting call looks this often whether it may run, in case an exception prevented that it was woken."""


class _Process:
    forks = 0
    """How many times this process, or those it descends from, was forked."""
    survivor = 0
    """The only thread that still existed after the last fork."""


def _after_fork() -> None:
    _Process.forks += 1
    _Process.survivor = get_ident()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _Turn:
    """One call that runs or waits."""

    __slots__ = ("exclusive", "forks", "runs", "thread", "wake_up")

    def __init__(self, exclusive: bool) -> None:
        self.exclusive = exclusive
        self.thread = get_ident()
        self.forks = _Process.forks
        self.runs = False
        self.wake_up: LockType | None = None
        """Released when the call may run; None while it does not wait."""


class Turns:
    """The calls that run or wait, in the order of their arrival.

    >>> turns = Turns()
    >>> turns.run(True, sum, [1, 2])
    3
    """

    __slots__ = ("_queue", "broken_by_fork")

    def __init__(self) -> None:
        self._queue: deque[_Turn] = deque()
        self.broken_by_fork = False
        """Whether this process was forked while another thread changed the object, perhaps half-way."""

    def run(self, exclusive: bool, function: Callable[..., T], *arguments: Any) -> T:
        """`function(*arguments)` in its turn: alone if `exclusive`, otherwise together with others that are not.

        A function may call `run` again: the turn of the outer call includes the inner one.
        """
        turn, queue = _Turn(exclusive), self._queue
        try:
            queue.append(turn)
            if queue[0] is not turn:
                self._wait(turn)
            turn.runs = True
            return function(*arguments)
        finally:
            if turn in queue:
                queue.remove(turn)
            if queue:
                self._wake_next()

    def _wait(self, turn: _Turn) -> None:
        if self._may_run(turn):
            return
        turn.wake_up = wake_up = allocate_lock()
        wake_up.acquire()
        while not self._may_run(turn):
            wake_up.acquire(timeout=RECHECK_SECONDS)

    def _may_run(self, turn: _Turn) -> bool:
        for other in list(self._queue):
            if other is turn:
                break
            if other.forks != _Process.forks and other.thread != _Process.survivor:
                # Its thread exists only in the process that this one was forked from.
                self.broken_by_fork |= other.exclusive and other.runs
                with suppress(ValueError):  # another thread removed it
                    self._queue.remove(other)
            elif other.thread == turn.thread:
                # The outer call of this one. If it waits, this call is made by a signal handler.
                if other.runs and turn.exclusive and not other.exclusive:
                    raise RuntimeError(
                        "a call that only reads, such as predict, made a call that changes the same object, such as "
                        "adapt. Fix: change it in adapt, or change a copy."
                    )
                if other.runs:
                    return True
            elif turn.exclusive or other.exclusive:
                return False
        return True

    def _wake_next(self) -> None:
        """Wake the calls that may run now: those that read, up to the first that does not."""
        for turn in list(self._queue):
            wake_up = turn.wake_up
            if wake_up is not None and wake_up.locked():
                with suppress(RuntimeError):  # another thread woke it meanwhile
                    wake_up.release()
            if turn.exclusive:
                break


class Shared:
    """An object that several threads may use. Its calls go through `_turns`."""

    __slots__ = ("_turns",)  # not in `__dict__`: a lock is not copied, pickled or saved
    _turns: Turns

    def __new__(cls, *arguments: Any, **parameters: Any) -> Self:
        self = super().__new__(cls)
        self._turns = Turns()
        return self

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        # Protocols 0 and 1 of pickle would make the object without `__new__`.
        return super().__reduce_ex__(max(2, int(protocol)))
