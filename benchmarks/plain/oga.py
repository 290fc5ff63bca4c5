"""OGA: Gaussians with one covariance, fitted to a memory of the most confident samples of each class."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from plain.common import ridge_precision, unit


def scores(
    features: Tensor,
    prototypes: Tensor,
    *,
    logit_scale: float = 100.0,
    capacity: int = 8,
    tau: float = 0.05,
    batch: int = 1,
    covariance: str = "auto",
    normalise_means: bool = False,
    memory_dtype: torch.dtype | None = None,
    released: bool = False,
    details: dict | None = None,
) -> Tensor:
    """Posteriors (N, K) in float64. `covariance`: "auto" (ridge up to 4d samples, then pinv), "ridge" or "pinv"."""
    K, d = prototypes.shape
    dtype, device = prototypes.dtype, prototypes.device
    memory = torch.zeros((K, capacity, d), dtype=memory_dtype or dtype, device=device)
    filled = torch.zeros((K, capacity), dtype=torch.bool, device=device)
    entropies = torch.full((K, capacity), math.log(K), dtype=memory_dtype or dtype, device=device)
    means = prototypes.clone()
    precision = d * torch.eye(d, dtype=dtype, device=device)
    covariance_matrix = torch.eye(d, dtype=dtype, device=device) / d
    answers = []
    for x in features.split(batch):
        logits = logit_scale * x @ prototypes.T
        p = torch.softmax(logits.double(), dim=1)
        H = -(p * torch.log(p + 1e-9)).sum(1)
        inserted = False
        for i in range(len(x)):
            k = int(logits[i].argmax())
            if (entropies[k] > H[i]).any():
                slot = int(entropies[k].argmax())
                memory[k, slot] = x[i].to(memory.dtype)
                entropies[k, slot] = H[i].to(entropies.dtype)
                filled[k, slot] = True
                inserted = True

        if inserted:
            count = filled.sum(1)
            for k in range(K):
                if count[k] >= 2:
                    total = memory[k, filled[k]].to(dtype).sum(0)
                    means[k] = total / (capacity if released else count[k])
                    if normalise_means:
                        means[k] = unit(means[k])
            if (count > 2).any():
                residuals = torch.cat([memory[k, filled[k]].to(dtype) - means[k] for k in range(K)])
                covariance_matrix = torch.cov(residuals.T)
                if covariance == "ridge" or (covariance == "auto" and len(residuals) <= 4 * d):
                    precision = ridge_precision(residuals)
                else:
                    precision = torch.linalg.pinv(covariance_matrix)

        W = means @ precision
        g = x @ W.T - 0.5 * (W * means).sum(1)
        joint = p * torch.softmax(tau * g, dim=1).double()
        answers.append(joint / joint.sum(1, keepdim=True))
    if details is not None:
        details["final_mus"], details["final_inv_sigma"], details["final_sigma"] = means, precision, covariance_matrix
    return torch.cat(answers)
