"""APE, training-free: Tip-Adapter on the channels that separate the classes, with weighted keys."""

from __future__ import annotations

import torch
from torch import Tensor

from plain.common import accuracy, unit

SMALL = 1e-6


def scores(
    features: Tensor,
    prototypes: Tensor,
    *,
    support: tuple[Tensor, Tensor],
    validation: tuple[Tensor, Tensor] | None = None,
    logit_scale: float = 100.0,
    channel_share: float = 0.5,
    criterion_weights: tuple[float, float] = (0.7, 0.3),
    alpha: float = 2.0,
    beta: float = 1.0,
    gamma: float = 0.1,
    search_scale: tuple[float, float] = (7.0, 7.0),
    search_steps: tuple[int, int] = (200, 20),
    gamma_scale: float = 0.5,
    gamma_steps: int = 5,
    details: dict | None = None,
) -> Tensor:
    """Logits (N, K). With validation samples alpha, beta and gamma are searched, the former two up to `search_scale`
    (beta's, alpha's)."""
    keys, labels = support
    K, d = prototypes.shape
    values = torch.nn.functional.one_hot(labels, K).to(keys.dtype)
    similarity = _similarity(torch.cat([prototypes, keys]), torch.cat([torch.arange(K, device=labels.device), labels]))
    criterion = criterion_weights[1] * prototypes.var(0) - criterion_weights[0] * similarity
    channels = torch.topk(criterion, max(1, round(channel_share * d))).indices

    refined_keys = unit(keys[:, channels])
    u = torch.softmax(refined_keys @ unit(prototypes[:, channels]).T, dim=1)
    divergence = (values * torch.log2((values + SMALL) / (u + SMALL))).sum(1)

    def affinities(x: Tensor) -> Tensor:
        return unit(x[:, channels]) @ refined_keys.T

    if validation is not None:
        zero_shot, affinity = logit_scale * validation[0] @ prototypes.T, affinities(validation[0])
        best = 0.0
        for try_beta in _steps(0.1, search_scale[0], search_steps[0]):
            kernel = torch.exp(-try_beta * (1 - affinity))
            caches = [
                (try_gamma, kernel @ (torch.exp(try_gamma * divergence)[:, None] * values))
                for try_gamma in _steps(0.0, gamma_scale, gamma_steps)
            ]
            for try_alpha in _steps(0.1, search_scale[1], search_steps[1]):
                for try_gamma, cache in caches:
                    right = accuracy(zero_shot + try_alpha * cache, validation[1])
                    if right > best:
                        alpha, beta, gamma, best = try_alpha, try_beta, try_gamma, right
    if details is not None:
        details.update(alpha=alpha, beta=beta, gamma=gamma)
        details.update(channels=channels, similarity=similarity, divergence=divergence)
    weighted = torch.exp(gamma * divergence)[:, None] * values
    cache = torch.exp(-beta * (1 - affinities(features))) @ weighted
    return logit_scale * features @ prototypes.T + alpha * cache


def _similarity(samples: Tensor, labels: Tensor) -> Tensor:
    """Mean over all pairs of samples (n, d) of different classes of the products of their entries, (d,)."""
    different = (labels[:, None] != labels[None, :]).to(samples.dtype)
    return torch.einsum("id,ij,jd->d", samples, different, samples) / different.sum()


def _steps(start: float, end: float, count: int) -> list[float]:
    return [start + i * (end - start) / count for i in range(count)]
