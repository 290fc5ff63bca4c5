"""DMN, zero-shot: a memory of up to 50 samples per class, read through a kernel around each new sample."""

from __future__ import annotations

import torch
from torch import Tensor

from plain.common import unit


def scores(
    features: Tensor,
    prototypes: Tensor,
    *,
    logit_scale: float = 100.0,
    capacity: int = 50,
    beta: float = 5.5,
    memory_weight: float = 1.0,
    details: dict | None = None,
) -> Tensor:
    """p_text + memory_weight p_memory (N, K) of features (N, d) or views (N, V, d), the first view being the sample."""
    K, d = prototypes.shape
    bank = torch.zeros((K, capacity + 1, d), dtype=prototypes.dtype, device=prototypes.device)
    bank[:, capacity] = prototypes
    stored = [[] for _ in range(K)]
    text, memory = [], []
    for sample in features:
        views = sample[None] if sample.ndim == 1 else sample
        x = views[0]
        p = torch.softmax(logit_scale * views @ prototypes.T, dim=1)
        view_entropies = -(p * torch.log(p + 1e-6)).sum(1)
        q = p[torch.argsort(view_entropies)[: max(1, int(0.1 * len(views)))]].mean(0)
        k = int(q.argmax())
        H = -(q * torch.log(q + 1e-8)).sum().item()
        if len(stored[k]) < capacity:
            bank[k, len(stored[k])] = x
            stored[k].append(H)
        elif max(stored[k]) > H:
            slot = stored[k].index(max(stored[k]))
            bank[k, slot] = x
            stored[k][slot] = H

        weights = torch.exp(-beta * (1 - bank @ x))
        vectors = unit((weights[:, :, None] * bank).sum(1))
        text.append(p[0])
        memory.append(torch.softmax(logit_scale * vectors @ x, dim=0))
    text, memory = torch.stack(text), torch.stack(memory)
    if details is not None:
        details["text_probs"], details["memory_probs"] = text, memory
        details["memory_count"] = torch.tensor([[len(entropies)] for entropies in stored])
    return text + memory_weight * memory
