"""Histo-TransCLIP: TransCLIP with the plain mean of each class's prompts as prototype."""

from __future__ import annotations

from torch import Tensor

from plain import transclip
from plain.common import unit


def scores(
    features: Tensor,
    prototypes: Tensor | None = None,
    *,
    prompts: Tensor,
    renormalise: bool = False,
    logit_scale: float = 100.0,
    **parameters,
) -> Tensor:
    """Assignments (N, K) from prompts (K, P, d); `prototypes` is not used. Parameters as `transclip.scores`."""
    means = unit(prompts).mean(1)
    return transclip.scores(features, unit(means) if renormalise else means, logit_scale=logit_scale, **parameters)
