"""Functions that tests run in other processes, which must be able to import them."""

from __future__ import annotations

import os
import time
from pathlib import Path


def double_slowly(item: int) -> int:
    time.sleep(0.05)
    return 2 * item


def slow_once(item: tuple[int, str]) -> int:
    """The number; the first time, number 3 takes a minute."""
    number, marker = item
    if number == 3 and not os.path.exists(marker):
        Path(marker).touch()
        time.sleep(60)
    time.sleep(0.01)
    return number
