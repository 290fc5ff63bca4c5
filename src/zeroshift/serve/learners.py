"""The threads in which streams compute, a short turn at a time.

What a stream computes is a generator, which may be put aside wherever it yields. A turn ends at the first `yield` after
`TURN_SECONDS`; the rest waits behind the turns of other streams, in the order of their arrival. Nothing can end a step
of a method before it yields, such as a factorisation with many features. Streams with steps that take longer than a
turn therefore have threads of their own: the operating system shares the cores, and no other stream waits for them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

__all__ = ["Learner", "Learners"]

TURN_SECONDS = 0.05

FORGET = 0.99
"""After each turn, an earlier long step counts as this much shorter."""


class Learners:
    """Threads for short and for long steps, as many of each, and one for the samples of health checks."""

    def __init__(self, threads: int) -> None:
        self._short = ThreadPoolExecutor(threads, "zeroshift-stream")
        self._long = ThreadPoolExecutor(threads, "zeroshift-slow")
        self._health = ThreadPoolExecutor(1, "zeroshift-health")

    def learner(self, *, health: bool = False) -> Learner:
        return Learner((self._health, self._health) if health else (self._short, self._long))

    async def measure(self, function: Callable[[], Any]) -> Any:
        """The result of a function that may take long."""
        return await asyncio.get_running_loop().run_in_executor(self._long, function)

    def shutdown(self) -> None:
        for pool in (self._short, self._long, self._health):
            pool.shutdown()


class Learner:
    """Computes what one stream needs, one thing after the other."""

    def __init__(self, pools: Sequence[ThreadPoolExecutor]) -> None:
        self._pools = pools
        self.longest = 0.0
        """Processor time of the longest step, in seconds."""
        self.spent = 0.0
        """Seconds that the turns of the last call took."""

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The result of `function(*arguments)`; of a generator, what it returns."""
        loop, context, work = asyncio.get_running_loop(), copy_context(), _begun(function, arguments)
        self.spent = 0.0
        while True:
            pool = self._pools[self.longest > TURN_SECONDS]
            ended, result = await loop.run_in_executor(pool, context.run, self._turn, work)
            if ended:
                return result

    def _turn(self, work: Generator[Any, None, Any]) -> tuple[bool, Any]:
        """Whether the work has ended, and its result."""
        started, at, longest = time.perf_counter(), time.thread_time(), 0.0
        try:
            while True:
                next(work)
                longest, at = max(longest, time.thread_time() - at), time.thread_time()
                if time.perf_counter() - started >= TURN_SECONDS:
                    return False, None
        except StopIteration as end:
            return True, end.value
        finally:
            self.longest = max(longest, time.thread_time() - at, FORGET * self.longest)
            self.spent += time.perf_counter() - started


def _begun(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Generator[Any, None, Any]:
    result = function(*arguments)
    return (yield from result) if isinstance(result, Generator) else result
