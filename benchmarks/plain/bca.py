"""BCA (reconstructed): class embeddings and a prior over labels for each, both moved by the predictions."""

from __future__ import annotations

import torch
from torch import Tensor

from plain.common import unit


def scores(
    features: Tensor,
    prototypes: Tensor,
    *,
    logit_scale: float = 100.0,
    likelihood_threshold: float = 0.05,
    likelihood_count: float = 20000.0,
    prior_threshold: float = 0.65,
    prior_count: float = 1.0,
    details: dict | None = None,
) -> Tensor:
    """Posteriors (N, K) of features (N, d), each before it is learned from."""
    K = len(prototypes)
    means = prototypes.clone()
    prior = torch.eye(K, dtype=prototypes.dtype, device=prototypes.device)
    mean_counts, prior_counts = [likelihood_count] * K, [prior_count] * K
    answers = []
    for x in features:
        p = torch.softmax(logit_scale * means @ x, dim=0) @ prior
        answers.append(p)
        k = int(p.argmax())
        if p[k] > likelihood_threshold:
            means[k] = unit((mean_counts[k] * means[k] + x) / (mean_counts[k] + 1))
            mean_counts[k] += 1
        if p[k] > prior_threshold:
            prior[k] = (prior_counts[k] * prior[k] + p) / (prior_counts[k] + 1)
            prior_counts[k] += 1
    if details is not None:
        details["final_mu"], details["final_prior"] = means, prior
    return torch.stack(answers)
