"""DOTA: a Gaussian for every class, learned from soft labels; each sample is predicted before it is learned from."""

from __future__ import annotations

import torch
from torch import Tensor

from plain.common import summarise


def scores(
    features: Tensor,
    prototypes: Tensor,
    *,
    logit_scale: float = 100.0,
    epsilon: float = 1e-4,
    sigma: float = 0.002,
    eta: float = 0.3,
    rho: float = 0.02,
    initial_means: Tensor | None = None,
    details: dict | None = None,
) -> Tensor:
    """Logits (N, K) of features (N, d) or views (N, V, d)."""
    K, d = prototypes.shape
    eye = torch.eye(d, dtype=prototypes.dtype, device=prototypes.device)
    means = torch.full_like(prototypes, 0.001) if initial_means is None else initial_means.clone()
    covariances = sigma * eye.repeat(K, 1, 1)
    counts = torch.ones(K, dtype=prototypes.dtype, device=prototypes.device)
    shared = covariances.mean(0)
    precision = torch.linalg.pinv(shared)
    answers, gaussian = [], []
    for sample in features:
        summary = summarise(sample, prototypes, logit_scale)
        W = means @ precision
        g = W @ summary.feature - 0.5 * (W * means).sum(1)
        weight = min(rho * counts.mean().item() / len(summary.features), eta)
        gaussian.append(g)
        answers.append(summary.logits + weight * g)

        y = torch.softmax(logit_scale * summary.features @ prototypes.T, dim=1)
        new_counts = counts + y.sum(0)
        covariances *= counts[:, None, None]
        for u, y_u in zip(summary.features, y, strict=True):
            difference = u - means
            covariances += y_u[:, None, None] * difference[:, :, None] * difference[:, None, :]
        covariances /= new_counts[:, None, None]
        means = (counts[:, None] * means + y.T @ summary.features) / new_counts[:, None]
        counts = new_counts
        shared = covariances.mean(0)
        precision = torch.linalg.inv((1 - epsilon) * shared + epsilon * eye)
    if details is not None:
        details["dota_logits"] = torch.stack(gaussian)
        details["final_mu"], details["final_c"] = means, counts
        details["final_overall_sigma"], details["final_precision"] = shared, precision
    return torch.stack(answers)
