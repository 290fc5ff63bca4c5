"""Online methods with and without the filter: accuracy, calibration, and what the filter costs per sample.

    python benchmarks/sticky_filter.py              methods on the bundled packs, and the cost
    python benchmarks/sticky_filter.py --streams    zero-shot on more streams, with the packs in ../shared/packs too

Both write their sections in results/order.md. Each method runs in three orders of each stream.
About five minutes for the bundled packs; one thread.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
from sections import machine, replace_section
from threadpoolctl import threadpool_limits

from zeroshift import FeatureSet, methods
from zeroshift.data import packs
from zeroshift.evaluate.metrics.functions import accuracy, expected_calibration_error
from zeroshift.evaluate.streams import StreamSpec
from zeroshift.sticky import LateAnswers, StickyClasses, smooth

METHODS = ("zero_shot", "tda", "adapt_online")
STREAMS = {"random": "random", "sorted by class": "class_sorted", "bursts of ten": "bursts"}
SEEDS = 3
LAG = 2
ALL_STREAMS = (
    "random", "long_tail", "some_classes", "class_sorted", "bursts", "recurring", "few_classes", "dirichlet",
    "some_classes_sorted", "easy_to_hard", "hard_to_easy",
)  # fmt: skip
SHARED = Path(__file__).parent.parent.parent / "shared" / "packs"
COLUMNS = ("without", "with the filter", f"{LAG} samples late", "recording")


def answers(name: str, features: FeatureSet, rows: np.ndarray) -> dict[str, np.ndarray]:
    """The answers of a method to the rows, by column."""
    x = np.asarray(features.features)[rows]
    arguments = {"prototypes": features.prototypes_for(), "logit_scale": features.logit_scale}
    late = methods.create(f"{name}+filter", **arguments, lag=LAG)
    found = (
        methods.create(name, **arguments).adapt(x),
        methods.create(f"{name}+filter", **arguments).adapt(x),
        np.concatenate([late.adapt_late(x), late.finish()]),
        methods.create(f"{name}+filter", **arguments).smooth(x),
    )
    return dict(zip(COLUMNS, found, strict=True))


def accuracy_table(sets: dict[str, FeatureSet]) -> str:
    """Means over sets and orders, and the worst difference to the same method without the filter."""
    scores = defaultdict(list)
    for features in sets.values():
        for stream, kind in STREAMS.items():
            for seed in range(SEEDS):
                rows = StreamSpec(kind).stream(features, seed=seed).rows
                labels = features.labels[rows]
                for name in METHODS:
                    for column, answer in answers(name, features, rows).items():
                        pair = accuracy(answer, labels), expected_calibration_error(answer, labels)
                        scores[stream, name, column].append(pair)
    lines = ["| stream | method | " + " | ".join(COLUMNS) + " | worst gain at once |", "|---" * 7 + "|"]
    for stream in STREAMS:
        for name in METHODS:
            columns = [100 * np.array(scores[stream, name, column]) for column in COLUMNS]
            cells = [f"{one[:, 0].mean():.1f} ({one[:, 1].mean():.1f})" for one in columns]
            worst = (columns[1] - columns[0])[:, 0].min()
            lines.append(f"| {stream} | {name} | {' | '.join(cells)} | {worst:+.1f} |")
    return "\n".join(lines)


def streams_table(groups: dict[str, dict[str, FeatureSet]]) -> str:
    """Zero-shot without and with the filter: means of each group, and the lowest gain of any set and order."""
    lines = [f"| stream | {' | '.join(groups)} | lowest gain |", "|---" * (len(groups) + 2) + "|"]
    for kind in ALL_STREAMS:
        cells, gains = [], []
        for sets in groups.values():
            pairs = []
            for name, features in sets.items():
                for seed in range(SEEDS):
                    rows = StreamSpec(kind).stream(features, seed=seed).rows
                    x, labels = np.asarray(features.features)[rows], features.labels[rows]
                    arguments = {"prototypes": features.prototypes_for(), "logit_scale": features.logit_scale}
                    made = (methods.create(one, **arguments) for one in ("zero_shot", "zero_shot+filter"))
                    pair = [100 * accuracy(method.adapt(x), labels) for method in made]
                    pairs.append(pair)
                    gains.append((pair[1] - pair[0], name))
            cells.append(", ".join(f"{mean:.1f}" for mean in np.mean(pairs, axis=0)))
        gain, name = min(gains)
        lines.append(f"| {kind} | {' | '.join(cells)} | {gain:+.1f} ({name}) |")
    return "\n".join(lines)


def bundled() -> dict[str, FeatureSet]:
    return {pack.name: packs.load(pack.name) for pack in packs.list() if not pack.n_views}


def time_table(rows: int = 3000) -> str:
    """Microseconds per sample of each part, the least of five runs."""
    lines = ["| classes | estimate | filter | 2 samples late | backward pass of a recording |", "|---" * 5 + "|"]
    for classes in (10, 100, 1000):
        y = np.random.default_rng(0).dirichlet(np.full(classes, 0.3), size=rows)
        log_y = np.log(np.maximum(y, 1e-30))
        chain = StickyClasses(classes)
        stay, watched = chain.observe(y)
        filtered, _ = watched.filter(log_y, stay)
        parts = (
            lambda chain=chain, y=y: chain.observe(y),
            lambda watched=watched, log_y=log_y, stay=stay: watched.filter(log_y, stay),
            lambda k=classes, given=(filtered, log_y, stay): LateAnswers(k, LAG).add(*given),
            lambda given=(filtered, log_y, stay): smooth(*given),
        )
        times = []
        for part in parts:
            runs = []
            for _ in range(5):
                start = time.perf_counter()
                part()
                runs.append(time.perf_counter() - start)
            times.append(f"{1e6 * min(runs) / rows:.1f} us")
        lines.append(f"| {classes} | {' | '.join(times)} |")
    return "\n".join(lines)


def main() -> None:
    with threadpool_limits(1):
        if "--streams" in sys.argv:
            clip, pacs = (sorted((SHARED / folder).glob("*.npz")) for folder in ("clip", "eval"))
            composed = [path for path in pacs if path.stem in ("pacs_art_painting", "pacs_cartoon", "pacs_photo")]
            groups = {
                "CLIP": {path.stem: FeatureSet.load(path) for path in clip},
                "composed": {**bundled(), **{path.stem: FeatureSet.load(path) for path in composed}},
            }
            replace_section("filter-streams", streams_table(groups))
        else:
            replace_section("filter-time", f"{time_table()}\n\n{machine()}")
            replace_section("filter-accuracy", accuracy_table(bundled()))


if __name__ == "__main__":
    main()
