"""The cut from which samples are rejected as "none of these": what it rejects of known and of unknown samples.

    python benchmarks/reject_cut.py ../shared/packs/eval ../shared/packs/clip

Open sets are made of every pack: without the prototypes of one class, a fifth or a third of the classes; with all of
them, so that nothing should be rejected; and with samples of another pack of the same encoder (no class in common) in 5
or 28 percent of the samples. Each in a set of 150 samples and in one of all samples, six draws. The same with two,
three and five of the classes. All candidates see the same sets, and no labels. Feature files of your own are added with
--own FILE: samples whose folder starts with "none" are the unknown ones.

Draws are recorded in reject_cut.json next to this file, and the tables are written to results/reject.md. Recorded draws
are not repeated unless --again is given.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, product
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from accuracy import feature_files, load
from mixture_reject import area
from sections import machine, replace_section

from zeroshift import FeatureSet, reject
from zeroshift.evaluate.resources import one_blas_thread
from zeroshift.files import atomic_path
from zeroshift.reject import FIRST, MOST_WRONG, RejectRule, class_distances

RECORDS = Path(__file__).parent / "reject_cut.json"
SEEDS = {"draws the constants were chosen on": (0, 1, 2), "other draws": (3, 4, 5)}
SIZES = {"150 samples": 150, "all samples": None}
HIDDEN = {"no stranger": 0.0, "one class": None, "a fifth": 1 / 5, "a third": 1 / 3}
STRANGERS = {"5 % of another pack": 0.05, "28 % of another pack": 0.28}
FEW_CLASSES = (2, 3, 5)
MOST_OF_TWO_PACKS = 1500
CLEAR = 0.85
"""AUROC from which on the distance separates strangers well."""
COMMON = {"dog", "horse"}
"""Classes that CIFAR-10 and PACS share."""


class OpenSet(NamedTuple):
    features: np.ndarray
    prototypes: np.ndarray
    unknown: np.ndarray


# Sets.


def family(name: str) -> str:
    return name.split("_")[0].removesuffix("10c").removesuffix("10").removesuffix("19")


def encoder(group: str, name: str) -> str:
    return name.rsplit("_", 1)[-1] if group == "clip" else "composed"


def hidden_classes(pack: FeatureSet, share: float | None, size: int | None, draw: np.random.Generator) -> OpenSet:
    count = 1 if share is None else round(share * pack.n_classes)
    hidden = draw.permutation(pack.n_classes)[:count]
    known = np.setdiff1d(np.arange(pack.n_classes), hidden)
    rows = draw.permutation(pack.n_samples)[:size]
    unknown = np.isin(pack.labels[rows], hidden)
    return OpenSet(np.asarray(pack.features[rows], np.float32), pack.prototypes_for()[known], unknown)


def with_strangers(
    pack: FeatureSet, other: FeatureSet, share: float, size: int | None, draw: np.random.Generator
) -> OpenSet:
    total = size or min(pack.n_samples, MOST_OF_TWO_PACKS)
    allowed = np.flatnonzero([other.class_names[k] not in COMMON & set(pack.class_names) for k in other.labels])
    count = round(share * total)
    ours, theirs = draw.permutation(pack.n_samples)[: total - count], draw.permutation(allowed)[:count]
    order = draw.permutation(len(ours) + len(theirs))
    both = np.concatenate([pack.features[ours], other.features[theirs]]).astype(np.float32)[order]
    return OpenSet(both, pack.prototypes_for(), order >= len(ours))


def few_classes(pack: FeatureSet, count: int, draw: np.random.Generator) -> FeatureSet:
    """A pack of `count` of the classes, and of 150 samples or, if it has fewer, all of these classes."""
    known = np.sort(draw.permutation(pack.n_classes)[:count])
    rows = draw.permutation(np.flatnonzero(np.isin(pack.labels, known)))[:150]
    return FeatureSet(
        np.asarray(pack.features[rows]), prototypes=pack.prototypes_for()[known],
        labels=np.searchsorted(known, pack.labels[rows]), class_names=[pack.class_names[k] for k in known],
        logit_scale=pack.logit_scale,
    )  # fmt: skip


def open_sets(folders: list[Path]) -> Iterator[tuple[str, Callable[[], OpenSet]]]:
    """(key, maker) of every draw: group/pack/kind/size/seed."""
    packs = {(group, Path(where).stem): load(group, where) for group, where in feature_files(folders)}
    packs = {key: pack for key, pack in packs.items() if pack.views is None}
    for (group, name), pack in packs.items():
        others = [
            other for key, other in packs.items()
            if encoder(*key) == encoder(group, name) and family(key[1]) != family(name)
        ]  # fmt: skip
        for seed in chain.from_iterable(SEEDS.values()):
            for place, (kind, (words, size)) in enumerate(product(HIDDEN, SIZES.items())):
                draw = np.random.default_rng([seed, place])
                yield (
                    f"{group}/{name}/{kind}/{words}/{seed}",
                    lambda d=draw, k=kind, s=size, p=pack: hidden_classes(p, HIDDEN[k], s, d),
                )
            for place, (kind, (words, size)) in enumerate(product(STRANGERS if others else (), SIZES.items())):
                draw = np.random.default_rng([seed, 100 + place])
                other = others[draw.integers(len(others))]
                yield (
                    f"{group}/{name}/{kind}/{words}/{seed}",
                    lambda d=draw, k=kind, s=size, p=pack, o=other: with_strangers(p, o, STRANGERS[k], s, d),
                )
            for count in FEW_CLASSES:
                draw = np.random.default_rng([seed, 200 + count])
                part = few_classes(pack, count, draw)
                words = f"{count} classes"
                yield (
                    f"{group}/{name}/no stranger/{words}/{seed}",
                    lambda d=draw, p=part: hidden_classes(p, 0.0, None, d),
                )
                if others:
                    other = others[draw.integers(len(others))]
                    yield (
                        f"{group}/{name}/28 % of another pack/{words}/{seed}",
                        lambda d=draw, p=part, o=other: with_strangers(p, o, 0.28, None, d),
                    )


def own_set(path: Path, *, strangers: bool = True) -> OpenSet:
    pack = FeatureSet.load(path, check=False)
    unknown = np.array([name.startswith("none") for name in pack.sample_names or ()])
    rows = np.flatnonzero(strangers | ~unknown)
    return OpenSet(
        np.asarray(pack.features, np.float32)[rows], pack.prototypes_for(), unknown[rows]
    )  # fmt: skip


# Candidates: from the scores, and what they may need, to what is rejected.


def median_and_deviation(scores: np.ndarray) -> tuple[float, float]:
    middle = float(np.median(scores))
    return middle, 1.4826 * float(np.median(np.abs(scores - middle)))


def beyond_deviations(scores: np.ndarray, count: float = 2.5) -> np.ndarray:
    middle, deviation = median_and_deviation(scores)
    return scores > middle + count * deviation


def otsu(scores: np.ndarray) -> np.ndarray:
    """Two groups with the smallest variance within them."""
    ordered = np.sort(scores)
    sums, below = np.cumsum(ordered), np.arange(1, len(ordered))
    low, high = sums[:-1] / below, (sums[-1] - sums[:-1]) / (len(ordered) - below)
    place = int(np.argmax(below * (len(ordered) - below) * (high - low) ** 2))
    return scores > ordered[place]


def two_gaussians(scores: np.ndarray, rounds: int = 200) -> np.ndarray:
    """Rejected where the upper of two Gaussians is more probable; nothing if one Gaussian explains the scores as well
    (BIC), or the two are less than two deviations apart."""
    from scipy.special import logsumexp

    n, whole = len(scores), float(scores.std())
    upper = scores > np.quantile(scores, 0.75)
    means = np.array([scores[~upper].mean(), scores[upper].mean()])
    widths, shares = np.full(2, whole / 2), np.array([0.75, 0.25])
    for _ in range(rounds):
        logs = np.log(shares) - np.log(widths) - 0.5 * ((scores[:, None] - means) / widths) ** 2
        total = logsumexp(logs, axis=1)
        parts = np.exp(logs - total[:, None])
        counts = parts.sum(axis=0) + 1e-9
        shares, means = counts / n, (parts * scores[:, None]).sum(axis=0) / counts
        variances = (parts * (scores[:, None] - means) ** 2).sum(axis=0) / counts
        widths = np.sqrt(np.maximum(variances, (0.2 * whole) ** 2))
    better = 2 * (total.sum() + n * np.log(whole) + n / 2) - 3 * np.log(n)
    apart = np.sqrt(2) * abs(means[1] - means[0]) / np.hypot(*widths)
    if better < 10 or apart < 2:
        return np.zeros(n, bool)
    top = int(np.argmax(means))
    return (parts[:, top] > 0.5) & (scores > means[1 - top])


def beyond_wrong_classes(distances: np.ndarray, *, members: bool) -> np.ndarray:
    """Farther than nearly all second nearest classes: of all samples, or of those that the rule takes as members."""
    kept = distances
    if members:
        kept = distances[np.argsort(distances[:, 0])[: len(distances) - max(0, len(distances) - FIRST) // 2]]
    return distances[:, 0] > np.quantile(kept[:, 1], MOST_WRONG)


def so_far(distances: np.ndarray) -> np.ndarray:
    """The rule in a stream: each sample is judged by the samples before it. The rule is found again when their number
    has grown by a tenth."""
    rejected, rule, due = np.zeros(len(distances), bool), None, FIRST + 1
    for i, one in enumerate(distances):
        if i >= due:
            rule, due = RejectRule.fit(distances[:i]), max(i + 1, round(1.1 * i))
        rejected[i] = rule is not None and bool(rule.rejected(one))
    return rejected


def stricter(distances: np.ndarray) -> np.ndarray:
    """The rule without its looser cut."""
    with patch.object(reject, "LOOSER", 0.0):
        return RejectRule.fit(distances).rejected(distances)


CANDIDATES = {
    "rule": "**the rule**",
    "stricter": "the rule without its looser cut, as before",
    "so_far": "the rule, in a stream",
    "members": "98 % of the second nearest classes of members",
    "everyone": "98 % of all second nearest classes",
    "deviations": "median + 2.5 deviations",
    "gaussians": "two Gaussians",
    "otsu": "Otsu",
}


def measure(made: OpenSet) -> dict[str, Any]:
    """What each candidate rejects of known and of unknown samples, and the AUROC of the distance."""
    distances = class_distances(made.features, made.prototypes)
    found = {
        "rule": RejectRule.fit(distances).rejected(distances),
        "stricter": stricter(distances),
        "so_far": so_far(distances),
        "members": beyond_wrong_classes(distances, members=True),
        "everyone": beyond_wrong_classes(distances, members=False),
        "deviations": beyond_deviations(distances[:, 0]),
        "gaussians": two_gaussians(distances[:, 0]),
        "otsu": otsu(distances[:, 0]),
    }
    unknown, both = made.unknown, made.unknown.any() and not made.unknown.all()
    return {
        "unknown": int(unknown.sum()),
        "samples": len(unknown),
        "auroc": area(distances[:, 0], unknown) if both else None,
        "rejected": {
            name: [float(given[~unknown].mean()), float(given[unknown].mean()) if both else None,
                   float(unknown[given].mean()) if both and given.any() else None]
            for name, given in found.items()
        },
    }  # fmt: skip


def run(folders: list[Path], own: list[Path], again: bool) -> dict[str, Any]:
    records: dict[str, Any] = json.loads(RECORDS.read_text())["records"] if RECORDS.exists() else {}
    mine = [
        (f"own/{path.stem}/{kind}/all samples/0", lambda p=path, k=kind: own_set(p, strangers=k == "own"))
        for path in own
        for kind in ("own", "no stranger")
    ]
    for key, make in [*open_sets(folders), *mine]:
        if key in records and not again:
            continue
        made = make()
        if not made.unknown.any() and "no stranger" not in key:
            continue  # a class of which the draw has no sample
        with one_blas_thread():
            records[key] = measure(made)
        shown = {name: [None if v is None else round(100 * v) for v in three[:2]]
                 for name, three in records[key]["rejected"].items()}  # fmt: skip
        print(key, shown, flush=True)
        with atomic_path(RECORDS) as temporary:
            content = {"machine": machine(), "records": records}
            temporary.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    return records


# Tables.


def select(records: Mapping[str, Any], group: str | None, kind: str, size: str) -> list[dict[str, Any]]:
    found = []
    for key, record in records.items():
        of_group, _, of_kind, of_size, _ = key.split("/")
        if (group is None or of_group == group) and (of_kind, of_size) == (kind, size) and of_group != "own":
            found.append(record)
    return found


def mean(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{100 * np.mean(known):.1f}" if known else ""


KINDS = [*product(HIDDEN, SIZES), *product(STRANGERS, SIZES)]
FEW = [(kind, f"{count} classes") for kind in ("no stranger", "28 % of another pack") for count in FEW_CLASSES]


def cut_table(records: Mapping[str, Any]) -> str:
    groups = ["bundled", "eval", "clip"]
    heads = [f"{group}: false rejects, recall, precision, AUROC" for group in groups]
    lines = [f"| unknown samples | set | {' | '.join(heads)} |", "|---" * (len(heads) + 2) + "|"]
    for kind, size in [*KINDS, *FEW]:
        cells = []
        for group in groups:
            found = select(records, group, kind, size)
            three = [mean([one["rejected"]["rule"][place] for one in found]) for place in range(3)]
            auroc = mean([one["auroc"] for one in found if one["auroc"]])
            cells.append(", ".join(part for part in (*three, auroc) if part))
        if any(cells):
            lines.append(f"| {kind} | {size} | {' | '.join(cells)} |")
    return "\n".join(lines)


def found_table(records: Mapping[str, Any]) -> str:
    """Without and with the looser cut: where the distance separates strangers well, and where there are none."""
    heads = [
        "sets",
        "AUROC",
        "false rejects before",
        "now",
        "found before",
        "now",
        "half found, 5 % false before",
        "now",
    ]
    lines = [f"| packs, strangers | draws | {' | '.join(heads)} |", "|---" * (len(heads) + 2) + "|"]
    for group, (draws, seeds) in product(("bundled", "eval", "clip"), SEEDS.items()):
        chosen = [one for key, one in records.items() if key.startswith(f"{group}/") and int(key[-1]) in seeds]
        none = [one for one in chosen if not one["unknown"]]
        clear = [one for one in chosen if one["auroc"] and one["auroc"] >= CLEAR]
        for kind, found in (("none", none), (f"AUROC from {100 * CLEAR:.0f}", clear)):
            if not found:
                continue
            rejected = [[one["rejected"][name] for one in found] for name in ("stricter", "rule")]
            cells = [mean([one["auroc"] for one in found])] if found is clear else [""]
            cells += [spread([false for false, *_ in three]) for three in rejected]
            cells += [spread([recall for _, recall, _ in three]) if found is clear else "" for three in rejected]
            cells += [
                mean([recall >= 0.5 and false <= 0.05 for false, recall, _ in three]) if found is clear else ""
                for three in rejected
            ]
            lines.append(f"| {group}, {kind} | {draws} | {len(found)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def spread(values: list[float]) -> str:
    """The mean, and what a tenth of the values are below and above."""
    low, high = np.quantile(values, [0.1, 0.9])
    return f"{mean(values)} ({100 * low:.1f} to {100 * high:.1f})"


def candidates_table(records: Mapping[str, Any]) -> str:
    shown = [
        ("no stranger", "150 samples"), ("no stranger", "all samples"), ("no stranger", "2 classes"),
        ("a third", "150 samples"), ("5 % of another pack", "150 samples"), ("28 % of another pack", "150 samples"),
        ("28 % of another pack", "all samples"),
    ]  # fmt: skip
    lines = [f"| cut | {' | '.join(f'{kind}, {size}' for kind, size in shown)} | worst false rejects |"]
    lines.append("|---" * (len(shown) + 2) + "|")
    for name, words in CANDIDATES.items():
        cells = []
        for kind, size in shown:
            found = [one["rejected"][name] for one in select(records, None, kind, size)]
            false, recall = (mean([three[place] for three in found]) for place in (0, 1))
            cells.append(f"{false}, {recall}" if recall else false)
        none = [one["rejected"][name][0] for size in SIZES for one in select(records, None, "no stranger", size)]
        lines.append(f"| {words} | {' | '.join(cells)} | {100 * max(none):.1f} |")
    return "\n".join(lines)


def own_table(records: Mapping[str, Any]) -> str:
    heads = [
        "samples",
        "unknown",
        "AUROC",
        "false rejects before",
        "now",
        "recall before",
        "now",
        "without strangers before",
        "now",
    ]
    lines = [f"| set | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for key, one in records.items():
        group, name, kind, *_ = key.split("/")
        if (group, kind) == ("own", "own"):
            alone = records[key.replace("/own/all", "/no stranger/all")]
            numbers = [
                mean([made["rejected"][rule][place]])
                for made, place in ((one, 0), (one, 1), (alone, 0))
                for rule in ("stricter", "rule")
            ]
            cells = [name, one["samples"], one["unknown"], mean([one["auroc"]]), *numbers]
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, help="folders of .npz or .safetensors feature files")
    parser.add_argument("--own", nargs="*", type=Path, default=[], help="feature files with unknown samples in none*/")
    parser.add_argument("--again", action="store_true", help="repeat draws that are recorded")
    arguments = parser.parse_args()
    records = run(arguments.folders, arguments.own, arguments.again)
    tables = {"reject_found": found_table, "reject_cut": cut_table, "reject_candidates": candidates_table}
    tables |= {"reject_own": own_table} if any(key.startswith("own/") for key in records) else {}
    for name, make in tables.items():
        print(make(records))
        replace_section(name, make(records))


if __name__ == "__main__":
    main()
