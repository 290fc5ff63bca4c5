"""One cell of the benchmark: everything that is measured on one problem, in one run, so that ratios mean something."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from zeroshift.arrays import Home
from zeroshift.benchmarks.clip_like import ClipLike, clip_like
from zeroshift.benchmarks.floor import floor
from zeroshift.benchmarks.machine import busy_cores
from zeroshift.benchmarks.memory import TRANSDUCTIVE, Measurement, peak_memory
from zeroshift.benchmarks.mixture import MIXTURE_METHODS, MIXTURE_SINGLE, measure_mixture
from zeroshift.benchmarks.online import WHOLE_ARRAY, Notify, measure_online
from zeroshift.benchmarks.schedule import Schedule, schedule
from zeroshift.benchmarks.settings import Settings
from zeroshift.benchmarks.threads import limited, threads_in_use
from zeroshift.benchmarks.transductive import measure_transductive

__all__ = ["measure_cell"]


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
