"""How long a small stream and the readiness check wait while two large streams never stop sending; and the memory of
the service under the largest requests that it accepts.

`python benchmarks/serve_neighbours.py [--seconds 30] [--before SOURCE] [--write]`. The large streams have d = 2048 and
get 400 rows per request, the small one has d = 64 and gets 4 rows every 50 ms; all have K = 10 and the default method.
Memory: four clients send the same request at the same time, twice, to a new service. A request that is refused
for its size is replaced by the next smaller one. `--before` is the folder `src` of an earlier version, measured too.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from sections import machine, replace_section
from serve_soak import start

from zeroshift.serve import Client, ServiceError

CLIENTS, REPEATS = 4, 2
NPY, JSON = "application/x-npy", "application/json"


@contextmanager
def service() -> Iterator[tuple[str, int]]:
    """Address and process number of a new service."""
    with tempfile.TemporaryDirectory() as folder:
        process, url = start(f"{folder}/store")
        try:
            yield url, process.pid
        finally:
            process.send_signal(signal.SIGKILL)  # it would first answer what waits
            process.wait()


def unit(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal((rows, columns), dtype=np.float32)
    return values / np.linalg.norm(values, axis=1, keepdims=True)


# Latency


def waits(url: str, seconds: float) -> dict[str, np.ndarray]:
    """Seconds of each request of the small stream, and of each readiness check; infinite if it was refused. One that is
    not answered at the end counts with the time until then."""
    found: dict[str, list[float]] = {"small": [], "ready": []}
    begun = dict.fromkeys(found, np.inf)
    ending = threading.Event()

    def feed(name: str, rows: np.ndarray) -> None:
        with Client(url, retry=0, timeout=600) as client:
            while not ending.is_set():
                try:
                    client.stream(name).samples(rows)
                except (ServiceError, OSError):
                    ending.wait(1.0)

    def check(kind: str, pause: float) -> None:
        rows = unit(4, 64, seed=2)
        with Client(url, retry=0, timeout=600) as client:
            while not ending.wait(pause):
                started = begun[kind] = time.perf_counter()
                taken = 0.0
                try:
                    client.stream("small").samples(rows) if kind == "small" else client.ready()
                except (ServiceError, OSError):
                    taken = np.inf
                found[kind].append(max(taken, time.perf_counter() - started))
                begun[kind] = np.inf

    with Client(url, retry=0, timeout=600) as client:
        for name, dimension in (("large-1", 2048), ("large-2", 2048), ("small", 64)):
            client.stream(name).create([f"class {k}" for k in range(10)], unit(10, dimension), logit_scale=100.0)
    for name in ("large-1", "large-2"):
        threading.Thread(target=feed, args=(name, unit(400, 2048, seed=1)), daemon=True).start()
    time.sleep(2.0)
    for one in (("small", 0.05), ("ready", 0.5)):
        threading.Thread(target=check, args=one, daemon=True).start()
    time.sleep(seconds)
    ending.set()
    left = {kind: [max(0.0, time.perf_counter() - at)] if at < np.inf else [] for kind, at in begun.items()}
    return {kind: np.array([*values, *left[kind]]) for kind, values in found.items()}


def latency_row(version: str, seconds: float) -> str:
    with service() as (url, _):
        found = waits(url, seconds)
    cells = []
    for values in found.values():
        p50, p99, most = (1000 * np.quantile(values, q, method="higher") for q in (0.5, 0.99, 1.0))
        cells.append(f"{len(values)} | {p50:,.0f}, {p99:,.0f}, {most:,.0f}")
    return f"| {version} | {' | '.join(cells)} |"


# Memory


def npy(array: np.ndarray) -> bytes:
    written = io.BytesIO()
    np.save(written, array)
    return written.getvalue()


def tensor(rows: np.ndarray) -> bytes:
    data = {"name": "features", "shape": list(rows.shape), "datatype": "FP32", "data": rows.ravel().tolist()}
    return json.dumps({"inputs": [data]}).encode()


def empty_lists(megabytes: int) -> bytes:
    return b'{"features": [' + b"[]," * (megabytes * 2**20 // 3 - 20) + b"[]]}"


def largest(case: str) -> Iterator[tuple[str, str, bytes, str]]:
    """Requests (method, path, body, type), from the largest to smaller ones."""
    samples = "/v1/streams/s/samples"
    if case == "JSON of empty lists":
        yield from (("POST", samples, empty_lists(size), JSON) for size in (60, 23))
    elif case == "1000 prototypes of d = 1000 as JSON":
        body = {"classes": [f"class {k}" for k in range(1000)], "prototypes": unit(1000, 1000).tolist()}
        yield "PUT", "/v1/streams/other", json.dumps(body).encode(), JSON
    elif case == "1024 rows of d = 8192":
        yield "POST", samples, npy(unit(1024, 8192)), NPY
    elif case == "K = 20,000, as many predictions as allowed":
        yield from (
            ("POST", f"{samples}?top={top}", npy(unit(rows, 16)), NPY) for rows, top in ((128, 20_000), (209, 478))
        )
    elif case == "K = 20,000, Open Inference":
        yield from (("POST", "/v2/models/s/infer", tensor(unit(rows, 16)), JSON) for rows in (128, 5))


CASES = {
    "JSON of empty lists": (2, 16),
    "1000 prototypes of d = 1000 as JSON": (2, 16),
    "1024 rows of d = 8192": (10, 8192),
    "K = 20,000, as many predictions as allowed": (20_000, 16),
    "K = 20,000, Open Inference": (20_000, 16),
}
"""Classes and dimension of the stream."""


def ask(url: str, request: tuple[str, str, bytes, str]) -> tuple[int, int]:
    """Status and bytes of the answer; status 0 if there is none."""
    method, path, body, kind = request
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=600)
    try:
        connection.request(method, path, body, {"Content-Type": kind})
        answer = connection.getresponse()
        return answer.status, len(answer.read())
    except (OSError, http.client.HTTPException):
        return 0, 0
    finally:
        connection.close()


def memory_cells(case: str) -> str:
    """Size of the request and of the answer, statuses, and megabytes before and at the peak."""
    classes, dimension = CASES[case]
    with service() as (url, pid):
        with Client(url) as client:
            names = [f"class {k}" for k in range(classes)]
            client.stream("s").create(names, unit(classes, dimension), logit_scale=100.0, method="zero_shot")

        def megabytes(name: str) -> float:
            found = re.search(rf"{name}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
            return int(found[1]) / 1024 if found else float("nan")

        for request in largest(case):
            idle, answers = megabytes("VmRSS"), list[tuple[int, int]]()
            first = ask(url, request)
            if first[0] in (0, 413) or (first[0] == 422 and "lists" not in case):
                continue
            answers.append(first)

            def repeat(
                request: tuple[str, str, bytes, str] = request, answers: list[tuple[int, int]] = answers
            ) -> None:
                for _ in range(REPEATS):
                    answers.append(ask(url, request))

            senders = [threading.Thread(target=repeat) for _ in range(CLIENTS)]
            for one in senders:
                one.start()
            for one in senders:
                one.join()
            statuses = {status: sum(one[0] == status for one in answers) for status, _ in answers}
            shown = ", ".join(f"{status or 'none'}: {count}" for status, count in sorted(statuses.items()))
            most = max(size for _, size in answers)
            return f"{len(request[2]) / 1e6:.1f} | {most / 1e6:.1f} | {shown} | {idle:,.0f}, {megabytes('VmHWM'):,.0f}"
    raise AssertionError(case)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--before", help="folder `src` of an earlier version")
    parser.add_argument("--write", action="store_true", help="write the tables into benchmarks/results/serve.md")
    given = parser.parse_args()
    present = os.environ.get("PYTHONPATH", str(Path(__file__).parents[1] / "src"))
    versions = {**({"before": given.before} if given.before else {}), "now": present}
    latency = [
        "| version | requests | small stream p50, p99, longest (ms) | checks | readiness p50, p99, longest (ms) |"
    ]
    latency.append("|---|--:|--:|--:|--:|")
    memory = ["| request | version | request (MB) | answer (MB) | answers | memory before, at the peak (MB) |"]
    memory.append("|---|---|--:|--:|---|--:|")
    for version, source in versions.items():
        os.environ["PYTHONPATH"] = source
        latency.append(latency_row(version, given.seconds))
        print(latency[-1], flush=True)
    for case in CASES:
        for version, source in versions.items():
            os.environ["PYTHONPATH"] = source
            memory.append(f"| {case} | {version} | {memory_cells(case)} |")
            print(memory[-1], flush=True)
    command = f"`python benchmarks/serve_neighbours.py {' '.join(sys.argv[1:])}`"
    load = " / ".join(f"{one:.1f}" for one in os.getloadavg())
    text = "\n".join([*latency, "", *memory, "", f"{command}. Machine: {machine()}; load average at the end: {load}."])
    if given.write:
        replace_section("neighbours", text)


if __name__ == "__main__":
    main()
