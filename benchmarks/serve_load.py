"""How many samples per second the service answers, and how soon: against the bare library, and plain FastAPI.

`python benchmarks/serve_load.py [--rounds 3] [--minutes 8] [--write]`. The service, the library and the plain
endpoint have the same core, with one thread for products; the clients have another one. Each client sends its next
request when the last one was answered: one or four on one stream, or one on each of fifty. A request has 32 samples
with d = 512 (.npy; two rows compare other formats), or 2 images. Every stream has learned 6400 samples before
(features). All three do the same work: the library gets the batches in a loop. The plain endpoint, at the end of this
file, has the same method behind FastAPI without keys, zero-shot, log, monitor or store.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import io
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import Response
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors
from sections import machine, replace_section

from zeroshift.benchmarks.machine import busy_cores
from zeroshift.methods import create
from zeroshift.methods import load as load_method
from zeroshift.testing import make_problem

DIMENSION, BATCH, IMAGES = 512, 32, 2
ENCODER = "composed"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
METHOD, WARM_SAMPLES, TARGET = "anchored_mixture_online", 6400, 0.7
LOADS = ((1, 1), (1, 4), (50, 50))
"""Streams and clients."""
KINDS = {"npy": "application/x-npy", "safetensors": "application/x-safetensors", "json": "application/json"}
RUNS = (
    ("features", "npy", 10, LOADS),
    ("features", "safetensors", 10, LOADS[1:2]),
    ("features", "json", 10, LOADS[1:2]),
    ("features", "npy", 1000, LOADS),
    ("images", "form", 10, LOADS[1:]),
)
"""Samples, format, classes, loads."""
ROWS = sum(len(loads) for *_, loads in RUNS)


def names_of(classes: int) -> list[str]:
    return [f"class {k}" for k in range(classes)]


def npy(array: np.ndarray) -> bytes:
    written = io.BytesIO()
    np.save(written, array)
    return written.getvalue()


def encoded(features: np.ndarray, form: str) -> bytes:
    if form == "npy":
        return npy(features)
    if form == "safetensors":
        return save_tensors({"features": features})
    return json.dumps({"features": features.tolist()}).encode()


def photos(count: int) -> list[bytes]:
    """JPEG files of 400 x 300 pixels: smooth patterns with noise."""
    from PIL import Image

    rng, made = np.random.default_rng(0), []
    x, y = np.meshgrid(np.linspace(0, 6, 400), np.linspace(0, 6, 300))
    for _ in range(count):
        waves = [np.sin(x * rng.uniform(0.5, 3) + y * rng.uniform(-2, 2) + rng.uniform(0, 6)) for _ in range(3)]
        pixels = 127 + 90 * np.stack(waves, axis=2) + rng.normal(size=(300, 400, 3)) * 12
        written = io.BytesIO()
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(written, "JPEG")
        made.append(written.getvalue())
    return made


def form(images: Sequence[bytes]) -> tuple[bytes, str]:
    boundary = secrets.token_hex(8)
    head = b'--%s\r\nContent-Disposition: form-data; name="images"; filename="x"\r\n\r\n' % boundary.encode()
    body = b"".join(head + one + b"\r\n" for one in images) + b"--%s--\r\n" % boundary.encode()
    return body, f"multipart/form-data; boundary={boundary}"


# The same work for all of them


class Work:
    """What is sent: `count` batches, one stream after the other, after a few that are not measured."""

    def __init__(self, what: str, classes: int, streams: int, form: str) -> None:
        self.what, self.classes, self.streams, self.form = what, classes, streams, form
        self.count, self.warm = {"features": (400, 50), "images": (50, 4)}[what]
        self.samples = BATCH if what == "features" else IMAGES

    def features(self) -> tuple[np.ndarray, np.ndarray]:
        samples, prototypes, _ = make_problem(classes=self.classes, dimension=DIMENSION, samples=WARM_SAMPLES)
        return samples.astype(np.float32), prototypes.astype(np.float32)

    def batches(self) -> list[np.ndarray]:
        features = self.features()[0][: 20 * BATCH]
        return [features[at : at + BATCH] for at in range(0, len(features), BATCH)]

    def write_state(self, path: Path) -> None:
        """The state that every stream begins with."""
        features, prototypes = self.features()
        method = create(METHOD, prototypes, logit_scale=100.0)
        for at in range(0, len(features), BATCH):
            method.adapt(features[at : at + BATCH])
        method.save(path)

    def arguments(self) -> list[str]:
        return [self.what, str(self.classes), str(self.streams), self.form]


def image_prototypes(classes: int, dimension: int) -> np.ndarray:
    return np.eye(classes, dimension, dtype=np.float32)


def bare(work: Work, state: Path) -> tuple[float, float]:
    """Samples per second of the library alone, and processor time per request in milliseconds; runs in a process of
    its own."""
    if work.what == "features":
        methods = [load_method(state) for _ in range(work.streams)]
        batches: list[Any] = work.batches()
    else:
        from zeroshift.data.images import decode
        from zeroshift.encode import load_encoder
        from zeroshift.encode.encoder import stack_pixels

        encoder = load_encoder(ENCODER, device="cpu")
        prototypes = image_prototypes(work.classes, encoder.dimension)
        methods = [create(METHOD, prototypes, logit_scale=100.0) for _ in range(work.streams)]
        batches = [photos(IMAGES)]

    def learn(number: int) -> None:
        batch = batches[number % len(batches)]
        if work.what == "images":
            pixels = [encoder.preprocessing(decode(one, "an image").image) for one in batch]
            batch = encoder.encode_pixels(stack_pixels(pixels)).astype(np.float32)
        methods[number % work.streams].adapt(batch)

    for number in range(work.warm):
        learn(number)
    started, used = time.perf_counter(), time.process_time()
    for number in range(work.warm, work.warm + work.count):
        learn(number)
    used = time.process_time() - used
    return work.count * work.samples / (time.perf_counter() - started), 1000 * used / work.count


# Servers


class Serving:
    """A server in a process of its own, on its own core; `folder` has its store and log."""

    def __init__(self, arguments: Sequence[str], core: int | None, folder: Path) -> None:
        log = folder / "log"
        with log.open("wb") as written:
            self.process = subprocess.Popen(
                pinned([sys.executable, *arguments], core), stderr=written, env={**os.environ, **ONE_THREAD}
            )
        deadline = time.monotonic() + 120
        while (found := re.search(r"http://127[\d.:]+", log.read_text())) is None:
            assert self.process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.05)
        self.url = found[0]

    def processor_seconds(self) -> float:
        """Processor time of all its threads."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def pinned(command: list[str], core: int | None) -> list[str]:
    return command if core is None else ["taskset", "-c", str(core), *command]


def load(
    serving: Serving, path: str, bodies: Sequence[tuple[bytes, str]], work: Work, clients: int
) -> dict[str, float]:
    """Samples per second, latencies and processor time of clients that each send as fast as they are answered."""
    latencies: list[float] = []
    numbers = iter(range(10**9))
    ready, failures = threading.Barrier(clients + 1), list[BaseException]()

    def send(count: int, measured: bool) -> None:
        parts = urlsplit(serving.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)
        try:
            ready.wait()
            while (number := next(numbers)) < count:
                body, kind = bodies[number % len(bodies)]
                started = time.perf_counter()
                connection.request("POST", path.format(number % work.streams), body, {"Content-Type": kind})
                answer = connection.getresponse()
                content = answer.read()
                assert answer.status == 200, content[:500]
                if measured:
                    latencies.append(time.perf_counter() - started)
        except BaseException as error:
            failures.append(error)
        finally:
            connection.close()

    passed = used = 0.0
    for count, measured in ((work.warm, False), (work.count, True)):
        numbers = iter(range(10**9))
        threads = [threading.Thread(target=send, args=(count, measured), daemon=True) for _ in range(clients)]
        for one in threads:
            one.start()
        used = serving.processor_seconds()
        ready.wait()
        started = time.perf_counter()
        for one in threads:
            one.join()
        passed, used = time.perf_counter() - started, serving.processor_seconds() - used
        if failures:
            raise failures[0]
    p50, p99 = 1000 * np.quantile(latencies, [0.5, 0.99])
    return {
        "per_second": work.count * work.samples / passed, "p50": float(p50), "p99": float(p99),
        "processor_ms": 1000 * used / work.count,
    }  # fmt: skip


def prepare_store(work: Work, state: Path, folder: Path) -> None:
    """Streams s0, s1, ... of a store, each with the state that all begin with."""
    from zeroshift.serve.monitor import Monitor
    from zeroshift.serve.service import stream_config
    from zeroshift.serve.store import open_store
    from zeroshift.serve.stream import environment

    store = open_store(str(folder / "store"))
    prototypes = work.features()[1] if work.what == "features" else None
    for number in range(work.streams):
        body = {"classes": names_of(work.classes), "logit_scale": 100.0}
        if work.what == "features":
            record = store.create_stream(f"s{number}", stream_config(body, METHOD), prototypes)
            store.add_snapshot(record, state.read_bytes(), Monitor(work.classes).state(), environment())
        else:
            dimension = int(os.environ["ENCODER_DIMENSION"])
            store.create_stream(f"s{number}", stream_config(body, METHOD), image_prototypes(work.classes, dimension))
    store.close()


def serve_and_load(server: str, work: Work, clients: int, state: Path, core: int | None) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if server == "service":
            prepare_store(work, state, folder)
            command = ["-m", "zeroshift", "serve", "--store", f"{folder}/store", "--no-auth", "--port", "0"]
            command += ["--encoder", ENCODER] if work.what == "images" else []
            path = "/v1/streams/s{}/samples"
        else:
            command = [str(Path(__file__).resolve()), "--plain", *work.arguments(), "--state", str(state)]
            path = "/s{}"
        serving = Serving(command, core, folder)
        try:
            if work.what == "features":
                bodies = [(encoded(batch, work.form), KINDS[work.form]) for batch in work.batches()]
            else:
                bodies = [form(photos(IMAGES))]
            return load(serving, path, bodies, work, clients)
        finally:
            serving.stop()


# Everything


def measure(rounds: int, seconds: float) -> list[dict[str, Any]]:
    cores = sorted(os.sched_getaffinity(0))
    core = cores[0] if len(cores) > 1 else None
    if core is not None:
        os.sched_setaffinity(0, set(cores[1:]))
    asked = f"from zeroshift.encode import load_encoder; print(load_encoder({ENCODER!r}, device='cpu').dimension)"
    found = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    os.environ["ENCODER_DIMENSION"] = found.stdout.strip()
    rows, started = [], time.monotonic()
    for what, format_, classes, loads in RUNS:
        for streams, clients in loads:
            work = Work(what, classes, streams, format_)
            row: dict[str, Any] = {
                "what": what, "format": format_, "classes": classes, "streams": streams, "clients": clients
            }  # fmt: skip
            with tempfile.TemporaryDirectory() as folder:
                state = Path(folder) / "state.safetensors"
                if what == "features":
                    work.write_state(state)
                command = [sys.executable, str(Path(__file__).resolve()), "--bare", *work.arguments()]
                command = pinned([*command, "--state", str(state)], core)
                for number in range(rounds if what == "features" else 1):  # in turn: what changes changes all
                    if number and time.monotonic() - started > seconds * (len(rows) + 1) / ROWS:
                        break
                    environment = {**os.environ, **ONE_THREAD}
                    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
                    per_second, processor_ms = json.loads(done.stdout)
                    row.setdefault("library", []).append({"per_second": per_second, "processor_ms": processor_ms})
                    for server in ("service", "plain"):
                        row.setdefault(server, []).append(serve_and_load(server, work, clients, state, core))
            print(json.dumps(row), flush=True)
            rows.append(row)
    return rows


def ratios_of(row: dict[str, Any]) -> np.ndarray:
    service, library = (np.array([one["per_second"] for one in row[name]]) for name in ("service", "library"))
    return np.asarray(service / library)


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    lines = [
        "| samples | K | streams | clients | library /s | service /s | service / library | plain FastAPI /s "
        "| processor time per request (ms): library, service, plain | service p50, p99 (ms) | plain p50, p99 (ms) |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        per_second, processor = (
            {name: float(np.median([one[what] for one in row[name]])) for name in ("library", "service", "plain")}
            for what in ("per_second", "processor_ms")
        )
        ratios = ratios_of(row)
        times = {
            name: [float(np.median([one[quantile] for one in row[name]])) for quantile in ("p50", "p99")]
            for name in ("service", "plain")
        }
        lines.append(
            f"| {row['what']} ({row['format']}) | {row['classes']} | {row['streams']} | {row['clients']} "
            f"| {per_second['library']:,.0f} | {per_second['service']:,.0f} "
            f"| {np.median(ratios):.2f}{spread(ratios)} | {per_second['plain']:,.0f} "
            f"| {processor['library']:.2f}, {processor['service']:.2f}, {processor['plain']:.2f} "
            f"| {times['service'][0]:.1f}, {times['service'][1]:.1f} "
            f"| {times['plain'][0]:.1f}, {times['plain'][1]:.1f} |"
        )
    return lines


def spread(values: np.ndarray) -> str:
    return f" ({values.min():.2f} to {values.max():.2f})" if len(values) > 1 else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="measurements of features; their medians are shown")
    parser.add_argument("--minutes", type=float, default=8, help="after this time, each row is measured once")
    parser.add_argument("--write", action="store_true", help="write the table into benchmarks/results/serve.md")
    parser.add_argument("--bare", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--plain", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--state", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if chosen := given.bare or given.plain:
        work = Work(chosen[0], int(chosen[1]), int(chosen[2]), chosen[3])
        if given.bare:
            print(json.dumps(bare(work, given.state)))
        else:
            serve_plain(work, given.state)
        return
    started, busy = time.monotonic(), busy_cores()
    rows = measure(given.rounds, 60 * given.minutes)
    missed = [
        f"K = {row['classes']} with {row['streams']} streams"
        for row in rows
        if row["format"] == "npy" and row["clients"] > 1 and np.median(ratios_of(row)) < TARGET
    ]
    lines = [
        *table(rows),
        "",
        f"Target: {TARGET} of the library for features (.npy) from several clients: "
        f"{'missed for ' + ', '.join(missed) if missed else 'met in all rows'}. Medians of up to {given.rounds} "
        "measurements (images: one), with the smallest and largest ratio. "
        f"Other work kept {busy or 0:.1f} cores busy when it began. "
        f"Machine: {machine()}; {time.monotonic() - started:.0f} seconds in all.",
    ]
    print("\n".join(lines))
    if given.write:
        replace_section("load", "\n".join(lines))


# The same endpoint without durability


def serve_plain(work: Work, state: Path) -> None:
    what, classes = work.what, work.classes
    app, methods, names = FastAPI(), dict[str, Any](), names_of(classes)
    locks: dict[str, asyncio.Lock] = {}
    if what == "images":
        from zeroshift.data.images import decode
        from zeroshift.encode import load_encoder
        from zeroshift.encode.encoder import stack_pixels

        encoder = load_encoder(ENCODER, device="cpu")
        prototypes = image_prototypes(classes, encoder.dimension)
    for number in range(work.streams):
        if what == "images":
            methods[f"s{number}"] = create(METHOD, prototypes, logit_scale=100.0)
        else:
            methods[f"s{number}"] = load_method(state)

    def read(content: bytes) -> np.ndarray:
        if work.form == "npy":
            return np.asarray(np.load(io.BytesIO(content), allow_pickle=False))
        if work.form == "safetensors":
            return load_tensors(content)["features"]
        return np.asarray(json.loads(content)["features"], np.float32)

    def answers(stream: str, content: Any) -> bytes:
        if what == "images":
            pixels = [encoder.preprocessing(decode(one, "an image").image) for one in content]
            features = encoder.encode_pixels(stack_pixels(pixels)).astype(np.float32)
        else:
            features = read(content)
        probabilities = methods[stream].adapt(features)
        order = np.argsort(-probabilities, axis=1)[:, :10]
        found = [
            [{"label": names[k], "score": float(probabilities[row, k])} for k in best]
            for row, best in enumerate(order.tolist())
        ]
        return json.dumps({"results": found}).encode()

    @app.post("/{stream}")
    async def samples(request: Request, stream: str) -> Response:
        if what == "images":
            content: Any = [await one.read() for _, one in (await request.form()).multi_items()]  # type: ignore[union-attr]
        else:
            content = await request.body()
        async with locks.setdefault(stream, asyncio.Lock()):
            return Response(await asyncio.to_thread(answers, stream, content), media_type="application/json")

    class Announced(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            port = self.servers[0].sockets[0].getsockname()[1]
            print(f"http://127.0.0.1:{port}", file=sys.stderr, flush=True)

    Announced(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", access_log=False)).run()


if __name__ == "__main__":
    main()
