"""The anchored mixture on ordered streams and on sets with few of the classes: accuracy, worst cell, calibration.

    python benchmarks/ordered_streams.py                     the bundled packs, and ../shared/packs if it is there
    python benchmarks/ordered_streams.py --runs FOLDER       where finished runs are recorded (resumed by default)
    python benchmarks/ordered_streams.py --only bursts       one kind of stream

Three orders of every stream. Composed packs: three domains of PACS and the six bundled ones. PACS sketch, where
zero-shot is at chance, is reported by itself. A cell is one set in one order; the worst one is relative to zero-shot on
the same rows. Writes the sections `ordered` and `late` of results/order.md. About forty minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np
from sections import machine, replace_section
from threadpoolctl import threadpool_limits

from zeroshift import FeatureSet, methods
from zeroshift.data import packs
from zeroshift.evaluate.metrics.functions import accuracy, expected_calibration_error
from zeroshift.evaluate.streams import StreamSpec
from zeroshift.files import atomic_path

SHARED = Path(__file__).resolve().parents[2] / "shared" / "packs"
GROUPS = {
    "CLIP": (
        "dtd_test_clip_vitb32", "stanford_cars_val_clip_vitb32", "whurs19_clip_rn50", "whurs19_clip_vitb32",
    ),
    "composed": (
        "pacs_photo", "pacs_art_painting", "pacs_cartoon", "cifar10", "cifar10c_defocus_blur_5", "cifar10c_fog_5",
        "cifar10c_gaussian_noise_3", "cifar10c_jpeg_compression_5", "fmnist",
    ),
    "sketch": ("pacs_sketch",),
}  # fmt: skip
BUNDLED = tuple(info.name for info in packs.list())
ORDERS = 3
STREAMS = {
    "long tail": "long_tail",
    "random": "random",
    "class-sorted": "class_sorted",
    "bursts of about ten": "bursts",
    "recurring": "recurring",
    "a third of the classes, random order": "some_classes",
    "a third of the classes, sorted": "some_classes_sorted",
}
ONLINE, TRANSDUCTIVE = "anchored_mixture_online", "anchored_mixture_transductive"
COLUMNS = {
    "zero-shot": ("zero_shot", {}, "adapt"),
    "zero-shot + filter": ("zero_shot+filter", {}, "adapt"),
    "mixture, order none": (ONLINE, {"order": "none"}, "adapt"),
    "mixture": (ONLINE, {}, "adapt"),
    "2 late": (ONLINE, {"lag": 2}, "late"),
    "5 late": (ONLINE, {"lag": 5}, "late"),
    "recording": (ONLINE, {}, "smooth"),
    "transductive": (TRANSDUCTIVE, {}, "adapt"),
}
LATE = ("2 late", "5 late", "recording")


@cache
def load(name: str) -> FeatureSet:
    if name in BUNDLED:
        return packs.load(name)
    return FeatureSet.load(SHARED / ("eval" if name.startswith("pacs") else "clip") / f"{name}.npz")


def run(folder: Path, job: tuple[str, str, int, str]) -> tuple[tuple[str, str, int, str], list[float]]:
    """Accuracy and calibration error in percent, from the record if there is one."""
    name, stream, seed, column = job
    record = folder / f"{name}-{STREAMS[stream]}-{seed}-{column.replace(' ', '_')}.json"
    if record.exists():
        return job, json.loads(record.read_text())
    features = load(name)
    rows = StreamSpec(STREAMS[stream]).stream(features, seed=seed).rows
    x, labels = np.asarray(features.features)[rows], features.labels[rows]
    method, parameters, how = COLUMNS[column]
    adapter = methods.create(
        method, prototypes=features.prototypes_for(), logit_scale=features.logit_scale, **parameters
    )
    with threadpool_limits(1):
        if how == "late":
            answers = np.concatenate([adapter.adapt_late(x), adapter.finish()])
        else:
            answers = getattr(adapter, how)(x)
    found = [100 * accuracy(answers, labels), 100 * expected_calibration_error(answers, labels)]
    with atomic_path(record) as temporary:
        temporary.write_text(json.dumps(found))
    return job, found


def late_table(found: Mapping[tuple[str, str, int, str], list[float]], names: Sequence[str]) -> str:
    """One row per stream: mean accuracy of CLIP and composed sets, at once and later."""
    columns = ("zero-shot", "mixture", *LATE)
    lines = ["| stream | zero-shot | at once | 2 late | 5 late | recording |", "|---" * 6 + "|"]
    for stream in STREAMS:
        cells = []
        for column in columns:
            runs = [
                [found[name, stream, seed, column][0] for name in GROUPS[group] if name in names]
                for group in ("CLIP", "composed")
                for seed in range(ORDERS)
                if (GROUPS[group][-1], stream, seed, column) in found
            ]
            halves = runs[:ORDERS], runs[ORDERS:]
            cells.append(" / ".join(f"{np.mean(half):.1f}" for half in halves if half))
        lines.append(f"| {stream} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def table(found: Mapping[tuple[str, str, int, str], list[float]], columns: Sequence[str], names: Sequence[str]) -> str:
    """One row per stream and column: mean accuracy and ECE of each group, and the worst cell of the two."""
    groups = {group: [name for name in GROUPS[group] if name in names] for group in ("CLIP", "composed")}
    head = "| stream | method | " + " | ".join(f"{group}: accuracy | ECE" for group in groups) + " | worst cell |"
    lines = [head, "|---" * (3 + 2 * len(groups)) + "|"]
    for stream in STREAMS:
        for column in columns:
            cells, worst = [], []
            for group in groups.values():
                runs = [found.get((name, stream, seed, column)) for name in group for seed in range(ORDERS)]
                if not runs or None in runs:
                    cells += ["", ""]
                    continue
                cells += [f"{np.mean([one[0] for one in runs]):.1f}", f"{np.mean([one[1] for one in runs]):.1f}"]
                worst += [
                    (found[name, stream, seed, column][0] - found[name, stream, seed, "zero-shot"][0], name)
                    for name in group
                    for seed in range(ORDERS)
                ]
            if worst:
                lines.append(
                    f"| {stream} | {column} | " + " | ".join(cells) + f" | {min(worst)[0]:+.1f} ({min(worst)[1]}) |"
                )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("ordered_streams_runs"))
    parser.add_argument("--only", nargs="*", choices=list(STREAMS.values()))
    parser.add_argument("--columns", nargs="*", choices=list(COLUMNS), default=list(COLUMNS))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--print", action="store_true", help="print the tables instead of writing the page")
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    names = [name for group in GROUPS.values() for name in group if name in BUNDLED or SHARED.exists()]
    jobs = [
        (name, stream, seed, column)
        for stream, kind in STREAMS.items()
        if not options.only or kind in options.only
        for name in names
        for column in options.columns
        for seed in range(ORDERS)
        if column != "transductive" or kind in ("random", "some_classes")
    ]
    with multiprocessing.Pool(options.processes) as pool:
        found = dict(pool.imap_unordered(partial(run, options.runs), jobs))
    main_columns = [column for column in options.columns if column not in LATE]
    tables = {"ordered": table(found, main_columns, names), "late": late_table(found, names)}
    for section, text in tables.items():
        if options.print:
            print(text, end="\n\n")
        else:
            replace_section(section, f"{text}\n\n`python benchmarks/ordered_streams.py`; {machine()}.")


if __name__ == "__main__":
    main()
