"""Calibration of the anchored mixture, before and after its label-free temperature.

    python benchmarks/mixture_calibration.py ../shared/packs/eval ../shared/packs/clip

Calibration error (ECE, 15 bins), log loss and Brier score of zero-shot, ADAPT and the mixture with and without its
temperature. Online methods run in three random orders. Each run is recorded in mixture_calibration.json next to this
file when it ends, and the tables are written to results/mixture.md. Recorded runs are not repeated unless --again is
given.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from accuracy import feature_files, load
from sections import machine, replace_section

from zeroshift import methods
from zeroshift.evaluate.metrics.scorecard import Scorecard
from zeroshift.evaluate.resources import one_blas_thread
from zeroshift.experiments.calibration import UNTEMPERED_METHODS as UNTEMPERED
from zeroshift.files import atomic_path

RECORDS = Path(__file__).parent / "mixture_calibration.json"
SEEDS = (0, 1, 2)
RAW = " untempered"
METHODS = {
    "zero_shot": "zero-shot",
    "adapt_online": "ADAPT online",
    "anchored_mixture_online untempered": "mixture online, untempered",
    "anchored_mixture_online": "mixture online",
    "adapt_transductive": "ADAPT transductive",
    "anchored_mixture_transductive untempered": "mixture transductive, untempered",
    "anchored_mixture_transductive": "mixture transductive",
}
MEASURES = {"calibration_error": "ECE, %", "nll": "log loss, nats", "brier": "Brier score"}


def measure(group: str, where: str, method: str, seed: int) -> dict[str, float | None]:
    """Accuracy and the three measures of one run."""
    pack = load(group, where)
    rows = np.random.default_rng(seed).permutation(pack.n_samples)
    name = method.removesuffix(RAW)
    kind = UNTEMPERED[name] if method.endswith(RAW) else methods.get(name).cls
    card = Scorecard(pack.n_classes)
    adapter = kind(pack.prototypes_for(), logit_scale=pack.logit_scale)
    card.update(adapter.adapt(np.asarray(pack.features[rows], np.float32)), pack.labels[rows])
    record = card.record()
    return {field: record[field] for field in ("accuracy", *MEASURES)}


def run(folders: list[Path], again: bool) -> dict[str, Any]:
    records: dict[str, Any] = json.loads(RECORDS.read_text())["records"] if RECORDS.exists() else {}
    for group, where in feature_files(folders):
        if load(group, where).views is not None:
            continue
        for method in METHODS:
            for seed in SEEDS if "online" in method else SEEDS[:1]:
                key = f"{group}/{Path(where).stem}/{method}/seed {seed}"
                if key in records and not again:
                    continue
                with one_blas_thread():
                    records[key] = measure(group, where, method, seed)
                print(key, records[key], flush=True)
                with atomic_path(RECORDS) as temporary:
                    content = {"machine": machine(), "records": records}
                    temporary.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    return records


def table(records: Mapping[str, Any]) -> str:
    """The means of the orders as Markdown, from the records alone: of every group of packs, and of every pack."""
    packs = sorted({tuple(key.split("/")[:2]) for key in records})
    groups = sorted({group for group, _ in packs})
    heads = [*(f"mean, {group}" for group in groups), *(name for _, name in packs)]
    parts = []
    for field, words in MEASURES.items():
        lines = [f"| {words} | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
        for method, label in METHODS.items():
            means = {pack: _mean(records, pack, method, field) for pack in packs}
            by_group = [np.mean([means[pack] for pack in packs if pack[0] == group]) for group in groups]
            shown = [_shown(field, float(value)) for value in (*by_group, *means.values())]
            lines.append(f"| {label} | {' | '.join(shown)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _mean(records: Mapping[str, Any], pack: tuple[str, ...], method: str, field: str) -> float:
    start = f"{'/'.join(pack)}/{method}/seed "
    return float(np.mean([record[field] for key, record in records.items() if key.startswith(start)]))


def _shown(field: str, value: float) -> str:
    return f"{100 * value:.1f}" if field == "calibration_error" else f"{value:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, help="folders of .npz or .safetensors feature files")
    parser.add_argument("--again", action="store_true", help="repeat runs that are recorded")
    arguments = parser.parse_args()
    found = table(run(arguments.folders, arguments.again))
    print(found)
    replace_section("mixture_calibration", found)


if __name__ == "__main__":
    main()
