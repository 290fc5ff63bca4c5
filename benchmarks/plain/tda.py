"""TDA: caches of the most confident samples of every class, and of uncertain ones, vote on each new sample."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from plain.common import SampleSummary, summarise


def scores(
    features: Tensor,
    prototypes: Tensor,
    *,
    logit_scale: float = 100.0,
    positive: bool = True,
    positive_capacity: int = 3,
    positive_alpha: float = 2.0,
    positive_beta: float = 5.0,
    negative: bool = True,
    negative_capacity: int = 2,
    negative_alpha: float = 0.117,
    negative_beta: float = 1.0,
    entropy_window: tuple[float, float] = (0.2, 0.5),
    probability_window: tuple[float, float] = (0.03, 1.0),
    released: bool = False,
    details: dict | None = None,
) -> Tensor:
    """Logits (N, K) of features (N, d) or views (N, V, d); each sample is learned from, then predicted."""
    K = len(prototypes)
    largest = math.log2(K) if released else math.log(K)
    low, high = entropy_window
    positives: dict[int, list[SampleSummary]] = {}
    negatives: dict[int, list[SampleSummary]] = {}
    answers, selected = [], []
    for sample in features:
        summary = summarise(sample, prototypes, logit_scale)
        selected.append(summary.kept)
        label = int(summary.logits.argmax())
        if positive:
            _insert(positives, label, summary, positive_capacity)
        if negative and low < summary.entropy / largest < high:
            _insert(negatives, label, summary, negative_capacity)

        logits = summary.logits.clone()
        if positives:
            keys = torch.stack([item.feature for k in positives for item in positives[k]])
            labels = torch.tensor([k for k in positives for _ in positives[k]], device=keys.device)
            votes = torch.nn.functional.one_hot(labels, K).to(keys.dtype)
            logits += positive_alpha * torch.exp(-positive_beta * (1 - keys @ summary.feature)) @ votes
        if negatives:
            keys = torch.stack([item.feature for k in negatives for item in negatives[k]])
            p = torch.stack([item.probabilities for k in negatives for item in negatives[k]])
            votes = ((probability_window[0] < p) & (p < probability_window[1])).to(keys.dtype)
            logits -= negative_alpha * torch.exp(-negative_beta * (1 - keys @ summary.feature)) @ votes
        answers.append(logits)
    if details is not None:
        details["selected_views"] = torch.stack(selected)
        details["positives"], details["negatives"] = positives, negatives
    return torch.stack(answers)


def _insert(cache: dict[int, list[SampleSummary]], label: int, summary: SampleSummary, capacity: int) -> None:
    items = cache.setdefault(label, [])
    if len(items) < capacity:
        items.append(summary)
    elif summary.entropy < items[-1].entropy:
        items[-1] = summary
    items.sort(key=lambda item: item.entropy)
