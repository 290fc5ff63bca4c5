"""A runner that is killed at any moment resumes and loses only the runs in progress."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import zeroshift
from evaluate import killed_runner
from zeroshift.evaluate import Ledger, run_jobs
from zeroshift.evaluate.results import collect

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes by Linux's /proc")

TESTS = Path(__file__).parents[1]

KILLS = ["starting", "working", "writing"]
TIMES = ("seconds", "setup_seconds", "peak_bytes", "jobs")
MARK = "ZEROSHIFT_TEST_KILLED"

PATIENCE = 120.0
"""Seconds after which something that must happen is taken never to happen: no measure of speed."""


@pytest.fixture
def runner(tmp_path):
    """`runner(processes, limit)` starts a runner and returns its pid; `runner.ended()` returns its exit status."""
    source = str(Path(zeroshift.__file__).parents[1])
    paths = os.pathsep.join([source, str(TESTS)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", MARK: str(tmp_path)}
    command = [sys.executable, str(TESTS / "evaluate" / "killed_runner.py"), tmp_path / "sets", tmp_path / "runs"]
    killed_runner.write_sets(tmp_path / "sets")
    server = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    class Runner:
        def __call__(self, processes: int, limit: int) -> int:
            server.stdin.write(f"{processes} {limit}\n")
            server.stdin.flush()
            return int(server.stdout.readline())

        def ended(self) -> int:
            return int(server.stdout.readline())

    with server:
        yield Runner()


def until(happened) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def records(runs: Path) -> dict[Path, tuple[int, bytes]]:
    """The files of a folder and when they were written."""
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in runs.glob("*.json")}


def temporaries(runs: Path) -> set[str]:
    return {path.name for path in runs.glob(".*.tmp")}


def moment_to_kill(runs: Path, kind: str, limit: int):
    """At once; after a new record; or after `limit` records, while the next is being written."""
    had, begun = len(records(runs)), temporaries(runs)
    return {
        "starting": lambda: True,
        "working": lambda: len(records(runs)) > had,
        "writing": lambda: len(records(runs)) == had + limit and temporaries(runs) - begun,
    }[kind]


def table(runs: Path) -> list[dict[str, Any]]:
    return [{name: r[name] for name in sorted(r) if name not in TIMES} for r in collect([runs]).rows]


def left_running(tmp_path: Path) -> list[str]:
    """Workers that runners of this test started."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            mine = f"{MARK}={tmp_path}".encode() in (place / "environ").read_bytes().split(b"\0")
            if mine and b"zeroshift.workers" in (place / "cmdline").read_bytes():
                found.append(place.name)
        except OSError:
            continue
    return found


@pytest.mark.parametrize("times", [1, pytest.param(7, marks=pytest.mark.slow)])
def test_repeated_kills_lose_no_finished_run(times, runner, tmp_path):
    kills = times * KILLS
    runs, whole = tmp_path / "runs", tmp_path / "whole"
    jobs = killed_runner.planned(tmp_path / "sets")
    assert len(jobs) == killed_runner.SETS * (len(killed_runner.METHODS) * killed_runner.ORDERS + 3)
    assert all(o.error is None for o in run_jobs(jobs, killed_runner.loaders(tmp_path / "sets"), Ledger(whole)))

    rng = random.Random(6)
    kept: dict[Path, tuple[int, bytes]] = {}
    for turn, kind in enumerate(rng.sample(kills, len(kills))):
        limit = {"starting": 2, "working": rng.randint(1, 2), "writing": rng.randint(0, 2)}[kind]
        moment = moment_to_kill(runs, kind, limit)
        # A single process stays in the middle of a record, so the kill surely finds it there.
        number = runner(2 if turn % 2 and kind != "writing" else 0, limit)
        until(moment)
        time.sleep(rng.choice([0.0, 0.01, 0.1, 0.3]) * rng.random())
        os.killpg(number, signal.SIGKILL)
        assert runner.ended() == -signal.SIGKILL
        now = records(runs)
        assert kept.items() <= now.items()  # none lost, none touched
        assert len(now) < len(jobs)
        ledger = Ledger(runs)
        assert {ledger.path(job) for job in jobs if ledger.read(job) is not None} == set(now)
        assert ledger.damaged == []
        assert set(os.listdir(runs) if now else ()) <= {path.name for path in now} | temporaries(runs)
        kept = now
    assert len(kept) >= kills.count("working")
    assert temporaries(runs)  # some were hit while they wrote

    runner(2, len(jobs))
    assert runner.ended() == 0
    assert kept.items() <= records(runs).items()
    found = collect([runs])
    assert (found.damaged, found.newer, len(found.rows)) == ((), (), len(jobs))
    assert table(runs) == table(whole)
    until(lambda: not left_running(tmp_path))  # those in the middle of a run end when there is nobody to answer

    for path in runs.glob(".*.tmp"):
        os.utime(path, (0, 0))
    Ledger(runs).remove_abandoned()
    assert {path.name for path in runs.iterdir()} == {path.name for path in records(runs)}


def test_temporary_files_of_other_processes_are_kept(tmp_path):
    young, old, mine = tmp_path / ".tda-1.json.ab.tmp", tmp_path / ".tda-2.json.cd.tmp", tmp_path / ".mine.tmp"
    for path in (young, old, mine):
        path.write_text(json.dumps({}))
    for path in (old, mine):
        os.utime(path, (0, 0))
    Ledger(tmp_path).remove_abandoned()
    assert {path.name for path in tmp_path.iterdir()} == {young.name, mine.name}
