"""Tip-Adapter, training-free: labelled samples vote through a kernel, in addition to the zero-shot logits."""

from __future__ import annotations

import torch
from torch import Tensor

from plain.common import accuracy


def scores(
    features: Tensor,
    prototypes: Tensor,
    *,
    support: tuple[Tensor, Tensor],
    validation: tuple[Tensor, Tensor] | None = None,
    logit_scale: float = 100.0,
    alpha: float = 1.17,
    beta: float = 1.0,
    search_scale: tuple[float, float] = (7.0, 3.0),
    search_steps: tuple[int, int] = (200, 20),
    details: dict | None = None,
) -> Tensor:
    """Logits (N, K). With validation samples alpha and beta are searched, up to `search_scale` (beta's, alpha's)."""
    keys, labels = support
    values = torch.nn.functional.one_hot(labels, len(prototypes)).to(keys.dtype)

    if validation is not None:
        zero_shot = logit_scale * validation[0] @ prototypes.T
        affinity = validation[0] @ keys.T
        alpha, beta, best = 0.0, 0.0, 0.0
        for try_beta in _steps(search_scale[0], search_steps[0]):
            cache = torch.exp(-(try_beta - try_beta * affinity)) @ values
            for try_alpha in _steps(search_scale[1], search_steps[1]):
                right = accuracy(zero_shot + try_alpha * cache, validation[1])
                if right > best:
                    alpha, beta, best = try_alpha, try_beta, right
    if details is not None:
        details["alpha"], details["beta"] = alpha, beta
    cache = torch.exp(-(beta - beta * (features @ keys.T))) @ values
    return logit_scale * features @ prototypes.T + alpha * cache


def _steps(end: float, count: int) -> list[float]:
    return [0.1 + i * (end - 0.1) / count for i in range(count)]
