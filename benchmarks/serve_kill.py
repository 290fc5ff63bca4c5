"""Kill the service at random moments while clients send samples, and compare with a run without interruption.

`python benchmarks/serve_kill.py --kills 20 [--store postgresql://...]`. Eight clients each feed a stream of their own
in batches of 8, with keys and retries, while the service is killed with SIGKILL and started again. At the end every
acknowledged sample must be in the log exactly once, with the answer that was acknowledged, and the answers must be
those of the bare library on the same batches.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

import numpy as np

from zeroshift.methods import create
from zeroshift.serve import Client
from zeroshift.testing import make_problem

CLIENTS, BATCH, PORT = 8, 8, 8311
NAMES = [f"class {k}" for k in range(10)]


def start(store: str, port: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "zeroshift", "serve", "--store", store, "--no-auth", "--port", str(port)]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def feed(
    url: str, name: str, features: np.ndarray, prototypes: np.ndarray, stop: threading.Event, answers: list[Any]
) -> None:
    """Send batches in order until `stop`; each is answered before the next is sent."""
    with Client(url, retry=120) as client:
        stream = client.stream(name)
        stream.create(NAMES, prototypes, logit_scale=20.0, snapshot_every=100)
        for start_row in range(0, len(features), BATCH):
            if stop.is_set():
                return
            rows = slice(start_row, start_row + BATCH)
            answers.extend(stream.samples(features[rows], keys=[f"{name}-{i}" for i in range(rows.start, rows.stop)]))


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--store", default=None, help="a new PostgreSQL database; default: a temporary folder")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    folder = tempfile.mkdtemp()
    store, url = arguments.store or f"{folder}/store", f"http://127.0.0.1:{PORT}"
    problems = [make_problem(classes=10, dimension=64, samples=20_000, seed=i)[:2] for i in range(CLIENTS)]
    problems = [(f.astype(np.float32), p.astype(np.float32)) for f, p in problems]
    stop, answers, recoveries = threading.Event(), [list[Any]() for _ in range(CLIENTS)], []
    service = start(store, PORT)
    threads = [
        threading.Thread(target=feed, args=(url, f"s{i}", *problems[i], stop, answers[i]), daemon=True)
        for i in range(CLIENTS)
    ]
    for one in threads:
        one.start()
    for number in range(arguments.kills):
        Client(url, retry=60).ready()
        time.sleep(rng.uniform(0.05, 1.0))
        service.send_signal(signal.SIGKILL)
        service.wait()
        began = time.monotonic()
        service = start(store, PORT)
        with Client(url, retry=60) as client:
            client.ready()
        recoveries.append(time.monotonic() - began)
        print(f"kill {number + 1}: ready after {recoveries[-1]:.2f} s, {sum(map(len, answers))} answers", flush=True)
    time.sleep(1)
    stop.set()
    for one in threads:
        one.join(120)
        assert not one.is_alive(), "a client did not end"
    with Client(url) as client:
        for i, (features, prototypes) in enumerate(problems):
            check(f"s{i}", answers[i], list(client.stream(f"s{i}").log()), features, prototypes)
    service.terminate()
    service.wait()
    checked = subprocess.run([sys.executable, "-m", "zeroshift", "serve", "--check", store], check=False).returncode
    times = np.array(recoveries)
    print(
        f"{arguments.kills} kills, {sum(map(len, answers))} acknowledged samples: all stored once, in order, with the "
        f"answers of the library; ready again after median {np.median(times):.2f} s, at most {times.max():.2f} s, "
        f"of which Python and imports take most; --check exit code {checked}"
    )
    shutil.rmtree(folder)
    sys.exit(checked)


if __name__ == "__main__":
    main()
