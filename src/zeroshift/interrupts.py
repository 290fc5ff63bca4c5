"""Postpone signals while a method changes its state, so that Ctrl-C never leaves a sample half learned.

`Watch` wraps one call that learns: it puts `_handle` in front of the handlers that the program has installed.
`postpone` and `resume` enclose each change of the state: a signal that arrives in between is handled when the change is
complete. Python runs signal handlers in the main thread only, so other threads need no protection.

A signal may arrive at any instruction, also while `Watch` installs or removes `_handle`. Then `_handle` may stay
installed. That is harmless: it calls the handler of the program, and the next `Watch` finds it in place.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from importlib import import_module
from types import FrameType
from typing import Any

__all__ = ["Watch", "postpone", "resume"]

NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2", "SIGBREAK")
SIGNALS = tuple(int(getattr(signal, name)) for name in NAMES if hasattr(signal, name))
"""Signals whose handlers, if the program has installed any, may raise an exception."""

# The functions below those of `signal`, which convert numbers to enumerations and take ten times as long.
_fast_signal: Any = import_module("_signal" if "_signal" in sys.builtin_module_names else "signal")
_get_handler, _set_handler = _fast_signal.getsignal, _fast_signal.signal


class _State:
    main_thread = threading.main_thread().ident
    """The thread that runs signal handlers."""
    handlers: dict[int, Any] = {}  # noqa: RUF012 (one for the process, as the signal handlers are)
    """The handlers that `_handle` calls, by signal number."""
    depth = 0
    """Calls of `postpone` without their `resume`."""
    pending: dict[int, FrameType | None] = {}  # noqa: RUF012
    """The signals that arrived meanwhile, by number, in order of arrival."""


def _after_fork() -> None:
    if threading.get_ident() != _State.main_thread:
        # The thread that forked is now the main thread. What the former one had postponed does not matter here.
        _State.main_thread, _State.depth = threading.get_ident(), 0
        _State.pending.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def postpone() -> None:
    """Handle signals later, when `resume` is called."""
    if threading.get_ident() == _State.main_thread:
        _State.depth += 1


def resume() -> None:
    """Handle the signals that arrived since `postpone`, if any."""
    if threading.get_ident() != _State.main_thread:
        return
    _State.depth -= 1
    if _State.pending and not _State.depth:
        _handle_pending()


def _handle_pending() -> None:
    number = next(iter(_State.pending))
    frame = _State.pending.pop(number)
    handler = _get_handler(number)
    try:
        if handler is _handle:
            _State.handlers[number](number, frame)
        elif callable(handler):
            handler(number, frame)
    finally:
        if _State.pending:
            _handle_pending()  # even if the first handler raised, as that of SIGINT does


def _handle(number: int, frame: FrameType | None) -> None:
    if _State.depth:
        _State.pending[number] = frame
    else:
        _State.handlers[number](number, frame)


class Watch:
    """Around one call that learns: signals go through this module, and to their own handlers again afterwards."""

    __slots__ = ("_enabled", "_installed")

    def __init__(self, enabled: bool = True) -> None:
        self._enabled = enabled and threading.get_ident() == _State.main_thread
        self._installed: list[int] = []

    def __enter__(self) -> None:
        if not self._enabled:
            return
        try:
            for number in SIGNALS:
                handler = _get_handler(number)
                if handler is not _handle and callable(handler):
                    _State.handlers[number] = handler
                    self._installed.append(number)
                    _set_handler(number, _handle)
        except BaseException:
            self.__exit__()  # a signal arrived; `with` calls it only if this method returns
            raise

    def __exit__(self, *failure: object) -> None:
        for number in self._installed:
            if _get_handler(number) is _handle:  # otherwise it was replaced meanwhile, and that stays
                _set_handler(number, _State.handlers[number])
