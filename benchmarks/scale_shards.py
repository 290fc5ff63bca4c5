"""Many small shards and few large ones: the time that the number of files costs.

    python benchmarks/scale_shards.py

The same million rows (d = 64, K = 50) as 10 000 files of 100 rows, and as one file; and 3 files of a million rows.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import numpy as np
from sections import machine, replace_section

from zeroshift import TransductiveAnchoredMixture, normalize
from zeroshift.distributed import FeatureShards, LocalExecutor, adapt

DIMENSION, CLASSES, ROUNDS = 64, 50, 3


def write(folder: Path, files: int, rows: int) -> None:
    rng = np.random.default_rng(0)
    prototypes = make_prototypes()
    noise = rng.standard_normal((files * rows, DIMENSION), dtype=np.float32) / DIMENSION**0.5
    values = normalize(noise + 0.5 * prototypes[rng.integers(CLASSES, size=files * rows)]).astype(np.float16)
    for number in range(files):
        np.save(folder / f"img_emb_{number}.npy", values[number * rows : (number + 1) * rows])


def make_prototypes() -> np.ndarray:
    return normalize(np.random.default_rng(1).normal(size=(CLASSES, DIMENSION)).astype(np.float32))


def measure(files: int, rows: int, workers: int = 2) -> tuple[float, float, int, np.ndarray]:
    """Seconds to open, seconds of three rounds and the answers, files of answers, and some probabilities."""
    with tempfile.TemporaryDirectory() as name:
        source = Path(name, "shards")
        source.mkdir()
        write(source, files, rows)
        began = time.perf_counter()
        shards = FeatureShards.open(source)
        opened = time.perf_counter() - began
        method = TransductiveAnchoredMixture(make_prototypes(), logit_scale=20.0, rounds=ROUNDS)
        with LocalExecutor(workers) as executor:
            list(executor.map(abs, list(range(8))))  # processes are started before the clock
            began = time.perf_counter()
            adapt(method, shards, on=executor, out=Path(name, "out"), exact=True)
            seconds = time.perf_counter() - began
        return (
            opened,
            seconds,
            len(os.listdir(Path(name, "out", "predictions"))),
            method.predict(shards.first_rows(100)),
        )


def main() -> None:
    lines = ["| shards | open | rounds and answers | rows/s and pass | files of answers |", "|---|---|---|---|---|"]
    answers = []
    for files, rows in ((10_000, 100), (1, 1_000_000), (3, 1_000_000)):
        opened, seconds, written, answer = measure(files, rows)
        answers.append(answer)
        rate = files * rows * (ROUNDS + 1) / seconds
        lines.append(f"| {files:,} of {rows:,} rows | {opened:.2f} s | {seconds:.1f} s | {rate:,.0f} | {written} |")
        print(lines[-1], flush=True)
    same = "the same bits" if np.array_equal(answers[0], answers[1]) else "OTHER answers"
    about = f"Two workers, d = {DIMENSION}, K = {CLASSES}, fp16, {ROUNDS} rounds. {machine()}."
    lines += ["", f"A million rows in 10 000 files and in one give {same}. {about}"]
    replace_section("scale_shards", "\n".join(lines))


if __name__ == "__main__":
    main()
