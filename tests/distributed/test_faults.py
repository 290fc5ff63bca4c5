"""What breaks in the middle of a run: workers and drivers that are killed, slow workers, memory, many small shards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from worker_functions import MemoryOfPart
from zeroshift import TransductiveADAPT, TransductiveAnchoredMixture
from zeroshift.distributed import FeatureShards, LocalExecutor, adapt, plan
from zeroshift.distributed.adaptation import PassTask
from zeroshift.testing import make_problem

DRIVER = """
import sys
import numpy as np
from zeroshift import TransductiveAnchoredMixture
from zeroshift.distributed import FeatureShards, adapt, adaptation

folder, out = sys.argv[1:]
adaptation.SAVE_SECONDS = 0.0
method = TransductiveAnchoredMixture(np.load(f"{folder}/text.npy"), logit_scale=20.0)
adapt(
    method, FeatureShards.open(f"{folder}/set"), on="local:1", out=out, task_rows=100,
    progress=lambda what, rows, total: print(what, rows, flush=True),
)
np.save(f"{out}/answers.npy", method.predict(np.load(f"{folder}/set/0.npy")))
"""


@pytest.fixture
def problem(tmp_path):
    features, prototypes, _ = make_problem(classes=7, dimension=24, samples=1200)
    (tmp_path / "set").mkdir()
    for number in range(3):
        np.save(tmp_path / "set" / f"{number}.npy", features[400 * number : 400 * (number + 1)])
    np.save(tmp_path / "text.npy", prototypes)
    return tmp_path, features, prototypes


@pytest.mark.parametrize("method", [TransductiveAnchoredMixture, TransductiveADAPT])
def test_workers_killed_in_every_pass(problem, method):
    """The same bits, whichever tasks are run again."""
    folder, features, prototypes = problem
    shards = FeatureShards.open(folder / "set")
    undisturbed, made = (method(prototypes, logit_scale=20.0) for _ in range(2))
    adapt(undisturbed, shards, on="local:0", task_rows=50)
    killed: dict[str, int] = {}
    with LocalExecutor(2) as executor:

        def kill(what: str, rows: int, total: int) -> None:
            if what not in killed:  # one worker in every pass, while tasks run
                for process in executor._pool._processes:
                    if process._child.poll() is None:
                        os.kill(process._child.pid, signal.SIGKILL)
                        killed[what] = process._child.pid
                        return

        adapt(made, shards, on=executor, task_rows=50, progress=kill)
    assert len(killed) >= (3 if method is TransductiveAnchoredMixture else 1)
    assert np.array_equal(undisturbed.predict(features), made.predict(features))


def test_driver_killed_twice(problem):
    """SIGKILL in a round, then among the answers; the third driver ends with the same bits and files."""
    folder, _, _ = problem
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    def drive(out: Path, until: str | None) -> list[str]:
        command = [sys.executable, "-c", DRIVER, str(folder), str(out)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        seen: list[str] = []
        assert process.stdout is not None
        for line in process.stdout:
            seen.append(line.strip())
            if until is not None and line.startswith(until):
                process.kill()
                break
        process.wait()
        process.stdout.close()
        assert (process.returncode == 0) == (until is None)
        return seen

    whole = drive(folder / "undisturbed", None)
    first = drive(folder / "out", "pass 2 500")
    assert first[-1] == "pass 2 500"
    second = drive(folder / "out", "answers 600")
    assert second[0].startswith("pass 2 ")  # the first pass is not repeated
    assert int(second[0].split()[-1]) >= 500
    third = drive(folder / "out", None)
    assert all(line.startswith("answers") for line in third)
    assert len(third) < sum(line.startswith("answers") for line in whole)
    assert np.array_equal(*(np.load(folder / name / "answers.npy") for name in ("undisturbed", "out")))
    files = [sorted((folder / name / "predictions").iterdir()) for name in ("undisturbed", "out")]
    assert [path.read_bytes() for path in files[0]] == [path.read_bytes() for path in files[1]]


def test_no_processes_are_left_when_a_driver_is_killed():
    code = (
        "from zeroshift.distributed import LocalExecutor\n"
        "from worker_functions import double_slowly\n"
        "with LocalExecutor(2) as executor:\n"
        "    results = executor.map(double_slowly, list(range(10_000)))\n"
        "    next(results)\n"
        "    print(*(one._child.pid for one in executor._pool._processes), flush=True)\n"
        "    list(results)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 2
    process.kill()
    process.wait()
    process.stdout.close()
    deadline = time.monotonic() + 120
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads the peak of Linux")
def test_memory_of_a_worker_is_as_stated(tmp_path):
    """A task needs no more than the plan says, whatever the size of the shard."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((60_000, 64), dtype=np.float32)
    np.save(tmp_path / "0.npy", (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16))
    prototypes = np.eye(40, 64)
    method = TransductiveAnchoredMixture(prototypes, memory_budget=16_000_000)
    shards = FeatureShards.open(tmp_path)
    stated = plan(method, shards, on="local:0", task_rows=20_000).memory_per_worker
    taken: list[int] = []

    class Measured(LocalExecutor):
        def map(self, function, items):
            for result, memory in super().map(MemoryOfPart(function), items):
                if isinstance(function, PassTask):
                    taken.append(memory)
                yield result

    with Measured(1) as executor:
        adapt(method, shards, on=executor, task_rows=20_000)
    assert len(taken) >= 9
    assert max(taken[1:]) <= stated  # the first loads libraries


def test_many_small_shards_are_few_tasks(tmp_path):
    features, prototypes, _ = make_problem(classes=5, dimension=8, samples=1000)
    for number in range(500):
        np.save(tmp_path / f"{number}.npy", features[2 * number : 2 * number + 2])
    shards = FeatureShards.open(tmp_path)
    method, whole = (TransductiveAnchoredMixture(prototypes, logit_scale=20.0) for _ in range(2))
    assert plan(method, shards, on="local:0").tasks == 1
    adapt(method, shards, on="local:0")
    whole.adapt(features)
    assert np.abs(method.predict(features) - whole.predict(features)).max() < 1e-9
