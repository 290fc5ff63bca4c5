"""Analyses for tests, in a module because worker processes import them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np


def counts(features, *, prompt, times=1):
    """NumPy's numbers, tuples and whole numbers as keys: none of which JSON has."""
    return {
        "rows": np.int64(features.n_samples * times),
        "mean": np.float32(0.5),
        "pair": (1, 2),
        "of": {3: np.arange(2)},
    }


def nothing(features, *, prompt):
    return {"mean": float("nan")}


def unnamed(features, *, prompt):
    return {"of": {(0, 1): 1.0}}


def endless(features, *, prompt):
    inner: list = []
    for _ in range(100_000):
        inner = [inner]
    return {"deep": inner}


def says(features, *, prompt, name):
    return {name: 1.0}


def breaks(features, *, prompt):
    raise ZeroDivisionError("a bug")


def killed_once(features, *, prompt, marker):
    """Ends its process the first time, as the system does where memory is short."""
    if not os.path.exists(marker):
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"mean": 0.5}
