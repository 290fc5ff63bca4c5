"""StatA: TransCLIP with a variance for every class, and mean and variance anchored at the text."""

from __future__ import annotations

import torch
from torch import Tensor

from plain.common import nearest_neighbours, unit
from plain.transclip import TEMPERATURE, assign, log_likelihood

CHUNK = 2500


def scores(
    features: Tensor,
    prototypes: Tensor,
    *,
    logit_scale: float = 100.0,
    anchor: float = 1.0,
    soft_counts: bool = False,
    text_weight: float = 1.0,
    neighbour_weight: float = 1.0,
    neighbours: int = 3,
    iterations: int = 10,
    inner_iterations: int = 5,
    batch_size: int | None = None,
    released: bool = False,
) -> Tensor:
    """Assignments (N, K) of features (N, d), all at once or in batches that know nothing of each other."""
    given = {name: value for name, value in locals().items() if name not in ("features", "prototypes")}
    if batch_size is not None:
        given["batch_size"] = None
        return torch.cat([scores(x, prototypes, **given) for x in features.split(batch_size)])
    text = torch.softmax(logit_scale * features @ prototypes.T, dim=1)
    z = text
    means = prototypes
    first_variance = _first_variance(features, z, prototypes, released)
    variances = first_variance.repeat(len(prototypes), 1)
    W = nearest_neighbours(features, neighbours)
    for iteration in range(iterations + 1):
        likelihood = log_likelihood(features, means, variances)
        for _ in range(inner_iterations):
            pull = neighbour_weight * TEMPERATURE / (2 * neighbours) * (torch.sparse.mm(W.T, z) + torch.sparse.mm(W, z))
            z = assign(text**text_weight, likelihood + pull - 0.5 * variances.log().sum(1))
        if iteration < iterations:
            mass = z.sum(0).clamp(min=1e-12)[:, None]
            count = z.sum(0) if soft_counts else torch.bincount(z.argmax(1), minlength=len(prototypes)).to(z.dtype)
            beta = (count / (anchor + count + 1e-12))[:, None]
            means = unit(beta * unit(z.T @ features / mass) + (1 - beta) * prototypes)
            spread = torch.stack([z[:, k] @ (features - mean) ** 2 for k, mean in enumerate(means)]) / mass
            variances = beta * spread + (1 - beta) * (first_variance + (prototypes - means) ** 2)
    return z


def _first_variance(features: Tensor, z: Tensor, prototypes: Tensor, released: bool) -> Tensor:
    """sum_ik z_ik (x_i - t_k)^2 / N. The released code divides by N again after every chunk of rows."""
    N = len(features)
    total = torch.zeros_like(prototypes[0])
    for start in range(0, N, CHUNK):
        rows = slice(start, start + CHUNK)
        for k, prototype in enumerate(prototypes):
            total = total + z[rows, k] @ (features[rows] - prototype) ** 2
        if released:
            total = total / N
    return total if released else total / N
