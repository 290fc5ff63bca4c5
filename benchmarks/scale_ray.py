"""Rounds of the transductive mixture over shards: rows per second, ratio to the bare products, speed-up of workers.

    python benchmarks/scale_ray.py --rows 100000 --on local:1 local:2

`--on ray` measures a Ray cluster. The shards are generated in a temporary folder and deleted.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from zeroshift import TransductiveAnchoredMixture, normalize
from zeroshift.distributed import FeatureShards, adapt, open_executor

CLASSES, DIMENSION, SHARD_ROWS, ROUNDS = 1000, 512, 50_000, 3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--on", nargs="+", default=["local:1", "local:2"])
    parser.add_argument("--task-rows", type=int, default=25_000)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    prototypes = normalize(rng.normal(size=(CLASSES, DIMENSION)).astype(np.float32))
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        for number, start in enumerate(range(0, options.rows, SHARD_ROWS)):
            count = min(SHARD_ROWS, options.rows - start)
            means = prototypes[rng.integers(CLASSES, size=count)]
            noise = rng.normal(size=(count, DIMENSION)).astype(np.float32) / DIMENSION**0.5
            np.save(Path(folder, f"img_emb_{number}.npy"), normalize(0.3 * means + noise).astype(np.float16))
        shards = FeatureShards.open(folder)
        some = shards.first_rows(25_000).astype(np.float32)
        began = time.perf_counter()
        scores = np.empty((2000, CLASSES), np.float32)
        for start in range(0, len(some), 2000):
            block = some[start : start + 2000]
            out = scores[: len(block)]
            np.matmul(block, prototypes.T, out=out)
            out.T @ block
        bare = len(some) / (time.perf_counter() - began)
        print(f"bare products of a round (scores, weighted sums), float32, one core: {bare:,.0f} rows/s")
        answers = []
        for on in options.on:
            steps: list[tuple[str, float]] = []
            method = TransductiveAnchoredMixture(prototypes, rounds=ROUNDS)
            with open_executor(on) as executor:
                list(executor.map(abs, range(executor.workers)))  # processes are started before the clock
                began = time.perf_counter()
                adapt(
                    method, shards, on=executor, exact=True, task_rows=options.task_rows,
                    progress=lambda what, *_, steps=steps: steps.append((what, time.perf_counter())),
                )  # fmt: skip
                workers = executor.workers
            ends = dict(steps)
            times = np.diff([began, *ends.values()])
            rates = [f"{options.rows / seconds:,.0f}" for seconds in times]
            middle = options.rows / times[1] / workers
            print(
                f"{on}, {workers} workers: rows/s of the rounds {', '.join(rates)}; round 2 per core "
                f"{middle:,.0f}, {bare / middle:.2f} times the bare products"
            )
            answers.append(method.predict(some[:1000]))
        print("same bits:", all(np.array_equal(answers[0], one) for one in answers))
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        print(f"peak memory of a local worker: {peak:,.0f} MiB; sums sent and returned per task: about 6 and 6 MB")


if __name__ == "__main__":
    main()
