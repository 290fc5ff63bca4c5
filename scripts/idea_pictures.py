"""Draw the pictures that explain ADAPT, the mixture and the engines in docs/: `python scripts/idea_pictures.py`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from zeroshift import methods
from zeroshift.adapt.bank import KnowledgeBank
from zeroshift.arrays import Backend
from zeroshift.data import packs
from zeroshift.evaluate import compare
from zeroshift.report.feature_cloud import cloud_figure, cloud_of
from zeroshift.report.style import INK, METHOD_COLOURS, TEXT, new_figure, save_figure
from zeroshift.zero_shot import zero_shot_stats

IMAGES = Path(__file__).parents[1] / "docs" / "images"

CLOUDS = {"adapt_idea": "adapt_transductive", "mixture_idea": "anchored_mixture_transductive"}

FIRST, SHOWN, BANK_SIZE, BLOCK = 200, 48, 16, 16
"""The engines are shown on these samples of CIFAR-10. In practice a block of replay is longer."""

ENGINES = {
    "direct": "after every insertion, all statistics and the inverse from scratch",
    "streaming": "after every insertion, a small update of the statistics and of the inverse",
    "replay": "first all insertions, which zero-shot decides; then predictions in blocks, as matrix products",
}

IDLE, ENTERED, WORK = "#c9d1d9", METHOD_COLOURS["adapt_transductive"], METHOD_COLOURS["adapt_online"]


def main() -> None:
    pack = packs.load("cifar10")
    figures = {"engines_idea": engines_figure()}
    for name, method in CLOUDS.items():
        both = [methods.create(m, pack.prototypes_for(), logit_scale=pack.logit_scale) for m in ("zero_shot", method)]
        cloud = cloud_of(compare(pack, both, name="cifar10"), method)
        assert cloud is not None
        figures[name] = cloud_figure(cloud)
        print(f"{name}: {cloud.caption}")
    for name, figure in figures.items():
        save_figure(figure, IMAGES, name, (".png",))


def engines_figure() -> Figure:
    """What each engine computes for the same samples."""
    entered = insertions()[FIRST : FIRST + SHOWN]
    figure = new_figure(7.2, 3.0)
    for axes, (engine, text) in zip(figure.subplots(3, 1), ENGINES.items(), strict=True):
        axes.set_title(f"{engine}: {text}", loc="left", fontsize=TEXT + 0.5, color=INK)
        for i, enters in enumerate(entered):
            axes.add_patch(Rectangle((i + 0.1, 0), 0.8, 0.3, color=ENTERED if enters else IDLE))
            if engine != "replay":
                height = 0.06 if not enters else 1.0 if engine == "direct" else 0.3
                axes.add_patch(Rectangle((i + 0.1, 0.4), 0.8, height, color=WORK))
        if engine == "replay":
            axes.add_patch(Rectangle((0.1, 0.4), SHOWN - 0.2, 0.15, color=ENTERED, alpha=0.6))
            for start in range(0, SHOWN, BLOCK):
                axes.add_patch(Rectangle((start + 0.1, 0.65), BLOCK - 0.2, 0.35, color=WORK))
        axes.set(xlim=(0, SHOWN), ylim=(-0.05, 1.45))
        axes.axis("off")
    keys = {"a sample that enters its bank": ENTERED, "a sample that does not": IDLE, "computation": WORK}
    handles = [Patch(color=colour, label=label) for label, colour in keys.items()]
    figure.legend(handles=handles, loc="outside lower left", ncols=3, frameon=False, fontsize=TEXT, labelcolor=INK)
    return figure


def insertions() -> np.ndarray:
    """Whether each sample of CIFAR-10 enters its bank."""
    pack = packs.load("cifar10")
    prototypes = pack.prototypes_for().astype(np.float64)
    stats = zero_shot_stats(pack.features.astype(np.float64), prototypes, pack.logit_scale)
    bank = KnowledgeBank(Backend.of(prototypes), pack.n_classes, pack.dimension, BANK_SIZE)
    entered = np.zeros(pack.n_samples, dtype=bool)
    entered[bank.plan(stats.classes, stats.confidences).rows] = True
    return entered


if __name__ == "__main__":
    main()
