"""Time per call of `adapt` with one sample: what a method spends outside its matrix products.

    python benchmarks/call_overhead.py [METHOD ...]

With K = 10 classes in d = 8 dimensions the products take about two microseconds, so the time per call is the overhead:
checks of the input, conversion, the method's own bookkeeping. The same with d = 512 shows a realistic problem. The
tenth percentile over the calls is reported, because other programs may share the machine. One thread.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from threadpoolctl import threadpool_limits

from zeroshift import methods
from zeroshift.testing import Case, make_problem

CLASSES, DIMENSIONS, CALLS, FIRST = 10, (8, 512), 2000, 500
"""The first calls are not counted: banks and caches fill up."""

DEFAULT = (
    "zero_shot",
    "zero_shot+filter",
    "adapt_online",
    "anchored_mixture_online",
    "tda",
    "dmn",
    "bca",
    "oga",
    "t3a",
)


def microseconds_per_call(name: str, dimension: int) -> tuple[float, float]:
    """Tenth percentile for `adapt` and for `predict`."""
    problem = make_problem(classes=CLASSES, dimension=dimension, samples=CALLS)
    method = Case(methods.get(name).cls).create(problem.prototypes)
    adapt, predict = [], []
    for row in problem.features:
        start = time.perf_counter()
        method.adapt(row)
        adapt.append(time.perf_counter() - start)
    for row in problem.features[:FIRST]:
        start = time.perf_counter()
        method.predict(row)
        predict.append(time.perf_counter() - start)
    return 1e6 * float(np.percentile(adapt[FIRST:], 10)), 1e6 * float(np.percentile(predict, 10))


def main() -> None:
    print("| method | adapt, d = 8 | predict, d = 8 | adapt, d = 512 | predict, d = 512 |")
    print("|---|---|---|---|---|")
    with threadpool_limits(1):
        for name in sys.argv[1:] or DEFAULT:
            times = [value for dimension in DIMENSIONS for value in microseconds_per_call(name, dimension)]
            print(f"| {name} | " + " | ".join(f"{value:.0f} us" for value in times) + " |", flush=True)


if __name__ == "__main__":
    main()
