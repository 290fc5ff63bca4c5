"""PTA: averages of the samples of every class refine a second classifier."""

from __future__ import annotations

import torch
from torch import Tensor

from plain.common import summarise, unit


def scores(
    features: Tensor,
    prototypes: Tensor,
    *,
    logit_scale: float = 100.0,
    alpha: float = 0.01,
    temperature: float = 20.0,
    threshold: float = 0.1,
    details: dict | None = None,
) -> Tensor:
    """Logits (N, K) of features (N, d) or views (N, V, d); each sample is learned from, then predicted."""
    averages, refined = torch.zeros_like(prototypes), prototypes.clone()
    answers = []
    for sample in features:
        if sample.ndim == 1:
            x, logits = sample, logit_scale * prototypes @ sample
        else:
            summary = summarise(sample, prototypes, logit_scale)
            x, logits = summary.feature, summary.logits
        p = torch.softmax(logits, dim=0)
        w = torch.where(p >= threshold, 1 - torch.exp(-p / temperature), torch.zeros_like(p))[:, None]
        averages = (1 - w) * averages + w * x
        refined = unit(alpha * refined + (1 - alpha) * averages)
        answers.append(logits + logit_scale * refined @ x)
    if details is not None:
        details["final_refined"], details["final_prototype"] = refined, averages
    return torch.stack(answers)
