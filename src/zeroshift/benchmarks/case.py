"""What is measured: a problem, where, with which engines, how thoroughly; and the grids of sizes."""

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
from zeroshift.arrays import Home
from zeroshift.benchmarks.baseline_products import floor
from zeroshift.benchmarks.engines import (
    MIXTURE_METHODS,
    MIXTURE_SINGLE,
    WHOLE_ARRAY,
    Notify,
    Schedule,
    measure_mixture,
    measure_online,
    measure_transductive,
    schedule,
)
from zeroshift.benchmarks.machine import busy_cores
from zeroshift.benchmarks.memory import TRANSDUCTIVE, Measurement, peak_memory
from zeroshift.benchmarks.problems import ClipLike, clip_like
from zeroshift.benchmarks.timing import limited, threads_in_use
from zeroshift.parameters import Number
from zeroshift.suggest import did_you_mean

__all__ = ["DEFAULT", "FULL", "QUICK", "Settings", "Size", "Where", "checked_engines", "measure_cell", "sizes"]

FORMAT = 2
"""Raised when measuring or the generator changes so much that older cells must not be gone on with."""

MADE_UP = "clip_like"
"""The source that is generated; any other is a feature set."""

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
"""One line over K, one over d, one over the length of the stream, crossing at ImageNet's size: a few minutes."""

FULL: tuple[Size, ...] = tuple(product((10, 100, 1000), (256, 512, 1024), (1000, 5000, 20000)))
"""All of them: the better part of an hour."""

POINTS = (0.0, 0.01, 0.05, 0.2, 0.4, 0.7, 0.97)
"""Where along a stream engines are stepped from a saved state, as shares of its length."""


@dataclass(frozen=True)
class Where:
    library: str = "numpy"
    device: str = "cpu"
    threads: int | None = None
    """None leaves the libraries their own choice."""


@dataclass(frozen=True)
class Settings:
    """One cell of the table. Two cells with equal settings measure the same thing."""

    classes: int
    dimension: int
    samples: int
    where: Where
    engines: tuple[str, ...]
    source: str = MADE_UP
    steps: int = 3
    """Sampled steps of each kind (entering a bank, or not) at every point."""
    repeats: int = 3
    seed: int = 0
    memory: bool = True

    @property
    def key(self) -> str:
        where = f"{self.where.library} {self.where.device} threads {self.where.threads or 'default'}"
        return f"{self.source} K={self.classes} d={self.dimension} N={self.samples} {where}"

    def record(self) -> dict[str, Any]:
        record = asdict(self)
        record["engines"] = list(self.engines)
        return {"format": FORMAT, **record}

    def points(self) -> list[int]:
        """Samples seen at the points; the last leaves rows to step through."""
        return sorted({min(int(share * self.samples), self.samples - 1) for share in POINTS})


def sizes(classes: Sequence[int], dimensions: Sequence[int], samples: Sequence[int]) -> tuple[Size, ...]:
    """Every combination, checked."""
    for name, values in (("classes", classes), ("dimensions", dimensions), ("samples", samples)):
        low = {"classes": 2, "dimensions": 8, "samples": 10}[name]
        for value in values:
            Number(low, integer=True).check(name, value)
    return tuple(product(classes, dimensions, samples))


def checked_engines(names: Sequence[str] | None) -> tuple[str, ...]:
    """Engines by name, all of them by default; `direct`, which the others are compared with, always comes first."""
    known = tuple(ENGINES)
    for name in names or ():
        if name not in known:
            hint = did_you_mean(name, known)
            raise ValueError(f"engines must be among {', '.join(known)}; got {name!r}. {hint}".rstrip())
    wanted = known if names is None else names
    return tuple(dict.fromkeys(["direct", *wanted]))


# One cell of the benchmark: everything that is measured on one problem, in one run, so that ratios mean something.


def measure_cell(
    settings: Settings, problem: ClipLike | None = None, notify: Notify = lambda what: None
) -> dict[str, Any]:
    """The record of one cell; `problem` is made from the settings unless it is given (real features)."""
    began = time.perf_counter()
    busy = busy_cores()
    if problem is None:
        notify("making the problem")
        problem = clip_like(settings.classes, settings.dimension, settings.samples, seed=settings.seed)
    home = Home.named(settings.where.library, settings.where.device)
    with limited(settings.where.threads), tempfile.TemporaryDirectory(prefix="zeroshift-bench-") as folder:
        features = home.bring(np.asarray(problem.features))
        notify("the floor")
        bare = floor(features, problem.prototypes, home, settings.repeats)
        notify("states along the stream")
        plan = schedule(problem, settings.points(), Path(folder))
        online = measure_online(
            problem, features, plan, settings.engines, home,
            steps=settings.steps, repeats=settings.repeats, notify=notify,
        )  # fmt: skip
        notify(TRANSDUCTIVE)
        product = bare["float64"]["median"]
        whole = measure_transductive(problem, features, home, product, settings.repeats)
        notify("the anchored mixture")
        mixture = measure_mixture(problem, features, home, settings.repeats)
        records = {**online, TRANSDUCTIVE: whole, **mixture}
        for record in records.values():
            record["times_the_floor"] = record["seconds"] / product
        if settings.memory:
            _add_memory(records, settings, problem, plan, Path(folder), notify)
        threads = threads_in_use()
    return {
        "settings": settings.record(),
        "threads": threads,
        "busy_cores_before": busy,
        "zero_shot_accuracy": _accuracy(problem),
        "entered": int(plan.entered.sum()),
        "bank_entries": int(plan.entries[-1]),
        "floor": bare,
        "engines": records,
        "measured_in_seconds": time.perf_counter() - began,
    }


def _add_memory(
    records: dict[str, Any], settings: Settings, problem: ClipLike, plan: Schedule, folder: Path, notify: Notify
) -> None:
    arrays = {"features": folder / "features.npy", "prototypes": folder / "prototypes.npy"}
    np.save(arrays["features"], np.asarray(problem.features))
    np.save(arrays["prototypes"], np.asarray(problem.prototypes))
    last = max(plan.states)
    for what, record in records.items():
        if what == MIXTURE_SINGLE:
            continue  # it holds what it holds in one call
        notify(f"memory of {what}")
        whole = what == TRANSDUCTIVE or what in WHOLE_ARRAY or what in MIXTURE_METHODS
        measurement = Measurement(
            what=what,
            features=str(arrays["features"]),
            prototypes=str(arrays["prototypes"]),
            logit_scale=problem.logit_scale,
            library=settings.where.library,
            device=settings.where.device,
            state=None if whole else str(plan.states[last]),
            rows=() if whole else tuple(plan.rows_from(last, settings.steps).tolist()),
        )
        record["memory"] = peak_memory(measurement, settings.where.threads)


def _accuracy(problem: ClipLike) -> float | None:
    """Zero-shot top-1, to show that the problem is neither trivial nor hopeless; None without labels."""
    if (problem.labels < 0).any():
        return None
    right = 0
    for start in range(0, len(problem.features), 4096):
        block = np.asarray(problem.features[start : start + 4096], np.float32)
        predicted = (block @ np.asarray(problem.prototypes, np.float32).T).argmax(axis=1)
        right += int((predicted == problem.labels[start : start + 4096]).sum())
    return right / len(problem.features)
