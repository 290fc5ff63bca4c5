"""Functions that tests run in other processes, which must be able to import them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zeroshift.evaluate.resources import PeakMemory


def double_slowly(item: int) -> int:
    time.sleep(0.05)
    return 2 * item


def slow_once(item: tuple[int, str]) -> int:
    """The number; the first time, number 3 takes until it is started a second time."""
    number, marker = item
    if number == 3:
        try:
            Path(marker).touch(exist_ok=False)
        except FileExistsError:
            Path(f"{marker}-again").touch()
            return number
        deadline = time.monotonic() + 300
        while not os.path.exists(f"{marker}-again"):
            if time.monotonic() > deadline:
                raise TimeoutError("the task was not started a second time")
            time.sleep(0.01)
    return number


@dataclass
class MemoryOfPart:
    """A function's result, and by how many bytes the largest memory of the process rose while it ran."""

    function: Callable[[Any], Any]

    def __call__(self, item: Any) -> tuple[Any, int]:
        memory = PeakMemory()
        memory.reset()
        before = memory.now()
        result = self.function(item)
        return result, memory.peak() - before


def kill_once(item: tuple[int, str]) -> int:
    """The number; the first time, number 3 ends its process, as the system does where memory is short."""
    number, marker = item
    if number == 3 and not os.path.exists(marker):
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number
