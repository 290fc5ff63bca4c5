"""T3A: class vectors are means of the most confident samples given to the class, the prototype first among them."""

from __future__ import annotations

import torch
from torch import Tensor

from plain.common import entropy, unit


def scores(
    features: Tensor,
    prototypes: Tensor,
    *,
    logit_scale: float = 100.0,
    per_class: int | None = 20,
    batch: int = 1,
    released: bool = False,
) -> Tensor:
    """Cosines (N, K) with the class vectors. `per_class=None` keeps all; released, it drops the least sure of each."""
    K = len(prototypes)
    head = logit_scale * prototypes
    supports = head.clone()
    labels = (head @ head.T).argmax(1)
    entropies = entropy(head @ head.T)
    answers = []
    for x in features.split(batch):
        logits = x @ head.T
        supports = torch.cat([supports, x])
        labels = torch.cat([labels, logits.argmax(1)])
        entropies = torch.cat([entropies, entropy(logits)])

        kept = []
        for k in range(K):
            members = torch.nonzero(labels == k).flatten()
            order = members[torch.argsort(entropies[members], stable=True)]
            kept.append(order[: -1 if released else None] if per_class is None else order[:per_class])
        kept = torch.cat(kept)
        supports, labels, entropies = supports[kept], labels[kept], entropies[kept]

        one_hot = torch.nn.functional.one_hot(labels, K).to(supports.dtype)
        vectors = unit(one_hot.T @ unit(supports))
        answers.append(x @ vectors.T)
    return torch.cat(answers)
