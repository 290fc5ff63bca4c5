"""Where passes and jobs run: processes of this machine, or Ray. An executor applies a function to items."""

from __future__ import annotations

import os
import pickle
import re
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, Self

from zeroshift.distributed.folders import import_optional
from zeroshift.files import TemporaryFolder
from zeroshift.workers import WorkerDiedError, Workers

__all__ = ["Executor", "LocalExecutor", "RayExecutor", "check_executor", "open_executor", "use_executor"]

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
        results: dict[int, Any] = {}
        turn = 0
        for index, result, error in self.as_completed(function, items, bounded=True, twice=True):
            if error is not None:
                raise error
            results[index] = result
            while turn in results:
                yield results.pop(turn)
                turn += 1

    def as_completed(
        self,
        function: Callable[[Any], Any],
        items: Sequence[Any],
        *,
        bounded: bool = False,
        twice: bool = False,
        at_once: int | None = None,
    ) -> Generator[tuple[int, Any, WorkerDiedError | None], None, None]:
        """The index of every item with its result, or the reason why there is none, as they end.

        A task whose process dies is started again, up to `ATTEMPTS` times. Exceptions of the function are raised.
        `bounded` limits how far the tasks that are started are ahead of the first that has not ended, and `at_once`
        the tasks that run at the same time. With `twice`, one that takes much longer than the others is started again.
        """
        shared = self._share(function)
        running: dict[Any, int] = {}
        began: dict[int, float] = {}
        ended: set[int] = set()
        attempts = dict.fromkeys(range(len(items)), 0)
        times: list[float] = []
        waiting, turn = list(range(len(items)))[::-1], 0
        most = self.workers if at_once is None else min(at_once, self.workers)
        ahead = (1 + AHEAD) * most if bounded else len(items)

        def start(index: int) -> None:
            attempts[index] += 1
            began.setdefault(index, time.monotonic())
            running[self._submit(shared, items[index])] = index

        while turn < len(items):
            while waiting and len(running) < most and waiting[-1] < turn + ahead:
                start(waiting.pop())
            found: list[tuple[int, Any, WorkerDiedError | None]] = []
            for task in self._wait(list(running), 0.5):
                index = running.pop(task)
                if index in ended or index < turn:
                    continue
                try:
                    found.append((index, self._result(task), None))
                    times.append(time.monotonic() - began[index])
                except LostWorkerError as error:
                    if index in running.values():
                        continue
                    if attempts[index] < ATTEMPTS:
                        began.pop(index)
                        waiting.append(index)
                        continue
                    lost = WorkerDiedError(
                        f"task {index} ended {ATTEMPTS} workers ({error}), often for lack of memory. "
                        "Fix: smaller tasks (--task-rows), or fewer workers."
                    )
                    lost.__cause__ = error
                    found.append((index, None, lost))
                ended.add(index)
            while turn in ended:
                ended.remove(turn)
                turn += 1
            yield from found
            if twice and times and len(running) < most:
                limit, now = SLOW * median(times[-100:]), time.monotonic()
                late = [i for i in running.values() if now - began[i] > limit and i not in ended]
                for index in late[: most - len(running)]:
                    if list(running.values()).count(index) == 1 and attempts[index] < ATTEMPTS:
                        start(index)


def count_cores() -> int:
    """Cores of this machine that the process may use."""
    return (os.process_cpu_count() if hasattr(os, "process_cpu_count") else len(os.sched_getaffinity(0))) or 1


class LocalExecutor(Executor):
    """Processes of this machine. With `workers=0` this process does the work."""

    def __init__(self, workers: int | None = None) -> None:
        self.processes = count_cores() if workers is None else workers
        self.workers = max(1, self.processes)
        self._folder = TemporaryFolder()
        self._pool: Workers[tuple[str, Any], Any] = Workers(_call_shared, self.processes, doing="reads shards")
        self._shared = 0

    def close(self) -> None:
        self._pool.__exit__(None)
        self._folder.cleanup()

    def _share(self, function: Callable[[Any], Any]) -> Any:
        if not self.processes:
            return function
        Path(self._folder.name, str(self._shared)).unlink(missing_ok=True)
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
"""The function that this worker process applied last, by its file or its number in Ray's store."""


def _call_shared(request: tuple[str, Any]) -> Any:
    path, item = request
    if path not in _LAST:
        _LAST.clear()
        _LAST[path] = pickle.loads(Path(path).read_bytes())
    return _LAST[path](item)


def _call_stored(stored: list[Any], item: Any) -> Any:
    """As `_call_shared`, in a worker of Ray. A reference in a list is not replaced by what it refers to."""
    name = stored[0].hex()
    if name not in _LAST:
        _LAST.clear()
        _LAST[name] = import_module("ray").get(stored[0])
    return _LAST[name](item)


class RayExecutor(Executor):
    """Tasks on a Ray cluster: the one at `address`, a running one, or a new one on this machine.

    Every task has one CPU and `gpus` GPUs.
    """

    def __init__(self, address: str | None = None, *, gpus: float = 0.0) -> None:
        ray: Any = import_optional("ray", "ray")
        if address is not None and address.startswith("ray://"):
            import_optional("grpc", "ray")
        self._ray = ray
        self._owned = not ray.is_initialized()
        if self._owned:
            with _kept_signals():
                self._join(ray, address)
        self.gpus = gpus
        self.workers = self._count_workers()
        # Our own loop starts lost tasks again, the same for every executor.
        self._call = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0)(_call_stored)

    def _count_workers(self) -> int:
        resources = self._ray.cluster_resources()
        if self.gpus and not resources.get("GPU"):
            raise ValueError("the Ray cluster has no GPU. Fix: leave out the device, or start Ray with --num-gpus.")
        return max(1, int(resources["GPU"] / self.gpus if self.gpus else resources.get("CPU", 1)))

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
        self.workers = self._count_workers()  # nodes may have come or gone
        return [self._ray.put(function)]

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


def open_executor(on: str | Executor = "local", *, gpus: float = 0.0) -> Executor:
    """The executor of a text: `local`, `local:N`, `ray` or `ray://host:port`. On Ray, every task gets `gpus` GPUs.

    >>> with open_executor("local:0") as executor:
    ...     executor.workers
    1
    """
    if isinstance(on, Executor):
        return on
    check_executor("on", on)
    name, _, rest = on.partition(":")
    if name == "local":
        return LocalExecutor(int(rest) if rest else None)
    return RayExecutor(None if on == "ray" else on, gpus=gpus)


def check_executor(argument: str, on: str) -> None:
    """Refuse a text that `open_executor` does not know."""
    if not re.fullmatch(r"local(:\d{1,4})?|ray|ray://.+", on):
        raise ValueError(f"{argument} must be local, local:N, ray or ray://host:port; got {on!r}. Fix: local:2.")


@contextmanager
def use_executor(on: str | Executor = "local", *, gpus: float = 0.0) -> Iterator[Executor]:
    """The executor of a text, closed at the end of the block, or an executor that its owner closes."""
    executor = open_executor(on, gpus=gpus)
    try:
        yield executor
    finally:
        if executor is not on:
            executor.close()
