"""The work of `zeroshift demo`: which packs, and the methods on each."""

from __future__ import annotations

from collections.abc import Mapping

from zeroshift import methods
from zeroshift.cli.progress import progress_bar
from zeroshift.data import packs
from zeroshift.evaluate import Comparison, Step, compare
from zeroshift.features import FeatureSet
from zeroshift.method import Method

__all__ = ["compare_on", "load_packs"]

METHODS = (
    "zero_shot", "adapt_online", "anchored_mixture_online", "adapt_transductive", "anchored_mixture_transductive",
)  # fmt: skip
"""Those of one protocol beside each other: online and transductive answers are different questions."""

COUNTED = ("adapt_online", "anchored_mixture_online")
"""The methods whose samples the progress bar counts; the others take a blink."""

EVERY = 20
"""Samples between two looks at the bank: fine enough for a figure of its filling."""


def load_packs(wanted: str | None) -> dict[str, FeatureSet]:
    """The packs named in `wanted`, each once; without it, all that hold plain features rather than views."""
    infos = packs.list()
    if wanted is None:
        names = [info.name for info in infos if info.n_views == 0]
    else:
        names = [name.strip() for name in wanted.split(",") if name.strip()]
    if not names:
        raise ValueError(f"--packs names no pack. Fix: one or more of {', '.join(info.name for info in infos)}.")
    return {name: packs.load(name) for name in names}


def compare_on(loaded: Mapping[str, FeatureSet]) -> list[Comparison]:
    """Every method on every set, with the library's defaults and the set's own logit scale and prompts."""
    with progress_bar("adapting", len(COUNTED) * sum(pack.n_samples for pack in loaded.values())) as advance:

        def on_step(running: Method, step: Step) -> None:
            if running.name in COUNTED:
                advance(step.stop - step.start, name)

        comparisons = []
        for name, pack in loaded.items():
            chosen = [methods.create(m, pack.prototypes_for(), logit_scale=pack.logit_scale) for m in METHODS]
            comparisons.append(compare(pack, chosen, name=name, every=EVERY, progress=on_step))
    return comparisons
