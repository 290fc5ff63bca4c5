"""Replay of a long stream at K = 1000, d = 512: seconds, how many times faster than `direct`, and on a busy machine.

    python benchmarks/replay.py                          50 000 samples of "clip_like", about two minutes on two cores
    python benchmarks/replay.py --geometry clustered     the geometry in which bounds on cosines prove little
    python benchmarks/replay.py --busy 2                 also with two other processes that multiply matrices

`direct` is timed on a few inserted samples from states along the stream, and interpolated.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from zeroshift import OnlineADAPT
from zeroshift.benchmarks.machine import busy_cores, competing_processes
from zeroshift.benchmarks.problems import GEOMETRIES, BenchProblem, clip_like
from zeroshift.benchmarks.timing import threads_in_use

STEPS = 2
"""Samples of `direct` and repeats per state."""

STREAMED, REPLAYED = 60, 4096
"""Samples timed on a busy machine."""


def milliseconds(method: OnlineADAPT, features: np.ndarray, *, singly: bool) -> float:
    """Time per sample."""
    began = time.perf_counter()
    if singly:
        for x in features:
            method.adapt(x)
    else:
        method.adapt(features)
    return 1e3 * (time.perf_counter() - began) / len(features)


def replay_all(problem: BenchProblem, states: list[Path]) -> float:
    """Seconds to replay everything; saves the state at equal distances, which does not count."""
    adapter = OnlineADAPT(problem.prototypes, logit_scale=problem.logit_scale, engine="replay")
    seconds, rows = 0.0, adapter.rows_per_call
    due = [len(problem.features) * (i + 1) // (len(states) + 1) for i in range(len(states))]
    for start in range(0, len(problem.features), rows):
        seconds += (
            1e-3
            * rows_of(problem, start, rows)
            * milliseconds(adapter, problem.features[start : start + rows], singly=False)
        )
        while due and start + rows >= due[0]:
            adapter.save(states[len(states) - len(due)])
            due.pop(0)
    return seconds


def rows_of(problem: BenchProblem, start: int, rows: int) -> int:
    return min(rows, len(problem.features) - start)


def measure(problem: BenchProblem, repeats: int, states: list[Path]) -> dict[str, list[float]]:
    """Seconds to replay everything, each time, and milliseconds per sample of `direct` at each state."""
    seconds = [replay_all(problem, states if i == 0 else []) for i in range(repeats)]
    direct = [
        milliseconds(OnlineADAPT.load(state, engine="direct"), problem.features[-STEPS:], singly=True)
        for state in states
    ]
    return {"seconds": seconds, "direct_ms": direct}


def measure_busy(problem: BenchProblem, state: Path, processes: int, repeats: int) -> list[tuple[float, float]]:
    """Milliseconds per sample of streaming and of replay while other processes multiply matrices."""
    found = []
    with competing_processes(processes):
        for _ in range(repeats):
            one, many = (OnlineADAPT.load(state, engine=engine) for engine in ("streaming", "replay"))
            streaming = milliseconds(one, problem.features[-STREAMED:], singly=True)
            found.append((streaming, milliseconds(many, problem.features[-REPLAYED:], singly=False)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--geometry", choices=GEOMETRIES, default="clip_like")
    parser.add_argument("--busy", type=int, default=0, help="competing processes")
    parser.add_argument("--repeats", type=int, default=1)
    arguments = parser.parse_args()
    print(f"{threads_in_use()} threads; other programs keep {busy_cores() or 0.0:.2f} cores busy")
    problem = clip_like(1000, 512, arguments.samples, geometry=arguments.geometry)
    with tempfile.TemporaryDirectory() as folder:
        states = [Path(folder) / f"{i}.safetensors" for i in range(3)]
        found = measure(problem, arguments.repeats, states)
        megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        seconds, direct = found["seconds"], found["direct_ms"]
        whole = float(np.median(seconds))
        print(
            f"replay: {whole:.1f} s ({min(seconds):.1f} to {max(seconds):.1f}), "
            f"{1e3 * whole / arguments.samples:.3f} ms per sample; "
            f"direct {np.mean(direct):.0f} ms ({min(direct):.0f} to {max(direct):.0f}); "
            f"{np.mean(direct) * arguments.samples / (1e3 * whole):.0f} times faster; peak {megabytes:.0f} MB"
        )
        for count in (0, arguments.busy) if arguments.busy else ():
            for streaming, replay in measure_busy(problem, states[0], count, STEPS):
                print(
                    f"{count} competing processes: streaming {streaming:.2f} ms, replay {replay:.2f} ms, "
                    f"{streaming / replay:.1f} times faster"
                )


if __name__ == "__main__":
    main()
