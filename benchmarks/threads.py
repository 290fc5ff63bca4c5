"""Eight threads share one object: is every sample learned, and is the result that of some order of the calls?

    python benchmarks/threads.py [METHOD ...]

Eight threads adapt one object to 1,000 samples, one sample per call, while two other threads predict. A transductive
method gets forty sets of 25 samples, a method on batches calls of one batch. Python switches between threads nearly
after every instruction (switch interval 1e-6 s). The calls are then repeated one after the other, in the order in which
they ran, with another object. `n_seen`, all answers and the whole state must be the same, bit for bit, and every
prediction must be that of a state between two calls. One BLAS thread.

Without names of methods, the time that turns add to a call is measured too: `adapt` and `predict` of one sample at
K = 10, d = 8, alternately with and without turns, tenth percentile.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from threadpoolctl import threadpool_limits

from zeroshift import methods
from zeroshift.testing import Case, make_problem
from zeroshift.testing.threads import adapt_in_threads, assert_serial
from zeroshift.turns import Turns

CLASSES, DIMENSION, SAMPLES, ADAPTING, PREDICTING = 6, 16, 1000, 8, 2

SET_SIZE = 25
"""Samples per call of a transductive method."""

PARAMETERS = {"frolic": {"proxy_iterations": 60}}
"""Fewer steps than the default of 2,000, which take minutes and share no state."""


def check(name: str) -> str:
    """A row of the table."""
    problem = make_problem(classes=CLASSES, dimension=DIMENSION, samples=SAMPLES, seed=11)
    case = Case(methods.get(name).cls, PARAMETERS.get(name, {}))
    method, reference = case.create(problem.prototypes), case.create(problem.prototypes)
    size = SET_SIZE if case.cls.protocol == "transductive" else getattr(method, "batch_size", None) or 1
    parts = [problem.features[start : start + size] for start in range(0, SAMPLES, size)]
    probe = problem.features[:2]
    started = time.perf_counter()
    run = adapt_in_threads(method, parts, probe, adapting=ADAPTING, predicting=PREDICTING)
    seconds = time.perf_counter() - started
    changes = sum(a % ADAPTING != b % ADAPTING for a, b in zip(run.order, run.order[1:], strict=False))
    try:
        assert_serial(run, method, reference, parts, probe)
        result = "equal"
    except AssertionError as error:
        result = f"FAILED: {error}"
    return (
        f"| {name} | {len(run.order)} | {changes} | {len(run.predictions)} | {method.n_seen} | {len(run.errors)} "
        f"| {result} | {seconds:.1f} s |"
    )


COST_METHODS = ("zero_shot", "adapt_online", "anchored_mixture_online", "tda", "bca", "t3a")
COST_CALLS, FIRST = 3000, 500
"""Calls with turns, and as many without; samples learned before."""


def without_turns(self: Turns, exclusive: bool, function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def cost(name: str) -> str:
    """A row of the table of times."""
    problem = make_problem(classes=10, dimension=8, samples=FIRST + COST_CALLS)
    method = Case(methods.get(name).cls).create(problem.prototypes)
    method.adapt(problem.features[:FIRST])
    row, with_turns = f"| {name} |", Turns.run
    for call in (method.adapt, method.predict):
        times: dict[Any, list[float]] = {without_turns: [], with_turns: []}
        for x in problem.features[FIRST:]:
            for run, seconds in times.items():
                Turns.run = run  # type: ignore[method-assign]
                started = time.perf_counter()
                call(x)
                seconds.append(time.perf_counter() - started)
        before, after = (1e6 * statistics.quantiles(seconds, n=10)[0] for seconds in times.values())
        row += f" {before:.1f} us | {after:.1f} us |"
    Turns.run = with_turns  # type: ignore[method-assign]
    return row


def main() -> None:
    print("| method | calls of adapt | changes of thread | calls of predict | n_seen | exceptions | result | time |")
    print("|---|---|---|---|---|---|---|---|")
    failed = 0
    with threadpool_limits(1):
        for name in sys.argv[1:] or [info.name for info in methods.list_methods()]:
            row = check(name)
            failed += "FAILED" in row
            print(row, flush=True)
        if not sys.argv[1:]:
            print("\n| method | adapt without turns | with | predict without turns | with |\n|---|---|---|---|---|")
            for name in COST_METHODS:
                print(cost(name), flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
