"""The machine and the versions with which something was measured."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from zeroshift._version import __version__
from zeroshift.arrays import Backend

__all__ = ["BUSY", "busy_cores", "competing_processes", "describe_environment", "machine"]

BUSY = 0.3
"""Busy cores from which times cannot be trusted: threads that wait for each other stall."""

OBSERVED_SECONDS = 0.3


def machine() -> str:
    """Processor, number of cores and system."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = re.findall(r"^model name\s*: (.*)$", cpuinfo.read_text(), re.MULTILINE)
        model = names[0] if names else model
    return f"{model}, {os.cpu_count()} cores, {platform.system()}"


def busy_cores() -> float | None:
    """How many cores other processes keep busy, measured while this one sleeps; None if the system does not say."""
    before = _ticks()
    time.sleep(OBSERVED_SECONDS)
    after = _ticks()
    if before is None or after is None:
        return None
    passed = [new - old for new, old in zip(after, before, strict=True)]
    waiting = passed[3] + passed[4]
    return (os.cpu_count() or 1) * (1 - waiting / max(1, sum(passed)))


COMPETITOR = """
import os, sys
import numpy as np
parent = os.getppid()
matrix = np.full((400, 400), 1e-3, dtype=np.float32)
print("ready", flush=True)
while os.getppid() == parent:
    matrix @ matrix
"""
"""Multiplies matrices on one core until it is stopped, or until the process that started it ends."""


@contextmanager
def competing_processes(number: int) -> Iterator[None]:
    """`number` other processes multiply matrices, on one thread each, while the block runs."""
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    running: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(number):
            command = [sys.executable, "-c", COMPETITOR]
            running.append(subprocess.Popen(command, env={**os.environ, **one_thread}, stdout=subprocess.PIPE))
        for process in running:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise RuntimeError(f"a competing process ended with exit code {process.wait()} before it was ready.")
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _ticks() -> list[int] | None:
    """user, nice, system, idle, iowait, irq, softirq and steal time of all cores, from Linux."""
    stat = Path("/proc/stat")
    return [int(word) for word in stat.read_text().split("\n", 1)[0].split()[1:9]] if stat.exists() else None


def describe_environment(array_backend: Backend) -> dict[str, str]:
    """Machine, device and versions."""
    found = {
        "machine": machine(),
        "python": platform.python_version(),
        "zeroshift": __version__,
        "numpy": np.__version__,
    }
    if array_backend.library == "torch":
        torch = sys.modules["torch"]
        found["torch"] = str(torch.__version__)
        if array_backend.device.type == "cuda":
            found["device"] = str(torch.cuda.get_device_name(array_backend.device))
    return found
