"""Accuracy of the online mixture if its statistics are recomputed on a schedule and not at every sample.

    python benchmarks/mixture_schedule.py [PACK.npz ...]      (prints Markdown; the bundled packs come first)

Three random orders of each pack, the same for every schedule. If OUT is set, mixture_schedule.json is written there.
"""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from zeroshift import OnlineAnchoredMixture
from zeroshift.benchmarks.problems import clip_like
from zeroshift.data import packs
from zeroshift.features import FeatureSet

STALENESS = (0.0, 1 / 64, 1 / 32, 1 / 16, 1 / 8)
ORDERS = 3
SYNTHETIC = {"synthetic, K=200": (200, 256, 4000), "synthetic, K=1000": (1000, 256, 4000)}
"""(K, d, N): more classes than any pack has."""


def accuracy(name: str, staleness: float, order: int) -> float:
    """Top-1 accuracy in percent; each sample is predicted before it is learned."""
    if name in SYNTHETIC:
        features, prototypes, labels, scale = clip_like(*SYNTHETIC[name], seed=order)
    else:
        pack = FeatureSet.load(name) if name.endswith(".npz") else packs.load(name)
        features, prototypes, labels, scale = pack.features, pack.prototypes_for(), pack.labels, pack.logit_scale
        rows = np.random.default_rng(order).permutation(len(labels))
        features, labels = features[rows], labels[rows]
    method = OnlineAnchoredMixture(prototypes, logit_scale=scale, staleness=staleness)
    return 100.0 * float(np.mean(method.adapt(features).argmax(axis=1) == labels))


def main(paths: list[str]) -> None:
    names = [info.name for info in packs.list() if not info.name.startswith("views")] + paths + list(SYNTHETIC)
    jobs = [(name, staleness, order) for name in reversed(names) for staleness in STALENESS for order in range(ORDERS)]
    with ProcessPoolExecutor(int(os.environ.get("WORKERS", "1"))) as pool:
        found = dict(zip(jobs, pool.map(accuracy, *zip(*jobs, strict=True)), strict=True))
    head = ["stream", *(f"1/{1 / s:.0f}" if s else "0" for s in STALENESS)]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    table = {n: [float(np.mean([found[n, s, o] for o in range(ORDERS)])) for s in STALENESS] for n in names}
    table["mean"] = np.mean(list(table.values()), axis=0).tolist()
    for name, row in table.items():
        print(f"| {Path(name).stem} | {' | '.join(f'{value:.2f}' for value in row)} |")
    if "OUT" in os.environ:
        record = {Path(name).stem: dict(zip(map(str, STALENESS), row, strict=True)) for name, row in table.items()}
        (Path(os.environ["OUT"]) / "mixture_schedule.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
