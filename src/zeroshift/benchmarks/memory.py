"""Peak memory beyond input and output, each measurement in a separate process, because a peak cannot be reset.

As a program, it reads one measurement from stdin as JSON and prints the bytes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import zeroshift
from zeroshift.adapt import OnlineADAPT, TransductiveADAPT
from zeroshift.arrays import Array, Backend
from zeroshift.benchmarks.engines import MIXTURE_METHODS
from zeroshift.benchmarks.problems import clip_like
from zeroshift.benchmarks.timing import THREAD_VARIABLES
from zeroshift.evaluate.resources import PeakMemory

__all__ = ["Measurement", "peak_memory"]

TRANSDUCTIVE = "transductive"

TIMEOUT = 1800
"""Seconds after which a measurement is abandoned."""


@dataclass(frozen=True)
class Measurement:
    """What to run (an engine, "transductive" or a form of the mixture) on arrays saved as .npy files."""

    what: str
    features: str
    prototypes: str
    logit_scale: float
    library: str
    device: str
    state: str | None = None
    """Start from this saved state and process `rows` one by one; without it, all rows in one call."""
    rows: tuple[int, ...] = ()


def peak_memory(measurement: Measurement, threads: int | None) -> dict[str, Any]:
    """Bytes, measured in a fresh process; {"error": ...} if that process failed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(_import_paths())}
    if threads is not None:
        environment |= dict.fromkeys(THREAD_VARIABLES, str(threads))
    done = subprocess.run(
        [sys.executable, "-m", "zeroshift.benchmarks.memory"],
        input=json.dumps(asdict(measurement)),
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return {"error": last[0]}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _import_paths() -> list[str]:
    """The zeroshift in use, installed or not, before the other paths."""
    return [str(Path(zeroshift.__file__).parents[1]), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]


def _measure(measurement: Measurement) -> dict[str, Any]:
    array_backend = Backend.named(measurement.library, measurement.device)
    # Libraries, threads and their buffers are needed for every measurement: load them before counting.
    small = clip_like(classes=3, dimension=16, samples=20)
    for method in (OnlineADAPT, TransductiveADAPT, *MIXTURE_METHODS.values()):
        method(array_backend.asarray(small.prototypes)).adapt(array_backend.asarray(small.features))
    features = array_backend.asarray(np.load(measurement.features))
    prototypes = array_backend.asarray(np.load(measurement.prototypes))
    n_rows = len(measurement.rows) or features.shape[0]
    output = n_rows * prototypes.shape[0] * (8 if features.dtype.itemsize == 8 else 4)
    memory = _CudaPeakMemory(array_backend) if _is_cuda(array_backend) else PeakMemory()
    before = memory.now()
    if measurement.state is not None:
        adapter = OnlineADAPT.load(
            measurement.state, library=array_backend.library, device=str(array_backend.device), engine=measurement.what
        )
        memory.reset()
        answers = [adapter.adapt(features[row]) for row in measurement.rows]
    else:
        memory.reset()
        answers = [_whole(measurement, prototypes, features)]
    peak = memory.peak()
    del answers
    return {
        "bytes_beyond_input_and_output": max(0, peak - before - output),
        "output_bytes": output,
        "measured": "from a saved state, one sample per call" if measurement.state else "the whole array in one call",
        "peak_without_loading": memory.resets,
    }


def _whole(measurement: Measurement, prototypes: Array, features: Array) -> Array:
    others = {TRANSDUCTIVE: TransductiveADAPT, **MIXTURE_METHODS}
    if measurement.what in others:
        return others[measurement.what](prototypes, logit_scale=measurement.logit_scale).adapt(features)
    return OnlineADAPT(prototypes, logit_scale=measurement.logit_scale, engine=measurement.what).adapt(features)


def _is_cuda(array_backend: Backend) -> bool:
    return array_backend.library == "torch" and bool(array_backend.device.type == "cuda")


class _CudaPeakMemory:
    """Memory that torch has allocated on a CUDA device."""

    resets = True

    def __init__(self, array_backend: Backend) -> None:
        self._cuda, self._device = sys.modules["torch"].cuda, array_backend.device

    def now(self) -> int:
        return int(self._cuda.memory_allocated(self._device))

    def reset(self) -> None:
        self._cuda.reset_peak_memory_stats(self._device)

    def peak(self) -> int:
        return int(self._cuda.max_memory_allocated(self._device))


if __name__ == "__main__":
    given = json.load(sys.stdin)
    print(json.dumps(_measure(Measurement(**{**given, "rows": tuple(given["rows"])}))))
