"""How well the evidence of the anchored mixture and other scores separate unknown classes from known ones.

    python benchmarks/mixture_reject.py ../shared/packs/eval ../shared/packs/clip

A third of the classes of each pack, drawn at random, have no prototype; the stream contains samples of all classes. The
area under the curve (AUROC, 50 is chance) of every score is recorded for three draws in mixture_reject.json next to
this file, and the table is written to results/mixture.md. Recorded draws are not repeated unless --again is given.
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

from zeroshift import OnlineADAPT, OnlineAnchoredMixture, TransductiveADAPT, TransductiveAnchoredMixture, ZeroShot
from zeroshift.evaluate.metrics.reject import RejectCurve
from zeroshift.evaluate.metrics.scorecard import uncertainty
from zeroshift.evaluate.resources import one_blas_thread
from zeroshift.experiments.open_set import HELD_OUT
from zeroshift.files import atomic_path
from zeroshift.mixture.base import AnchoredMixture

RECORDS = Path(__file__).parent / "mixture_reject.json"
SEEDS = (0, 1, 2)
SCORES = {
    "zero_shot": "zero-shot, probability",
    "entropy": "zero-shot, entropy",
    "cosine": "largest cosine",
    "adapt_online": "ADAPT online, probability",
    "adapt_transductive": "ADAPT transductive, probability",
    "online_probability": "mixture online, probability",
    "online_distance": "mixture online, distance",
    "online": "mixture online, evidence",
    "transductive_probability": "mixture transductive, probability",
    "transductive_distance": "mixture transductive, distance",
    "transductive": "mixture transductive, evidence",
}
"""Probability: one minus the largest. Distance: Mahalanobis, to the nearest class, after the whole stream or set.
Evidence: see `evidence`."""

BATCH_ROWS = 32
"""Samples per call of an online mixture."""


def measure(group: str, where: str, seed: int) -> dict[str, float]:
    """AUROC of every score in one draw, drawn as the experiment open-set draws."""
    pack = load(group, where)
    draw = np.random.default_rng(seed)
    hidden = draw.permutation(pack.n_classes)[: max(1, round(HELD_OUT * pack.n_classes))]
    order = draw.permutation(pack.n_samples)
    known = np.setdiff1d(np.arange(pack.n_classes), hidden)
    unknown = np.isin(pack.labels[order], hidden)
    features, prototypes = np.asarray(pack.features[order], np.float32), pack.prototypes_for()[known]
    scale = pack.logit_scale
    given = ZeroShot(prototypes, logit_scale=scale).predict(features.astype(np.float64))
    scores = {
        "zero_shot": uncertainty(given),
        "entropy": -np.sum(given * np.log(np.clip(given, np.finfo(float).tiny, None)), axis=1),
        "cosine": 1 - np.max(features @ prototypes.T, axis=1),
        "adapt_online": uncertainty(OnlineADAPT(prototypes, logit_scale=scale).adapt(features)),
        "adapt_transductive": uncertainty(TransductiveADAPT(prototypes, logit_scale=scale).adapt(features)),
    }
    for name, kind in (("online", OnlineAnchoredMixture), ("transductive", TransductiveAnchoredMixture)):
        mixture = kind(prototypes, logit_scale=scale)
        answers, scores[name] = mixture_scores(mixture, features)
        scores[f"{name}_probability"], scores[f"{name}_distance"] = uncertainty(answers), nearest(mixture, features)
    return {name: 100 * area(values, unknown) for name, values in scores.items()}


def mixture_scores(mixture: AnchoredMixture, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities (N, K) and evidence scores (N,). An online mixture scores samples before it learns from them, a
    transductive one after the whole set."""
    if mixture.protocol != "online":
        probabilities = mixture.adapt(features)
        return probabilities, evidence(mixture, features, features.mean(axis=0))
    probabilities, scores = [], []
    for start in range(0, len(features), BATCH_ROWS):
        some = features[start : start + BATCH_ROWS]
        scores.append(evidence(mixture, some, features[: max(start, 1)].mean(axis=0)))
        probabilities.append(mixture.adapt(some))
    return np.concatenate(probabilities), np.concatenate(scores)


def evidence(mixture: AnchoredMixture, features: np.ndarray, center: np.ndarray) -> np.ndarray:
    """(N,) negative log of the total evidence for all classes: the sum over classes of exp(scale (t.x - 1) - 1/2 w rho
    calm (D - D0)), with D the distance to a class and D0 that to the mean `center` of the samples so far."""
    x = features.astype(np.float64)
    precision, means, prototypes = mixture.precision_matrix, mixture.means, np.asarray(mixture.prototypes, np.float64)
    directions, to_center = means @ precision, precision @ center
    # x^T P x is in both distances and cancels.
    difference = np.sum(directions * means, axis=1) - center @ to_center - 2 * x @ (directions - to_center).T
    logs = mixture.logit_scale * (x @ prototypes.T - 1)
    logs -= 0.5 * mixture.weight * mixture.calm * mixture.reliability * difference
    largest = logs.max(axis=1)
    return -largest - np.log(np.exp(logs - largest[:, None]).sum(axis=1))


def nearest(mixture: AnchoredMixture, features: np.ndarray) -> np.ndarray:
    """(N,) squared Mahalanobis distances to the nearest class mean."""
    precision, means, x = mixture.precision_matrix, mixture.means, features.astype(np.float64)
    directions = means @ precision
    own = np.sum((x @ precision) * x, axis=1)
    return own + np.min(np.sum(directions * means, axis=1) - 2 * x @ directions.T, axis=1)


def area(scores: np.ndarray, unknown: np.ndarray) -> float:
    curve = RejectCurve()
    curve.update(scores, unknown)
    found = curve.auroc
    assert found is not None, "every pack has samples of known and of unknown classes"
    return found


def run(folders: list[Path], again: bool) -> dict[str, Any]:
    records: dict[str, Any] = json.loads(RECORDS.read_text())["records"] if RECORDS.exists() else {}
    for group, where in feature_files(folders):
        if load(group, where).views is not None:
            continue
        for seed in SEEDS:
            key = f"{group}/{Path(where).stem}/seed {seed}"
            if key in records and not again:
                continue
            with one_blas_thread():
                records[key] = measure(group, where, seed)
            print(key, {name: round(value, 1) for name, value in records[key].items()}, flush=True)
            with atomic_path(RECORDS) as temporary:
                content = {"machine": machine(), "records": records}
                temporary.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    return records


def table(records: Mapping[str, Any]) -> str:
    """The mean of the draws as Markdown, from the records alone: of every group of packs, and of every pack."""
    packs = sorted({tuple(key.split("/")[:2]) for key in records})
    means = {
        pack: {
            score: float(np.mean([records[f"{'/'.join(pack)}/seed {seed}"][score] for seed in SEEDS]))
            for score in SCORES
        }
        for pack in packs
    }
    groups = sorted({group for group, _ in packs})
    heads = [*(f"mean, {group}" for group in groups), *(name for _, name in packs)]
    lines = [f"| score | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for score, words in SCORES.items():
        by_group = [np.mean([means[pack][score] for pack in packs if pack[0] == group]) for group in groups]
        cells = [*by_group, *(means[pack][score] for pack in packs)]
        lines.append(f"| {words} | {' | '.join(f'{cell:.1f}' for cell in cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, help="folders of .npz or .safetensors feature files")
    parser.add_argument("--again", action="store_true", help="repeat draws that are recorded")
    arguments = parser.parse_args()
    found = table(run(arguments.folders, arguments.again))
    print(found)
    replace_section("mixture_reject", found)


if __name__ == "__main__":
    main()
