"""OnZeta: labels corrected by dual variables, and class proxies learned from them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from plain.common import unit


def scores(
    features: Tensor,
    prototypes: Tensor,
    *,
    stream_length: int | None = None,
    logit_scale: float = 100.0,
    proxy_temperature: float = 0.04,
    proxy_step: float = 0.5,
    dual_step: float = 20.0,
    minimal_share: float = 1.0,
    proxy_weight: float = 0.8,
    details: dict | None = None,
) -> Tensor:
    """Posteriors (N, K) of features (N, d), each before it is learned from."""
    K = len(prototypes)
    length = stream_length or 50 * K
    proxies, dual = prototypes.clone(), torch.zeros(K, dtype=prototypes.dtype, device=prototypes.device)
    answers, labels = [], []
    for i, x in enumerate(features, start=1):
        q = torch.softmax(logit_scale * prototypes @ x + dual, dim=0)
        v = torch.softmax(proxies @ x / proxy_temperature, dim=0)
        weight = proxy_weight * math.sqrt(min(1.0, i / length))
        answers.append(weight * v + (1 - weight) * q)
        labels.append(q)
        dual = torch.clamp(dual - dual_step / math.sqrt(i) * (q - minimal_share / K), min=0)
        step = proxy_step / math.sqrt(i) / proxy_temperature
        proxies = unit(proxies - step * torch.outer(v - q, x))
    if details is not None:
        details["final_w"], details["final_rho"], details["label_probs"] = proxies, dual, torch.stack(labels)
    return torch.stack(answers)
