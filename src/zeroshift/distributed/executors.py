"""Where passes run: processes of this machine, or Ray. An executor has one verb, `map`."""

from __future__ import annotations

import os
import pickle
import signal
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, Self

from zeroshift.workers import WorkerDiedError, Workers

__all__ = ["Executor", "LocalExecutor", "RayExecutor", "open_executor"]

AHEAD = 2
"""Tasks per worker, beyond those that run, whose results may wait for an earlier one. Bounds the driver's memory."""

ATTEMPTS = 4
"""Times that a task is started if the processes that run it die."""

SLOW = 3.0
"""A task that runs this many times as long as the median of the others is started a second time, on an idle worker."""


class LostWorkerError(Exception):
    """The process of a task died."""


class Executor(ABC):
    """Applies functions to items in other processes. Use it in a `with` block."""

    workers: int

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """End the processes."""

    @abstractmethod
    def _share(self, function: Callable[[Any], Any]) -> Any:
        """Make the function available to all processes; what `_submit` needs."""

    @abstractmethod
    def _submit(self, shared: Any, item: Any) -> Any:
        """Start a task."""

    @abstractmethod
    def _wait(self, running: Sequence[Any], seconds: float) -> list[Any]:
        """Those of the running tasks that end within some seconds; at least one, or none if that takes longer."""

    @abstractmethod
    def _result(self, task: Any) -> Any:
        """The result of a task that ended; LostWorkerError if its process died."""

    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        """`function(item)` for every item, in order, as they come.

        A task whose process dies is started again. One that takes much longer than the others is started a second
        time, and the first result counts. Exceptions of the function are raised.
        """
        shared = self._share(function)
        results: dict[int, Any] = {}
        running: dict[Any, int] = {}
        began: dict[int, float] = {}
        attempts = dict.fromkeys(range(len(items)), 0)
        times: list[float] = []
        waiting, turn = list(range(len(items)))[::-1], 0

        def start(index: int) -> None:
            attempts[index] += 1
            began.setdefault(index, time.monotonic())
            running[self._submit(shared, items[index])] = index

        while turn < len(items):
            while waiting and len(running) < self.workers and waiting[-1] < turn + (1 + AHEAD) * self.workers:
                start(waiting.pop())
            for task in self._wait(list(running), 0.5):
                index = running.pop(task)
                if index in results or index < turn:
                    continue
                try:
                    results[index] = self._result(task)
                    times.append(time.monotonic() - began[index])
                except LostWorkerError as error:
                    if index in running.values():
                        continue
                    if attempts[index] >= ATTEMPTS:
                        raise WorkerDiedError(
                            f"task {index} ended {ATTEMPTS} workers ({error}), often for lack of memory. "
                            "Fix: smaller tasks (--task-rows), or fewer workers."
                        ) from error
                    began.pop(index)
                    waiting.append(index)
            while turn in results:
                yield results.pop(turn)
                turn += 1
            if times and len(running) < self.workers:
                limit, now = SLOW * median(times[-100:]), time.monotonic()
                late = [i for i in running.values() if now - began[i] > limit and i not in results]
                for index in late[: self.workers - len(running)]:
                    if list(running.values()).count(index) == 1 and attempts[index] < ATTEMPTS:
                        start(index)


class LocalExecutor(Executor):
    """Processes of this machine. With `workers=0` this process does the work."""

    def __init__(self, workers: int | None = None) -> None:
        count = os.process_cpu_count() if hasattr(os, "process_cpu_count") else len(os.sched_getaffinity(0))
        self.processes = (count or 1) if workers is None else workers
        self.workers = max(1, self.processes)
        self._folder = tempfile.TemporaryDirectory(prefix="zeroshift-")
        self._pool: Workers[tuple[str, Any], Any] = Workers(_call_shared, self.processes, doing="reads shards")
        self._shared = 0

    def close(self) -> None:
        self._pool.__exit__(None)
        self._folder.cleanup()

    def _share(self, function: Callable[[Any], Any]) -> Any:
        if not self.processes:
            return function
        for old in Path(self._folder.name).iterdir():
            old.unlink()
        self._shared += 1
        path = Path(self._folder.name, str(self._shared))
        path.write_bytes(pickle.dumps(function, protocol=pickle.HIGHEST_PROTOCOL))
        return str(path)

    def _submit(self, shared: Any, item: Any) -> Any:
        if self.processes:
            return self._pool.submit((shared, item))
        done: Future[Any] = Future()
        try:
            done.set_result(shared(item))
        except Exception as error:
            done.set_exception(error)
        return done

    def _wait(self, running: Sequence[Any], seconds: float) -> list[Any]:
        return list(wait(running, seconds, FIRST_COMPLETED).done)

    def _result(self, task: Any) -> Any:
        try:
            return task.result()
        except WorkerDiedError as error:
            raise LostWorkerError(str(error).split(" Fix:")[0]) from error


_LAST: dict[str, Callable[[Any], Any]] = {}
"""The function that this worker process applied last, by its file."""


def _call_shared(request: tuple[str, Any]) -> Any:
    path, item = request
    if path not in _LAST:
        _LAST.clear()
        _LAST[path] = pickle.loads(Path(path).read_bytes())
    return _LAST[path](item)


class RayExecutor(Executor):
    """Tasks on a Ray cluster: the one at `address`, a running one, or a new one on this machine.

    Every task has one CPU and `gpus` GPUs.
    """

    def __init__(self, address: str | None = None, *, gpus: float = 0.0) -> None:
        try:
            ray: Any = import_module("ray")
        except ImportError as error:
            raise ImportError("ray is not installed. Fix: pip install 'zeroshift[ray]'.") from error
        self._ray = ray
        self._owned = not ray.is_initialized()
        if self._owned:
            with _kept_signals():
                self._join(ray, address)
        resources = ray.cluster_resources()
        available = int(resources.get("GPU", 0) / gpus) if gpus else int(resources.get("CPU", 1))
        self.workers = max(1, available)
        # Our own loop starts lost tasks again, the same for every executor.
        self._call = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0)(_call_function)

    @staticmethod
    def _join(ray: Any, address: str | None) -> None:
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        try:
            ray.init(address=address or "auto", **quiet)
        except ConnectionError as error:
            if address is not None:
                raise ConnectionError(f"no Ray cluster answers at {address} ({error}). Fix: ray start.") from error
            ray.init(include_dashboard=False, **quiet)

    def close(self) -> None:
        if self._owned:
            self._ray.shutdown()

    def _share(self, function: Callable[[Any], Any]) -> Any:
        return self._ray.put(function)

    def _submit(self, shared: Any, item: Any) -> Any:
        return self._call.remote(shared, item)

    def _wait(self, running: Sequence[Any], seconds: float) -> list[Any]:
        return list(self._ray.wait(list(running), num_returns=1, timeout=seconds)[0])

    def _result(self, task: Any) -> Any:
        try:
            return self._ray.get(task)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else error from None
        except self._ray.exceptions.RayError as error:
            raise LostWorkerError(f"{type(error).__name__}") from error


@contextmanager
def _kept_signals() -> Iterator[None]:
    """Ray ends the process at SIGTERM in a way of its own; inside a command, that is the command's business."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)


def _call_function(function: Callable[[Any], Any], item: Any) -> Any:
    return function(item)


def open_executor(on: str | Executor = "local") -> Executor:
    """The executor of a text: `local`, `local:N`, `ray` or `ray://host:port`.

    >>> with open_executor("local:0") as executor:
    ...     executor.workers
    1
    """
    if isinstance(on, Executor):
        return on
    name, _, rest = on.partition(":")
    if name == "local":
        with suppress(ValueError):
            if not rest or int(rest) >= 0:
                return LocalExecutor(int(rest) if rest else None)
    elif on == "ray":
        return RayExecutor()
    elif on.startswith("ray://"):
        return RayExecutor(on)
    raise ValueError(f"on must be local, local:N, ray or ray://host:port; got {on!r}. Fix: local:2.")
