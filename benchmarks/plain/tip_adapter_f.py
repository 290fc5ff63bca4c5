"""Tip-Adapter-F: Tip-Adapter whose keys are trained with AdamW on the labelled samples."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from plain import tip_adapter
from plain.common import accuracy, few_shot_batches


def scores(
    features: Tensor,
    prototypes: Tensor,
    *,
    support: tuple[Tensor, Tensor],
    validation: tuple[Tensor, Tensor] | None = None,
    selection: tuple[Tensor, Tensor] | None = None,
    logit_scale: float = 100.0,
    alpha: float = 1.17,
    beta: float = 1.0,
    search_scale: tuple[float, float] = (7.0, 3.0),
    search_steps: tuple[int, int] = (200, 20),
    rate: float = 1e-3,
    epochs: int = 20,
    batch: int = 256,
    order: Tensor | None = None,
    details: dict | None = None,
) -> Tensor:
    """Logits (N, K). `selection`: samples by which the epoch is chosen, which the authors do on the test set."""
    x, labels = support
    values = torch.nn.functional.one_hot(labels, len(prototypes)).to(x.dtype)
    keys = x.clone().requires_grad_()

    def logits(x: Tensor) -> Tensor:
        cache = torch.exp(-(beta - beta * (x @ keys.T))) @ values
        return logit_scale * x @ prototypes.T + alpha * cache

    optimizer = torch.optim.AdamW([keys], eps=1e-4, weight_decay=0.01)
    steps = epochs * math.ceil(len(x) / batch)
    losses, accuracies, best = [], [], None
    for epoch in range(epochs):
        for rows in few_shot_batches(len(x), batch, epoch, order, drop_last=False):
            optimizer.param_groups[0]["lr"] = rate * (1 + math.cos(math.pi * len(losses) / steps)) / 2
            loss = torch.nn.functional.cross_entropy(logits(x[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        if selection is not None:
            with torch.no_grad():
                right = accuracy(logits(selection[0]), selection[1])
            if best is None or right > max(accuracies):
                best = keys.detach().clone()
            accuracies.append(right)
    keys = keys.detach() if best is None else best
    if details is not None:
        details.update(losses=torch.stack(losses), keys=keys, accuracies=accuracies)
    return tip_adapter.scores(
        features,
        prototypes,
        support=(keys, labels),
        validation=validation,
        logit_scale=logit_scale,
        alpha=alpha,
        beta=beta,
        search_scale=search_scale,
        search_steps=search_steps,
        details=details,
    )
