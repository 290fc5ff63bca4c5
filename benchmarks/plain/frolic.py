"""Frolic, the released path: two InMaP classifiers added up, then eleven rounds of correcting the label bias."""

from __future__ import annotations

import torch
from torch import Tensor

from plain.common import unit


def scores(
    features: Tensor,
    prototypes: Tensor,
    *,
    prompts: Tensor,
    logit_scale: float = 100.0,
    shrinkage: float = 0.9,
    iterations: int = 2000,
    rounds: int = 11,
    details: dict | None = None,
) -> Tensor:
    """Logits (N, K) of features (N, d) with prompts (K, P, d)."""
    prompts = unit(prompts)
    mean_prompts = unit(prompts.mean(1))
    gaussian = _gaussian_logits(features, prompts, mean_prompts, shrinkage)
    from_prompts = _classifier(features, prototypes, sinkhorn(features @ mean_prompts.T), iterations)
    from_gaussian = _classifier(features, prototypes, sinkhorn(gaussian), iterations)
    fused = logit_scale * features @ from_gaussian + logit_scale * features @ from_prompts
    logits, each_round = fused, []
    for _ in range(rounds):
        logits = logits - torch.log(_label_bias(logits) + 1e-12)
        each_round.append(logits)
    if details is not None:
        each_prompt = torch.einsum("nd,kpd->pnk", features, prompts)
        details["clip_logits"] = logit_scale * features @ prototypes.T
        details["llm_ave_logits"] = logit_scale * features @ mean_prompts.T
        details["llm_prob_logits"] = torch.softmax(logit_scale * each_prompt, dim=2).mean(0)
        details["lda_logits"] = gaussian
        details["inmap_v1_logits"], details["inmap_v3_logits"] = features @ from_prompts, features @ from_gaussian
        tried = {
            "inmap_logits": (prototypes, features @ prototypes.T),
            "inmap_v2_logits": (mean_prompts, features @ mean_prompts.T),
            "inmap_v4_logits": (mean_prompts, gaussian),
        }
        for name, (start, similarities) in tried.items():
            details[name] = features @ _classifier(features, start, sinkhorn(similarities), iterations)
        details["fused_logits"], details["debias0_logits"] = fused, each_round[0]
    return logits


def _gaussian_logits(features: Tensor, prompts: Tensor, means: Tensor, shrinkage: float) -> Tensor:
    pooled = torch.cat([features, prompts.reshape(-1, prompts.shape[2])])
    precision = torch.diag(1 / ((1 - shrinkage) * pooled.var(0) + shrinkage))
    of_means = 0.5 * ((means @ precision) * means).sum(1)
    of_features = 0.5 * ((features @ precision) * features).sum(1)
    return features @ precision @ means.T - of_means - of_features[:, None]


def sinkhorn(similarities: Tensor, temperature: float = 0.01, gamma: float = 1.0, iterations: int = 20) -> Tensor:
    """Soft labels (N, K) whose column masses are those of the softmax to the power of gamma."""
    N, K = similarities.shape
    P = torch.softmax(similarities / temperature, dim=1) / N
    target = torch.full_like(P[0], 1 / K)
    if gamma > 0:
        target = P.sum(0) ** gamma
        target = target / target.sum()
    for _ in range(iterations):
        P = P / P.sum(0) * target
        P = P / P.sum(1, keepdim=True) / N
    return P * N


def _classifier(
    features: Tensor,
    start: Tensor,
    labels: Tensor,
    iterations: int,
    rate: float = 10.0,
    temperature: float = 0.04,
    threshold: float = 0.6,
) -> Tensor:
    """InMaP: a classifier (d, K) whose soft predictions agree with the labels, from K rows to start at."""
    N = len(features)
    sure = labels.max(1).values > threshold
    hard = torch.nn.functional.one_hot(labels.argmax(1), labels.shape[1]).to(labels.dtype)
    base = features.T @ torch.where(sure[:, None], hard, labels)
    C = start.T.clone()
    before = torch.inf
    for _ in range(iterations):
        gradient = features.T @ torch.softmax(features @ C / temperature, dim=1) - base
        norm = torch.linalg.norm(gradient).item()
        if norm > before:
            rate /= 2
        before = norm
        C = C - rate / (N * temperature) * gradient
        C = unit(C.T).T
    return C


def _label_bias(logits: Tensor) -> Tensor:
    """The stationary vector of the mean predictions (columns) of clear samples of each class."""
    K = logits.shape[1]
    top = torch.topk(logits, 2).values
    clear = logits[top[:, 0] - top[:, 1] > 1 / K]
    p, labels = torch.softmax(clear, dim=1), clear.argmax(1)
    A = torch.zeros((K, K), dtype=logits.dtype, device=logits.device)
    for k in range(K):
        if (labels == k).any():
            A[:, k] = p[labels == k].mean(0)
    beta = torch.full((K,), 1 / K, dtype=logits.dtype, device=logits.device)
    for _ in range(100):
        after = A @ beta
        after = (after / after.abs().sum()).clamp(min=0)
        if (after - beta).abs().sum() < 1e-3:
            break
        beta = after
    return beta
