"""TransCLIP: one Gaussian per class with a shared diagonal variance, text as prior, neighbours predicted alike."""

from __future__ import annotations

import torch
from torch import Tensor

from plain.common import accuracy, nearest_neighbours, sparse_rows, unit

TEMPERATURE = 50.0


def scores(
    features: Tensor,
    prototypes: Tensor,
    *,
    logit_scale: float = 100.0,
    text_weight: float = 1.0,
    neighbours: int = 3,
    confident: int = 8,
    iterations: int = 10,
    inner_iterations: int = 5,
    start_at_prototypes: bool = False,
    details: dict | None = None,
) -> Tensor:
    """Zero-shot: assignments (N, K) of features (N, d). StatA's copy of the method starts at the prototypes."""
    N, d = features.shape
    text = torch.softmax(logit_scale * features @ prototypes.T, dim=1)
    z = text
    if start_at_prototypes:
        means = prototypes
    else:
        weight, index = torch.topk(z, min(confident, N), dim=0)
        means = unit(torch.stack([(w[:, None] * features[i]).mean(0) for w, i in zip(weight.T, index.T, strict=True)]))
    if details is not None:
        details["init_mu"] = means
    variance = torch.full((d,), 1 / d, dtype=features.dtype, device=features.device)
    W = nearest_neighbours(features, neighbours)
    if details is not None:
        details["affinity"] = W
    for iteration in range(iterations + 1):
        likelihood = log_likelihood(features, means, variance.expand_as(means))
        for _ in range(inner_iterations):
            pull = torch.sparse.mm(W.T, z) + torch.sparse.mm(W, z)
            z = assign(text**text_weight, likelihood + TEMPERATURE / (2 * neighbours) * pull)
        if iteration < iterations:
            means = unit(z.T @ features / z.sum(0)[:, None])
            variance = _scatter(features, z, means) / z.sum()
    return z


def few_shot_scores(
    features: Tensor,
    prototypes: Tensor,
    *,
    support: tuple[Tensor, Tensor],
    validation: tuple[Tensor, Tensor] | None = None,
    logit_scale: float = 100.0,
    text_weight: float = 0.5,
    gammas: tuple[float, ...] = (0.002, 0.01, 0.02, 0.2),
    neighbours: int = 3,
    iterations: int = 10,
    inner_iterations: int = 5,
    released: bool = False,
    details: dict | None = None,
) -> Tensor:
    """Few-shot: each gamma continues from the one before. The answer is that of the gamma best on validation samples.

    Without a validation set, and as the released solver returns it, the answer is that of the last gamma.
    """
    N, d = features.shape
    shots, labels = support
    K, S = len(prototypes), len(shots)
    one_hot = torch.nn.functional.one_hot(labels, K).to(features.dtype)
    text = torch.softmax(logit_scale * features @ prototypes.T, dim=1)
    z = text
    means = unit(one_hot.T @ shots)
    variance = torch.full((d,), 1 / d, dtype=features.dtype, device=features.device)

    # Rows: the support, then the samples; columns: the samples. A sample's nearest is itself, a support's is not.
    values, columns = torch.topk(torch.cat([shots, features]) @ features.T, neighbours + 1)
    own = torch.arange(S + N, device=features.device)[:, None] >= (0 if released else S)
    values = torch.where(own, values[:, 1:], values[:, :-1])
    columns = torch.where(own, columns[:, 1:], columns[:, :-1])
    W = sparse_rows(values, columns, N)

    answers, right = [], []
    for gamma in gammas:
        for iteration in range(iterations + 1):
            likelihood = log_likelihood(features, means, variance.expand_as(means))
            for _ in range(inner_iterations):
                if released:
                    pull = torch.sparse.mm(W.T, torch.cat([z, one_hot])) + torch.sparse.mm(W, z)[:N]
                else:
                    pull = torch.sparse.mm(W.T, torch.cat([one_hot, z])) + torch.sparse.mm(W, z)[S:]
                z = assign(text**text_weight, likelihood + TEMPERATURE / (2 * neighbours) * pull)
            if iteration < iterations:
                weight = TEMPERATURE * gamma / S
                total = z.T @ features / N + weight * one_hot.T @ shots
                means = unit(total / (z.sum(0) / N + weight * one_hot.sum(0))[:, None])
                scatter = _scatter(features, z, means) / N + weight * ((shots - means[labels]) ** 2).sum(0)
                variance = scatter / (1 + TEMPERATURE * gamma)
        answers.append(z)
        if validation is not None:
            right.append(accuracy(z[(validation[0] @ features.T).argmax(1)], validation[1]))
    best = right.index(max(right)) if right else len(gammas) - 1
    if details is not None:
        details["all_gamma"], details["best"] = torch.stack(answers), best
    return answers[-1] if released else answers[best]


def log_likelihood(features: Tensor, means: Tensor, variances: Tensor) -> Tensor:
    """-1/2 sum_j (x_j - mu_kj)^2 / v_kj, without the determinant."""
    return torch.stack(
        [-0.5 * ((features - mean) ** 2 / v).sum(1) for mean, v in zip(means, variances, strict=True)], 1
    )


def assign(prior: Tensor, energy: Tensor) -> Tensor:
    z = prior * torch.exp((energy - energy.max(1, keepdim=True).values) / TEMPERATURE)
    return z / z.sum(1, keepdim=True)


def _scatter(features: Tensor, z: Tensor, means: Tensor) -> Tensor:
    total = torch.zeros_like(means[0])
    for k, mean in enumerate(means):
        total += z[:, k] @ (features - mean) ** 2
    return total
