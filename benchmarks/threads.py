"""Eight threads share one object: is every sample learned, and is the result that of some order of the calls?

    python benchmarks/threads.py [METHOD ...]

Eight threads adapt one object to 1,000 samples, one sample per call, while two other threads predict. A transductive
method gets forty sets of 25 samples, a method on batches calls of one batch. Python switches between threads nearly
after every instruction (switch interval 1e-6 s). The calls are then repeated one after the other, in the order in which
they ran, with another object. `n_seen`, all answers and the whole state must be the same, bit for bit, and every
prediction must be that of a state between two calls. One BLAS thread.
"""

from __future__ import annotations

import sys
import time

from threadpoolctl import threadpool_limits

from zeroshift import methods
from zeroshift.testing import Case, make_problem
from zeroshift.testing.threads import adapt_in_threads, assert_serial

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


def main() -> None:
    print("| method | calls of adapt | changes of thread | calls of predict | n_seen | exceptions | result | time |")
    print("|---|---|---|---|---|---|---|---|")
    failed = 0
    with threadpool_limits(1):
        for name in sys.argv[1:] or [info.name for info in methods.list_methods()]:
            row = check(name)
            failed += "FAILED" in row
            print(row, flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
