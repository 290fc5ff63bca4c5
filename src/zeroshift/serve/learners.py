"""The threads in which streams compute, a short turn at a time.

What a stream computes is a generator, which may be put aside wherever it yields. A turn ends at the first `yield` after
`TURN_SECONDS`; the rest waits behind the turns of other streams, in the order of their arrival. Nothing can end a step
of a method before it yields, such as a factorisation with many features. Streams with steps that take longer than a
turn therefore have threads of their own: the operating system shares the cores, and no other stream waits for them.

Streams whose names have the same first part take at most half of the threads: other tenants find a free one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextvars import copy_context
from typing import Any

from zeroshift.serve.keys import ASKING
from zeroshift.serve.tenants import SharedThreads

__all__ = ["Learner", "Learners"]

TURN_SECONDS = 0.05

FORGET = 0.99
"""After each turn, an earlier long step counts as this much shorter."""


class Learners:
    """Threads for short and for long steps, as many of each, and one for the samples of health checks."""

    def __init__(self, threads: int) -> None:
        self._short = SharedThreads(2 * threads, "zeroshift-stream")
        self._long = SharedThreads(2 * threads, "zeroshift-slow")
        self._health = SharedThreads(1, "zeroshift-health")

    def learner(self, tenant: str, *, health: bool = False) -> Learner:
        return Learner(tenant, (self._health, self._health) if health else (self._short, self._long))

    async def measure(self, function: Callable[[], Any]) -> Any:
        """The result of a function that may take long."""
        return await self._long.run(ASKING.get().prefix.partition("/")[0], function)

    def shutdown(self) -> None:
        for pool in (self._short, self._long, self._health):
            pool.shutdown()


class Learner:
    """Computes what one stream needs, one thing after the other."""

    def __init__(self, tenant: str, pools: Sequence[SharedThreads]) -> None:
        self._tenant, self._pools = tenant, pools
        self.longest = 0.0
        """Processor time of the longest step, in seconds."""
        self.spent = 0.0
        """Seconds that the turns of the last call took."""

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The result of `function(*arguments)`; of a generator, what it returns."""
        context, work = copy_context(), _begun(function, arguments)
        self.spent = 0.0
        while True:
            pool = self._pools[self.longest > TURN_SECONDS]
            ended, result = await pool.run(self._tenant, context.run, self._turn, work)
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
