"""What a tenant of the service waits while another one uses all that it may.

`python benchmarks/serve_tenants.py [--seconds 6] [--write LABEL]`. The quiet tenant sends 8 samples (K = 100, d = 512)
and reads 100 rows of its log, one request after the other. The noisy one does one thing all the time, or all of them,
from processes with the lowest priority: it replays, reads its log a thousand rows at a time, listens with 20 clients,
or posts 1024 samples at a time to four streams. Both times, without and with the noise, are measured in turns. With
`PYTHONPATH` it measures another tree: `--write before` and `--write after` fill the columns of the page.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from sections import machine, replace_section

from zeroshift.serve import Client, ServiceError
from zeroshift.testing import make_problem

CLASSES, DIMENSION, LOG, NOISE = 100, 512, 8192, ("replays", "log", "listeners", "samples", "all")


def problem() -> tuple[np.ndarray, np.ndarray]:
    features, prototypes, _ = make_problem(classes=CLASSES, dimension=DIMENSION, samples=1024)
    return features.astype(np.float32), prototypes.astype(np.float32)


def zeroshift(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "zeroshift", "serve", *arguments]


@contextmanager
def service() -> Iterator[tuple[str, str, str]]:
    """Address, key of the noisy tenant, key of the quiet one."""
    with tempfile.TemporaryDirectory(prefix="zeroshift-tenants-") as folder:
        store = f"{folder}/store"
        keys = [
            subprocess.run(
                zeroshift("keys", "add", "--store", store, "--scope", "admin", "--prefix", f"{name}/"),
                capture_output=True, text=True, check=True,
            ).stdout.strip()
            for name in ("noisy", "quiet")
        ]  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        command = zeroshift("--store", store, "--port", "0")
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        assert process.stderr is not None
        while not (found := re.search(r"at (http://\S+)", process.stderr.readline())):
            assert process.poll() is None
        threading.Thread(target=process.stderr.read, daemon=True).start()
        try:
            yield found[1], keys[0], keys[1]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def make_noise(kind: str, url: str, key: str) -> None:
    """Until the process is ended. What a quota refuses is tried again at once."""
    features, _ = problem()

    def repeat(call: Callable[[Client], object]) -> None:
        client = Client(url, key, retry=0.0)
        while True:
            try:
                call(client)
            except (ServiceError, ConnectionError):
                time.sleep(0.01)

    def listen() -> None:
        parts = urlsplit(url)
        while True:
            with suppress(OSError):
                connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
                path = "/v1/streams/noisy/0/events"
                connection.request("GET", path, headers={"Authorization": f"Bearer {key}"})
                connection.getresponse().read()
            time.sleep(0.05)

    calls: list[Callable[[Client], object]] = []
    if kind in ("replays", "all"):
        calls += [lambda client: client.stream("noisy/0").replay("tda")] * 4
    if kind in ("log", "all"):
        path = "/v1/streams/noisy/0/samples?limit=1000"
        calls += [lambda client: client.request("GET", path)] * 8
    if kind in ("samples", "all"):
        calls += [lambda client, name=f"noisy/{number}": client.stream(name).samples(features) for number in range(4)]
    if kind == "listeners":
        calls += [lambda client: client.stream("noisy/0").samples(features[:8])]
    threads = [threading.Thread(target=repeat, args=(one,), daemon=True) for one in calls]
    if kind in ("listeners", "all"):
        threads += [threading.Thread(target=listen, daemon=True) for _ in range(20)]
    for one in threads:
        one.start()
    threading.Event().wait()


def latencies(client: Client, seconds: float) -> tuple[list[float], list[float]]:
    """Seconds of each request: samples, and a page of the log."""
    features, _ = problem()
    stream, posts, reads = client.stream("quiet/0"), list[float](), list[float]()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for times, call in (
            (posts, lambda: stream.samples(features[:8])),
            (reads, lambda: client.request("GET", "/v1/streams/quiet/0/samples?limit=100")),
        ):
            started = time.perf_counter()
            call()
            times.append(time.perf_counter() - started)
        time.sleep(0.01)
    return posts, reads


def measure(seconds: float, kinds: Sequence[str]) -> dict[str, list[float]]:
    """Per kind of noise: median (ms) of samples and of the log, alone and during it."""
    features, prototypes = problem()
    found: dict[str, list[float]] = {}
    with service() as (url, noisy, quiet):
        for key, streams in ((noisy, [f"noisy/{number}" for number in range(4)]), (quiet, ["quiet/0"])):
            for name in streams:
                stream = Client(url, key).stream(name)
                stream.create([f"class {k}" for k in range(CLASSES)], prototypes)
                for _ in range(LOG // 1024 if name.endswith("0") else 1):
                    stream.samples(features)
        client = Client(url, quiet)
        latencies(client, 1.0)
        for kind in kinds:
            parts: list[tuple[list[float], list[float]]] = [([], []), ([], [])]
            for _ in range(3):
                for place in (0, 1):
                    with noise(kind, url, noisy) if place else nullcontext():
                        for times, more in zip(parts[place], latencies(client, seconds / 3), strict=True):
                            times += more
            found[kind] = [1000 * float(np.median(times)) for place in parts for times in place]
            print(kind, np.round(found[kind], 2), file=sys.stderr, flush=True)
    return found


@contextmanager
def noise(kind: str, url: str, key: str) -> Iterator[None]:
    environment = {**os.environ, "NOISE_KEY": key}
    command = ["nice", "-n", "19", sys.executable, __file__, "--noise", kind, url]
    process = subprocess.Popen(command, env=environment)
    time.sleep(3.0)  # it imports
    try:
        yield
    finally:
        process.kill()
        process.wait()
        time.sleep(1.5)  # what it had sent is answered


def write(label: str, found: dict[str, list[float]]) -> None:
    path = Path(__file__).parent / "results" / "serve_tenants.json"
    records = json.loads(path.read_text()) if path.exists() else {}
    records[label] = found
    path.write_text(json.dumps(records, indent=1) + "\n")
    head = "".join(f" {name}: samples, alone and during it (ms) | ratio | log (ms) | ratio |" for name in records)
    lines = [f"| the other tenant |{head}", "|---|" + "--:|" * (4 * len(records))]
    for kind in NOISE:
        cells = ""
        for record in records.values():
            alone, log, post_noisy, log_noisy = record[kind]
            cells += f" {alone:.1f}, {post_noisy:.1f} | {post_noisy / alone:.1f} |"
            cells += f" {log:.1f}, {log_noisy:.1f} | {log_noisy / log:.1f} |"
        lines.append(f"| {kind} |{cells}")
    replace_section("tenants", "\n".join([*lines, "", f"Medians. Machine: {machine()}, used by other programs too."]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--write", metavar="LABEL")
    parser.add_argument("--only", metavar="KIND", choices=NOISE)
    parser.add_argument("--noise", nargs=2)
    arguments = parser.parse_args()
    if arguments.noise:
        make_noise(*arguments.noise, os.environ["NOISE_KEY"])
        return
    found = measure(arguments.seconds, [arguments.only] if arguments.only else NOISE)
    if arguments.write:
        write(arguments.write, found)
    else:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
