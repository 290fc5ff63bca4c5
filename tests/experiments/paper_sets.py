"""Small synthetic sets with the provenance of the paper's sets."""

from __future__ import annotations

import numpy as np

from zeroshift import FeatureSet, normalize
from zeroshift.data import catalogue, packs
from zeroshift.data.corruptions import KINDS
from zeroshift.experiments import Suite

ROWS = 24
VITB16 = "openai/clip-vit-base-patch16"
RN50 = "open_clip:RN50/openai"


def shrink_catalogue(monkeypatch) -> None:
    """Pretend that every data set of the catalogue has only `ROWS` test images."""
    for info in catalogue.list():
        monkeypatch.setitem(info.counts, "test", ROWS)


def made_up(provenance=None, *, rows: int = ROWS, prompts=("vanilla",), seed: int = 0) -> FeatureSet:
    """Labelled features of four classes in eight dimensions; each prompt mode has prototypes of its own."""
    random = np.random.default_rng(seed)
    labels = np.arange(rows) % 4
    centres = normalize(random.normal(size=(4, 8)))
    features = normalize(centres[labels] + 0.4 * random.normal(size=(rows, 8)))
    modes = {mode: normalize(centres + 0.3 * random.normal(size=(4, 8))) for mode in prompts}
    return FeatureSet(features, prototypes=modes, labels=labels, default_prompt=prompts[0], provenance=provenance)


def papers_set(data_set: str, *, encoder: str = VITB16, rows: int = ROWS, prompts=("descriptions",), **images):
    """A set whose provenance is that of `zeroshift extract` on a data set of the catalogue."""
    provenance = {"images": {"source": "catalogue", "data_set": data_set, "split": "test", **images}}
    title = " ".join(map(str, (data_set, *images.values())))
    seed = sum(map(ord, data_set + encoder + title))
    return made_up(
        {**provenance, "encoder": {"source": encoder}, "title": title}, rows=rows, prompts=prompts, seed=seed
    )


def imagenet_c(severities=(5,), *, kinds=KINDS, encoder: str = VITB16, rows: int = ROWS) -> dict[str, FeatureSet]:
    return {
        f"{kind}_{severity}": papers_set("imagenet_c", encoder=encoder, rows=rows, corruption=kind, severity=severity)
        for severity in severities
        for kind in kinds
    }


def first_rows(names, rows: int) -> Suite:
    """The first samples of bundled packs."""
    return Suite.of({name: packs.load(name).subset(slice(0, rows)) for name in names})
