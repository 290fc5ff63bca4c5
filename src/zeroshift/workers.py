"""One function over many items, done by other processes: answers in order, a few ahead, no process left behind.

Unlike Python's own pools these need no `if __name__ == "__main__"` in the caller's script, and end when the caller
does, however that is: each is a program of its own that reads items from a pipe until the pipe ends.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Generic, TypeVar

from zeroshift import worker_program

__all__ = ["Workers"]

CHUNK = 4
"""Items of one request: enough to make the pipe's own cost small, few enough to keep every worker busy at the end."""

AHEAD = 4
"""Requests a worker may be ahead of whoever takes the answers; bounds the memory."""

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Workers(Generic[Item, Answer]):
    """Processes that apply `function`; with `count=0` none, and this process does the work itself.

    Parameters
    ----------
    function : importable and picklable; sent to each process once.
    count : how many processes. They start with the first item.
    doing : what they do, for messages: "decodes images".

    >>> with Workers(abs, 0, doing="takes absolute values") as workers:
    ...     list(workers.map([-1, 2, -3]))
    [1, 2, 3]
    """

    def __init__(self, function: Callable[[Item], Answer], count: int, *, doing: str) -> None:
        if count < 0:
            raise ValueError(f"workers must be at least 0; got {count}. Fix: 0 works in this process.")
        self.function, self.count, self.doing = function, count, doing
        self._processes: list[_Process] = []

    def __enter__(self) -> Workers[Item, Answer]:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.stop()

    def map(self, items: Sequence[Item]) -> Iterator[Answer]:
        """`function(item)` for every item, in their order. What it raises for one is raised here in its turn."""
        if not self.count:
            yield from map(self.function, items)
            return
        if items and not self._processes:
            for _ in range(self.count):  # one by one: if the system refuses the next, those before are stopped
                self._processes.append(_Process(self.function, self.doing))
        chunks = deque(items[start : start + CHUNK] for start in range(0, len(items), CHUNK))
        waiting: deque[Future[list[Any]]] = deque()
        turn = 0
        while chunks or waiting:
            while chunks and len(waiting) < AHEAD * len(self._processes):
                waiting.append(self._processes[turn % len(self._processes)].ask(chunks.popleft()))
                turn += 1
            yield from waiting.popleft().result()


class _Process:
    """A child process, and the thread of this one that speaks with it."""

    def __init__(self, function: Callable[[Any], Any], doing: str) -> None:
        # The child must find what this process has found, and not what happens to lie in the working folder.
        found = [entry for entry in sys.path if isinstance(entry, str)]
        program = f"import sys; sys.path[:] = {found!r}; from {worker_program.__name__} import main; main()"
        # One item at a time fills one core; the libraries below are not to start threads of their own.
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._child = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            # Out of reach of Ctrl-C, which goes to every process of a terminal: the caller decides what it means.
            start_new_session=True,
        )
        self._function: Callable[[Any], Any] | None = function
        self._doing = doing
        self._requests: deque[tuple[list[Any], Future[list[Any]]]] = deque()
        self._ready = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def ask(self, items: Sequence[Any]) -> Future[list[Any]]:
        answer: Future[list[Any]] = Future()
        with self._ready:
            self._requests.append((list(items), answer))
            self._ready.notify()
        return answer

    def stop(self) -> None:
        with self._ready:
            self._stopped = True
            self._ready.notify()
        self._child.kill()
        self._child.wait()
        self._thread.join()
        for pipe in (self._child.stdin, self._child.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # what was still to be written to a child that is gone
                pipe.close()

    def _serve(self) -> None:
        while True:
            with self._ready:
                self._ready.wait_for(lambda: self._stopped or self._requests)
                if self._stopped:
                    return
                items, answer = self._requests.popleft()
            try:
                answer.set_result(self._exchange(items))
            except BaseException as error:
                answer.set_exception(error)

    def _exchange(self, items: list[Any]) -> list[Any]:
        to, back = self._child.stdin, self._child.stdout
        assert to is not None
        assert back is not None
        try:
            if self._function is not None:
                # Twice: that the inner cannot be loaded there is then an answer, and not the end of the process.
                pickle.dump(pickle.dumps(self._function, protocol=pickle.HIGHEST_PROTOCOL), to)
                self._function = None
            pickle.dump(items, to)
            to.flush()
            answer = pickle.load(back)
        except (EOFError, OSError, pickle.UnpicklingError) as error:  # its last answer may have been cut off
            raise OSError(
                f"a process that {self._doing} ended unexpectedly (exit code {self._exit_code()}; -9 is killed, often "
                "for want of memory). Fix: fewer workers (--workers 1), or 0 to work in this process."
            ) from error
        if isinstance(answer, worker_program.Failed):
            raise answer.error from RuntimeError(f"in a process that {self._doing}:\n{answer.trace}")
        return list(answer)

    def _exit_code(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self._child.wait(timeout=1)  # its pipe can end a moment before it does
        return None
