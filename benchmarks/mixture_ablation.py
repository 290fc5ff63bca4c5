"""What each part of the anchored mixture contributes: one part changed at a time, everything else at its default.

    python benchmarks/mixture_ablation.py                                       the bundled packs
    python benchmarks/mixture_ablation.py ../shared/packs/eval ../shared/packs/clip     and any folders of feature files
    python benchmarks/mixture_ablation.py --shown                               only the page, from existing records

All changes except one are public parameters; a subclass removes the widening, which has no parameter. Online streams
use one random order, the same for every row of the table, so that rows can be compared pairwise. To save time their
statistics are updated four times less often than by default; one row shows what that costs. Caution is meant for
streams that do not mix all classes, so it is also measured on streams sorted by class and on streams with a third of
the classes. Records are written to mixture_ablation.json next to this file after each run, and from there to
results/mixture.md. Recorded runs are not repeated unless --again is given.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sections import machine, replace_section

import zeroshift
from zeroshift import OnlineAnchoredMixture, TransductiveAnchoredMixture, ZeroShot, evaluate
from zeroshift.evaluate.streams import class_sorted
from zeroshift.files import atomic_path
from zeroshift.mixture.statistics import Mixture
from zeroshift.mixture.sums import Sums

RECORDS = Path(__file__).with_suffix(".json")
SEED = 0
NOTHING, EVERYTHING = 1e-3, 1e6
"""For parameters that must be above 0 or have no upper bound."""


class _NotWidened:
    """Treats the means as exactly known."""

    def _estimate(self, sums: Sums) -> Mixture | None:
        found: Mixture | None = super()._estimate(sums)  # type: ignore[misc]
        return None if found is None else replace(found, factors=found.factors * 0.0 + 1.0)


class OnlineNotWidened(_NotWidened, OnlineAnchoredMixture):
    pass


class TransductiveNotWidened(_NotWidened, TransductiveAnchoredMixture):
    pass


BOTH: dict[str, dict[str, Any]] = {
    "as it is": {},
    "no anchor": {"anchor_count": NOTHING, "cautious_anchor_count": NOTHING},
    "anchors worth 4 samples always": {"anchor_count": 4.0},
    "anchors not spread": {"spread_range": (1.0, 1.0)},
    "isotropic covariance (shrinkage 1)": {"shrinkage": 1.0},
    "shrinkage 0.1": {"shrinkage": 0.1},
    "half weight": {"weight": 0.5},
    "full trust at once": {"reliability_samples": 0.0},
    "no widening": {"widened": False},
    "no caution": {"occurring": (0.0, 0.0)},
    "answers not tempered (calm 1)": {"calm": 1.0},
}
STALE: dict[str, Any] = {"staleness": 0.125}
"""Online, the statistics are updated four times less often than by default, because updates take most of the time. One
row has the default and shows what that costs."""

NO_CAUTION: dict[str, Any] = {"occurring": (0.0, 0.0), "order": "none", **STALE}
ONLINE: dict[str, dict[str, Any]] = {
    **{name: {**changed, **STALE} for name, changed in BOTH.items()},
    "no caution": NO_CAUTION,
    "renewed as often as by default": {},
}
TRANSDUCTIVE = {**BOTH, **{f"{n} round{'s' * (n > 1)}": {"rounds": n} for n in (1, 2, 5, 20)}}
CAUTION: dict[str, dict[str, Any]] = {
    "as it is": STALE,
    "order none": {"order": "none", **STALE},
    "no caution": NO_CAUTION,
}
TABLES: dict[tuple[str, str], Mapping[str, dict[str, Any]]] = {
    ("transductive", "set"): TRANSDUCTIVE,
    ("online", "random"): ONLINE,
    ("online", "sorted"): CAUTION,
    ("online", "third"): CAUTION,
    ("transductive", "third"): {name: BOTH[name] for name in ("as it is", "no caution")},
}
"""Changes for each (protocol, stream)."""

TITLES = {
    ("transductive", "set"): "Transductive",
    ("online", "random"): "Online, one random order, staleness 1/8",
    ("online", "sorted"): "Online, sorted by class",
    ("online", "third"): "Online, a third of the classes, random order",
    ("transductive", "third"): "Transductive, a third of the classes",
}

LABELS = {
    "as it is": "default",
    "anchors worth 4 samples always": "anchors always count as 4 samples",
    "full trust at once": "full trust from the start",
    "renewed as often as by default": "updated as often as by default",
}
"""Labels in the tables of changes that have another name in the records."""


def feature_files(folders: list[Path]) -> list[tuple[str, str]]:
    """(group, name or path) of the bundled packs and of feature files of single images, lowest dimension first."""
    found = [("bundled", info.name) for info in zeroshift.data.packs.list()]
    for folder in folders:
        paths = sorted([*folder.glob("*.npz"), *folder.glob("*.safetensors")])
        found += [(folder.name, str(path)) for path in paths]
    single = [of for of in found if load(*of).views is None]
    return sorted(single, key=lambda of: load(*of).features.shape[1])


def load(group: str, where: str) -> zeroshift.FeatureSet:
    return zeroshift.data.packs.load(where) if group == "bundled" else zeroshift.FeatureSet.load(where, check=False)


def rows_of(stream: str, labels: np.ndarray) -> np.ndarray:
    """Row numbers of a stream of one set."""
    draw = np.random.default_rng(SEED)
    if stream == "set":
        return np.arange(len(labels))
    if stream == "sorted":
        return class_sorted(labels, SEED).rows
    if stream == "third":
        classes = np.unique(labels)
        kept = draw.permutation(classes)[: max(2, round(len(classes) / 3))]
        return draw.permutation(np.flatnonzero(np.isin(labels, kept)))
    return draw.permutation(len(labels))


def make_method(protocol: str, pack: zeroshift.FeatureSet, changed: Mapping[str, Any]) -> Any:
    parameters = dict(changed)
    if parameters.pop("widened", True):
        cls = OnlineAnchoredMixture if protocol == "online" else TransductiveAnchoredMixture
    else:
        cls = OnlineNotWidened if protocol == "online" else TransductiveNotWidened
    return cls(pack.prototypes_for(), logit_scale=pack.logit_scale, **parameters)


def measure(pack: zeroshift.FeatureSet, protocol: str, stream: str, changed: Mapping[str, Any]) -> dict[str, Any]:
    """One run: accuracies and calibration error in percent."""
    assert pack.labels is not None, "an ablation needs labels"
    rows = rows_of(stream, pack.labels)
    features, labels = pack.features[rows], pack.labels[rows]
    zero_shot = ZeroShot(pack.prototypes_for(), logit_scale=pack.logit_scale).predict(features)
    answers = make_method(protocol, pack, changed).adapt(features)
    return {
        "accuracy": 100 * evaluate.accuracy(answers, labels),
        "ece": 100 * evaluate.expected_calibration_error(answers, labels),
        "zero_shot": 100 * evaluate.accuracy(zero_shot, labels),
        "zero_shot_ece": 100 * evaluate.expected_calibration_error(zero_shot, labels),
        "changed": dict(changed),
    }


def run(folders: list[Path], records: dict[str, Any], again: bool) -> None:
    """Measure what is not recorded yet, the smallest dimension first: an interrupted run has complete small sets."""
    for group, where in feature_files(folders):
        pack = load(group, where)
        for (protocol, stream), changes in TABLES.items():
            for name, changed in changes.items():
                key = f"{protocol}/{stream}/{group}/{Path(where).stem}/{name}"
                if again or key not in records:
                    records[key] = measure(pack, protocol, stream, changed)
                    print(f"{key:100s} {records[key]['accuracy']:6.2f} {records[key]['ece']:6.2f}", flush=True)
                    _write(records)


def _write(records: dict[str, Any]) -> None:
    content = {"machine": machine(), "python": platform.python_version(), "seed": SEED, "records": records}
    with atomic_path(RECORDS) as temporary:
        temporary.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


def table(records: Mapping[str, Any], protocol: str, stream: str) -> str:
    """Mean accuracy of each group of sets, the smallest gain over zero-shot and its set, and the mean ECE.

    Only sets that were measured with every change are included.
    """
    names = list(TABLES[protocol, stream])
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for key, record in records.items():
        title, group, where, name = key.rsplit("/", 3)
        if title == f"{protocol}/{stream}":
            found.setdefault((group, where), {})[name] = record
    whole = {of: runs for of, runs in found.items() if runs.keys() >= set(names)}
    groups = sorted({group for group, _ in whole}, key=["bundled", "eval", "clip"].index)
    sizes = [sum(group == of for of, _ in whole) for group in groups]
    heads = [f"{group}, {size} sets" for group, size in zip(groups, sizes, strict=True)]
    lines = [
        " | ".join([f"| {TITLES[protocol, stream]}", *heads, "smallest gain, data set", "ECE |"]),
        "|---|" + "---|" * (len(groups) + 2),
    ]

    def row(label: str, name: str, accuracy: str, ece: str, least: str) -> str:
        means = [np.mean([runs[name][accuracy] for (of, _), runs in whole.items() if of == group]) for group in groups]
        error = np.mean([runs[name][ece] for runs in whole.values()])
        return " | ".join([f"| {label}", *(f"{mean:.1f}" for mean in means), least, f"{error:.1f} |"])

    lines.append(row("*zero-shot*", names[0], "zero_shot", "zero_shot_ece", ""))
    for name in names:
        gains = {where: runs[name]["accuracy"] - runs[name]["zero_shot"] for (_, where), runs in whole.items()}
        worst = min(gains, key=lambda where: gains[where])
        lines.append(row(LABELS.get(name, name), name, "accuracy", "ece", f"{gains[worst]:+.1f}, {worst}"))
    return "\n".join(lines)


def show(records: Mapping[str, Any]) -> str:
    measured = [title for title in TABLES if any(key.startswith("/".join(title) + "/") for key in records)]
    return "\n\n".join(table(records, *title) for title in measured)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, help="folders of .npz or .safetensors feature files")
    parser.add_argument("--again", action="store_true", help="repeat runs that are recorded")
    parser.add_argument("--shown", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    records: dict[str, Any] = json.loads(RECORDS.read_text())["records"] if RECORDS.exists() else {}
    if not arguments.shown:
        run(arguments.folders, records, arguments.again)
    replace_section("ablation", show(records))
    print(show(records))


if __name__ == "__main__":
    main()
