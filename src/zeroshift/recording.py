"""CUDA graphs: many small operations recorded once and then started together, which takes the host one launch."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from zeroshift.arrays import Array

__all__ = ["RECORDING", "Recordings", "record"]

RECORDING = threading.Lock()
"""One thread records at a time: torch has one stream for recordings, and reuses streams."""

USES_BEFORE = 8
"""Uses without a recording before one is made: it takes as long as some of them."""

MOST_RECORDINGS = 4
"""Recordings of one kind that are kept. With a thousand classes and 512 dimensions each has some tens of MB."""

Recording = TypeVar("Recording")


def record(device: Any, *functions: Callable[[], None]) -> list[Any]:
    """One graph of each function, which are run once before, in this order, because libraries initialise themselves
    then. They must keep references to whatever later replays read or write."""
    torch: Any = sys.modules["torch"]
    graphs = []
    with RECORDING, torch.cuda.device(device):
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for function in functions:
                function()
            stream.synchronize()
        torch.cuda.current_stream().wait_stream(stream)
        for function in functions:
            graph = torch.cuda.CUDAGraph()
            # Other threads may use the GPU meanwhile, with other methods.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                function()
            graphs.append(graph)
    return graphs


def _current_stream(device: Any) -> int:
    return int(sys.modules["torch"].cuda.current_stream(device).cuda_stream)


class Recordings(Generic[Recording]):
    """Recordings that all methods of this process share, by what they are bound to, such as sizes. Each belongs to one
    CUDA stream: in another one, its memory might be written while it is read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._uses: Counter[Hashable] = Counter()
        self._made: dict[Hashable, Recording] = {}

    @contextmanager
    def use(self, array: Array, key: Hashable, make: Callable[[], Recording]) -> Iterator[Recording | None]:
        """The recording with this key for the device of an array, made if there was none. None if the array is not on
        a GPU, while another thread uses a recording, and the first few times."""
        if not getattr(array, "is_cuda", False) or not self._lock.acquire(blocking=False):
            yield None
            return
        try:
            place = str(array.device), _current_stream(array.device), key
            self._uses[place] += 1
            if place not in self._made and self._uses[place] > USES_BEFORE:
                if len(self._made) >= MOST_RECORDINGS:
                    oldest = next(iter(self._made))
                    del self._made[oldest], self._uses[oldest]
                self._made[place] = make()
            yield self._made.get(place)
        finally:
            self._lock.release()
