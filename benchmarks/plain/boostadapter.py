"""BoostAdapter: TDA's caches, and for each prediction the confident views of the image itself."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from plain.common import SampleSummary, entropy, summarise


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
    view_ratio: float = 0.1,
    delta: int | None = 3,
    view_feature: str = "average",
    released: bool = False,
    details: dict | None = None,
) -> Tensor:
    """Logits (N, K) of features (N, d) or views (N, V, d); each sample is learned from, then predicted."""
    K = len(prototypes)
    largest = math.log2(K) if released else math.log(K)
    low, high = entropy_window
    # Entries: entropy, feature.
    positives: dict[int, list[tuple[float, Tensor]]] = {}
    negatives: dict[int, list[SampleSummary]] = {}
    answers, selected = [], []
    for sample in features:
        views = sample[None] if sample.ndim == 1 else sample
        summary = summarise(views if view_feature == "average" else views[0], prototypes, logit_scale, view_ratio)
        x, label = summary.feature, int(summary.logits.argmax())
        boosted = {}
        if positive:
            _insert(positives, label, (summary.entropy, x), positive_capacity)
            boosted = {k: list(items) for k, items in positives.items()}
        if positive and delta is not None:
            logits = logit_scale * views @ prototypes.T
            H = entropy(logits)
            kept = torch.argsort(H)[: int(view_ratio * len(views))]
            selected.append(kept)
            for v in kept.tolist():
                _insert(boosted, int(logits[v].argmax()), (H[v].item(), views[v]), positive_capacity + delta)
        if negative and low < summary.entropy / largest < high:
            queue = negatives.setdefault(label, [])
            queue.append(summary)
            del queue[:-negative_capacity]

        answer = summary.logits.clone()
        if boosted:
            keys = torch.stack([key for k in boosted for _, key in boosted[k]])
            labels = torch.tensor([k for k in boosted for _ in boosted[k]], device=keys.device)
            votes = torch.nn.functional.one_hot(labels, K).to(keys.dtype)
            answer += positive_alpha * torch.exp(-positive_beta * (1 - keys @ x)) @ votes
        if negatives:
            keys = torch.stack([item.feature for k in negatives for item in negatives[k]])
            p = torch.stack([item.probabilities for k in negatives for item in negatives[k]])
            votes = ((probability_window[0] < p) & (p < probability_window[1])).to(keys.dtype)
            answer -= negative_alpha * torch.exp(-negative_beta * (1 - keys @ x)) @ votes
        answers.append(answer)
    if details is not None:
        details["positives"], details["negatives"], details["boost_views"] = positives, negatives, selected
    return torch.stack(answers)


def _insert(cache: dict[int, list[tuple[float, Tensor]]], label: int, item: tuple[float, Tensor], places: int) -> None:
    items = cache.setdefault(label, [])
    items.append(item)
    items.sort(key=lambda one: one[0])
    del items[places:]
