"""CLIP-Adapter: two layers after the image encoder, trained with gradient descent on labelled samples."""

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
    ratio: float = 0.2,
    reduction: int = 4,
    adam: bool = False,
    rate: float = 2e-3,
    epochs: int = 50,
    batch: int = 32,
    initial: tuple[Tensor, Tensor] | None = None,
    order: Tensor | None = None,
    details: dict | None = None,
) -> Tensor:
    """Logits (N, K). `initial`: the first weights (h, d) and (d, h), by default those of torch's layers."""
    x, labels = support
    d = x.shape[1]
    layers = [torch.nn.Linear(d, d // reduction, bias=False), torch.nn.Linear(d // reduction, d, bias=False)]
    for layer, weight in zip(layers, initial or (), strict=False):
        layer.weight.data = weight.clone()
    model = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU()).to(x.device, x.dtype)

    def logits(x: Tensor) -> Tensor:
        return logit_scale * unit(ratio * model(x) + (1 - ratio) * x) @ prototypes.T

    if adam:
        optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), weight_decay=5e-4)
    else:
        optimizer = torch.optim.SGD(model.parameters(), momentum=0.9, weight_decay=5e-4)
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
        details["losses"] = torch.stack(losses)
        details["layers"] = tuple(layer.weight.detach() for layer in layers)
    with torch.no_grad():
        return logits(features)
