"""What forgetting does where the domain changes: the online mixture with several half-lives.

    python benchmarks/forgetting.py            the bundled packs of CIFAR-10 and, if there, PACS in ../shared/packs

Streams across domains in three orders: one domain after the other (continual), with overlaps (gradual), and mixed.
Writes the section `forgetting` of results/order.md. About ten minutes on two cores.
"""

from __future__ import annotations

import multiprocessing
from functools import cache
from pathlib import Path

import numpy as np
from sections import machine, replace_section
from threadpoolctl import threadpool_limits

from zeroshift import FeatureSet, OnlineAnchoredMixture
from zeroshift.data import packs
from zeroshift.evaluate.metrics.functions import accuracy, expected_calibration_error
from zeroshift.evaluate.streams import StreamSpec, stack_datasets

PACS = Path(__file__).resolve().parents[2] / "shared" / "packs" / "eval"
HALF_LIVES = (None, 4000.0, 2000.0, 1000.0, 500.0)
KINDS = ("continual", "gradual", "mixed")
ORDERS = 3


@cache
def domains() -> dict[str, dict[str, FeatureSet]]:
    cifar10 = [info.name for info in packs.list() if info.name.startswith("cifar10")]
    found = {"CIFAR-10 and its shifts": {name: packs.load(name) for name in cifar10}}
    if PACS.exists():
        names = ("pacs_photo", "pacs_art_painting", "pacs_cartoon")
        found["PACS without sketches"] = {name: FeatureSet.load(PACS / f"{name}.npz") for name in names}
    return found


def run(job: tuple[str, str, int, float | None]) -> tuple[float, float, float]:
    """Accuracy, calibration error and zero-shot accuracy, in percent."""
    title, kind, seed, half_life = job
    parts = domains()[title]
    stacked = stack_datasets(parts)
    where = {"domains": [part.n_samples for part in parts.values()], "names": list(parts)}
    rows = StreamSpec(kind, where).stream(stacked, seed=seed).rows
    labels = stacked.labels[rows]
    method = OnlineAnchoredMixture(stacked.prototypes_for(), logit_scale=stacked.logit_scale, half_life=half_life)
    with threadpool_limits(1):
        answers = method.adapt(np.asarray(stacked.features)[rows])
    zero_shot = stacked.subset(rows).zero_shot_accuracy()
    return 100 * accuracy(answers, labels), 100 * expected_calibration_error(answers, labels), 100 * zero_shot


def main() -> None:
    jobs = [
        (title, kind, seed, half_life)
        for title in domains()
        for kind in KINDS
        for half_life in HALF_LIVES
        for seed in range(ORDERS)
    ]
    with multiprocessing.Pool(2) as pool:
        found = dict(zip(jobs, pool.map(run, jobs, chunksize=1), strict=True))
    head = "| domains | stream | zero-shot | " + " | ".join(
        "never forgets" if half_life is None else f"half-life {half_life:g}" for half_life in HALF_LIVES
    )
    lines = [f"{head} |", "|---" * (3 + len(HALF_LIVES)) + "|"]
    for title in domains():
        for kind in KINDS:
            runs = [[found[title, kind, seed, half_life] for seed in range(ORDERS)] for half_life in HALF_LIVES]
            cells = [f"{np.mean([r[0] for r in one]):.1f} ({np.mean([r[1] for r in one]):.1f})" for one in runs]
            zero_shot = np.mean([r[2] for r in runs[0]])
            lines.append(f"| {title} | {kind} | {zero_shot:.1f} | " + " | ".join(cells) + " |")
    text = "\n".join(lines)
    print(text)
    replace_section("forgetting", f"{text}\n\n`python benchmarks/forgetting.py`; {machine()}.")


if __name__ == "__main__":
    main()
