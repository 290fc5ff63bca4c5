"""What rounds over a sample of 10 % cost in accuracy: bundled packs with noisy copies, 100 000 rows each.

python benchmarks/scale_fit_rows.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from zeroshift import TransductiveAnchoredMixture, normalize
from zeroshift.data import packs
from zeroshift.distributed import FeatureShards, adapt

ROWS, NOISE = 100_000, 0.2


def main() -> None:
    for info in packs.list():
        pack = packs.load(info.name)
        rng = np.random.default_rng(0)
        order = rng.permutation(np.arange(ROWS) % pack.n_samples)
        rows = np.asarray(pack.features, np.float32)[order]
        rows = normalize(rows + NOISE * rng.normal(size=rows.shape).astype(np.float32) / rows.shape[1] ** 0.5)
        accuracy = []
        with tempfile.TemporaryDirectory(dir="/tmp") as folder:
            np.save(Path(folder, "0.npy"), rows)
            for options in ({"exact": True}, {"fit_rows": 0.1}):
                method = TransductiveAnchoredMixture(pack.prototypes_for(), logit_scale=pack.logit_scale)
                adapt(method, FeatureShards.open(folder), on="local:0", task_rows=20_000, **options)
                accuracy.append(100 * (method.predict(rows).argmax(1) == pack.labels[order]).mean())
        print(f"| {info.name} | {accuracy[0]:.2f} | {accuracy[1]:.2f} | {accuracy[1] - accuracy[0]:+.2f} |", flush=True)


if __name__ == "__main__":
    main()
