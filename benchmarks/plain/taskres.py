"""TaskRes: residuals of the text prototypes, trained with Adam on labelled samples."""

from __future__ import annotations

import torch
from torch import Tensor

from plain.common import epoch_rate, few_shot_batches, unit


def scores(
    features: Tensor,
    prototypes: Tensor,
    *,
    support: tuple[Tensor, Tensor],
    logit_scale: float = 100.0,
    alpha: float = 0.5,
    base_norm: float = 1.0,
    rate: float = 2e-3,
    epochs: int | None = None,
    batch: int = 256,
    order: Tensor | None = None,
    details: dict | None = None,
) -> Tensor:
    """Logits (N, K). `order`: the order of the support samples in each epoch, by default random."""
    x, labels = support
    if epochs is None:
        epochs = 100 if torch.bincount(labels).max() <= 4 else 200
    residual = torch.zeros_like(prototypes, requires_grad=True)

    def logits(x: Tensor) -> Tensor:
        return logit_scale * x @ unit(base_norm * prototypes + alpha * residual).T

    optimizer = torch.optim.Adam([residual], weight_decay=5e-4)
    losses = []
    for epoch in range(epochs):
        optimizer.param_groups[0]["lr"] = epoch_rate(epoch, epochs, rate)
        for rows in few_shot_batches(len(x), batch, epoch, order):
            loss = torch.nn.functional.cross_entropy(logits(x[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    if details is not None:
        details["losses"], details["residual"] = torch.stack(losses), residual.detach()
    with torch.no_grad():
        return logits(features)
