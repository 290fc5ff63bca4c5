"""One hour of moderate work: are memory and latency of the service the same at the end as at the beginning?

`python benchmarks/serve_soak.py [--minutes 60] [--rate 100]`. Four streams get `--rate` samples per second together,
in batches of 8 with keys; each has snapshots and a log of limited length. A client listens to the events, another asks
for the statistics once per second. Every ten seconds the memory, open files and threads of the service are recorded,
the size of its store, and the latency that the clients saw. `--page FILE` only writes the tables of the results page
from a record made earlier.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
from sections import machine, replace_section

from zeroshift.serve import Client
from zeroshift.testing import make_problem

STREAMS, BATCH, CLASSES, DIMENSION = 4, 8, 100, 512
SETTINGS = {"snapshot_every": 512, "retain": 5000}
EVERY = 10.0
"""Seconds between two records."""


def start(store: str) -> tuple[subprocess.Popen[bytes], str]:
    """A service on a free port, and its address."""
    command = [sys.executable, "-m", "zeroshift", "serve", "--store", store, "--no-auth", "--port", "0"]
    log = Path(store + ".log")
    with log.open("wb") as written:
        service = subprocess.Popen(command, stderr=written)
    deadline = time.monotonic() + 120
    while (found := re.search(r"http://127[\d.:]+", log.read_text())) is None:
        assert service.poll() is None, log.read_text()
        assert time.monotonic() < deadline, "the service did not start"
        time.sleep(0.1)
    return service, found[0]


class Feeder(threading.Thread):
    """Sends one stream at a constant rate, and keeps the latencies since they were last taken."""

    def __init__(self, url: str, number: int, per_second: float, ending: threading.Event) -> None:
        super().__init__(daemon=True)
        self.url, self.number, self.per_second, self.ending = url, number, per_second, ending
        self.latencies: list[float] = []
        self.sent = 0
        self.start()

    def run(self) -> None:
        features, prototypes, _ = make_problem(classes=CLASSES, dimension=DIMENSION, samples=10_000, seed=self.number)
        features = features.astype(np.float32)
        with Client(self.url, retry=60) as client:
            stream = client.stream(f"soak-{self.number}")
            stream.create([f"class {k}" for k in range(CLASSES)], prototypes.astype(np.float32), **SETTINGS)
            due = time.monotonic() + self.number * BATCH / self.per_second / STREAMS
            while not self.ending.is_set():
                rows = np.arange(self.sent, self.sent + BATCH) % len(features)
                keys = [f"frame-{self.sent + i}" for i in range(BATCH)]
                started = time.monotonic()
                stream.samples(features[rows], keys=keys)
                self.latencies.append(time.monotonic() - started)
                self.sent += BATCH
                due = max(due + BATCH / self.per_second, time.monotonic() - 1.0)
                self.ending.wait(max(0.0, due - time.monotonic()))


def listen(url: str, ending: threading.Event, counts: list[int]) -> None:
    while not ending.is_set():
        try:
            with urllib.request.urlopen(f"{url}/v1/streams/soak-0/events", timeout=30) as events:
                while not ending.is_set() and (line := events.readline()):
                    counts[0] += line.startswith(b"event: samples")
        except OSError:
            ending.wait(1.0)


def look(url: str, ending: threading.Event) -> None:
    with Client(url, retry=60) as client:
        while not ending.wait(1.0):
            client.streams()
            client.stream("soak-1").statistics()


def measured(pid: int, store: str) -> dict[str, float]:
    status = Path(f"/proc/{pid}/status").read_text()
    size = sum(path.stat().st_size for path in Path(store).rglob("*") if path.is_file())
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return {
        "rss_mb": int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024,  # type: ignore[index]
        "threads": int(re.search(r"Threads:\s+(\d+)", status)[1]),  # type: ignore[index]
        "files": len(os.listdir(f"/proc/{pid}/fd")),
        "store_mb": size / 2**20,
        "cpu_s": (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK"),
    }


def run(minutes: float, rate: float, out: Path) -> None:
    folder = tempfile.TemporaryDirectory()
    store = f"{folder.name}/store"
    service, url = start(store)
    ending, counts = threading.Event(), [0]
    feeders = [Feeder(url, i, rate / STREAMS, ending) for i in range(STREAMS)]
    while not all(one.sent for one in feeders):
        assert all(one.is_alive() for one in feeders)
        time.sleep(0.1)
    others = [
        threading.Thread(target=listen, args=(url, ending, counts), daemon=True),
        threading.Thread(target=look, args=(url, ending), daemon=True),
    ]
    for one in others:
        one.start()
    began, records = time.monotonic(), []
    try:
        while (passed := time.monotonic() - began) < 60 * minutes:
            time.sleep(EVERY - passed % EVERY)
            latencies: list[float] = []
            for one in feeders:
                assert one.is_alive(), "a client ended"
                latencies, one.latencies = latencies + one.latencies, []
            records.append(
                {
                    "seconds": time.monotonic() - began,
                    **measured(service.pid, store),
                    "latencies_ms": [round(1000 * value, 2) for value in latencies],
                    "samples": sum(one.sent for one in feeders),
                    "events": counts[0],
                }
            )
            out.write_text(json.dumps({"machine": machine(), "rate": rate, "records": records}))
    finally:
        ending.set()
        for one in feeders:
            one.join(60)
        service.send_signal(signal.SIGTERM)
        service.wait(60)
    checked = subprocess.run([sys.executable, "-m", "zeroshift", "serve", "--check", store], check=False)
    ended = {"exit_code": service.returncode, "check_exit_code": checked.returncode}
    out.write_text(json.dumps({"machine": machine(), "rate": rate, "records": records, **ended}))
    folder.cleanup()


def parts_of(records: list[dict[str, Any]], count: int = 6) -> list[dict[str, float]]:
    """Equal parts of the time, each with medians of what was recorded and quantiles of all latencies."""
    parts = []
    for chosen in np.array_split(np.arange(len(records)), min(count, len(records))):
        part = [records[i] for i in chosen]
        latencies = np.concatenate([one["latencies_ms"] for one in part])
        p50, p99 = np.quantile(latencies, [0.5, 0.99])
        names = ("rss_mb", "threads", "files", "store_mb")
        medians = {name: float(np.median([one[name] for one in part])) for name in names}
        ends = {"from": part[0]["seconds"] - EVERY, "to": part[-1]["seconds"]}
        parts.append({**ends, **medians, "p50": float(p50), "p99": float(p99), "largest": float(latencies.max())})
    return parts


def write_page(record: dict[str, Any]) -> None:
    records, parts = record["records"], parts_of(record["records"])
    lines = [
        "| minutes | memory (MB) | p50 (ms) | p99 (ms) | slowest (ms) | store (MB) | open files | threads |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for part in parts:
        lines.append(
            f"| {max(0, part['from']) / 60:.0f} to {part['to'] / 60:.0f} | {part['rss_mb']:.1f} | {part['p50']:.1f} "
            f"| {part['p99']:.1f} | {part['largest']:.0f} | {part['store_mb']:.1f} | {part['files']:.0f} "
            f"| {part['threads']:.0f} |"
        )
    seconds = records[-1]["seconds"]
    busy = (records[-1]["cpu_s"] - records[0]["cpu_s"]) / (seconds - records[0]["seconds"])
    checked = "" if (code := record["check_exit_code"]) is None else f"; the check of its store with {code}"
    first, last = parts[min(1, len(parts) - 1)], parts[-1]
    lines += [
        "",
        f"{records[-1]['samples']:,} samples in {seconds / 60:.0f} minutes; the service used {100 * busy:.0f}% of a "
        f"core. Between the second and the last row, memory changed by {last['rss_mb'] - first['rss_mb']:+.1f} MB, the "
        f"median latency by {last['p50'] - first['p50']:+.1f} ms. The service ended with exit code "
        f"{record['exit_code']}{checked}. Machine: {record['machine']}.",
    ]
    replace_section("soak", "\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rate", type=float, default=100, help="samples per second, of all streams together")
    parser.add_argument("--out", type=Path, default=Path("serve-soak.json"), help="the record")
    parser.add_argument("--page", type=Path, help="write the page from this record, and measure nothing")
    arguments = parser.parse_args()
    if arguments.page is None:
        run(arguments.minutes, arguments.rate, arguments.out)
    write_page(json.loads((arguments.page or arguments.out).read_text()))


if __name__ == "__main__":
    main()
