"""One shard of a million rows on a GPU: time and rows per second of every round, and the share of the products' time.

    python benchmarks/scale_cuda.py                                       # d = 512, K = 1000, fp16 rows
    python benchmarks/scale_cuda.py --device cpu --rows 2000 --task-rows 1000   # only that it runs; writes nothing

Rows are read from a file, moved to the device and processed there, in one process. In the first round they are moved;
the later ones find them on the device. A second series of runs keeps no rows there, as if its memory were too small.
The products alone are measured with float32 rows that are on the device already.
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

from zeroshift import TransductiveAnchoredMixture
from zeroshift.distributed import FeatureShards, adapt, device_rows
from zeroshift.distributed.adaptation import TASK_ROWS

CLASSES, DIMENSION, ROUNDS = 1000, 512, 4
CHUNK = 16_384
"""Rows of a bare product."""


def make_rows(rows: int, device: str) -> tuple[np.ndarray, torch.Tensor]:
    draw = torch.Generator(device).manual_seed(0)
    normal = torch.nn.functional.normalize
    prototypes = normal(torch.randn((CLASSES, DIMENSION), generator=draw, device=device))
    classes = torch.randint(CLASSES, (rows,), generator=draw, device=device)
    noise = torch.randn((rows, DIMENSION), generator=draw, device=device) / DIMENSION**0.5
    return normal(noise + 0.3 * prototypes[classes]).half().cpu().numpy(), prototypes


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


def time_rounds(prototypes: torch.Tensor, shards: FeatureShards, task_rows: int) -> list[float]:
    """Seconds of each round of one run."""
    steps: dict[str, float] = {}
    # The prototypes are on the device too, so that the driver's own part of a round is computed there.
    method = TransductiveAnchoredMixture(prototypes, rounds=ROUNDS)
    began = time.perf_counter()
    adapt(
        method, shards, on="local:0", exact=True, device=prototypes.device.type, task_rows=task_rows,
        progress=lambda what, *_: steps.update({what: time.perf_counter()}),
    )  # fmt: skip
    return np.diff([began, *steps.values()]).tolist()


def measure(rows: int, device: str, task_rows: int, repeats: int) -> dict[str, Any]:
    features, prototypes = make_rows(rows, device)
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder, "0.npy"), features)
        shards = FeatureShards.open(folder)
        for _ in range(2):  # the first runs load libraries and record graphs
            time_rounds(prototypes, shards, task_rows)
        kept = [time_rounds(prototypes, shards, task_rows) for _ in range(repeats)]
        share, device_rows.FREE_SHARE = device_rows.FREE_SHARE, 2.0
        moved = [time_rounds(prototypes, shards, task_rows) for _ in range(repeats)]
        device_rows.FREE_SHARE = share
    return {"kept": np.array(kept), "moved": np.array(moved), "products": time_products(rows, device)}


def table(found: dict[str, Any], rows: int) -> list[str]:
    products = found["products"]
    lines = ["| round | seconds (minimum to maximum) | rows/s | times the bare products |", "|---|---|---|---|"]
    for name, seconds in (
        ("the first: rows are read, checked and moved", found["kept"][:, 0]),
        ("in the middle, rows kept on the device", found["kept"][:, 1:-1]),
        ("the last, which also sets the temperature", found["kept"][:, -1]),
        ("in the middle, rows read and moved again", found["moved"][:, 1:-1]),
    ):
        middle = float(np.median(seconds))
        spread = f"{middle:.3f} ({seconds.min():.3f} to {seconds.max():.3f})"
        lines.append(f"| {name} | {spread} | {rows / middle:,.0f} | {middle / products:.2f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--task-rows", type=int, default=TASK_ROWS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    found = measure(options.rows, options.device, options.task_rows, options.repeats)
    lines = [
        *table(found, options.rows),
        "",
        f"{options.rows:,} rows, d = {DIMENSION}, K = {CLASSES}, fp16 in a file that the operating system has in "
        f"memory, {options.task_rows:,} rows per task, {options.repeats} runs. The bare float32 products of a round "
        f"in the middle take {found['products']:.3f} s.",
    ]
    if options.device.startswith("cuda"):
        lines.append(f"{torch.cuda.get_device_name()}, torch {torch.__version__}.")
        replace_section("scale_cuda", "\n".join(lines))
    else:
        print("\n".join(lines))


if __name__ == "__main__":
    main()
