"""Tenants: the keys with the same prefix. What they may use together, and threads that no tenant can keep to itself."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from zeroshift.serve.errors import Problem

__all__ = ["NO_QUOTA", "Quota", "SharedThreads", "Usage", "parse_quota", "quota_of"]

T = TypeVar("T")


@dataclass(frozen=True)
class Quota:
    """What the streams and clients of a prefix may use; None is limited by the service only."""

    streams: int | None = None
    bytes: int | None = None
    """Of the log with its keys, the labels and the snapshots."""
    rows: int | None = None
    """Samples per second."""
    listeners: int | None = None
    """Open event streams."""
    replays: int | None = None
    """At the same time."""


NO_QUOTA = Quota()

TENANT = Quota(streams=100, bytes=10 * 10**9, listeners=20, replays=1)
"""Of keys with a prefix. Keys without one are the operator's."""

UNITS = {"": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def quota_of(prefix: str, given: Mapping[str, int]) -> Quota:
    return replace(TENANT if prefix else NO_QUOTA, **given)


def parse_quota(text: str) -> dict[str, int]:
    """The quotas of a command line.

    >>> parse_quota("streams=20,bytes=1.5GB")
    {'streams': 20, 'bytes': 1500000000}
    """
    names, found = [one.name for one in fields(Quota)], dict[str, int]()
    for part in filter(None, text.split(",")):
        name, _, value = (word.strip() for word in part.partition("="))
        units = UNITS if name == "bytes" else {"": 1}
        match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?) ?([kMGT]?B)?", value, re.ASCII)
        unit = "" if match is None else match[2] or ""
        if name not in names or match is None or unit not in units or (not unit and "." in value):
            raise ValueError(
                f"--quota has {part.strip()!r}; allowed are {', '.join(names)}, each with a number. "
                "Fix: such as streams=20,bytes=1GB,rows=1000,listeners=8,replays=1."
            )
        found[name] = int(float(match[1]) * units[unit]) if unit else int(match[1])
    return found


class Usage:
    """What each tenant uses now, apart from what is stored."""

    def __init__(self) -> None:
        self._open: Counter[tuple[str, str]] = Counter()
        self._rows: dict[str, tuple[float, float]] = {}
        """By prefix: the samples that may be sent at once, less than none after a large request; and when."""

    def take(self, prefix: str, what: str, allowed: int | None) -> Callable[[], None]:
        """Count one more of the `listeners` or `replays`; call the result when it ends."""
        place = prefix, what
        check(prefix, what, self._open[place], allowed, retry_after=5)
        self._open[place] += 1

        def release() -> None:
            self._open[place] -= 1

        return release

    def send(self, prefix: str, count: int, allowed: int | None) -> None:
        """Count samples that were sent: `allowed` per second, and as many at once."""
        if allowed is None:
            return
        now = time.monotonic()
        left, at = self._rows.get(prefix, (float(allowed), now))
        left = min(float(allowed), left + (now - at) * allowed)
        if left <= 0:
            wait = -left / allowed if allowed else math.inf
            check(prefix, "rows", allowed, allowed, retry_after=math.ceil(min(wait, 3600.0)))
        self._rows[prefix] = (left - count, now)


MEANINGS = {
    "streams": ("streams", "delete some"),
    "bytes": ("bytes of log and snapshots", "delete streams, or create them with `retain` or fewer `keep_snapshots`"),
    "rows": ("samples per second", "send them later"),
    "listeners": ("event streams", "close some"),
    "replays": ("replays", "wait for their end"),
}


def check(prefix: str, what: str, used: int, allowed: int | None, *, retry_after: float | None = None) -> None:
    """Problem 429 if a quota is used up; with `retry_after` where time helps."""
    if allowed is not None and used >= allowed:
        name, fix = MEANINGS[what]
        raise Problem(
            429, "quota_exceeded", f"{used:,} {name} are used under the prefix {prefix!r}, and {allowed:,} are "
            f"allowed. Fix: {fix}, or ask the operator for a larger quota.",
            retry_after=retry_after, quota=what, used=used, allowed=allowed,
        )  # fmt: skip


class SharedThreads:
    """Threads that tenants take in turn. One tenant has at most half of them, so that another finds a free one."""

    def __init__(self, threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(threads, name)
        self._free, self._most = threads, max(1, threads // 2)
        self._busy: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By tenant; the one that was served last is the last."""

    async def run(self, tenant: str, function: Callable[..., T], *arguments: Any) -> T:
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        self._next()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it has been given a thread meanwhile
                self._end(tenant)
            raise
        job = self._pool.submit(function, *arguments)
        job.add_done_callback(lambda _: loop.call_soon_threadsafe(self._end, tenant))
        return await asyncio.wrap_future(job)

    def _next(self) -> None:
        """Give free threads to the tenants that wait."""
        for tenant in list(self._waiting):
            queue = self._waiting[tenant]
            while queue and queue[0].done():  # the client left
                queue.popleft()
            if queue and self._free and self._busy[tenant] < self._most:
                queue.popleft().set_result(None)
                self._free -= 1
                self._busy[tenant] += 1
                self._waiting[tenant] = self._waiting.pop(tenant)
            if not queue:
                del self._waiting[tenant]

    def _end(self, tenant: str) -> None:
        self._free += 1
        self._busy[tenant] -= 1
        if not self._busy[tenant]:
            del self._busy[tenant]
        self._next()

    def shutdown(self) -> None:
        self._pool.shutdown()
