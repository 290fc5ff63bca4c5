"""The anchored mixture on a CUDA device, or on the CPU: the same answers as NumPy's, and time next to ADAPT's.

    python benchmarks/cuda_mixture.py                                          (exits 1 where an answer is wrong)
    python benchmarks/cuda_mixture.py --mixture-only --geometry clustered      (without ADAPT; the other geometry)
    python benchmarks/cuda_mixture.py --device cpu --samples 5000 --set 20000  (times alone, in NumPy)

The floor is the bare product N K d in float32, measured in the same run. Ten rounds need at least twenty of them. It
needs NumPy and safetensors, and torch for a CUDA device; `src` must be importable. Methods take turns, so that ratios
are of one run. If OUT is set, mixture_<device>.json is written there.
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
from zeroshift.benchmarks.problems import GEOMETRIES, BenchProblem, clip_like
from zeroshift.benchmarks.tables import format_seconds
from zeroshift.benchmarks.timing import Clock, latency_percentiles, time_spread
from zeroshift.mixture import transductive

TOLERANCE, FLOAT32_TOLERANCE = 1e-9, 1e-4
"""Largest allowed difference to NumPy, of a probability, and of a score relative to the largest in its row; and of a
probability if the features are float32."""

METHODS = (OnlineAnchoredMixture, TransductiveAnchoredMixture)
SIZES = ((10, 64, 700), (47, 512, 900), (300, 128, 1500))
"""(K, d, N) of the problems that are compared: few classes, more dimensions than samples, many classes."""

FLOAT32 = "adapt, float32 features"

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
            narrow = method(backend.asarray(problem.prototypes)).adapt(backend.asarray(problem.features))
            error = np.abs(to_numpy(narrow) - method(texts).adapt(wide)).max()
            found[f"{name} {FLOAT32}"] = float(error)
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


ONE_CALL = "mixture, online, one call", "ADAPT, replay, one call"
ONE_BY_ONE = "mixture, online, one by one", "ADAPT, streaming, one by one"
SET = "mixture, transductive", "ADAPT, transductive"
"""Rows that are compared."""


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

    def all_rounds(self, samples: int) -> Callable[[], float]:
        """The transductive mixture without its early end."""
        timed = self.whole(TransductiveAnchoredMixture, samples)

        def with_all_rounds() -> float:
            still, transductive.STILL = transductive.STILL, -1.0
            try:
                return timed()
            finally:
                transductive.STILL = still

        return with_all_rounds

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
    add(ONE_CALL[0], n, lambda row: times.whole(OnlineAnchoredMixture, n))
    add(ONE_BY_ONE[0], singles, lambda row: times.single(OnlineAnchoredMixture, singles, row))
    add(SET[0], whole, lambda row: times.whole(TransductiveAnchoredMixture, whole))
    add("mixture, transductive, all ten rounds", whole, lambda row: times.all_rounds(whole))
    if not sizes.mixture_only:
        add(ONE_CALL[1], n, lambda row: times.whole(OnlineADAPT, n, engine="replay"))
        add(ONE_BY_ONE[1], singles, lambda row: times.single(OnlineADAPT, singles, row, engine="streaming"))
        add(SET[1], whole, lambda row: times.whole(TransductiveADAPT, whole))
    for repeat in range(sizes.repeats + 1):
        for name, way in ways.items():
            seconds = way()
            if repeat:  # the first time also pays for kernels, threads and memory
                rows[name]["seconds"].append(seconds)
            print(f"  {name}: {format_seconds(seconds)}", file=sys.stderr, flush=True)
    return rows


def table(rows: dict[str, Any], bare: float, bare_samples: int) -> list[str]:
    lines = [
        "| | samples | time (minimum to maximum) | per sample | p50, p99 of a call | products N K d |",
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
    for ours, theirs in (ONE_CALL, ONE_BY_ONE, SET):
        if theirs not in rows:
            continue
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
    parser.add_argument("--geometry", default="clip_like", choices=sorted(GEOMETRIES))
    parser.add_argument("--mixture-only", action="store_true", help="without ADAPT")
    given = parser.parse_args()
    backend = Backend.named("numpy" if given.device == "cpu" else "torch", given.device)
    record: dict[str, Any] = {"surroundings": describe_environment(backend), "busy_cores_before": busy_cores()}
    wrong = []
    if backend.library == "torch":
        record["parity"] = parity(backend)
        wrong = [
            name
            for name, error in record["parity"].items()
            if not error <= (FLOAT32_TOLERANCE if name.endswith(FLOAT32) else TOLERANCE)
        ]
        for name, error in record["parity"].items():
            print(f"{'WRONG' if name in wrong else 'ok'} {name}: {error:.1e}", flush=True)
    samples = max(given.samples, given.singles, given.set)
    problem = clip_like(given.classes, given.dimension, samples, geometry=given.geometry)
    bare = time_baseline_products(
        backend.asarray(problem.features), backend.asarray(problem.prototypes), backend, given.repeats
    )
    rows = measure(problem, backend, given)
    record |= {"settings": vars(given), "floor": bare, "rows": rows}
    floor = bare["float32"]["median"]
    floors = ", ".join(f"{format_seconds(bare[name]['median'])} in {name}" for name in ("float32", "float64"))
    print(f"bare product N K d, N = {samples}: {floors}")
    print("\n".join(table(rows, floor, samples)))
    mixture = TransductiveAnchoredMixture(backend.asarray(problem.prototypes), logit_scale=problem.logit_scale)
    mixture.adapt(backend.asarray(problem.features[: given.set]))
    record["diagnostics"] = vars(mixture.diagnostics)
    print(f"transductive: {mixture.diagnostics}")
    if "OUT" in os.environ:
        path = Path(os.environ["OUT"]) / f"mixture_{given.device}.json"
        path.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
