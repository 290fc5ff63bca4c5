"""View-based and prompt-tuning methods next to ADAPT on the two sets of features with views: results/views.md.

python benchmarks/views.py [--again]          needs ../shared/packs; resumes where it was stopped
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from sections import replace_section

from zeroshift import FeatureSet, ZeroShot, encode
from zeroshift.cli._inputs import load_features
from zeroshift.methods import AWT, RATTA

HERE = Path(__file__).parent
SETS = ("pack:views_cifar10c_fog_5", str(HERE.parents[1] / "shared/packs/eval/views_pacs_art_painting.npz"))
BOTH = ("adapt_online", "adapt_transductive", "tda", "dmn", "dota", "bca", "dpe")
"""Methods for which views are optional: one row with them and one without."""

VIEWS = ("mta", "zero", "awt", "ratta", "tps")
TEXT = ("tpt", "ctpt", "difftpt", "dynaprompt", "histpt", "b2tpt", "swapprompt")


MANY = "clip_template"
"""A mode of eighty templates, as descriptions for the methods that weight prompts: the sets have only three modes."""


def main() -> None:
    replace_section("views-prompts", many_prompts())
    methods = ["zero_shot", *(f"{name}{more}" for name in BOTH for more in ("", "+views")), *VIEWS, *TEXT]
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "views.md"
        command = [sys.executable, "-m", "zeroshift", "compare", *SETS, "--encoder", "composed"]
        command += ["--methods", ",".join(methods), "--out", str(HERE / "compare_views"), "--markdown", str(table)]
        subprocess.run([*command, *sys.argv[1:]], check=True)
        marked = table.read_text().strip()
        replace_section("views", marked.removeprefix("<!-- compare -->").removesuffix("<!-- /compare -->").strip())


def many_prompts() -> str:
    """AWT and RA-TTA with eighty prompts per class. RA-TTA's database is half of the set; the other half is scored."""
    encoder = encode.load_encoder("composed", cache=encode.default_cache())
    lines = ["| method | set | prompts per class | accuracy | zero-shot on the same rows |", "|---|---|---|---|---|"]
    for source in SETS:
        features = load_features(source, normalize=False)
        wording = encode.Prompts.named(MANY)
        prompts = encode.encode_prompts(encoder, wording.for_classes(features.class_names), templates=wording.templates)
        # An axis of the set may have the opposite sign from the encoder's: see docs/encode.md.
        own = features.prototypes_for(MANY)
        prompts = prompts * np.sign(np.sum(prompts.mean(axis=1) * own, axis=0)).astype(prompts.dtype)
        name = source.removeprefix("pack:") if ":" in source else Path(source).stem
        for method, runs in (("awt", _awt(features, prompts)), ("ratta", _ratta(features, prompts))):
            found, plain = (100 * float(np.mean(column)) for column in zip(*runs, strict=True))
            lines.append(f"| `{method}` | {name} | {prompts.shape[1]} | {found:.1f} | {plain:.1f} |")
    return "\n".join(lines)


def _awt(features: FeatureSet, prompts: np.ndarray) -> list[tuple[float, float]]:
    method = AWT(features.prototypes_for(), logit_scale=features.logit_scale, prompts=prompts)
    return [_scored(features, method.adapt_views(features.views), np.arange(features.n_samples))]


def _ratta(features: FeatureSet, prompts: np.ndarray) -> list[tuple[float, float]]:
    runs = []
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(features.n_samples)
        database, rows = np.split(order, [features.n_samples // 2])
        given = {"prompts": prompts, "unlabelled": np.asarray(features.features[database])}
        method = RATTA(features.prototypes_for(), logit_scale=features.logit_scale, **given)
        runs.append(_scored(features, method.adapt_views(features.views[rows]), rows))
    return runs


def _scored(features: FeatureSet, answer: np.ndarray, rows: np.ndarray) -> tuple[float, float]:
    labels = features.labels[rows]
    plain = ZeroShot(features.prototypes_for(), logit_scale=features.logit_scale).predict(features.features[rows])
    return float((answer.argmax(1) == labels).mean()), float((plain.argmax(1) == labels).mean())


if __name__ == "__main__":
    main()
