"""Small sets, of all or few of the classes: zero-shot, transductive ADAPT and the transductive mixture.

    python benchmarks/mixture_small_sets.py ../shared/packs/eval ../shared/packs/clip

`zeroshift classify` is often used on a few dozen images; its default method was chosen by these results. Samples are
drawn at random from each set, once from all classes and once from a third of them. The prototypes of all classes are
given. Results are written to mixture_small_sets.json next to this file, and the table of docs/guide.md is printed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import zeroshift
from zeroshift import evaluate
from zeroshift.files import atomic_path

RECORDS = Path(__file__).parent / "mixture_small_sets.json"
METHODS = ("zero_shot", "adapt_transductive", "anchored_mixture_transductive")
SIZES = (20, 50, 100, 200)
SHARES = ("all", "third")
DRAWS = 3


def feature_sets(folders: list[Path]) -> Iterator[tuple[str, str, zeroshift.FeatureSet]]:
    """(group, name, set) of the bundled packs and of every feature file in the folders, except those with views."""
    for info in zeroshift.data.packs.list():
        if not info.n_views:
            yield "bundled", info.name, zeroshift.data.packs.load(info.name)
    for folder in folders:
        for path in sorted([*folder.glob("*.npz"), *folder.glob("*.safetensors")]):
            features = zeroshift.FeatureSet.load(path, check=False)
            if features.views is None:
                yield folder.name, path.stem, features


def drawn(features: zeroshift.FeatureSet, share: str, size: int, draw: int) -> np.ndarray:
    """Rows of `size` samples, of all classes or of a third of them."""
    rng = np.random.default_rng(1000 * size + draw)
    rows = np.arange(features.n_samples)
    if share == "third":
        kept = rng.permutation(features.n_classes)[: max(2, round(features.n_classes / 3))]
        rows = rows[np.isin(features.labels, kept)]
    return rng.permutation(rows)[:size]


def measure(features: zeroshift.FeatureSet, method: str, rows: np.ndarray) -> tuple[float, float]:
    """Accuracy and calibration error in percent."""
    adapter = zeroshift.methods.create(method, features.prototypes_for(), logit_scale=features.logit_scale)
    probabilities = adapter.adapt(features.features[rows])
    labels = features.labels[rows]
    accuracy = evaluate.accuracy(probabilities, labels)
    return 100 * accuracy, 100 * evaluate.expected_calibration_error(probabilities, labels)


def run(folders: list[Path]) -> list[dict[str, Any]]:
    records = []
    for group, name, features in feature_sets(folders):
        for share in SHARES:
            for size in SIZES:
                for method in METHODS:
                    found = [measure(features, method, drawn(features, share, size, draw)) for draw in range(DRAWS)]
                    accuracy, error = np.mean(found, axis=0)
                    kind = {"group": group, "name": name, "share": share, "samples": size, "method": method}
                    records.append({**kind, "accuracy": accuracy, "calibration_error": error})
        print(f"{group}/{name}", flush=True)
    return records


def table(records: list[dict[str, Any]]) -> str:
    lines = [
        "| | all classes: zero-shot | ADAPT | mixture | a third of them: zero-shot | ADAPT | mixture |",
        "|---|---|---|---|---|---|---|",
    ]
    for group in dict.fromkeys(record["group"] for record in records):
        cells = []
        for share in SHARES:
            for method in METHODS:
                wanted = (group, share, method)
                same = [r for r in records if (r["group"], r["share"], r["method"]) == wanted]
                cells.append(
                    ", ".join(f"{np.mean([r[key] for r in same]):.1f}" for key in ("accuracy", "calibration_error"))
                )
        lines.append(f"| {group} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, help="folders of .npz or .safetensors feature files")
    records = run(parser.parse_args().folders)
    with atomic_path(RECORDS) as temporary:
        temporary.write_text(json.dumps(records, indent=1) + "\n")
    print(table(records))


if __name__ == "__main__":
    main()
