"""The CPU targets of the fast engines, measured one by one, as rows of a table: what, target, measured, met or missed.

    python benchmarks/targets.py                           all rows, about 10 minutes; writes results/engines.md
    python benchmarks/targets.py --only replay             one row
    python benchmarks/targets.py --geometry clustered      in the geometry in which bounds on cosines prove little
    python benchmarks/targets.py --whole                   `direct` over every sample of the first row: 15 minutes

Everything that is compared is measured in one run, in turns, with the same threads. The rows are kept in targets.json,
next to this file, and the page has all that are there.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from replay import measure, measure_busy
from sections import replace_section

from zeroshift import OnlineADAPT, OnlineAnchoredMixture, TransductiveAnchoredMixture
from zeroshift.adapt.engines import ENGINES
from zeroshift.arrays import Backend
from zeroshift.benchmarks.baseline_products import time_baseline_products
from zeroshift.benchmarks.engines import DEFINITION, bank_schedule, measure_transductive
from zeroshift.benchmarks.machine import BUSY, busy_cores, describe_environment
from zeroshift.benchmarks.memory import TRANSDUCTIVE, Measurement, peak_memory
from zeroshift.benchmarks.problems import GEOMETRIES, BenchProblem, clip_like
from zeroshift.benchmarks.timing import Clock, agreement, limit_threads, threads_in_use, time_steps, time_stream
from zeroshift.files import atomic_path
from zeroshift.mixture import transductive as transductive_mixture
from zeroshift.mixture.transductive import STILL
from zeroshift.precision import FLOAT32_TOLERANCE
from zeroshift.zero_shot import softmax

HERE = Path(__file__).parent
RECORDS = HERE / "targets.json"
BACKEND = Backend.named("numpy", "cpu")
CLOCK = Clock(BACKEND)
REPEATS = 5
COMPETITORS = 2
MET = {True: "met", False: "**missed**"}
NEAR_TIE = 2 * FLOAT32_TOLERANCE
"""Two probabilities closer than this may change places with float32 products."""


Problems = Callable[[int, int, int], BenchProblem]
"""A problem of so many classes, dimensions and samples."""


@dataclass(frozen=True)
class Row:
    what: str
    target: str
    measured: str
    met: bool
    numbers: dict[str, Any]

    def markdown(self) -> str:
        return f"| {self.what} | {self.target} | {self.measured} | {MET[self.met]} |"


def median_text(values: list[float], unit: str = "", digits: str = ".3g") -> str:
    """Median and spread."""
    return f"{np.median(values):{digits}}{unit} ({min(values):{digits}} to {max(values):{digits}})"


def fast_engines() -> list[str]:
    return [name for name in ENGINES if name != DEFINITION]


def scores_of(engine: str, problem: Any, dtype: Any = np.float64) -> np.ndarray:
    """Scores of features of this type; `replay` gets the array, the others one sample at a time."""
    adapter = OnlineADAPT(problem.prototypes, logit_scale=problem.logit_scale, engine=engine)
    features = problem.features.astype(dtype)
    if engine == "replay":
        return adapter.adapt_scores(features)
    return np.stack([adapter.adapt_scores(x) for x in features])


def score_difference(scores: np.ndarray, definition: np.ndarray) -> dict[str, Any]:
    """How far scores are from those of the definition; rows with a near tie do not count for the argmax."""
    highest = np.sort(softmax(definition), axis=1)
    clear = highest[:, -1] - highest[:, -2] > NEAR_TIE if highest.shape[1] > 1 else np.ones(len(highest), dtype=bool)
    found = agreement(softmax(scores), softmax(definition), scores, definition)
    equal = scores.argmax(axis=1) == definition.argmax(axis=1)
    return {**found, "argmax_equal": float(equal[clear].mean()), "near_ties": int((~clear).sum())}


def difference(problem_of: Problems, whole: bool) -> Row:
    """Every engine against `direct`: 5 000 samples at K = 1000, d = 512, and the streams of the tests."""
    problem = problem_of(1000, 512, 5000)
    narrow = problem._replace(features=problem.features.astype(np.float32))
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        if whole:
            rows, expected = np.arange(5000), scores_of(DEFINITION, narrow)
        else:
            plan = bank_schedule(narrow, list(range(0, 5000, 250)), Path(folder))
            taken = [
                time_steps(state, DEFINITION, narrow.features, plan.rows_from(seen, 5), BACKEND, scores=True)
                for seen, state in plan.states.items()
            ]
            rows, expected = np.concatenate([t.rows for t in taken]), np.concatenate([t.scores for t in taken])
    sys.path.insert(0, str(HERE.parent / "tests"))
    from streams import STREAMS

    for dtype in ("float64", "float32"):
        for engine in fast_engines():
            scores = scores_of(engine, narrow, dtype)[rows].astype(np.float64)
            found[f"{engine}, {dtype}, K=1000 d=512"] = score_difference(scores, expected)
        for name, make in STREAMS.items():
            stream = make()
            stream = stream._replace(features=stream.features.astype(np.float32))
            definition = scores_of(DEFINITION, stream)
            for engine in fast_engines():
                scores = scores_of(engine, stream, dtype).astype(np.float64)
                found[f"{engine}, {dtype}, {name}"] = score_difference(scores, definition)
    largest = {
        dtype: max(one["largest_difference"] for name, one in found.items() if dtype in name)
        for dtype in ("float64", "float32")
    }
    equal = all(one["argmax_equal"] == 1.0 for one in found.values())
    how = "all 5 000 samples" if whole else f"{len(rows)} sampled steps of 5 000"
    return Row(
        "largest difference of a probability to `direct`",
        "<= 1e-4, every argmax equal outside near ties",
        f"{largest['float64']:.1e} with float64 products, {largest['float32']:.1e} with float32 products ({how}, and "
        f"{len(STREAMS)} streams of the tests); argmax {'all equal' if equal else 'NOT equal'}",
        max(largest.values()) <= FLOAT32_TOLERANCE and equal,
        found,
    )


def insertion(problem_of: Problems) -> Row:
    """One inserted sample at 8 000 bank entries, streaming and direct from the same state."""
    problem = problem_of(1000, 512, 12000)
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


def early_stream(problem_of: Problems) -> Row:
    """The first 1 000 samples in total; `direct` runs all of them too."""
    problem = problem_of(1000, 512, 1000)
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


def replay(problem_of: Problems) -> Row:
    """50 000 samples in calls of `rows_per_call`; `direct` at three states along the stream."""
    problem = problem_of(1000, 512, 50_000)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(problem, 3, [Path(folder) / f"{i}.safetensors" for i in range(3)])
    slow, seconds = 1e-3 * float(np.mean(found["direct_ms"])) * 50_000, found["seconds"]
    ratios = [slow / one for one in seconds]
    detail = f"{median_text(seconds, ' s')}; {median_text(ratios)} times faster"
    met = float(np.median(seconds)) <= 20 and float(np.median(ratios)) >= 300
    return Row("replay of 50 000 samples, K = 1000, d = 512", "<= 20 s; >= 300 times faster", detail, met, found)


def busy_replay(problem_of: Problems) -> Row:
    """Replay and streaming with full banks while other processes multiply matrices."""
    problem = problem_of(1000, 512, 30_000)
    with tempfile.TemporaryDirectory() as folder:
        states = [Path(folder) / "state.safetensors"]
        measure(problem, 1, states)
        found = measure_busy(problem, states[0], COMPETITORS, REPEATS)
    ratios = [streaming / replayed for streaming, replayed in found]
    what = f"replay against streaming, {COMPETITORS} competing processes"
    detail = f"{median_text(ratios)} times faster"
    return Row(what, "never slower", detail, min(ratios) >= 1, {"milliseconds": found})


def transductive(problem_of: Problems) -> Row:
    """50 000 x 1000 x 512 against three bare products measured before and after; memory in a separate process."""
    problem = problem_of(1000, 512, 50_000)
    before = time_baseline_products(problem.features, problem.prototypes, BACKEND, REPEATS)
    record = measure_transductive(problem, problem.features, BACKEND, before["float32"]["median"], REPEATS)
    after = time_baseline_products(problem.features, problem.prototypes, BACKEND, REPEATS)
    product = float(np.median([before["float32"]["median"], after["float32"]["median"]]))
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
        "transductive 50 000 x 1000 x 512, float32",
        "<= 1.8 times three float32 products; <= 256 MB beyond input and output",
        detail,
        times[1] <= 1.8 and megabytes <= 256,
        numbers,
    )


def mixture(problem_of: Problems) -> Row:
    """The transductive mixture, all of its rounds, against two float32 products per round."""
    problem = problem_of(1000, 512, 50_000)
    rounds, times, seconds, stopped = 10, [], [], []
    for _ in range(REPEATS):
        product = time_baseline_products(problem.features, problem.prototypes, BACKEND, 1)["float32"]["median"]
        for still, kept in ((-1.0, seconds), (STILL, stopped)):  # all rounds; until the labels stop moving
            transductive_mixture.STILL = still
            method = TransductiveAnchoredMixture(problem.prototypes, logit_scale=problem.logit_scale, rounds=rounds)
            taken, _ = CLOCK.time(method.adapt, problem.features)
            kept.append(taken)
        times.append(seconds[-1] / (2 * rounds * product))
    detail = f"{median_text(times)} times ({np.median(seconds):.2f} s); as it is, {median_text(stopped, ' s')}"
    numbers = {"times": times, "seconds": seconds, "stopped_early": stopped}
    met = float(np.median(times)) <= 1.5
    return Row("transductive mixture, ten rounds", "<= 1.5 times twenty float32 products", detail, met, numbers)


def mixture_single(problem_of: Problems) -> Row:
    """The online mixture, one sample per call at K = 1000."""
    problem = problem_of(1000, 512, 4000)
    medians = []
    for _ in range(REPEATS):
        method = OnlineAnchoredMixture(problem.prototypes, logit_scale=problem.logit_scale)
        method.adapt(problem.features[:3000])
        taken = [CLOCK.time(method.adapt, x)[0] for x in problem.features[3000:]]
        medians.append(1e3 * float(np.median(taken)))
    met = float(np.median(medians)) <= 0.5
    detail = median_text(medians, " ms")
    return Row("online mixture, one sample, K = 1000, d = 512, p50", "<= 0.5 ms", detail, met, {"p50_ms": medians})


def overhead(problem_of: Problems) -> Row:
    """K = 10, d = 512, one sample per call: the time minus that of the products."""
    problem = problem_of(10, 512, 2000)
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
    "overhead": overhead,
    "replay": replay,
    "busy": busy_replay,
    "transductive": transductive,
    "mixture": mixture,
    "mixture_single": mixture_single,
}


def page_table(held: dict[str, dict[str, Any]]) -> str:
    """The rows as Markdown, one column per geometry, with the machines that measured them."""
    shown = [name for name in GEOMETRIES if any(f"{row}, {name}" in held for row in ROWS)]
    lines = [f"| what | target | {' | '.join(shown)} |", "|---|---|" + "---|" * len(shown)]
    for name in ROWS:
        found = [held.get(f"{name}, {geometry}") for geometry in shown]
        one = next((row for row in found if row is not None), None)
        if one is not None:
            cells = ["" if row is None else f"{row['measured']}: {MET[row['met']]}" for row in found]
            lines.append(f"| {one['what']} | {one['target']} | {' | '.join(cells)} |")
    where = [row["where"] for row in held.values()]
    machines = sorted({f"{one['machine']}, {one['threads']} threads, NumPy {one['numpy']}" for one in where})
    busy = [name for name, row in held.items() if (row["where"]["busy_cores_before"] or 0.0) > BUSY]
    note = f" Other programs ran before these rows began: {'; '.join(busy)}." if busy else ""
    return "\n".join(lines) + f"\n\nMeasured on: {'; '.join(machines)}.{note}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=ROWS, nargs="*", help="these rows")
    parser.add_argument("--whole", action="store_true", help="`direct` over every sample of the first row")
    parser.add_argument("--geometry", choices=GEOMETRIES, default="clip_like")
    parser.add_argument("--threads", type=int, help="threads of every product (by default the library's)")
    arguments = parser.parse_args()
    held = json.loads(RECORDS.read_text())["rows"] if RECORDS.exists() else {}
    print("| what | target | measured | |\n|---|---|---|---|", flush=True)
    missed = 0
    with limit_threads(arguments.threads):
        for name in arguments.only or ROWS:
            began, busy = time.perf_counter(), busy_cores()
            more = (arguments.whole,) if name == "difference" else ()
            row = ROWS[name](partial(clip_like, geometry=arguments.geometry), *more)
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
            held[f"{name}, {arguments.geometry}"] = {**asdict(row), "where": where}
            with atomic_path(RECORDS) as temporary:
                temporary.write_text(json.dumps({"rows": held}, indent=1, sort_keys=True) + "\n")
    replace_section("targets", page_table(held))
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
