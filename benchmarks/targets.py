"""The CPU targets of the fast engines, measured one by one, as rows of a table: what, target, measured, met or missed.

    python benchmarks/targets.py                      all rows, a few minutes; writes targets.json next to this file
    python benchmarks/targets.py --only replay        one row
    python benchmarks/targets.py --whole              `direct` over every sample of the first row: a quarter of an hour

Everything that is compared is measured in one run, in turns, with the same threads.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zeroshift import OnlineADAPT
from zeroshift.adapt.engines import ENGINES
from zeroshift.arrays import Backend
from zeroshift.benchmarks.baseline_products import time_baseline_products
from zeroshift.benchmarks.case import BenchBackend, BenchCase
from zeroshift.benchmarks.engines import DEFINITION, bank_schedule, measure_online, measure_transductive
from zeroshift.benchmarks.machine import BUSY, busy_cores, describe_environment
from zeroshift.benchmarks.memory import TRANSDUCTIVE, Measurement, peak_memory
from zeroshift.benchmarks.problems import clip_like
from zeroshift.benchmarks.timing import Clock, agreement, limit_threads, threads_in_use, time_steps, time_stream
from zeroshift.files import atomic_path
from zeroshift.zero_shot import softmax

HERE = Path(__file__).parent
RECORDS = HERE / "targets.json"
BACKEND = Backend.named("numpy", "cpu")
CLOCK = Clock(BACKEND)
REPEATS = 5
SILENT: Callable[[str], None] = lambda what: None  # noqa: E731


@dataclass(frozen=True)
class Row:
    what: str
    target: str
    measured: str
    met: bool
    numbers: dict[str, Any]

    def markdown(self) -> str:
        return f"| {self.what} | {self.target} | {self.measured} | {'met' if self.met else '**missed**'} |"


def median_text(values: list[float], unit: str = "", digits: str = ".3g") -> str:
    """Median and spread."""
    return f"{np.median(values):{digits}}{unit} ({min(values):{digits}} to {max(values):{digits}})"


def fast_engines() -> list[str]:
    return [name for name in ENGINES if name != DEFINITION]


def scores_of(engine: str, problem: Any) -> np.ndarray:
    """Scores in float64; `replay` gets the array, the others one sample at a time."""
    adapter = OnlineADAPT(problem.prototypes, logit_scale=problem.logit_scale, engine=engine)
    wide = problem.features.astype(np.float64)
    if engine == "replay":
        return adapter.adapt_scores(wide)
    return np.stack([adapter.adapt_scores(x) for x in wide])


def score_difference(scores: np.ndarray, definition: np.ndarray) -> dict[str, float]:
    return agreement(softmax(scores), softmax(definition), scores, definition)


def difference(whole: bool) -> Row:
    """Every engine against `direct`: 5 000 samples at K = 1000, d = 512, and the streams of the tests."""
    problem = clip_like(1000, 512, 5000)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        if whole:
            rows, expected = np.arange(5000), scores_of(DEFINITION, problem)
        else:
            plan = bank_schedule(problem, list(range(0, 5000, 250)), Path(folder))
            taken = [
                time_steps(state, DEFINITION, problem.features, plan.rows_from(seen, 5), BACKEND, scores=True)
                for seen, state in plan.states.items()
            ]
            rows, expected = np.concatenate([t.rows for t in taken]), np.concatenate([t.scores for t in taken])
    for engine in fast_engines():
        found[f"{engine}, K=1000 d=512"] = score_difference(scores_of(engine, problem)[rows], expected)
    sys.path.insert(0, str(HERE.parent / "tests"))
    from streams import STREAMS

    for name, make in STREAMS.items():
        expected = scores_of(DEFINITION, make())
        for engine in fast_engines():
            found[f"{engine}, {name}"] = score_difference(scores_of(engine, make()), expected)
    largest = max((one["largest_difference"] for one in found.values()), default=float("nan"))
    score = max((one["largest_score_difference"] for one in found.values()), default=float("nan"))
    equal = all(one["argmax_equal"] == 1.0 for one in found.values())
    how = "all 5 000 samples" if whole else f"{len(rows)} sampled steps of 5 000"
    how = f"{how}, and {len(STREAMS)} streams of the tests"
    return Row(
        "largest difference of a probability to `direct`",
        "<= 1e-4, every argmax equal",
        f"{largest:.1e} (of a score, relative: {score:.1e}; {how}); argmax {'all equal' if equal else 'NOT equal'}",
        largest <= 1e-4 and equal,
        found,
    )


def insertion() -> Row:
    """One inserted sample at 8 000 bank entries, streaming and direct from the same state."""
    problem = clip_like(1000, 512, 12000)
    with tempfile.TemporaryDirectory() as folder:
        entries = bank_schedule(problem, [], Path(folder)).entries
        seen = int(np.searchsorted(entries, 8000)) + 1
        plan = bank_schedule(problem, [seen], Path(folder))
        state = plan.states[seen]
        rows = plan.rows_from(seen, 40)
        rows = rows[plan.entered[rows]]
        ratios, slow, fast = [], [], []
        for _ in range(REPEATS):
            direct = time_steps(state, DEFINITION, problem.features, rows[:4], BACKEND)
            streaming = time_steps(state, "streaming", problem.features, rows, BACKEND)
            slow.append(float(np.median(direct.seconds)))
            fast.append(float(np.median(streaming.seconds)))
            ratios.append(slow[-1] / fast[-1])
    numbers = {"ratios": ratios, "direct": slow, "streaming": fast, "entries": int(plan.entries[seen - 1])}
    detail = f"{median_text(ratios)} times; {1e3 * np.median(slow):.0f} ms against {1e3 * np.median(fast):.2f} ms"
    met = float(np.median(ratios)) >= 80 and float(np.median(fast)) <= 2e-3
    what = "streaming, an inserted sample at 8 000 bank entries"
    return Row(what, ">= 80 times faster; <= 2 ms", detail, met, numbers)


def early_stream() -> Row:
    """The first 1 000 samples in total; `direct` runs all of them too."""
    problem = clip_like(1000, 512, 1000)
    none = np.arange(0)

    def total(engine: str) -> float:
        adapter = OnlineADAPT(problem.prototypes, logit_scale=problem.logit_scale, engine=engine)
        return float(time_stream(adapter, problem.features, none, BACKEND).seconds.sum())

    fast = [total("streaming")]
    slow = total(DEFINITION)
    fast += [total("streaming") for _ in range(REPEATS - 1)]
    ratios = [slow / seconds for seconds in fast]
    detail = f"{median_text(ratios)} times; {slow:.1f} s against {np.median(fast):.2f} s"
    numbers = {"ratios": ratios, "direct": slow, "streaming": fast}
    met = float(np.median(ratios)) >= 10
    return Row("streaming, the first 1 000 samples in total", ">= 10 times faster", detail, met, numbers)


def replay() -> Row:
    """20 000 samples in one call; `direct` timed on sampled steps and interpolated."""
    settings = BenchCase(1000, 512, 20000, BenchBackend(), (DEFINITION, "replay"))
    problem = clip_like(settings.classes, settings.dimension, settings.samples)
    with tempfile.TemporaryDirectory() as folder:
        plan = bank_schedule(problem, settings.points(), Path(folder))
        records = measure_online(
            problem, problem.features, plan, settings.engines, BACKEND, steps=4, repeats=REPEATS, notify=SILENT
        )
    slow, fast = records[DEFINITION]["seconds"], records["replay"]["repeated"]
    ratios = [slow / fast["most"], slow / fast["median"], slow / fast["least"]]
    detail = f"{median_text(ratios)} times; about {slow:.0f} s against {fast['median']:.2f} s"
    met = ratios[1] >= 200
    return Row("replay of 20 000 samples, K = 1000, d = 512", ">= 200 times faster", detail, met, records)


def transductive() -> Row:
    """50 000 x 1000 x 512 against three bare products measured before and after; memory in a separate process."""
    problem = clip_like(1000, 512, 50000)
    before = time_baseline_products(problem.features, problem.prototypes, BACKEND, REPEATS)
    record = measure_transductive(problem, problem.features, BACKEND, before["float64"]["median"], REPEATS)
    after = time_baseline_products(problem.features, problem.prototypes, BACKEND, REPEATS)
    product = float(np.median([before["float64"]["median"], after["float64"]["median"]]))
    times = [record["repeated"][which] / (3 * product) for which in ("least", "median", "most")]
    with tempfile.TemporaryDirectory() as folder:
        arrays = {name: f"{folder}/{name}.npy" for name in ("features", "prototypes")}
        np.save(arrays["features"], problem.features)
        np.save(arrays["prototypes"], problem.prototypes)
        measurement = Measurement(
            TRANSDUCTIVE, **arrays, logit_scale=problem.logit_scale, library="numpy", device="cpu"
        )
        memory = peak_memory(measurement, threads_in_use())
    megabytes = memory.get("bytes_beyond_input_and_output", float("inf")) / 1e6
    detail = f"{median_text(times)} times ({record['seconds']:.2f} s, one product {product:.2f} s); {megabytes:.0f} MB"
    numbers = {"record": record, "floor": [before, after], "memory": memory}
    return Row(
        "transductive 50 000 x 1000 x 512",
        "<= 2.5 times three bare products; <= 256 MB beyond input and output",
        detail,
        times[1] <= 2.5 and megabytes <= 256,
        numbers,
    )


def overhead() -> Row:
    """K = 10, d = 512, one sample per call: the time minus that of the products."""
    problem = clip_like(10, 512, 2000)
    overheads, medians = [], []
    for _ in range(REPEATS):
        single = time_baseline_products(problem.features, problem.prototypes, BACKEND, 1)["single_sample_float64"][
            "p50"
        ]
        adapter = OnlineADAPT(problem.prototypes, logit_scale=problem.logit_scale, engine="streaming")
        medians.append(float(np.median(time_stream(adapter, problem.features, np.arange(0), BACKEND).seconds)))
        overheads.append(1e6 * (medians[-1] - single))
    numbers = {"overhead_us": overheads, "p50": medians}
    met = float(np.median(overheads)) <= 100
    what = "streaming, K = 10, d = 512, p50 beyond the products"
    return Row(what, "<= 100 us", median_text(overheads, " us", ".0f"), met, numbers)


ROWS: dict[str, Callable[..., Row]] = {
    "difference": difference,
    "insertion": insertion,
    "beginning": early_stream,
    "replay": replay,
    "transductive": transductive,
    "overhead": overhead,
}
NEEDS = {"insertion": "streaming", "beginning": "streaming", "replay": "replay", "overhead": "streaming"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=ROWS, nargs="*", help="these rows")
    parser.add_argument("--whole", action="store_true", help="`direct` over every sample of the first row")
    parser.add_argument("--threads", type=int, help="threads of every product (by default the library's)")
    arguments = parser.parse_args()
    held = json.loads(RECORDS.read_text())["rows"] if RECORDS.exists() else {}
    print("| what | target | measured | |\n|---|---|---|---|", flush=True)
    missed = 0
    with limit_threads(arguments.threads):
        for name in arguments.only or ROWS:
            if NEEDS.get(name, DEFINITION) not in ENGINES:
                print(f"| {name} | | no engine {NEEDS[name]!r} yet | |", flush=True)
                continue
            began, busy = time.perf_counter(), busy_cores()
            row = ROWS[name](arguments.whole) if name == "difference" else ROWS[name]()
            missed += not row.met
            print(row.markdown(), flush=True)
            if busy is not None and busy > BUSY:
                print(f"(other programs kept {busy:.1f} cores busy when this row began)", file=sys.stderr, flush=True)
            where = {
                **describe_environment(BACKEND),
                "threads": threads_in_use(),
                "busy_cores_before": busy,
                "seconds": time.perf_counter() - began,
            }
            held[name] = {**asdict(row), "where": where}
            with atomic_path(RECORDS) as temporary:
                temporary.write_text(json.dumps({"rows": held}, indent=1, sort_keys=True) + "\n")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
