"""A property: a function of random arguments that raises an exception if the library breaks a promise.

`fuzzed(category, quick, **strategies)` registers one. `Property.check` runs it on a fixed sequence of `quick` cases;
`Property.search` runs it on random ones, and skips failures that are known already.
"""

from __future__ import annotations

import functools
import re
import resource
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import engine as hypothesis_engine

import zeroshift

__all__ = [
    "CATEGORIES",
    "PROPERTIES",
    "Property",
    "Search",
    "failure_signature",
    "fuzzed",
    "memory_limit",
    "time_limit",
]

CATEGORIES = ("arrays", "parameters", "streams", "files", "names", "commands", "threads", "interrupts")

CASE_SECONDS = 20.0
"""Processor time after which a case counts as endless."""

SHRINK_SECONDS = 30
"""Time to make a failing case smaller."""

PACKAGE = Path(zeroshift.__file__).parent

PROPERTIES: dict[str, Property] = {}


@dataclass
class Search:
    """What a search has done so far."""

    deadline: float = float("inf")
    """Of `time.monotonic`; later cases are skipped."""
    known: set[str] = field(default_factory=set)
    """Signatures of failures that are not reported again."""
    cases: int = 0
    repeated: int = 0
    """Cases that failed in a known way."""


@dataclass(frozen=True)
class Property:
    name: str
    category: str
    quick: int
    """Cases in `make test-all`; half of them in `make test`."""
    function: Callable[..., None]
    strategies: dict[str, st.SearchStrategy]

    def check(self, share: float = 1.0) -> None:
        """The fixed sequence of cases, or a share of it."""
        phases = [Phase.generate, Phase.shrink]
        cases = max(1, round(share * self.quick))
        self._test(Search(), settings(max_examples=cases, derandomize=True, phases=phases))()

    def search(self, search: Search, *, seed: int, cases: int) -> None:
        """Random cases that follow from `seed`. Raises the first new failure, made as small as possible."""
        test = self._test(search, settings(max_examples=cases, phases=[Phase.generate, Phase.shrink], print_blob=True))
        hypothesis_engine.MAX_SHRINKING_SECONDS = SHRINK_SECONDS
        hypothesis.seed(seed)(test)()

    def reproduce(self, version: str, blob: bytes) -> None:
        """One failing case, as the search reported it."""
        test = self._test(Search(), settings(max_examples=1))
        hypothesis.reproduce_failure(version, blob)(test)()

    def _test(self, search: Search, chosen: settings) -> Callable[[], None]:
        failed: list[Exception] = []  # a failing case is made smaller even if that takes longer than the deadline

        @functools.wraps(self.function)
        def run(**arguments: Any) -> None:
            if time.monotonic() > search.deadline and not failed:
                return
            search.cases += 1
            try:
                with time_limit(CASE_SECONDS), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    self.function(**arguments)
            except Exception as error:
                if failure_signature(self.name, error) in search.known:
                    search.repeated += 1
                    return
                failed.append(error)
                raise

        chosen = settings(
            chosen, deadline=None, database=None, report_multiple_bugs=False, suppress_health_check=list(HealthCheck)
        )
        return chosen(hypothesis.given(**self.strategies)(run))


def fuzzed(category: str, quick: int, **strategies: st.SearchStrategy) -> Callable[[Callable[..., None]], Any]:
    """Register the decorated function as a property of `category`; for `quick` see `Property`."""
    assert category in CATEGORIES, category

    def register(function: Callable[..., None]) -> Callable[..., None]:
        name = function.__name__
        PROPERTIES[name] = Property(name, category, quick, function, strategies)
        return function

    return register


def failure_signature(name: str, error: BaseException) -> str:
    """Equal for failures that have, most likely, the same cause: same property, place and message without numbers."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    place = _place(error) or (_place(error.__context__) if error.__context__ else "")
    message = re.sub(r"'[^']*'|\"[^\"]*\"", "'...'", str(error).split("\n")[0])
    message = re.sub(r"-?\d[\d.]*(e[+-]?\d+)?|\bnan\b|\binf\b|/[^ :]+", "#", message)
    return f"{name} | {type(error).__name__} | {place} | {message[:120]}"


def _place(error: BaseException) -> str:
    """File and function of the library in which the error was raised."""
    files = [(Path(frame.filename), frame.name) for frame in traceback.extract_tb(error.__traceback__)]
    ours = [f"{file.relative_to(PACKAGE)}:{function}" for file, function in files if file.is_relative_to(PACKAGE)]
    return ours[-1] if ours else ""


class _TookTooLong(BaseException):
    """Not an Exception, so that nothing in between catches it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """AssertionError if the block uses more processor time. The library postpones SIGALRM, so this uses SIGPROF."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGPROF"):
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise _TookTooLong

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    except _TookTooLong as error:
        frame = traceback.extract_tb(error.__traceback__)[-2 if error.__traceback__.tb_next else -1]
        raise AssertionError(
            f"took more than {seconds:g} seconds, in {Path(frame.filename).name}:{frame.name}"
        ) from error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextmanager
def memory_limit(megabytes: int) -> Iterator[None]:
    """MemoryError if the block asks for more memory than that. Enforced on Linux only."""
    if not sys.platform.startswith("linux"):
        yield
        return
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * resource.getpagesize() + megabytes * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit if soft == resource.RLIM_INFINITY else min(limit, soft), hard))
    try:
        yield
    except MemoryError as error:
        raise AssertionError(f"more than {megabytes} MB of memory were asked for: {error}") from error
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
