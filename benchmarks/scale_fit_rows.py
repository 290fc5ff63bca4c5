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

ROWS, NOISE = 100_000, 0.2


def noisy_copies(pack: FeatureSet, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the pack in random order, each copy with noise of its own, and their labels."""
    rng = np.random.default_rng(0)
    order = rng.permutation(np.arange(rows) % pack.n_samples)
    features = np.asarray(pack.features, np.float32)[order]
    noise = rng.standard_normal(features.shape, dtype=np.float32) / features.shape[1] ** 0.5
    assert pack.labels is not None
    return normalize(features + NOISE * noise), pack.labels[order]


def measure(pack: FeatureSet, rows: int) -> tuple[float, float, float]:
    """Accuracy of zero-shot, with all rounds over all rows, and with rounds over a tenth of them."""
    features, labels = noisy_copies(pack, rows)
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
    lines = ["| pack | zero-shot | all rows | a tenth, then all once | difference |", "|---|---|---|---|---|"]
    worst = 0.0
    for info in packs.list():
        if info.n_views:
            continue
        base, exact, sampled = measure(packs.load(info.name), ROWS)
        worst = min(worst, sampled - exact)
        lines.append(f"| {info.name} | {base:.2f} | {exact:.2f} | {sampled:.2f} | {sampled - exact:+.2f} |")
        print(lines[-1], flush=True)
    lines += ["", f"{ROWS:,} rows each; the largest loss is {-worst:.2f} points. {machine()}."]
    replace_section("scale_fit_rows", "\n".join(lines))


if __name__ == "__main__":
    main()
