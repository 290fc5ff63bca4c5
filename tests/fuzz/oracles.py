"""What must hold whatever the input: valid answers, errors of our own that name the argument, unchanged state."""

from __future__ import annotations

import linecache
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.harness import PACKAGE
from zeroshift.arrays import to_numpy
from zeroshift.method import Method
from zeroshift.testing.case import fingerprint

__all__ = ["array_bytes", "assert_answer", "assert_our_error", "learned", "parameters_of"]


def assert_our_error(error: BaseException, *names: str, kinds: tuple[type[BaseException], ...] = ()) -> None:
    """The error is a ValueError or TypeError (or one of `kinds`) that a `raise` of zeroshift produced, and its message
    contains one of `names`."""
    kinds = kinds or (ValueError, TypeError)
    assert isinstance(error, kinds), f"raised {type(error).__name__}: {error}\n{_last_lines(error)}"
    last = traceback.extract_tb(error.__traceback__)[-1]
    line = linecache.getline(last.filename, last.lineno or 0).strip()
    ours = Path(last.filename).is_relative_to(PACKAGE) and line.startswith("raise")
    assert ours, f"a library's own {type(error).__name__}: {error}\n{_last_lines(error)}"
    assert not names or any(name in str(error) for name in names), f"the message names none of {names}: {error}"


def _last_lines(error: BaseException) -> str:
    return "".join(traceback.format_tb(error.__traceback__)[-3:])


def assert_answer(answer: Any, rows: int, classes: int, what: str, *, tolerance: float = 1e-6) -> None:
    """Probabilities (rows, classes): finite, not negative, and rows that sum to 1."""
    values = to_numpy(answer)
    assert values.shape == (rows, classes), f"{what}: shape {values.shape} instead of {(rows, classes)}"
    assert np.isfinite(values).all(), f"{what}: not finite: {values}"
    assert (values >= 0).all(), f"{what}: negative probabilities"
    sums = values.sum(axis=1, dtype=np.float64)
    assert np.abs(sums - 1).max(initial=0) <= tolerance, f"{what}: rows sum to {sums}"


def learned(method: Method) -> Any:
    """Everything the method has learned, in a form that can be compared."""
    arrays, values = method._state()
    return fingerprint({"arrays": dict(sorted(arrays.items())), "values": values, "n_seen": method.n_seen})


def parameters_of(method: Method) -> Any:
    return fingerprint(
        {name: value for name, value in method.get_params().items() if name not in method.model_parameters}
    )


def array_bytes(value: Any) -> Any:
    """The content of an argument, to see whether a call has changed it. None for what cannot be compared."""
    try:
        if isinstance(value, np.ndarray):
            return value.dtype.str, value.shape, value.strides, value.tobytes()
        if type(value).__module__.startswith("torch"):
            return str(value.dtype), tuple(value.shape), to_numpy(value).tobytes()
        if isinstance(value, (list, tuple, dict, str, bytes, int, float)):
            return repr(value)
    except Exception:
        return None
    return None
