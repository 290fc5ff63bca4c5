"""The runs that are killed, and the process that starts them, in a module because other processes import it."""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from zeroshift import FeatureSet, normalize
from zeroshift.evaluate import Analysis, DatasetRef, Ledger, MethodSpec, Trial, plan_comparison, run_jobs, trial

SETS, ORDERS = 3, 3
METHODS = ("zero_shot", "adapt_online", "tda", "tip_adapter")


def spread(features: FeatureSet, *, prompt: str, power: int) -> dict[str, Any]:
    """An analysis: how far features are from their mean."""
    away = np.abs(features.features - features.features.mean(axis=0)) ** power
    return {"spread": float(away.mean()), "of_rows": {str(k): float(row.mean()) for k, row in enumerate(away[:3])}}


def write_sets(folder: Path) -> None:
    folder.mkdir()
    for seed in range(SETS):
        rng = np.random.default_rng(seed)
        centres = normalize(rng.normal(size=(4, 8)))
        labels = rng.integers(0, 4, size=60)
        features = normalize(centres[labels] + 0.3 * rng.normal(size=(60, 8)))
        prototypes = normalize(centres + 0.35 * rng.normal(size=(4, 8)))
        made = FeatureSet(features, prototypes=prototypes, labels=labels, logit_scale=20.0)
        made.save(folder / f"set{seed}.safetensors")


def load(path: Path) -> FeatureSet:
    return FeatureSet.load(path, check=False)


def datasets(sets: Path) -> list[DatasetRef]:
    return [DatasetRef.of(path.stem, load(path), load=partial(load, path)) for path in sorted(sets.iterdir())]


def loaders(sets: Path) -> dict[str, Any]:
    return {dataset.digest: dataset.load for dataset in datasets(sets)}


def planned(sets: Path) -> list[Any]:
    """Runs, analyses, and timed runs."""
    known = datasets(sets)
    trials = plan_comparison(known, [MethodSpec.named(name) for name in METHODS], orders=ORDERS, shots=2).trials
    analyses = [Analysis(e.name, e.digest, e.prompt, spread, {"power": p}) for e in known for p in (1, 2)]
    alone = [Trial(e.name, e.digest, e.prompt, MethodSpec("adapt_online"), 0, None, timed=True) for e in known]
    return [*alone, *analyses, *trials]


def serve(sets: Path, runs: Path) -> None:
    """For every line "PROCESSES LIMIT" of the input, fork a runner in its own process group and print its pid.

    Forked, because to import everything takes longer than the runs do. After LIMIT records a runner stays where it
    is, in the middle of writing the next: so it is killed before it is done, however slow whoever kills it is.
    """
    trial.release_free_memory = lambda: None  # takes longer than these runs do
    jobs, known = planned(sets), loaders(sets)
    assert len({job.key for job in jobs}) == len(jobs)  # worked out once, before the forks
    for line in sys.stdin:
        processes, limit = map(int, line.split())
        child = os.fork()
        os.setpgid(child, child or os.getpid())  # by both, so that it is done whichever is first
        if child == 0:
            _stay_after(limit)
            outcomes = list(run_jobs(jobs, known, Ledger(runs), processes=processes))
            os._exit(any(outcome.error is not None for outcome in outcomes))
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _stay_after(limit: int) -> None:
    sync, written = os.fsync, []

    def slowly(handle: int) -> None:
        sync(handle)
        time.sleep(0.01)
        written.append(handle)
        if len(written) == limit + 1:
            time.sleep(3600)

    os.fsync = slowly


if __name__ == "__main__":
    # By its own name, under which workers can import what is sent to them.
    from evaluate import killed_runner

    killed_runner.serve(*map(Path, sys.argv[1:]))
