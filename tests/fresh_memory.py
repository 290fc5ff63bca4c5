"""Memory that is certainly new from the system, not reused by the C library."""

import mmap

import numpy as np

__all__ = ["touch_memory"]


def touch_memory(size: int) -> None:
    """Write to `size` bytes of new pages, and release them."""
    with mmap.mmap(-1, size) as pages:
        written = np.frombuffer(pages, np.uint8)
        written[:] = 1
        del written  # otherwise the pages cannot be released
