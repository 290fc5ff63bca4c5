"""How many samples per second the service answers, and how soon: against the bare library, and plain FastAPI.

`python benchmarks/serve_load.py [--seconds 5] [--write]`. The service, the library and the plain endpoint have the same
core; the clients have another one. Each of the clients sends its next request when the last one was answered: four on
one stream, or one on each of fifty. A request has 32 samples with d = 512 (.npy), or 8 images. The library gets the same
batches in a loop. The plain endpoint, at the end of this file, has the same method behind FastAPI without keys, log,
monitor or store.
"""

from __future__ import annotations

import argparse
import http.client
import io
import itertools
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
from sections import machine, replace_section

from zeroshift.serve import Client
from zeroshift.testing import make_problem

DIMENSION, BATCH, IMAGES = 512, 32, 8
ENCODER = "composed"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
WARM_SECONDS = 1.0
LOADS = ((1, 1), (1, 4), (50, 50))
"""Streams and clients."""


def names_of(classes: int) -> list[str]:
    return [f"class {k}" for k in range(classes)]


def npy(array: np.ndarray) -> bytes:
    written = io.BytesIO()
    np.save(written, array)
    return written.getvalue()


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


# The library


def bare(what: str, classes: int, seconds: float) -> float:
    """Samples per second of the library alone; runs in a process of its own."""
    from zeroshift.methods import create

    if what == "features":
        features, prototypes, _ = make_problem(classes=classes, dimension=DIMENSION, samples=6400)
        batches = [features[i : i + BATCH].astype(np.float32) for i in range(0, 6400, BATCH)]
        method = create("anchored_mixture_online", prototypes.astype(np.float32), logit_scale=100.0)
        learn = method.adapt
    else:
        from zeroshift.data.images import decode
        from zeroshift.encode import load_encoder
        from zeroshift.encode.encoder import stack_pixels

        encoder = load_encoder(ENCODER, device="cpu")
        prototypes = np.eye(classes, encoder.dimension, dtype=np.float32)
        method = create("anchored_mixture_online", prototypes, logit_scale=100.0)
        batches = [photos(IMAGES)]

        def learn(images: Any) -> np.ndarray:
            pixels = [encoder.preprocessing(decode(one, "an image").image) for one in images]
            return method.adapt(encoder.encode_pixels(stack_pixels(pixels)).astype(np.float32))

    count, started = 0, time.perf_counter()
    for batch in itertools.cycle(batches):
        learn(batch)
        passed = time.perf_counter() - started
        if passed > WARM_SECONDS:
            count += len(batch)
        else:
            begin = passed
        if passed > seconds + WARM_SECONDS:
            return count / (passed - begin)
    raise AssertionError


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

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def pinned(command: list[str], core: int | None) -> list[str]:
    return command if core is None else ["taskset", "-c", str(core), *command]


def load(
    url: str, path: str, bodies: Sequence[tuple[bytes, str]], samples: int, load_of: tuple[int, int], seconds: float
) -> dict[str, float]:
    """Samples per second and latencies of clients that each send as fast as they are answered."""
    streams, clients = load_of
    latencies: list[list[float]] = [[] for _ in range(clients)]
    beginning, ending = threading.Event(), threading.Event()

    def send(number: int) -> None:
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)
        address = path.format(number % streams)
        for body, kind in itertools.cycle(bodies[number % len(bodies) :] + bodies[: number % len(bodies)]):
            started = time.perf_counter()
            connection.request("POST", address, body, {"Content-Type": kind})
            answer = connection.getresponse()
            content = answer.read()
            assert answer.status == 200, content[:500]
            if beginning.is_set():
                latencies[number].append(time.perf_counter() - started)
            if ending.is_set():
                return

    threads = [threading.Thread(target=send, args=(number,), daemon=True) for number in range(clients)]
    for one in threads:
        one.start()
    time.sleep(WARM_SECONDS)
    beginning.set()
    started = time.perf_counter()
    time.sleep(seconds)
    count, passed = sum(map(len, latencies)), time.perf_counter() - started
    ending.set()
    for one in threads:
        one.join(120)
    found = 1000 * np.array([value for one in latencies for value in one])
    p50, p99 = np.quantile(found, [0.5, 0.99]) if len(found) else (np.nan, np.nan)
    return {"per_second": count * samples / passed, "p50": float(p50), "p99": float(p99)}


def serve_and_load(
    server: str, what: str, classes: int, load_of: tuple[int, int], seconds: float, core: int | None
) -> dict[str, float]:
    encoder = ["--encoder", ENCODER] if what == "images" else []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if server == "service":
            command = ["-m", "zeroshift", "serve", "--store", f"{folder}/store", "--no-auth", "--port", "0", *encoder]
            path = "/v1/streams/s{}/samples"
        else:
            command = [str(Path(__file__).resolve()), "--plain", what, "--classes", str(classes)]
            path = "/s{}"
        serving = Serving(command, core, folder)
        try:
            if what == "features":
                features, prototypes, _ = make_problem(classes=classes, dimension=DIMENSION, samples=640)
                kind = "application/x-npy"
                bodies = [(npy(features[i : i + BATCH].astype(np.float32)), kind) for i in range(0, 640, BATCH)]
                samples = BATCH
            else:
                prototypes = np.eye(classes, int(os.environ["ENCODER_DIMENSION"]))
                bodies, samples = [form(photos(IMAGES))], IMAGES
            if server == "service":
                with Client(serving.url) as client:
                    for number in range(load_of[0]):
                        client.stream(f"s{number}").create(names_of(classes), prototypes)
            return load(serving.url, path, bodies, samples, load_of, seconds)
        finally:
            serving.stop()


# Everything


def measure(seconds: float, rounds: int) -> list[dict[str, Any]]:
    cores = sorted(os.sched_getaffinity(0))
    core = cores[0] if len(cores) > 1 else None
    if core is not None:
        os.sched_setaffinity(0, set(cores[1:]))
    rows = []
    cases = [("features", 10), ("features", 1000), ("images", 10)]
    for what, classes in cases:
        runs = 1 if what == "images" else rounds
        if what == "images":
            asked = "from zeroshift.encode import load_encoder; print(load_encoder('composed', device='cpu').dimension)"
            found = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
            os.environ["ENCODER_DIMENSION"] = found.stdout.strip()
        command = [sys.executable, str(Path(__file__).resolve()), "--bare", what, "--classes", str(classes)]
        command += ["--seconds", str(seconds)]
        for load_of in LOADS if what == "features" else LOADS[1:]:
            row: dict[str, Any] = {"what": what, "classes": classes, "streams": load_of[0], "clients": load_of[1]}
            for _ in range(runs):  # one after the other, so that what changes with time changes all of them
                done = subprocess.run(
                    pinned(command, core), capture_output=True, text=True, check=True, env={**os.environ, **ONE_THREAD}
                )
                row.setdefault("library", []).append(float(done.stdout))
                for server in ("service", "plain"):
                    row.setdefault(server, []).append(serve_and_load(server, what, classes, load_of, seconds, core))
            print(json.dumps(row), flush=True)
            rows.append(row)
    return rows


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    lines = [
        "| samples | K | streams | clients | library /s | service /s | ratio | plain FastAPI /s | service p50, p99 (ms) "
        "| plain p50, p99 (ms) |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        service, plain = ([one["per_second"] for one in row[name]] for name in ("service", "plain"))
        ratios = np.array(service) / np.array(row["library"])
        times = {
            name: [float(np.median([one[quantile] for one in row[name]])) for quantile in ("p50", "p99")]
            for name in ("service", "plain")
        }
        lines.append(
            f"| {row['what']} | {row['classes']} | {row['streams']} | {row['clients']} "
            f"| {np.median(row['library']):,.0f} | {np.median(service):,.0f} "
            f"| {np.median(ratios):.2f}{spread(ratios)} | {np.median(plain):,.0f} "
            f"| {times['service'][0]:.1f}, {times['service'][1]:.1f} | {times['plain'][0]:.1f}, {times['plain'][1]:.1f} |"
        )
    return lines


def spread(values: np.ndarray) -> str:
    return f" ({values.min():.2f} to {values.max():.2f})" if len(values) > 1 else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of features; their medians are shown")
    parser.add_argument("--write", action="store_true", help="write the table into benchmarks/results/serve.md")
    parser.add_argument("--bare", help=argparse.SUPPRESS)
    parser.add_argument("--plain", help=argparse.SUPPRESS)
    parser.add_argument("--classes", type=int, default=10, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.bare is not None:
        print(bare(given.bare, given.classes, given.seconds))
        return
    if given.plain is not None:
        serve_plain(given.plain, given.classes)
        return
    started = time.monotonic()
    rows = measure(given.seconds, given.rounds)
    lines = table(rows)
    targets = [row for row in rows if row["what"] == "features" and row["clients"] > 1]
    ratios = {
        f"K = {row['classes']}, {row['streams']} streams": float(
            np.median([one["per_second"] for one in row["service"]]) / np.median(row["library"])
        )
        for row in targets
    }
    missed = [f"{name} ({ratio:.2f})" for name, ratio in ratios.items() if ratio < 0.7]
    lines += [
        "",
        f"Target: 0.7 of the library for features from several clients. "
        f"{'Missed for ' + ', '.join(missed) if missed else 'Met in all rows'}. "
        f"Medians of {given.rounds} measurements of {given.seconds:g} seconds. Machine: {machine()}; "
        f"{time.monotonic() - started:.0f} seconds in all.",
    ]
    print("\n".join(lines))
    if given.write:
        replace_section("load", "\n".join(lines))


# The same endpoint without durability


def serve_plain(what: str, classes: int) -> None:
    import asyncio

    import uvicorn
    from fastapi import FastAPI, Request
    from fastapi.responses import Response

    from zeroshift.methods import create

    app, methods, names = FastAPI(), dict[str, Any](), names_of(classes)
    locks: dict[str, asyncio.Lock] = {}
    if what == "images":
        from zeroshift.data.images import decode
        from zeroshift.encode import load_encoder
        from zeroshift.encode.encoder import stack_pixels

        encoder = load_encoder(ENCODER, device="cpu")
        prototypes = np.eye(classes, encoder.dimension, dtype=np.float32)
    else:
        prototypes = make_problem(classes=classes, dimension=DIMENSION, samples=640)[1].astype(np.float32)

    def answers(stream: str, content: Any) -> bytes:
        if stream not in methods:
            methods[stream] = create("anchored_mixture_online", prototypes, logit_scale=100.0)
        if what == "images":
            pixels = [encoder.preprocessing(decode(one, "an image").image) for one in content]
            features = encoder.encode_pixels(stack_pixels(pixels)).astype(np.float32)
        else:
            features = np.load(io.BytesIO(content), allow_pickle=False)
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
