"""Accuracy of zero-shot, online and transductive ADAPT on real features, default parameters, nothing tuned.

    python benchmarks/accuracy.py                          the bundled packs
    python benchmarks/accuracy.py ../shared/packs/clip     and any folders of feature files

Online answers depend on the order of the stream, so every pack is run in its stored order and in random orders. Each
run is recorded in accuracy.json next to this file when it ends, and the table is written to results/accuracy.md.
Recorded runs are not repeated unless --again is given.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
from sections import machine, replace_section

import zeroshift
from zeroshift import evaluate
from zeroshift.files import atomic_path

HERE = Path(__file__).parent
RECORDS = HERE / "accuracy.json"
METHODS = ("zero_shot", "adapt_online", "adapt_transductive")
ORDERS = ("stored", "seed 0", "seed 1", "seed 2")


def feature_files(folders: list[Path]) -> Iterator[tuple[str, str]]:
    """(group, where) of the bundled packs and of every feature file in the folders."""
    for info in zeroshift.data.packs.list():
        yield "bundled", info.name
    for folder in folders:
        for path in sorted([*folder.glob("*.npz"), *folder.glob("*.safetensors")]):
            yield folder.name, str(path)


def load(group: str, where: str) -> zeroshift.FeatureSet:
    return zeroshift.data.packs.load(where) if group == "bundled" else zeroshift.FeatureSet.load(where, check=False)


def measure(group: str, where: str, method: str, order: str) -> dict[str, Any]:
    """One run: accuracy in percent and seconds."""
    pack = load(group, where)
    rows = np.arange(pack.n_samples)
    if order != "stored":
        rows = np.random.default_rng(int(order.removeprefix("seed "))).permutation(rows)
    adapter = zeroshift.methods.create(method, pack.prototypes_for(), logit_scale=pack.logit_scale)
    done = evaluate.run_stream(adapter, pack.features[rows])
    return {"accuracy": 100 * evaluate.accuracy(done.probabilities, pack.labels[rows]), "seconds": done.seconds}


def run(folders: list[Path], again: bool, jobs: int) -> dict[str, Any]:
    records: dict[str, Any] = json.loads(RECORDS.read_text())["records"] if RECORDS.exists() else {}
    todo = {}
    for group, where in feature_files(folders):
        if load(group, where).views is not None:
            continue
        for method in METHODS:
            for order in ORDERS if method == "adapt_online" else ORDERS[:1]:
                key = f"{group}/{Path(where).stem}/{method}/{order}"
                if again or key not in records:
                    todo[key] = (group, where, method, order)
    with ProcessPoolExecutor(jobs) as pool:
        running = {pool.submit(measure, *arguments): key for key, arguments in todo.items()}
        for done in as_completed(running):
            key = running[done]
            records[key] = done.result()
            print(f"{key:70s} {records[key]['accuracy']:6.2f} %  {records[key]['seconds']:7.2f} s", flush=True)
            _write({"machine": machine(), "python": platform.python_version(), "records": records})
    return records


def _write(content: dict[str, Any]) -> None:
    with atomic_path(RECORDS) as temporary:
        temporary.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


def table(records: dict[str, Any]) -> str:
    """The results as Markdown, from the records alone."""
    lines = [
        "| features | pack | zero-shot | online, stored order | online, mean of 4 orders (spread) | transductive |",
        "|---|---|---|---|---|---|",
    ]
    for group, name in sorted({tuple(key.split("/")[:2]) for key in records}):
        value = {tuple(k.split("/")[2:]): r["accuracy"] for k, r in records.items() if k.startswith(f"{group}/{name}/")}
        online = [value["adapt_online", order] for order in ORDERS]
        zero = value["zero_shot", "stored"]
        transductive = value["adapt_transductive", "stored"]
        lines.append(
            f"| {group} | {name} | {zero:.1f} | {online[0]:.1f} ({online[0] - zero:+.1f}) "
            f"| {np.mean(online):.1f} ({min(online):.1f} to {max(online):.1f}) "
            f"| {transductive:.1f} ({transductive - zero:+.1f}) |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, help="folders of .npz or .safetensors feature files")
    parser.add_argument("--again", action="store_true", help="repeat runs that are recorded")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes, one BLAS thread each")
    arguments = parser.parse_args()
    records = run(arguments.folders, arguments.again, arguments.jobs)
    replace_section("accuracy", table(records))
    print(table(records))


if __name__ == "__main__":
    main()
