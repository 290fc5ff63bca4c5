"""Kill the service at random moments while clients send samples, and compare with a run without interruption.

`python benchmarks/serve_kill.py [--kills 300] [--minutes 20] [--store sqlite|postgres] [--write]`. Eight clients each
feed a stream of their own in batches of 8, with keys and retries, while the service is killed with SIGKILL and started
again. At the end every acknowledged sample must be in the log exactly once, with the answer that was acknowledged, and
the answers must be those of the bare library on the same batches. PostgreSQL is started for it from the binaries on
the machine; it is not killed.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from free_port import free_port
from postgres_server import PostgresServer
from sections import machine, replace_section

from zeroshift.methods import create
from zeroshift.serve import Client
from zeroshift.testing import make_problem

CLIENTS, BATCH = 8, 8
CLASSES, DIMENSION = 10, 64
NAMES = [f"class {k}" for k in range(CLASSES)]


@dataclass
class Outcome:
    kills: int
    acknowledged: int
    replayed: int
    """Acknowledged samples that had been stored before a kill, and were answered from the log."""
    recoveries: list[float] = field(default_factory=list)
    """Seconds from each kill to readiness."""
    check: int = 0
    """Exit code of `zeroshift serve --check`."""


def start(store: str, port: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "zeroshift", "serve", "--store", store, "--no-auth", "--port", str(port)]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def feed(
    url: str, name: str, features: np.ndarray, prototypes: np.ndarray, stop: threading.Event, answers: list[Any]
) -> None:
    """Send batches in order until `stop`; each is answered before the next is sent."""
    with Client(url, retry=300) as client:
        stream = client.stream(name)
        stream.create(NAMES, prototypes, logit_scale=20.0, snapshot_every=100)
        for start_row in range(0, len(features), BATCH):
            if stop.is_set():
                return
            rows = slice(start_row, start_row + BATCH)
            answers.extend(stream.samples(features[rows], keys=[f"{name}-{i}" for i in range(rows.start, rows.stop)]))
        raise AssertionError("there are too few samples for so many kills")


def check(name: str, answers: list[Any], logged: list[Any], features: np.ndarray, prototypes: np.ndarray) -> None:
    assert [row["seq"] for row in logged] == list(range(1, len(logged) + 1)), f"{name}: gaps in the log"
    keys = [row["key"] for row in logged]
    assert keys == [f"{name}-{i}" for i in range(len(keys))], f"{name}: a sample is missing, repeated or out of order"
    assert len(answers) <= len(logged) <= len(answers) + BATCH, f"{name}: {len(answers)} answers, {len(logged)} logged"
    method = create("anchored_mixture_online", prototypes, logit_scale=20.0)
    for at in range(0, len(answers), BATCH):
        expected = method.adapt(features[at : at + BATCH]).max(axis=1).tolist()
        answered = [one["predictions"][0]["score"] for one in answers[at : at + BATCH]]
        stored = [one["predictions"][0]["score"] for one in logged[at : at + BATCH]]
        assert expected == answered == stored, f"{name}: the answers to samples from {at + 1} on differ"


def run(store: str, kills: int, minutes: float, *, seed: int = 0, samples: int = 40_000, say: Any = print) -> Outcome:
    """Kill the service `kills` times, or as often as `minutes` allow; AssertionError if a promise is broken."""
    rng, port = random.Random(seed), free_port()
    url = f"http://127.0.0.1:{port}"
    problems = [make_problem(classes=CLASSES, dimension=DIMENSION, samples=samples, seed=i)[:2] for i in range(CLIENTS)]
    problems = [(f.astype(np.float32), p.astype(np.float32)) for f, p in problems]
    stop, answers = threading.Event(), [list[Any]() for _ in range(CLIENTS)]
    outcome = Outcome(0, 0, 0)
    service = start(store, port)
    threads = [
        threading.Thread(target=feed, args=(url, f"s{i}", *problems[i], stop, answers[i]), daemon=True)
        for i in range(CLIENTS)
    ]
    try:
        for one in threads:
            one.start()
        with Client(url, retry=120) as client:
            client.ready()
        deadline = time.monotonic() + 60 * minutes
        while outcome.kills < kills and time.monotonic() < deadline:
            time.sleep(rng.uniform(0.05, 1.0))
            assert all(one.is_alive() for one in threads), "a client ended"
            service.send_signal(signal.SIGKILL)
            service.wait()
            began = time.monotonic()
            service = start(store, port)
            with Client(url, retry=120) as client:
                client.ready()
            outcome.recoveries.append(time.monotonic() - began)
            outcome.kills += 1
            if outcome.kills % 10 == 0:
                say(f"{outcome.kills} kills, {sum(map(len, answers))} answers", flush=True)
        stop.set()
        for one in threads:
            one.join(300)
            assert not one.is_alive(), "a client did not end"
        with Client(url, retry=60) as client:
            for i, (features, prototypes) in enumerate(problems):
                check(f"s{i}", answers[i], list(client.stream(f"s{i}").log()), features, prototypes)
    finally:
        service.terminate()
        service.wait(60)
    outcome.acknowledged = sum(map(len, answers))
    outcome.replayed = sum(one["replayed"] for part in answers for one in part)
    command = [sys.executable, "-m", "zeroshift", "serve", "--check", store]
    outcome.check = subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode
    return outcome


def table(outcomes: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| store | kills | acknowledged samples | lost | learned twice | answers unlike the library's "
        "| answered again from the log | ready again: median, 99% (s) | --check |",
        "|---|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    for one in outcomes:
        median, most = np.quantile(one["recoveries"], [0.5, 0.99])
        lines.append(
            f"| {one['store']} | {one['kills']} | {one['acknowledged']:,} | 0 | 0 | 0 | {one['replayed']:,} "
            f"| {median:.2f}, {most:.2f} | {'no problem' if one['check'] == 0 else 'PROBLEMS'} |"
        )
    return "\n".join([*lines, "", f"Machine: {outcomes[-1]['machine']}."])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--minutes", type=float, default=20, help="begin no further kill after this time")
    parser.add_argument("--store", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="add the result to this file of JSON lines")
    parser.add_argument("--write", type=Path, help="only write the results page, from such a file")
    given = parser.parse_args()
    if given.write is not None:
        replace_section("kills", table([json.loads(line) for line in given.write.read_text().splitlines()]))
        return
    server = PostgresServer() if given.store == "postgres" else None
    with tempfile.TemporaryDirectory() as folder:
        try:
            location = f"{folder}/store" if server is None else server.new_database()
            outcome = run(location, given.kills, given.minutes, seed=given.seed)
        finally:
            if server is not None:
                server.end()
    result = {"store": {"sqlite": "SQLite", "postgres": "PostgreSQL"}[given.store], "machine": machine()}
    line = json.dumps({**result, **vars(outcome)})
    print(line)
    if given.out is not None:
        with given.out.open("a") as written:
            written.write(line + "\n")
    sys.exit(outcome.check)


if __name__ == "__main__":
    main()
