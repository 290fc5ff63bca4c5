"""COSMIC: cliques of classes in the spaces of two encoders vote for the classes of their members."""

from __future__ import annotations

import torch
from torch import Tensor

from plain.common import entropy, unit


def scores(
    features: Tensor,
    prototypes: Tensor,
    *,
    second: Tensor,
    logit_scale: float = 100.0,
    memory_size: int = 8,
    memory_beta: float = 5.5,
    alpha: float = 2.0,
    beta: float = 5.0,
    degree: float = 5.0,
    clique_share: float = 0.2,
    rebuild_every: int = 100,
    clique_weight: float = 1.0,
    second_clique_weight: float = 1.0,
    view_ratio: float = 0.1,
    details: dict | None = None,
) -> Tensor:
    """Scores (N, K) of features (N, d) or views (N, V, d), and features (N, e) of a second encoder; each sample is
    learned from, then predicted."""
    K = len(prototypes)
    # Entries: entropy, feature.
    first: list[list[tuple[float, Tensor]]] = [[] for _ in range(K)]
    other: list[list[tuple[float, Tensor]]] = [[] for _ in range(K)]
    cliques: dict[str, tuple[list[list[int]], Tensor]] = {}
    found: dict[str, list[Tensor]] = {
        name: [] for name in ("text_probs", "clip_cache_probs", "clip_clique", "aux_clique", "aux_cache_probs")
    }
    answers = []
    for i, (sample, z) in enumerate(zip(features, second, strict=True)):
        views = sample[None] if sample.ndim == 1 else sample
        x = views[0]
        logits = logit_scale * views @ prototypes.T
        kept = torch.argsort(entropy(logits), stable=True)[: max(1, int(view_ratio * len(views)))]
        q = torch.softmax(logits[kept], dim=1).mean(0)
        stored_first = _insert(
            first[int(q.argmax())], (entropy(q.log()).item(), unit(views[kept].mean(0))), memory_size
        )

        vectors = prototypes.clone()
        for k in range(K):
            if first[k]:
                rows = torch.stack([*(feature for _, feature in first[k]), prototypes[k]])
                vectors[k] = unit(torch.exp(-memory_beta * (1 - rows @ x)) @ rows)
        p = torch.softmax(logit_scale * prototypes @ x, dim=0)
        cache = torch.softmax(logit_scale * vectors @ x, dim=0)
        both = p + cache
        stored_second = _insert(other[int(both.argmax())], (entropy(both).item(), z), memory_size)
        means = torch.stack(
            [torch.stack([f for _, f in other[k]]).mean(0) if other[k] else torch.zeros_like(z) for k in range(K)]
        )
        nodes = {"clip_clique": torch.cat([prototypes, vectors]), "aux_clique": means}
        for name, stored, target in (
            ("clip_clique", stored_first, 0.8 * degree),
            ("aux_clique", stored_second, degree),
        ):
            if (i <= K * memory_size and stored) or (i > K * memory_size and i % rebuild_every == 0):
                members = _cliques(_graph(nodes[name], target))
                cliques[name] = members, torch.stack([nodes[name][one].mean(0) for one in members])
        votes = {name: torch.zeros(len(nodes[name]), dtype=z.dtype, device=z.device) for name in nodes}
        for name, y in (("clip_clique", x), ("aux_clique", z)):
            members, anchors = cliques[name]
            near = torch.topk(anchors @ y, max(1, int(clique_share * len(members)))).indices
            union = sorted({node for one in near.tolist() for node in members[one]})
            votes[name][union] = alpha * torch.exp(-beta * (1 - nodes[name][union] @ y))
        first_votes = (votes["clip_clique"][:K] + votes["clip_clique"][K:]) / 2
        answers.append(p + clique_weight * first_votes + second_clique_weight * votes["aux_clique"])
        if details is not None:
            cached = torch.stack([sum(torch.exp(-beta * (1 - f @ z)) for _, f in o) + 0 * z[0] for o in other])
            values = (p, cache, first_votes, votes["aux_clique"], torch.softmax(alpha * cached, dim=0))
            for name, value in zip(found, values, strict=True):
                found[name].append(value)
    if details is not None:
        details.update({name: torch.stack(values) for name, values in found.items()})
    return torch.stack(answers)


def _insert(items: list[tuple[float, Tensor]], item: tuple[float, Tensor], places: int) -> bool:
    """Keep the lowest entropies; whether the item is kept."""
    if len(items) < places:
        items.append(item)
        return True
    worst = max(range(places), key=lambda m: items[m][0])
    if item[0] < items[worst][0]:
        items[worst] = item
        return True
    return False


def _graph(nodes: Tensor, degree: float) -> Tensor:
    """Edges (n, n) of the largest products, with this mean degree, whose ends have two neighbours in common."""
    S = nodes @ nodes.T
    off = ~torch.eye(len(S), dtype=torch.bool, device=S.device)
    low, high = S.min().item(), S.max().item()
    for _ in range(60):
        middle = (low + high) / 2
        edges = (middle < S) & off
        mean = edges.sum().item() / len(S)
        if abs(mean - degree) < 0.01:
            break
        low, high = (middle, high) if mean > degree else (low, middle)
    else:
        edges = (high < S) & off
    common = edges.to(S.dtype) @ edges.to(S.dtype)
    return edges & (common >= 2)


def _cliques(edges: Tensor) -> list[list[int]]:
    """All maximal cliques."""
    neighbours = [set(row.nonzero()[:, 0].tolist()) for row in edges.cpu()]
    found: list[list[int]] = []

    def extend(clique: list[int], candidates: set[int], tried: set[int]) -> None:
        if not candidates and not tried:
            found.append(clique)
            return
        pivot = max(candidates | tried, key=lambda u: len(candidates & neighbours[u]))
        for v in candidates - neighbours[pivot]:
            extend([*clique, v], candidates & neighbours[v], tried & neighbours[v])
            candidates = candidates - {v}
            tried = tried | {v}

    extend([], set(range(len(neighbours))), set())
    return found
