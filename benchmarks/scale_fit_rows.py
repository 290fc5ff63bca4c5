"""What rounds over a sample of 10 % cost in accuracy: bundled packs with noisy copies, 100 000 rows each.

python benchmarks/scale_fit_rows.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from sections import machine, replace_section

from zeroshift import FeatureSet, TransductiveAnchoredMixture, normalize
from zeroshift.data import packs
from zeroshift.distributed import FeatureShards, adapt

ROWS, NOISE, DRAWS = 100_000, 0.2, 4


def noisy_copies(pack: FeatureSet, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the pack in random order, each copy with noise of its own, and their labels."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(np.arange(rows) % pack.n_samples)
    features = np.asarray(pack.features, np.float32)[order]
    noise = rng.standard_normal(features.shape, dtype=np.float32) / features.shape[1] ** 0.5
    assert pack.labels is not None
    return normalize(features + NOISE * noise), pack.labels[order]


def measure(pack: FeatureSet, rows: int, seed: int = 0) -> tuple[float, float, float]:
    """Accuracy of zero-shot, with all rounds over all rows, and with rounds over a tenth of them."""
    features, labels = noisy_copies(pack, rows, seed)
    prototypes = pack.prototypes_for()
    accuracy = [100 * float(((features @ prototypes.T).argmax(1) == labels).mean())]
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder, "0.npy"), features)
        for options in ({"exact": True}, {"fit_rows": 0.1}):
            method = TransductiveAnchoredMixture(prototypes, logit_scale=pack.logit_scale)
            adapt(method, FeatureShards.open(folder), on="local:0", task_rows=max(1, rows // 5), **options)
            accuracy.append(100 * float((method.predict(features).argmax(1) == labels).mean()))
    return accuracy[0], accuracy[1], accuracy[2]


def main() -> None:
    lines = ["| pack | zero-shot | all rows | a tenth, then all once | difference | by draw |", "|---" * 6 + "|"]
    differences = []
    for info in packs.list():
        if info.n_views:
            continue
        pack = packs.load(info.name)
        found = np.array([measure(pack, ROWS, seed) for seed in range(DRAWS)])
        differences.append(found[:, 2] - found[:, 1])
        means = " | ".join(f"{value:.2f}" for value in found.mean(axis=0))
        draws = ", ".join(f"{value:+.2f}" for value in differences[-1])
        lines.append(f"| {info.name} | {means} | {differences[-1].mean():+.2f} | {draws} |")
        print(lines[-1], flush=True)
    every = np.concatenate(differences)
    lines += [
        "",
        f"{ROWS:,} rows each, {DRAWS} draws of copies, noise and sample. Mean difference {every.mean():+.2f} points, "
        f"standard error {every.std(ddof=1) / len(every) ** 0.5:.2f}; of single draws between {every.min():+.2f} and "
        f"{every.max():+.2f}. {machine()}.",
    ]
    replace_section("scale_fit_rows", "\n".join(lines))


if __name__ == "__main__":
    main()
