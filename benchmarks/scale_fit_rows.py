"""What rounds over samples of 10 % cost in accuracy: packs with noisy copies, 100 000 rows each.

python benchmarks/scale_fit_rows.py             the bundled packs
python benchmarks/scale_fit_rows.py --shares    one of them, with samples of several sizes
python benchmarks/scale_fit_rows.py --clip      features of CLIP in ../shared/packs/clip
python benchmarks/scale_fit_rows.py --draws 1   fewer draws than 4, with any of these
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from sections import machine, replace_section

from zeroshift import FeatureSet, TransductiveAnchoredMixture, normalize
from zeroshift.data import packs
from zeroshift.distributed import FeatureShards, adapt
from zeroshift.report.formatting import counted

ROWS, NOISE = 100_000, 0.2
DRAWS = int(sys.argv[sys.argv.index("--draws") + 1]) if "--draws" in sys.argv else 4

CLIP = Path(__file__).resolve().parents[2] / "shared" / "packs" / "clip"

SHARES_OF, SHARES = "cifar10c_fog_5", (0.05, 0.1, 0.2, 0.5)


def noisy_copies(pack: FeatureSet, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the pack in random order, each copy with noise of its own, and their labels."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(np.arange(rows) % pack.n_samples)
    features = np.asarray(pack.features, np.float32)[order]
    noise = rng.standard_normal(features.shape, dtype=np.float32) / features.shape[1] ** 0.5
    assert pack.labels is not None
    return normalize(features + NOISE * noise), pack.labels[order]


def measure(
    pack: FeatureSet, rows: int, seed: int = 0, shares: Sequence[float] = (0.1,)
) -> tuple[list[float], list[float]]:
    """Accuracy of zero-shot, with all rounds over all rows, and with rounds over samples of each of these shares. For
    the latter, also the share of rows whose label differs from that with all rounds over all rows."""
    features, labels = noisy_copies(pack, rows, seed)
    prototypes = pack.prototypes_for()
    answers: list[np.ndarray] = []
    accuracy = [100 * float(((features @ prototypes.T).argmax(1) == labels).mean())]
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder, "0.npy"), features)
        for share in (None, *shares):
            method = TransductiveAnchoredMixture(prototypes, logit_scale=pack.logit_scale)
            shards, task_rows = FeatureShards.open(folder), max(1, rows // 5)
            adapt(method, shards, on="local:0", task_rows=task_rows, fit_rows=share, exact=share is None)
            answers.append(method.predict(features).argmax(1))
            accuracy.append(100 * float((answers[-1] == labels).mean()))
    return accuracy, [100 * float((answer != answers[0]).mean()) for answer in answers[1:]]


def compare_shares() -> None:
    """How far single draws are from all rows, by the size of the sample."""
    measured = [measure(packs.load(SHARES_OF), ROWS, seed, SHARES) for seed in range(DRAWS)]
    found, other = (np.array(part) for part in zip(*measured, strict=True))
    differences = found[:, 2:] - found[:, 1:2]
    lines = [
        "| rows in a sample | mean difference | root mean square | other labels | by draw |",
        "|---" * 5 + "|",
    ]
    for share, draws, labels in zip(SHARES, differences.T, other.mean(axis=0), strict=True):
        each = ", ".join(f"{draw:+.2f}" for draw in draws)
        root = float((draws**2).mean() ** 0.5)
        lines.append(f"| {share * ROWS:,.0f} | {draws.mean():+.2f} | {root:.2f} | {labels:.1f} % | {each} |")
    lines += ["", f"{SHARES_OF}, {ROWS:,} rows, {counted(DRAWS, 'draw')}. {machine()}."]
    replace_section("scale_fit_shares", "\n".join(lines))


def compare_packs(sets: Iterable[tuple[str, FeatureSet]], section: str) -> None:
    """A tenth of the rows against all of them, for each pack."""
    lines = [
        "| pack | zero-shot | all rows | samples of a tenth | difference | other labels | by draw |",
        "|---" * 7 + "|",
    ]
    differences = []
    for name, pack in sets:
        found, other = (
            np.array(part) for part in zip(*(measure(pack, ROWS, seed) for seed in range(DRAWS)), strict=True)
        )
        differences.append(found[:, 2] - found[:, 1])
        means = " | ".join(f"{value:.2f}" for value in found.mean(axis=0))
        each = ", ".join(f"{value:+.2f}" for value in differences[-1])
        lines.append(f"| {name} | {means} | {differences[-1].mean():+.2f} | {other.mean():.1f} % | {each} |")
        print(lines[-1], flush=True)
    every = np.concatenate(differences)
    lines += [
        "",
        f"{ROWS:,} rows each, {counted(DRAWS, 'draw')} of copies, noise and sample. Mean difference "
        f"{every.mean():+.2f} points, standard error {every.std(ddof=1) / len(every) ** 0.5:.2f}; of single draws "
        f"between {every.min():+.2f} and {every.max():+.2f}, root mean square {(every**2).mean() ** 0.5:.2f}. "
        f"{machine()}.",
    ]
    replace_section(section, "\n".join(lines))


def main() -> None:
    if "--shares" in sys.argv[1:]:
        compare_shares()
    elif "--clip" in sys.argv[1:]:
        files = sorted(CLIP.glob("*.npz"))
        if files:
            compare_packs(((file.stem, FeatureSet.load(file)) for file in files), "scale_fit_rows_clip")
        else:
            print(f"skipped: {CLIP} has no .npz files")
    else:
        names = [info.name for info in packs.list() if not info.n_views]
        compare_packs(((name, packs.load(name)) for name in names), "scale_fit_rows")


if __name__ == "__main__":
    main()
