"""What a process of `zeroshift.workers` runs: a function from a pipe, then lists of items, answered with lists."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from dataclasses import dataclass
from typing import Any

__all__ = ["Failed", "main"]


@dataclass(frozen=True)
class Failed:
    """An answer that is none: what the function raised, and where."""

    error: Exception
    trace: str


def main() -> None:
    """Answer requests until there are no more. They are pickles, from the process that started this one."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    # What a library prints must not get between the answers.
    os.dup2(2, 1)
    function = _loaded(pickle.load(requests))
    while True:
        try:
            items = pickle.load(requests)
        except EOFError:
            return
        try:
            answers.write(pickle.dumps(_answer(function, items), protocol=pickle.HIGHEST_PROTOCOL))
            answers.flush()
        except BrokenPipeError:
            return


def _loaded(sent: bytes) -> Any:
    """The function; or one that says why it cannot be had here, whenever it is called."""
    try:
        return pickle.loads(sent)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"

    def refuses(item: Any) -> Any:
        raise ValueError(
            f"what is to be done cannot be sent to another process ({why}). "
            "Fix: define it in a module of its own, not in the script or notebook; or work in this process (workers=0)."
        )

    return refuses


def _answer(function: Any, items: list[Any]) -> Any:
    try:
        return [function(item) for item in items]
    except Exception as error:
        trace = traceback.format_exc()
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # not every error survives the pipe
            error = RuntimeError(f"{type(error).__name__}: {error}")
        return Failed(error, trace)
