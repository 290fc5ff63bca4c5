"""The anchored mixture on the same problem, one sample a call, the stream in one call, and as a set."""

from __future__ import annotations

from typing import Any

import numpy as np

from zeroshift.arrays import Array, Home, to_numpy
from zeroshift.benchmarks.clip_like import ClipLike
from zeroshift.benchmarks.clock import Clock, latencies, spread
from zeroshift.benchmarks.stepping import agreement
from zeroshift.mixture import OnlineAnchoredMixture, TransductiveAnchoredMixture

__all__ = ["MIXTURE_METHODS", "MIXTURE_SINGLE", "measure_mixture"]

MIXTURE_SINGLE, MIXTURE_CALL, MIXTURE_SET = "mixture", "mixture call", "mixture set"
"""One sample a call; the whole stream in one call; transductive. Short, for the table fits a terminal."""

MIXTURE_METHODS = {MIXTURE_CALL: OnlineAnchoredMixture, MIXTURE_SET: TransductiveAnchoredMixture}
"""Given the whole array at once."""

WINDOWS = 20
"""Stretches of a stream whose times show whether a sample costs more the more were seen."""

COMPARED = 500
"""Rows, spread over the stream, whose answers one by one and in one call are compared."""


def measure_mixture(problem: ClipLike, features: Array, home: Home, repeats: int) -> dict[str, Any]:
    """A record for each way; `features` are the problem's, at `home`."""
    prototypes, clock = home.bring(np.asarray(problem.prototypes)), Clock(home)
    n = features.shape[0]
    rows = np.unique(np.linspace(0, n - 1, COMPARED).round().astype(np.int64))
    records: dict[str, Any] = {}
    kept = {}
    for name, method in MIXTURE_METHODS.items():
        taken: list[float] = []
        for _ in range(repeats):
            adapter, answer = method(prototypes, logit_scale=problem.logit_scale), None
            seconds, answer = clock.time(adapter.adapt, features)
            taken.append(seconds)
        kept[name] = to_numpy(answer)[rows].astype(np.float64)
        del answer
        records[name] = _record("the whole array in one call", spread(taken)["median"], n, repeated=spread(taken))
    single = OnlineAnchoredMixture(prototypes, logit_scale=problem.logit_scale)
    times, answers, wanted = np.zeros(n), [], set(rows.tolist())
    for row in range(n):
        times[row], one = clock.time(single.adapt, features[row])
        if row in wanted:
            answers.append(to_numpy(one).astype(np.float64))
    records[MIXTURE_CALL]["agreement"] = agreement(kept[MIXTURE_CALL], np.array(answers))
    first = _record("the whole stream, one sample a call", float(times.sum()), n, latency={"all": latencies(times)})
    # Renewals are part of the price: means over stretches, where ADAPT's insertions are shown by medians.
    first["windows"] = [
        {"seen": int(part[-1]) + 1, "seconds_a_sample": float(times[part].mean())}
        for part in np.array_split(np.arange(n), min(WINDOWS, n))
    ]
    return {MIXTURE_SINGLE: first, **records}


def _record(timed: str, seconds: float, samples: int, **more: Any) -> dict[str, Any]:
    return {"timed": timed, "seconds": seconds, "seconds_a_sample": seconds / samples, **more}
