"""Reduce the records of a comparison to the numbers with which the tests compare results/comparison.md.

    zeroshift compare ../shared/packs/clip ../shared/packs/eval --packs all --out benchmarks/compare \
        --markdown benchmarks/results/comparison.md --json | python benchmarks/compare.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from zeroshift.files import atomic_path

RECORDS = Path(__file__).with_suffix(".json")


def main() -> None:
    runs: dict[str, dict[str, dict[str, float]]] = {}
    for run in json.load(sys.stdin)["runs"]:
        place = runs.setdefault(run["features"], {}).setdefault(run["contestant"], {})
        place["stored" if run["seed"] is None else f"seed {run['seed']}"] = round(100 * run["accuracy"], 4)
    with atomic_path(RECORDS) as temporary:
        temporary.write_text(json.dumps(runs, indent=1, sort_keys=True) + "\n")
    print(f"{RECORDS}: {sum(len(seeds) for sets in runs.values() for seeds in sets.values())} runs")


if __name__ == "__main__":
    main()
