"""Rows of tasks on a GPU, kept from one pass of a run to the next: to read and move them takes longer than a round."""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np

from zeroshift.arrays import Array

__all__ = ["DeviceRows", "is_gpu", "kept_rows"]

FREE_SHARE = 0.5
"""Rows are kept while at least this share of the device's memory is free, whoever uses the rest."""

STAGING_BYTES = 16 * 2**20
"""Size of a buffer in page-locked memory. There are two: one is filled while the other is transferred."""


def is_gpu(device: str | None) -> bool:
    return device is not None and device.startswith("cuda")


class DeviceRows:
    """The rows of tasks on a device, in the precision that they are stored in. Those of one run at a time are kept."""

    def __init__(self) -> None:
        self._run: tuple[str, str] | None = None
        self._kept: dict[int, Array] = {}
        self._staging: list[tuple[Array, Any]] = []
        """Page-locked buffers, and the event at the end of the last transfer from each."""
        self._lock = threading.RLock()

    def find(self, run: str, device: str, task: int) -> Array | None:
        """The rows of a task, if they were kept in this run. What other runs kept is released."""
        with self._lock:
            if self._run != (run, device):
                self.release()
                self._run = run, device
            return self._kept.get(task)

    def keep(self, run: str, device: str, task: int, rows: Array) -> None:
        """Keep the rows of a task if there is memory, and no other run began since they were looked for."""
        with self._lock:
            if self._run == (run, device) and _free_share(rows.device) >= FREE_SHARE:
                self._kept[task] = rows

    def release(self) -> None:
        """Give the memory back."""
        with self._lock:
            self._run = None
            if self._kept or self._staging:
                self._kept, self._staging = {}, []
                torch = sys.modules["torch"]
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()

    def move(self, rows: np.ndarray, device: str) -> Array:
        """The rows (n, d) on the device, through page-locked memory."""
        __import__("torch")  # optional
        torch: Any = sys.modules["torch"]
        # Torch has neither numbers in the other byte order nor those above 64 bits.
        dtype = np.dtype(np.float64) if rows.dtype.itemsize > 8 else rows.dtype.newbyteorder("=")
        moved = torch.empty(rows.shape, dtype=torch.from_numpy(np.empty(0, dtype)).dtype, device=device)
        if not moved.is_cuda:
            moved.numpy()[:] = rows
            return moved
        with self._lock:
            self._fill(moved, rows, dtype)
        return moved

    def _fill(self, moved: Array, rows: np.ndarray, dtype: np.dtype[Any]) -> None:
        torch: Any = sys.modules["torch"]
        if not self._staging:
            self._staging = [
                (torch.empty(STAGING_BYTES, dtype=torch.uint8, pin_memory=True), torch.cuda.Event()) for _ in range(2)
            ]
        width = rows.shape[1] * dtype.itemsize
        size = STAGING_BYTES // width
        if not size:  # rows of more than 16 MiB each
            moved.copy_(torch.from_numpy(np.array(rows, dtype)))
            return
        for number, start in enumerate(range(0, rows.shape[0], size)):
            buffer, free = self._staging[number % 2]
            part = rows[start : start + size]
            free.synchronize()
            here = buffer[: len(part) * width]
            here.numpy().view(dtype).reshape(part.shape)[:] = part
            moved[start : start + size].copy_(here.view(moved.dtype).view(part.shape), non_blocking=True)
            free.record()


def _free_share(device: Any) -> float:
    """How much of the memory of a device is free."""
    free, total = sys.modules["torch"].cuda.mem_get_info(device)
    return float(free / total)


_KEPT = DeviceRows()


def kept_rows() -> DeviceRows:
    """The rows that this process keeps."""
    return _KEPT
