"""One case of the benchmark: a problem size on one backend, and everything that is measured on it in one run."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from zeroshift.adapt.engines import ENGINES
from zeroshift.arrays import Backend
from zeroshift.benchmarks.baseline_products import time_baseline_products
from zeroshift.benchmarks.engines import (
    MIXTURE_METHODS,
    MIXTURE_SINGLE,
    WHOLE_ARRAY,
    BankSchedule,
    Notify,
    bank_schedule,
    measure_mixture,
    measure_online,
    measure_transductive,
)
from zeroshift.benchmarks.machine import busy_cores, competing_processes
from zeroshift.benchmarks.memory import TRANSDUCTIVE, Measurement, peak_memory
from zeroshift.benchmarks.problems import GEOMETRIES, BenchProblem, clip_like
from zeroshift.benchmarks.timing import limit_threads, threads_in_use
from zeroshift.parameters import Number
from zeroshift.suggest import did_you_mean

__all__ = [
    "COMPETITORS",
    "DEFAULT",
    "FULL",
    "QUICK",
    "BenchBackend",
    "BenchCase",
    "Size",
    "check_engines",
    "default_cases",
    "grid_sizes",
    "measure_case",
]

FORMAT = 3
"""Raised when measurements or the generator change so much that older records must not be reused."""

SYNTHETIC = "clip_like"
"""The usual source of features. The others are the other `GEOMETRIES`, and feature sets."""

Size = tuple[int, int, int]
"""(classes, dimension, samples)."""

QUICK: tuple[Size, ...] = ((10, 256, 1000), (100, 256, 1000), (1000, 256, 1000), (1000, 512, 1000))
"""A minute or two on two cores."""

DEFAULT: tuple[Size, ...] = (
    (10, 512, 5000),
    (100, 512, 5000),
    (1000, 256, 5000),
    (1000, 512, 5000),
    (1000, 1024, 5000),
    (1000, 512, 20000),
)
"""Lines over K, over d and over the length of the stream, which cross at ImageNet's size."""

CROSSING: Size = (1000, 512, 5000)
"""Where they cross. This size is also measured in the other geometry, and on a busy machine."""

COMPETITORS = 2
"""Competing processes on the busy machine."""

FULL: tuple[Size, ...] = tuple(product((10, 100, 1000), (256, 512, 1024), (1000, 5000, 20000)))
"""All combinations: most of an hour."""

STATE_POINTS = (0.0, 0.01, 0.05, 0.2, 0.4, 0.7, 0.97)
"""Positions in a stream, as fractions of its length, at which engines start from a saved state."""


@dataclass(frozen=True)
class BenchBackend:
    library: str = "numpy"
    device: str = "cpu"
    threads: int | None = None
    """None: the default of the libraries."""


@dataclass(frozen=True)
class BenchCase:
    """Two cases that are equal measure the same thing."""

    classes: int
    dimension: int
    samples: int
    backend: BenchBackend
    engines: tuple[str, ...]
    source: str = SYNTHETIC
    steps: int = 3
    """Sampled steps of each kind (entering a bank, or not) at every point."""
    repeats: int = 3
    seed: int = 0
    memory: bool = True
    competitors: int = 0
    """Other processes that multiply matrices meanwhile. With any, memory is not measured."""

    @property
    def key(self) -> str:
        where = f"{self.backend.library} {self.backend.device} threads {self.backend.threads or 'default'}"
        busy = f" competitors {self.competitors}" if self.competitors else ""
        return f"{self.source} K={self.classes} d={self.dimension} N={self.samples} {where}{busy}"

    def record(self) -> dict[str, Any]:
        """Everything that must be equal for a measurement to be reused."""
        record = asdict(self)
        record["where"] = record.pop("backend")
        record["engines"] = list(self.engines)
        return {"format": FORMAT, **record}

    def points(self) -> list[int]:
        """Samples seen at each of `STATE_POINTS`; at least one row follows the last."""
        return sorted({min(int(share * self.samples), self.samples - 1) for share in STATE_POINTS})


def grid_sizes(classes: Sequence[int], dimensions: Sequence[int], samples: Sequence[int]) -> tuple[Size, ...]:
    """Every combination of valid sizes."""
    for name, values in (("classes", classes), ("dimensions", dimensions), ("samples", samples)):
        low, high = {"classes": (2, 1e6), "dimensions": (8, 1e5), "samples": (10, 1e8)}[name]
        for value in values:
            Number(low, high, integer=True).check(name, value)
    return tuple(product(classes, dimensions, samples))


def check_engines(names: Sequence[str] | None) -> tuple[str, ...]:
    """Engines by name, by default all; `direct`, with which the others are compared, always comes first."""
    known = tuple(ENGINES)
    for name in names or ():
        if name not in known:
            hint = did_you_mean(name, known)
            raise ValueError(f"engines must be among {', '.join(known)}; got {name!r}. {hint}".rstrip())
    wanted = known if names is None else names
    return tuple(dict.fromkeys(["direct", *wanted]))


def default_cases(**shared: Any) -> list[BenchCase]:
    """The sizes of `DEFAULT`, and `CROSSING` in the other geometries and on a busy machine: about 20 minutes."""
    sizes = [BenchCase(*size, **shared) for size in DEFAULT]
    others = [BenchCase(*CROSSING, source=name, **shared) for name in GEOMETRIES if name != SYNTHETIC]
    return [*sizes, *others, BenchCase(*CROSSING, competitors=COMPETITORS, **shared)]


def measure_case(
    case: BenchCase, problem: BenchProblem | None = None, notify: Notify = lambda what: None
) -> dict[str, Any]:
    """The record of one case; `problem` is generated unless it is given (real features)."""
    began = time.perf_counter()
    busy = busy_cores()
    if problem is None:
        notify("generating the problem")
        problem = clip_like(case.classes, case.dimension, case.samples, seed=case.seed, geometry=case.source)
    with competing_processes(case.competitors):
        return _measured(case, problem, busy, began, notify)


def _measured(
    case: BenchCase, problem: BenchProblem, busy: float | None, began: float, notify: Notify
) -> dict[str, Any]:
    array_backend = Backend.named(case.backend.library, case.backend.device)
    with limit_threads(case.backend.threads), tempfile.TemporaryDirectory(prefix="zeroshift-bench-") as folder:
        features = array_backend.asarray(np.asarray(problem.features))
        notify("baseline products")
        baseline = time_baseline_products(features, problem.prototypes, array_backend, case.repeats)
        notify("states along the stream")
        schedule = bank_schedule(problem, case.points(), Path(folder))
        online = measure_online(
            problem, features, schedule, case.engines, array_backend,
            steps=case.steps, repeats=case.repeats, notify=notify,
        )  # fmt: skip
        notify(TRANSDUCTIVE)
        product = baseline["float32"]["median"]
        whole = measure_transductive(problem, features, array_backend, product, case.repeats)
        notify("the anchored mixture")
        mixture = measure_mixture(problem, features, array_backend, case.repeats)
        records = {**online, TRANSDUCTIVE: whole, **mixture}
        for record in records.values():
            record["times_the_floor"] = record["seconds"] / product
        if case.memory and not case.competitors:
            _add_memory(records, case, problem, schedule, Path(folder), notify)
        threads = threads_in_use()
    return {
        "settings": case.record(),
        "threads": threads,
        "busy_cores_before": busy,
        "zero_shot_accuracy": _accuracy(problem),
        "entered": int(schedule.entered.sum()),
        "bank_entries": int(schedule.entries[-1]),
        "floor": baseline,
        "engines": records,
        "measured_in_seconds": time.perf_counter() - began,
    }


def _add_memory(
    records: dict[str, Any],
    case: BenchCase,
    problem: BenchProblem,
    schedule: BankSchedule,
    folder: Path,
    notify: Notify,
) -> None:
    arrays = {"features": folder / "features.npy", "prototypes": folder / "prototypes.npy"}
    np.save(arrays["features"], np.asarray(problem.features))
    np.save(arrays["prototypes"], np.asarray(problem.prototypes))
    last = max(schedule.states)
    for what, record in records.items():
        if what == MIXTURE_SINGLE:
            continue  # its state is that of the call with the whole stream
        notify(f"memory of {what}")
        whole = what == TRANSDUCTIVE or what in WHOLE_ARRAY or what in MIXTURE_METHODS
        measurement = Measurement(
            what=what,
            features=str(arrays["features"]),
            prototypes=str(arrays["prototypes"]),
            logit_scale=problem.logit_scale,
            library=case.backend.library,
            device=case.backend.device,
            state=None if whole else str(schedule.states[last]),
            rows=() if whole else tuple(schedule.rows_from(last, case.steps).tolist()),
        )
        record["memory"] = peak_memory(measurement, case.backend.threads)


def _accuracy(problem: BenchProblem) -> float | None:
    """Zero-shot top-1 accuracy, which shows that the problem is neither trivial nor impossible; None without labels."""
    if (problem.labels < 0).any():
        return None
    right = 0
    for start in range(0, len(problem.features), 4096):
        block = np.asarray(problem.features[start : start + 4096], np.float32)
        predicted = (block @ np.asarray(problem.prototypes, np.float32).T).argmax(axis=1)
        right += int((predicted == problem.labels[start : start + 4096]).sum())
    return right / len(problem.features)
