"""As many at a time as memory allows: start with a size, halve it when memory runs out, keep what was found."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np

__all__ = ["in_batches", "out_of_memory"]

SIGNS = ("out of memory", "can't allocate memory", "not enough memory", "failed to allocate", "alloc_failed")
"""Of memory that ran out, in the words of CUDA, MPS, cuBLAS and torch's own allocators."""


def in_batches(count: int, size: int, encode: Callable[[slice], np.ndarray]) -> tuple[np.ndarray, int]:
    """`encode` over rows 0 to `count`, at most `size` at a time; and the size that memory allowed.

    >>> in_batches(5, 2, lambda rows: np.arange(5)[rows])
    (array([0, 1, 2, 3, 4]), 2)
    """
    parts: list[np.ndarray] = []
    done = 0
    while done < count:
        tried = min(size, count - done)
        try:
            parts.append(encode(slice(done, done + tried)))
            done += tried
            continue
        except Exception as error:
            if not out_of_memory(error):
                raise
            if tried == 1:
                raise MemoryError(
                    "one item at a time is already too much for the memory of the device. "
                    "Fix: free memory there, take device='cpu', or a smaller model."
                ) from error
        # Out here the error is gone, and with its traceback the tensors that were too many.
        size = tried // 2
        _release()
    return np.concatenate(parts), size


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: torch says so in several ways, some of them only in words."""
    if isinstance(error, MemoryError) or type(error).__name__ in ("OutOfMemoryError", "AcceleratorError"):
        return isinstance(error, MemoryError) or "out of memory" in str(error)
    words = str(error).lower()
    return isinstance(error, RuntimeError) and any(sign in words for sign in SIGNS)


def _release() -> None:
    import sys

    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
