"""Memory taken from the system for certain: what the C library kept of freed memory cannot serve it."""

import mmap

import numpy as np

__all__ = ["take"]


def take(size: int) -> None:
    """Write to `size` bytes of new pages, and give them back."""
    with mmap.mmap(-1, size) as pages:
        written = np.frombuffer(pages, np.uint8)
        written[:] = 1
        del written  # or the pages could not be given back
