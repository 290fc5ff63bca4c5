"""One shard of a million rows on a GPU: rows per second of every round, and the share of the products' time.

    python benchmarks/scale_cuda.py                                       # d = 512, K = 1000, fp16 rows
    python benchmarks/scale_cuda.py --device cpu --rows 2000 --task-rows 1000   # only that it runs; writes nothing

Rows are read from a file, moved to the device and processed there, in one process. The products alone are measured with
rows that are on the device already.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sections import replace_section

from zeroshift import TransductiveAnchoredMixture, normalize
from zeroshift.distributed import FeatureShards, adapt
from zeroshift.distributed.adaptation import TASK_ROWS

CLASSES, DIMENSION, ROUNDS = 1000, 512, 4
CHUNK = 16_384
"""Rows of a bare product."""


def make_rows(rows: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    prototypes = normalize(rng.standard_normal((CLASSES, DIMENSION), dtype=np.float32))
    noise = rng.standard_normal((rows, DIMENSION), dtype=np.float32) / DIMENSION**0.5
    return normalize(noise + 0.3 * prototypes[rng.integers(CLASSES, size=rows)]).astype(np.float16), prototypes


def time_products(rows: int, device: str) -> float:
    """Seconds of the products of a round in the middle: scores (n, K), their weighted sums, and half a square."""
    chunk = min(CHUNK, rows)
    x = torch.randn((chunk, DIMENSION), device=device)
    vectors = torch.randn((CLASSES, DIMENSION), device=device)
    factor = torch.randn((DIMENSION, DIMENSION // 2), device=device)
    times = []
    for _ in range(6):
        synchronize(device)
        began = time.perf_counter()
        for _ in range(max(1, rows // chunk)):
            scores = x @ vectors.T
            scores.T @ x
            x @ factor
        synchronize(device)
        times.append(time.perf_counter() - began)
    return min(times)


def synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def measure(rows: int, device: str, task_rows: int) -> dict[str, Any]:
    features, prototypes = make_rows(rows)
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder, "0.npy"), features)
        shards = FeatureShards.open(folder)
        seconds: list[float] = []
        for _ in range(2):  # the first run loads libraries
            steps: dict[str, float] = {}
            method = TransductiveAnchoredMixture(prototypes, rounds=ROUNDS)
            began = time.perf_counter()
            adapt(
                method, shards, on="local:0", exact=True, device=device, task_rows=task_rows,
                progress=lambda what, *_, steps=steps: steps.update({what: time.perf_counter()}),
            )  # fmt: skip
            seconds = np.diff([began, *steps.values()]).tolist()
    products = time_products(rows, device)
    return {"seconds": seconds, "rates": [rows / one for one in seconds], "products": products}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--task-rows", type=int, default=TASK_ROWS)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    found = measure(options.rows, options.device, options.task_rows)
    rates = ", ".join(f"{rate:,.0f}" for rate in found["rates"])
    middle = float(np.median(found["seconds"][1:-1]))
    lines = [
        f"{options.rows:,} rows, d = {DIMENSION}, K = {CLASSES}, fp16 on the disk, {options.task_rows:,} rows per "
        f"task: rows per second of the rounds {rates}. A round in the middle takes {middle:.2f} s, "
        f"{middle / found['products']:.2f} times its bare float32 products ({found['products']:.2f} s).",
    ]
    if options.device.startswith("cuda"):
        lines.append(f"{torch.cuda.get_device_name()}, torch {torch.__version__}.")
        replace_section("scale_cuda", "\n".join(lines))
    else:
        print("\n".join(lines))


if __name__ == "__main__":
    main()
