"""What staleness costs: the online mixture in replicas that exchange sums every n samples, on the bundled packs.

    python benchmarks/scale_replicas.py

Samples are in random order; each goes to a replica by a random key.
"""

from __future__ import annotations

import numpy as np
from sections import machine, replace_section

from zeroshift import FeatureSet, OnlineAnchoredMixture
from zeroshift.data import packs
from zeroshift.distributed import adapt_replicas

SETTINGS = ((2, 50), (8, 10), (8, 50), (8, 200), (8, 1_000_000))
"""Replicas, and samples of each from one exchange to the next. The last never exchanges: every pack is shorter."""
ORDERS = 3


def measure(pack: FeatureSet, orders: int = ORDERS) -> list[float]:
    """Accuracy in percent: zero-shot, one stream, and each of the settings; means over the orders."""
    assert pack.labels is not None
    prototypes, found = pack.prototypes_for(), []
    for seed in range(orders):
        rng = np.random.default_rng(seed)
        order = rng.permutation(pack.n_samples)
        rows, labels = np.asarray(pack.features)[order], pack.labels[order]
        keys = rng.integers(0, 1000, size=len(rows))

        def accuracy(answer: np.ndarray, labels: np.ndarray = labels) -> float:
            return 100 * float((answer.argmax(axis=1) == labels).mean())

        found.append([accuracy(np.asarray(rows, np.float64) @ prototypes.T)])
        found[-1].append(accuracy(make(pack).adapt(rows)))
        for replicas, every in SETTINGS:
            answer = adapt_replicas(make(pack), rows, keys=keys, replicas=replicas, every=every, on="local:0")
            found[-1].append(accuracy(answer))
    return np.mean(found, axis=0).tolist()


def make(pack: FeatureSet) -> OnlineAnchoredMixture:
    return OnlineAnchoredMixture(pack.prototypes_for(), logit_scale=pack.logit_scale)


def main() -> None:
    names = [f"{r} replicas, {'never' if n >= 1_000_000 else f'every {n}'}" for r, n in SETTINGS]
    lines = [f"| pack | rows | zero-shot | one stream | {' | '.join(names)} |", "|---" * (4 + len(names)) + "|"]
    table = []
    for info in packs.list():
        if info.n_views:
            continue
        pack = packs.load(info.name)
        table.append(measure(pack))
        cells = " | ".join(f"{value:.1f}" for value in table[-1])
        lines.append(f"| {info.name} | {pack.n_samples:,} | {cells} |")
        print(lines[-1], flush=True)
    lines.append(f"| mean | | {' | '.join(f'{value:.1f}' for value in np.mean(table, axis=0))} |")
    lines += ["", f"Means over {ORDERS} random orders. {machine()}."]
    replace_section("scale_replicas", "\n".join(lines))


if __name__ == "__main__":
    main()
