"""Images decoded beside the encoder, by worker processes, and handed over in order; no more than a few ahead."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress

from zeroshift.encode.extraction import decode_worker
from zeroshift.encode.extraction.decode_worker import Decoder, Picture

__all__ = ["Decoders", "default_workers"]

CHUNK = 8
"""Images of one request: enough to make the pipe's own cost small, few enough to keep every worker busy at the end."""

AHEAD = 3
"""Requests a worker may be ahead of the encoder; bounds the memory."""

FEW = 48
"""As many images are decoded sooner than worker processes are started."""


def default_workers(count: int) -> int:
    """None for a few images; else the cores beside the encoder's own, sixteen at most."""
    return 0 if count <= FEW else max(1, min(16, (os.cpu_count() or 2) - 1))


class Decoders:
    """Worker processes for one `Decoder`; none for `workers=0`, where this process does the work itself."""

    def __init__(self, decoder: Decoder, workers: int) -> None:
        self.decoder, self.workers = decoder, workers
        self._all: list[_Worker] = []

    def __enter__(self) -> Decoders:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._all:
            worker.stop()

    def decode(self, indices: Sequence[int]) -> Iterator[Picture]:
        """Every image, in the order of `indices`."""
        if not self.workers:
            yield from map(self.decoder, indices)
            return
        if indices and not self._all:  # not before there is something to do
            for _ in range(self.workers):  # one by one: if the system refuses the next, those before are stopped
                self._all.append(_Worker(self.decoder))
        chunks = deque(indices[start : start + CHUNK] for start in range(0, len(indices), CHUNK))
        waiting: deque[Future[list[Picture]]] = deque()
        turn = 0
        while chunks or waiting:
            while chunks and len(waiting) < AHEAD * len(self._all):
                waiting.append(self._all[turn % len(self._all)].ask(chunks.popleft()))
                turn += 1
            yield from waiting.popleft().result()


class _Worker:
    """A child process, and the thread of this one that speaks with it."""

    def __init__(self, decoder: Decoder) -> None:
        # The child must find what this process has found, and not what happens to lie in the working folder.
        found = [entry for entry in sys.path if isinstance(entry, str)]
        program = f"import sys; sys.path[:] = {found!r}; from {decode_worker.__name__} import main; main()"
        # One image at a time fills one core; the libraries below are not to start threads of their own.
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self._decoder: Decoder | None = decoder
        self._requests: deque[tuple[Sequence[int], Future[list[Picture]]]] = deque()
        self._ready = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def ask(self, indices: Sequence[int]) -> Future[list[Picture]]:
        answer: Future[list[Picture]] = Future()
        with self._ready:
            self._requests.append((list(indices), answer))
            self._ready.notify()
        return answer

    def stop(self) -> None:
        with self._ready:
            self._stopped = True
            self._ready.notify()
        self._process.kill()
        self._process.wait()
        self._thread.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # what was still to be written to a child that is gone
                pipe.close()

    def _serve(self) -> None:
        while True:
            with self._ready:
                self._ready.wait_for(lambda: self._stopped or self._requests)
                if self._stopped:
                    return
                indices, answer = self._requests.popleft()
            try:
                answer.set_result(self._exchange(indices))
            except BaseException as error:
                answer.set_exception(error)

    def _exchange(self, indices: Sequence[int]) -> list[Picture]:
        to, back = self._process.stdin, self._process.stdout
        assert to is not None
        assert back is not None
        try:
            if self._decoder is not None:
                pickle.dump(self._decoder, to, protocol=pickle.HIGHEST_PROTOCOL)
                self._decoder = None
            pickle.dump(indices, to)
            to.flush()
            answer = pickle.load(back)
        except (EOFError, OSError, pickle.UnpicklingError) as error:  # its last answer may have been cut off
            code = self._process.poll()
            raise RuntimeError(
                f"a process that decodes images ended unexpectedly (exit code {code}; -9 is killed, often for want of "
                "memory). Fix: fewer workers (--workers 1), or 0 to decode in this process."
            ) from error
        if isinstance(answer, str):
            raise RuntimeError(f"a process that decodes images failed: {answer}")
        return list(answer)
