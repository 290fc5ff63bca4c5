"""The anchored mixture on a CUDA device, or on the CPU: the same answers as NumPy's, and time next to ADAPT's.

    python benchmarks/cuda_mixture.py                                          (exits 1 where an answer is wrong)
    python benchmarks/cuda_mixture.py --device cpu --samples 5000 --set 20000  (times alone, in NumPy)

It needs NumPy and safetensors, and torch for a CUDA device; `src` must be importable. Methods take turns, so that
ratios are of one run. If OUT is set, mixture_<device>.json is written there.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from zeroshift import OnlineADAPT, OnlineAnchoredMixture, TransductiveADAPT, TransductiveAnchoredMixture, normalize
from zeroshift.arrays import Array, Backend, to_numpy
from zeroshift.benchmarks.baseline_products import time_baseline_products
from zeroshift.benchmarks.machine import busy_cores, describe_environment
from zeroshift.benchmarks.problems import BenchProblem, clip_like
from zeroshift.benchmarks.tables import format_seconds
from zeroshift.benchmarks.timing import Clock, latency_percentiles, time_spread

TOLERANCE = 1e-9
"""Largest allowed difference to NumPy, of a probability, and of a score relative to the largest in its row."""

METHODS = (OnlineAnchoredMixture, TransductiveAnchoredMixture)
SIZES = ((10, 64, 700), (47, 512, 900), (300, 128, 1500))
"""(K, d, N) of the problems that are compared: few classes, more dimensions than samples, many classes."""

VIEWS, PERTURBED = 8, 0.2
"""Views per image, and the distance of each from the image."""


def difference(found: Array, expected: np.ndarray) -> float:
    """Largest difference of scores, relative where they are large, and of probabilities."""
    scores = to_numpy(found)
    relative = np.abs(scores - expected) / np.maximum(1.0, np.abs(expected))
    return float(max(relative.max(), np.abs(np.exp(scores) - np.exp(expected)).max()))


def parity(backend: Backend) -> dict[str, float]:
    """Differences to NumPy: adapting, predicting, several views per image, merging, in blocks."""
    found: dict[str, float] = {}
    for classes, d, samples in SIZES:
        problem = clip_like(classes, d, samples)
        wide, texts = problem.features.astype(np.float64), problem.prototypes.astype(np.float64)
        noise = np.random.default_rng(0).normal(size=(samples // 4, VIEWS, d)) * PERTURBED / d**0.5
        views = normalize((wide[: samples // 4, None] + noise).reshape(-1, d)).reshape(-1, VIEWS, d)
        there = backend.asarray(wide), backend.asarray(texts), backend.asarray(views)
        for method in METHODS:
            name = f"{method.name} K={classes} d={d}"
            here, device = (answers(method, *arrays) for arrays in ((wide, texts, views), there))
            found |= {f"{name} {what}": difference(device[what], to_numpy(here[what])) for what in here}
    return found


def answers(method: Any, features: Array, prototypes: Array, views: Array) -> dict[str, Array]:
    half = features.shape[0] // 2
    whole, first, second, by_views = (method(prototypes) for _ in range(4))
    answer = whole.adapt_scores(features)
    first.adapt(features[:half])
    second.adapt(features[half:])
    return {
        "adapt": answer,
        "predict": whole.predict_scores(features[:half]),
        "merge": first.merge(second).predict_scores(features[:half]),
        "views": by_views.adapt_views_scores(views),
    }


class Times:
    """Seconds of several methods, measured in turns."""

    def __init__(self, problem: BenchProblem, backend: Backend) -> None:
        self.clock, self.backend = Clock(backend), backend
        self.features, self.prototypes = backend.asarray(problem.features), backend.asarray(problem.prototypes)
        self.scale = problem.logit_scale

    def whole(self, method: Any, samples: int, **parameters: Any) -> Callable[[], float]:
        def timed() -> float:
            adapter = method(self.prototypes, logit_scale=self.scale, **parameters)
            return self.clock.time(adapter.adapt, self.features[:samples])[0]

        return timed

    def single(self, method: Any, samples: int, found: dict[str, Any], **parameters: Any) -> Callable[[], float]:
        def timed() -> float:
            adapter = method(self.prototypes, logit_scale=self.scale, **parameters)
            each = np.array([self.clock.time(adapter.adapt, self.features[i])[0] for i in range(samples)])
            found.setdefault("latencies", []).append(latency_percentiles(each))
            return float(each.sum())

        return timed


def measure(problem: BenchProblem, backend: Backend, sizes: argparse.Namespace) -> dict[str, Any]:
    times = Times(problem, backend)
    rows: dict[str, dict[str, Any]] = {}
    ways: dict[str, Callable[[], float]] = {}

    def add(name: str, samples: int, make: Callable[[dict[str, Any]], Callable[[], float]]) -> None:
        rows[name] = {"samples": samples, "seconds": []}
        ways[name] = make(rows[name])

    n, singles, whole = sizes.samples, sizes.singles, sizes.set
    add("mixture, online, one call", n, lambda row: times.whole(OnlineAnchoredMixture, n))
    add("ADAPT, replay, one call", n, lambda row: times.whole(OnlineADAPT, n, engine="replay"))
    add("mixture, online, one by one", singles, lambda row: times.single(OnlineAnchoredMixture, singles, row))
    add(
        "ADAPT, streaming, one by one",
        singles,
        lambda row: times.single(OnlineADAPT, singles, row, engine="streaming"),
    )
    add("mixture, transductive", whole, lambda row: times.whole(TransductiveAnchoredMixture, whole))
    add("ADAPT, transductive", whole, lambda row: times.whole(TransductiveADAPT, whole))
    for repeat in range(sizes.repeats + 1):
        for name, way in ways.items():
            seconds = way()
            if repeat:  # the first time also pays for kernels, threads and memory
                rows[name]["seconds"].append(seconds)
            print(f"  {name}: {format_seconds(seconds)}", file=sys.stderr, flush=True)
    return rows


def table(rows: dict[str, Any], bare: float, bare_samples: int) -> list[str]:
    lines = [
        "| | samples | time (minimum to maximum) | per sample | p50, p99 of a call | times the floor |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        times, n = time_spread(row["seconds"]), row["samples"]
        of_calls = row.get("latencies", [None])[-1]
        calls = "" if of_calls is None else f"{format_seconds(of_calls['p50'])}, {format_seconds(of_calls['p99'])}"
        shown = (
            f"{format_seconds(times['median'])} ({format_seconds(times['least'])} to {format_seconds(times['most'])})"
        )
        ratio = times["median"] / (bare * n / bare_samples)
        lines.append(f"| {name} | {n} | {shown} | {format_seconds(times['median'] / n)} | {calls} | {ratio:.3g} |")
    names = list(rows)
    for ours, theirs in zip(names[::2], names[1::2], strict=True):
        ratios = time_spread([a / b for a, b in zip(rows[ours]["seconds"], rows[theirs]["seconds"], strict=True)])
        span = f"{ratios['median']:.3g} ({ratios['least']:.3g} to {ratios['most']:.3g})"
        lines.append(f"\n{ours}: {span} times as long as {theirs}.")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--dimension", type=int, default=512)
    parser.add_argument("--samples", type=int, default=50_000, help="samples of the online stream in one call")
    parser.add_argument("--singles", type=int, default=5000, help="samples passed one per call")
    parser.add_argument("--set", type=int, default=50_000, help="samples adapted to transductively")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    backend = Backend.named("numpy" if given.device == "cpu" else "torch", given.device)
    record: dict[str, Any] = {"surroundings": describe_environment(backend), "busy_cores_before": busy_cores()}
    wrong = []
    if backend.library == "torch":
        record["parity"] = parity(backend)
        wrong = [name for name, error in record["parity"].items() if not error <= TOLERANCE]
        for name, error in record["parity"].items():
            print(f"{'WRONG' if name in wrong else 'ok'} {name}: {error:.1e}", flush=True)
    problem = clip_like(given.classes, given.dimension, max(given.samples, given.singles, given.set))
    bare = time_baseline_products(
        backend.asarray(problem.features), backend.asarray(problem.prototypes), backend, given.repeats
    )
    rows = measure(problem, backend, given)
    record |= {"settings": vars(given), "floor": bare, "rows": rows}
    wide = bare["float64"]["median"]
    print(f"bare product N K d, N = {len(problem.features)}: {format_seconds(wide)} in float64")
    print("\n".join(table(rows, wide, len(problem.features))))
    if "OUT" in os.environ:
        path = Path(os.environ["OUT"]) / f"mixture_{given.device}.json"
        path.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
