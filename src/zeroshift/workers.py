"""Apply a function to many items in worker processes.

`concurrent.futures.ProcessPoolExecutor` would need `if __name__ == "__main__"` in the caller's script, and its
processes outlive a caller that is killed. A worker here is a plain Python process that reads pickled requests from a
pipe and ends when the pipe does. One thread of a `ThreadPoolExecutor` waits for each worker.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

__all__ = ["WorkerDiedError", "Workers", "main"]

CHUNK = 4
"""Items per request of `map`: few enough to keep all workers busy at the end, enough to make the pipe's cost small."""

AHEAD = 4
"""Requests per worker that `map` may send before their results are taken; bounds the memory."""

GRACE = 2.0
"""Seconds in which a worker may delete its unfinished files before it is killed."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class WorkerDiedError(OSError):
    """A worker process ended before it answered."""


class Workers(Generic[Item, Result]):
    """Processes that apply `function`. With `count=0` this process does the work itself.

    Parameters
    ----------
    function : importable and picklable; sent to each process once.
    count : number of processes; each starts with its first item.
    doing : what they do, for error messages, such as "decodes images".

    >>> with Workers(abs, 0, doing="takes absolute values") as workers:
    ...     list(workers.map([-1, 2, -3]))
    [1, 2, 3]
    """

    def __init__(self, function: Callable[[Item], Result], count: int, *, doing: str) -> None:
        if count < 0:
            raise ValueError(f"workers must be at least 0; got {count}. Fix: 0 works in this process.")
        self.function, self.count, self.doing = function, count, doing
        self._threads = ThreadPoolExecutor(max(1, count), thread_name_prefix="zeroshift-worker")
        self._of_thread = threading.local()
        self._lock = threading.Lock()
        self._processes: list[_Process] = []
        self._closed = False

    def __enter__(self) -> Workers[Item, Result]:
        return self

    def __exit__(self, failure: object, *_: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._closed = True
            if failure is not None:  # some may be in the middle of a file
                for process in self._processes:
                    process.end()
            deadline = time.monotonic() + (0.0 if failure is None else GRACE)
            for process in self._processes:
                process.kill_at(deadline)  # a thread that waits for it returns
        self._threads.shutdown(wait=True)
        for process in self._processes:
            process.close()

    def map(self, items: Sequence[Item]) -> Iterator[Result]:
        """`function(item)` for every item, in order. An exception is raised when its item's turn comes."""
        if not self.count:
            yield from map(self.function, items)
            return
        chunks = deque(items[start : start + CHUNK] for start in range(0, len(items), CHUNK))
        pending: deque[Future[list[Result]]] = deque()
        while chunks or pending:
            while chunks and len(pending) < AHEAD * self.count:
                pending.append(self._threads.submit(self._request, chunks.popleft()))
            yield from pending.popleft().result()

    def as_completed(self, items: Sequence[Item]) -> Iterator[tuple[Item, Future[Result]]]:
        """Every item with its finished future, in the order they finish. A process that dies fails only its own
        item."""
        if not self.count:
            for item in items:
                done: Future[Result] = Future()
                try:
                    done.set_result(self.function(item))
                except Exception as error:
                    done.set_exception(error)
                yield item, done
            return
        pending = {self._threads.submit(self._request_one, item): item for item in items}
        for future in as_completed(pending):
            yield pending[future], future

    def submit(self, item: Item) -> Future[Result]:
        """Start `function(item)` in one of the processes."""
        return self._threads.submit(self._request_one, item)

    def _request_one(self, item: Item) -> Result:
        (result,) = self._request([item])
        return result

    def _request(self, items: Sequence[Item]) -> list[Result]:
        """Runs in a thread: the results of this thread's own process."""
        process: _Process | None = getattr(self._of_thread, "process", None)
        if process is None:
            with self._lock:
                if self._closed:
                    raise RuntimeError("these workers are closed.")
                process = self._of_thread.process = _Process(self.function, self.doing)
                self._processes.append(process)
        try:
            return process.request(list(items))
        except WorkerDiedError:
            self._of_thread.process = None  # the next item gets a new process
            raise


class _Process:
    """A worker, seen from the process that started it."""

    def __init__(self, function: Callable[[Any], Any], doing: str) -> None:
        # The worker must import the modules this process imports, not others in the working folder.
        paths = [entry for entry in sys.path if isinstance(entry, str)]
        program = f"import sys; sys.path[:] = {paths!r}; from {__name__} import main; main()"
        # One item at a time uses one core; libraries must not start threads of their own.
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._child = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            # Ctrl-C goes to every process of a terminal session; only the caller should handle it.
            start_new_session=True,
        )
        self._function: Callable[[Any], Any] | None = function
        self._doing = doing

    def request(self, items: list[Any]) -> list[Any]:
        requests, results = self._child.stdin, self._child.stdout
        assert requests is not None
        assert results is not None
        try:
            if self._function is not None:
                # Pickled twice, so that a function that cannot be loaded there is an error and not the worker's end.
                pickle.dump(pickle.dumps(self._function, protocol=pickle.HIGHEST_PROTOCOL), requests)
                self._function = None
            pickle.dump(items, requests)
            requests.flush()
            answer = pickle.load(results)
        except (EOFError, OSError, pickle.UnpicklingError) as error:  # the last answer may be cut off
            raise WorkerDiedError(
                f"a process that {self._doing} ended unexpectedly (exit code {self._exit_code()}; -9 means killed, "
                "often for lack of memory). Fix: fewer workers (--workers 1), or 0 to work in this process."
            ) from error
        if isinstance(answer, _Failure):
            raise answer.error from RuntimeError(f"in a process that {self._doing}:\n{answer.trace}")
        return list(answer)

    def end(self) -> None:
        self._child.terminate()

    def kill_at(self, deadline: float) -> None:
        try:
            self._child.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._child.kill()

    def close(self) -> None:
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # unsent bytes
                pipe.close()

    def _exit_code(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self._child.wait(timeout=1)  # its pipe can close a moment before it ends
        return None


@dataclass(frozen=True)
class _Failure:
    """The answer where the function raised."""

    error: Exception
    trace: str


def main() -> None:
    """The program of a worker: read a function, then lists of items, and answer each list with a list of results."""
    # An exception, where a signal would end the process at once: files that are being written are deleted first.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not mix with the answers
    function = _load_function(pickle.load(requests))
    gc.freeze()  # imported modules stay, so collections of garbage, two for each measured run, need not search them
    while True:
        try:
            items = pickle.load(requests)
        except EOFError:
            return
        try:
            answers.write(pickle.dumps(_answer(function, items), protocol=pickle.HIGHEST_PROTOCOL))
            answers.flush()
        except BrokenPipeError:
            return


def _load_function(pickled: bytes) -> Callable[[Any], Any]:
    """The function, or one that raises the reason why it cannot be loaded."""
    try:
        function: Callable[[Any], Any] = pickle.loads(pickled)
        return function
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"

    def fail(item: Any) -> Any:
        raise ValueError(
            f"the function cannot be sent to another process ({reason}). "
            "Fix: define it in a module of its own, not in the script or notebook; or work in this process (workers=0)."
        )

    return fail


def _answer(function: Callable[[Any], Any], items: list[Any]) -> list[Any] | _Failure:
    try:
        return [function(item) for item in items]
    except Exception as error:
        trace = traceback.format_exc()
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # not every exception can be pickled
            return _Failure(RuntimeError(f"{type(error).__name__}: {error}"), trace)
        return _Failure(error, trace)
