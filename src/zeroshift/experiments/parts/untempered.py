"""The anchored mixtures' own probabilities, before the one temperature that is found without labels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

# By module: the key of the work follows these, so that other code is other work.
from zeroshift.evaluate.tallies.scorecard import Scorecard
from zeroshift.evaluate.threads import one_blas_thread
from zeroshift.features import FeatureSet
from zeroshift.mixture.base import AnchoredMixture
from zeroshift.mixture.online import OnlineAnchoredMixture
from zeroshift.mixture.statistics import Mixture
from zeroshift.mixture.sums import Sums
from zeroshift.mixture.transductive import TransductiveAnchoredMixture

__all__ = ["UNTEMPERED", "untempered"]


class _Untempered(AnchoredMixture):
    """Nothing is learned from the temperature, so that all else, the labels given too, stays as it is."""

    def _estimated(self, sums: Sums) -> Mixture | None:
        found = super()._estimated(sums)
        return None if found is None else replace(found, temperature=1.0)


class _UntemperedOnline(_Untempered, OnlineAnchoredMixture):
    pass


class _UntemperedTransductive(_Untempered, TransductiveAnchoredMixture):
    pass


UNTEMPERED: dict[str, type[AnchoredMixture]] = {
    OnlineAnchoredMixture.name: _UntemperedOnline,
    TransductiveAnchoredMixture.name: _UntemperedTransductive,
}
"""The mixtures by their names, each without its temperature."""


def untempered(features: FeatureSet, *, prompt: str, method: str, seed: int) -> dict[str, Any]:
    """A mixture on a labelled set, in the order a run with this seed has, and what a run's record says of its answers:
    `accuracy`, `calibration_error`, `nll`, `brier` and the bins, as its own, untempered probabilities have them."""
    if method not in UNTEMPERED:
        raise ValueError(f"method must be one of {', '.join(UNTEMPERED)}; got {method!r}.")
    if features.labels is None:
        raise ValueError(f"features must be labelled; got {features!r}.")
    order = np.random.default_rng(seed).permutation(features.n_samples)
    mixture = UNTEMPERED[method](features.prototypes_for(prompt), logit_scale=features.logit_scale)
    card = Scorecard(features.n_classes)
    with one_blas_thread():
        card.update(mixture.adapt(np.asarray(features.features[order])), features.labels[order])
    return {**card.record(), "detail": card.detail()}
