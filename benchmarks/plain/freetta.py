"""FreeTTA (reconstructed): one step of expectation-maximisation per sample."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from plain.common import entropy


def scores(
    features: Tensor,
    prototypes: Tensor,
    *,
    logit_scale: float = 100.0,
    alpha: float = 0.2,
    beta: float = 4.5,
    covariance: str = "mean",
    responsibilities: str = "gaussian",
    details: dict | None = None,
) -> Tensor:
    """Logits (N, K) of features (N, d), each before it is learned from."""
    K, d = prototypes.shape
    identity = torch.eye(d, dtype=prototypes.dtype, device=prototypes.device)
    means, sigma, n = prototypes.clone(), identity.clone(), 1.0
    counts = torch.full((K,), 1 / K, dtype=prototypes.dtype, device=prototypes.device)
    answers, gaussians = [], []
    for x in features:
        text = logit_scale * prototypes @ x
        w = math.exp(-beta * entropy(text).item())
        precision = d * torch.linalg.inv((n - 1) * sigma + sigma.trace() * identity)
        weights = means @ precision
        g = weights @ x - 0.5 * (weights * means).sum(1) + torch.log(counts / n)
        answers.append(text + alpha * g)
        gaussians.append(g)
        gamma = torch.softmax(answers[-1] if responsibilities == "fused" else g, dim=0)
        means = (counts[:, None] * means + w * gamma[:, None] * x) / (counts + w * gamma)[:, None]
        counts = counts + w * gamma
        residuals = x - means
        spread = residuals.T @ (gamma[:, None] * residuals)
        if n + w > 1:
            kept = 1.0 if covariance == "literal" else (n - 1) / (n + w - 1)
            sigma = kept * sigma + w * spread / (n + w - 1)
        n += w
    if details is not None:
        details["final_mu"], details["final_counts"], details["final_sigma"] = means, counts, sigma
        details["gda_scores"] = torch.stack(gaussians)
    return torch.stack(answers)
