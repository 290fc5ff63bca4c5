"""The engines on a CUDA device: time, memory, and the same answers as `direct` in NumPy. One run checks every claim.

    python benchmarks/cuda_engines.py                         (exits with 1 if an answer is wrong; reports targets)
    python benchmarks/cuda_engines.py --geometry clustered    in the geometry in which bounds on cosines prove little

It needs torch with CUDA, NumPy and safetensors, nothing else; `src` must be importable. It stops within eight minutes.
If OUT is set, cuda_engines.json is written there.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from zeroshift import OnlineADAPT, TransductiveADAPT
from zeroshift.adapt.engines import ENGINES
from zeroshift.arrays import Backend, to_numpy
from zeroshift.benchmarks.baseline_products import time_baseline_products
from zeroshift.benchmarks.engines import DEFINITION, BankSchedule, bank_schedule, measure_transductive
from zeroshift.benchmarks.machine import busy_cores, describe_environment
from zeroshift.benchmarks.problems import GEOMETRIES, BenchProblem, clip_like
from zeroshift.benchmarks.tables import format_seconds
from zeroshift.benchmarks.timing import (
    Clock,
    TimedSteps,
    agreement,
    latency_percentiles,
    time_spread,
    time_steps,
    time_stream,
)
from zeroshift.zero_shot import softmax

HOST = Backend.named("numpy", "cpu")
TOLERANCE = 1e-4
LIMIT_SECONDS = 450.0
"""Parts that have not started by then are skipped and reported: the machine is available for minutes."""

POINTS = (0, 200, 2000, 9000, 20000, 45000)
COMPARED = 5000
"""Number of samples, all of which are compared with `direct`."""

STREAMED = 1500
"""Samples of each part that is streamed, one sample per call."""


class Report:
    """Rows, printed as soon as they are measured."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.record: dict[str, Any] = {}
        self.wrong: list[str] = []

    def add(self, name: str, text: str, **numbers: Any) -> None:
        self.record[name] = {"text": text, **numbers}
        print(f"| {name} | {text} |", flush=True)

    def check_agreement(self, name: str, found: dict[str, float]) -> None:
        differences = (found["largest_difference"], found["largest_score_difference"])
        good = max(differences) <= TOLERANCE and found["argmax_equal"] == 1.0
        if not good:
            self.wrong.append(name)
        text = f"{'ok' if good else 'WRONG'}: probabilities {differences[0]:.1e}, scores {differences[1]:.1e}"
        text += f", argmax equal {found['argmax_equal']:.2%}"
        self.add(f"{name}, against NumPy `direct` on {found['samples']} samples", text, agreement=found)

    def run_part(self, name: str, call: Callable[[], None]) -> None:
        """Measure one part. A failure is printed, and the other parts still run."""
        if time.perf_counter() - self.began > LIMIT_SECONDS:
            self.add(name, "left out: no time")
            return
        try:
            call()
        except Exception as error:
            self.wrong.append(name)
            self.add(name, f"FAILED: {type(error).__name__}: {error}".splitlines()[0])
            if os.environ.get("ZEROSHIFT_DEBUG") == "1":
                raise


class Bench:
    def __init__(self, problem: BenchProblem, backend: Backend, folder: Path, report: Report, repeats: int) -> None:
        self.problem, self.backend, self.report, self.repeats = problem, backend, report, repeats
        self.clock = Clock(backend)
        self.features = backend.asarray(problem.features)
        self.prototypes = backend.asarray(problem.prototypes)
        self.cuda = sys.modules["torch"].cuda if backend.library == "torch" and backend.device.type == "cuda" else None
        points = [point for point in POINTS if point < len(problem.features)]
        self.schedule: BankSchedule = bank_schedule(problem, points, folder)
        self.definition: dict[int, TimedSteps] = {
            seen: time_steps(state, DEFINITION, problem.features, self.schedule.rows_from(seen, 3), HOST, scores=True)
            for seen, state in self.schedule.states.items()
        }

    @property
    def rows(self) -> np.ndarray:
        return np.concatenate([taken.rows for taken in self.definition.values()])

    @property
    def expected(self) -> np.ndarray:
        return np.concatenate([taken.probabilities for taken in self.definition.values()])

    @property
    def expected_scores(self) -> np.ndarray:
        return np.concatenate([taken.scores for taken in self.definition.values()])

    def check_agreement(self, name: str, taken: list[TimedSteps]) -> None:
        probabilities, scores = ([getattr(t, part) for t in taken] for part in ("probabilities", "scores"))
        found = agreement(np.concatenate(probabilities), self.expected, np.concatenate(scores), self.expected_scores)
        self.report.check_agreement(name, found)

    def new_adapter(self, engine: str) -> OnlineADAPT:
        return OnlineADAPT(self.prototypes, logit_scale=self.problem.logit_scale, engine=engine)

    def memory(self, call: Callable[[], object]) -> float | None:
        """Peak memory on the device in MB, including the answer, in addition to what was allocated before."""
        if self.cuda is None:
            return None
        before = self.cuda.memory_allocated()
        self.cuda.reset_peak_memory_stats()
        call()
        return float(self.cuda.max_memory_allocated() - before) / 1e6

    def baseline(self) -> None:
        found = time_baseline_products(self.features, self.prototypes, self.backend, self.repeats)
        wide, narrow = found["float64"]["median"], found["float32"]["median"]
        self.report.add(
            "bare product N K d", f"float64 {format_seconds(wide)}, float32 {format_seconds(narrow)}", floor=found
        )
        self.product = wide

    def direct(self) -> None:
        taken = {seen: time_steps(s, DEFINITION, self.features, self.definition[seen].rows, self.backend, scores=True)
                 for seen, s in self.schedule.states.items()}  # fmt: skip
        last = taken[max(taken)].seconds
        text = f"{format_seconds(float(np.median(last)))} per sample at {max(taken)} seen"
        self.report.add("direct", text, seconds=[float(s) for s in last])
        self.check_agreement("direct", list(taken.values()))

    def replay(self) -> None:
        taken, answer = [], None
        for _ in range(self.repeats + 1):
            adapter, answer = self.new_adapter("replay"), None
            seconds, answer = self.clock.time(adapter.adapt, self.features)
            taken.append(seconds)
        times = time_spread(taken[1:])
        sampled = to_numpy(answer)[self.rows].astype(np.float64)
        del answer
        scores = to_numpy(self.new_adapter("replay").adapt_scores(self.features)[self.rows])
        megabytes = self.memory(lambda: self.new_adapter("replay").adapt(self.features))
        text = f"{format_seconds(times['median'])} ({format_seconds(times['least'])} to {format_seconds(times['most'])}"
        text += f", the first time {format_seconds(taken[0])})"
        self.report.add(f"replay of {len(self.features)}; target 0.5 s", text, times=times, megabytes=megabytes)
        self.report.check_agreement("replay", agreement(sampled, self.expected, scores, self.expected_scores))

    def streaming(self) -> None:
        """From the start, and from later states. Each step waits for its answer."""
        whole = time_stream(self.new_adapter("streaming"), self.features[:STREAMED], np.arange(0), self.backend)
        self._latency("streaming, the first samples", whole.seconds, self.schedule.entered[:STREAMED])
        for seen, state in list(self.schedule.states.items())[3:]:
            rows = np.arange(seen, min(seen + STREAMED, len(self.problem.features)))
            steps = time_steps(state, "streaming", self.features, rows, self.backend)
            entries = int(self.schedule.entries[seen - 1])
            self._latency(f"streaming at {entries} bank entries", steps.seconds, self.schedule.entered[rows])
        taken = [time_steps(s, "streaming", self.features, self.definition[seen].rows, self.backend, scores=True)
                 for seen, s in self.schedule.states.items()]  # fmt: skip
        self.check_agreement("streaming", taken)

    def _latency(self, name: str, seconds: np.ndarray, entered: np.ndarray) -> None:
        kinds = {"all": seconds, "entering": seconds[entered], "other": seconds[~entered]}
        found = {kind: latency_percentiles(values) for kind, values in kinds.items()}
        shown = "; ".join(
            f"{kind} p50 {format_seconds(f['p50'])}, p99 {format_seconds(f['p99'])}, max {format_seconds(f['max'])}"
            for kind, f in found.items()
            if f is not None
        )
        self.report.add(f"{name}; target p50 0.35 ms, p99 1 ms", shown, latencies=found)

    def whole(self) -> None:
        """`direct` over all of the first samples, on the device, where it takes milliseconds per sample."""
        some = self.backend.asarray(self.problem.features[:COMPARED], self.backend.xp.float64)
        wide = self.backend.asarray(self.prototypes, self.backend.xp.float64)
        answers = {}
        for engine in (DEFINITION, "replay", "streaming"):
            adapter = OnlineADAPT(wide, logit_scale=self.problem.logit_scale, engine=engine)
            answers[engine] = adapter.adapt_scores(some)
        for engine in ("replay", "streaming"):
            scores = float(abs(answers[engine] - answers[DEFINITION]).max())
            z, expected = (softmax(answers[name]) for name in (engine, DEFINITION))
            difference = float(abs(z - expected).max())
            equal = bool((z.argmax(1) == expected.argmax(1)).all())
            if difference > TOLERANCE or not equal:
                self.report.wrong.append(f"whole {engine}")
            text = f"probabilities {difference:.1e}, scores {scores:.1e}, argmax {'all' if equal else 'NOT all'} equal"
            name = f"{engine}, against `direct` on the device over every one of {len(some)} samples"
            self.report.add(name, text, difference=difference, scores=scores, argmax_equal=equal)

    def transductive(self) -> None:
        found = measure_transductive(self.problem, self.features, self.backend, self.product, max(7, self.repeats))
        adapter = TransductiveADAPT(self.prototypes, logit_scale=self.problem.logit_scale)
        megabytes = self.memory(lambda: adapter.adapt(self.features))
        times = found["repeated"]
        text = (
            f"{format_seconds(times['median'])} ({format_seconds(times['least'])} to {format_seconds(times['most'])})"
        )
        text += f", {found['times_three_products']:.2f} times three bare products"
        name = f"transductive {len(self.features)} x {self.prototypes.shape[0]} x {self.prototypes.shape[1]}"
        self.report.add(f"{name}; target 8 ms", text, record=found, megabytes=megabytes)
        self.report.check_agreement("transductive", found["agreement"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cpu only tests the script")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--dimension", type=int, default=512)
    parser.add_argument("--samples", type=int, default=50000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--geometry", choices=sorted(GEOMETRIES), default="clip_like")
    arguments = parser.parse_args()
    backend = Backend.named("torch", arguments.device)
    report = Report()
    found = {**describe_environment(backend), "busy_cores_before": busy_cores()}
    print(f"{found.get('device', found['machine'])}, torch {found['torch']}, Python {found['python']}\n")
    print("| what | |\n|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        problem = clip_like(arguments.classes, arguments.dimension, arguments.samples, geometry=arguments.geometry)
        bench = Bench(problem, backend, Path(folder), report, arguments.repeats)
        report.add(
            "made ready", f"{time.perf_counter() - report.began:.0f} s, {int(bench.schedule.entries[-1])} bank entries"
        )
        parts = {"bare": bench.baseline, "transductive": bench.transductive}
        parts |= {name: getattr(bench, name) for name in ("replay", "streaming") if name in ENGINES}
        for name, part in {**parts, "direct": bench.direct, "whole": bench.whole}.items():
            report.run_part(name, part)
    print(f"\n{time.perf_counter() - report.began:.0f} s in all. Wrong: {', '.join(report.wrong) or 'nothing'}.")
    if os.environ.get("OUT"):
        content = {"surroundings": found, "settings": vars(arguments), "rows": report.record, "wrong": report.wrong}
        Path(os.environ["OUT"], f"cuda_engines_{arguments.geometry}.json").write_text(
            json.dumps(content, indent=1) + "\n"
        )
    return int(bool(report.wrong))


if __name__ == "__main__":
    sys.exit(main())
