"""Fewer tokens for a picture: those attended to stay, the next are merged around centres, the rest become one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

__all__ = ["Shares", "centres", "condense", "merge", "shares"]

CENTRES = 4
"""Tokens that stand for the merged ones."""


class Shares(NamedTuple):
    """How many patches stay, are merged and are fused; together all of them."""

    kept: int
    merged: int
    fused: int


def shares(tokens: int, drop: float) -> Shares:
    """For `tokens` tokens, the class token among them, of which about the share `drop` shall go.

    >>> shares(197, 0.1)
    Shares(kept=137, merged=40, fused=19)
    """
    patches = tokens - 1
    # In whole numbers of a millionth: 0.9 * 110 is a rounding error above 99, and its ceiling 100.
    left = math.ceil(round((1 - drop) * patches, 6))
    gone = tokens - left
    merged = min(2 * gone, patches)
    kept = max(left - 2 * gone, 0)
    return Shares(kept, min(merged, patches - kept), max(patches - kept - merged, 0))


def condense(tokens: torch.Tensor, attention: torch.Tensor, drop: float) -> torch.Tensor:
    """(n', w) from (n, w): the class token first, then the patches it attends to most, merged ones, a fused one.

    `attention`: of the class token to each patch, (n - 1,), the mean over heads.
    """
    import torch

    kept, merged, fused = shares(len(tokens), drop)
    patches = tokens[1:]
    order = torch.argsort(attention, descending=True, stable=True)
    parts = [tokens[:1], patches[order[:kept]]]
    if merged:
        parts.append(merge(patches[order[kept : kept + merged]]))
    if fused:
        rest = order[kept + merged :]
        parts.append((attention[rest, None] * patches[rest]).sum(dim=0, keepdim=True))
    return torch.cat(parts)


def merge(tokens: torch.Tensor) -> torch.Tensor:
    """A token for each centre: the mean of those nearest to it, weighed by one over their distance."""
    import torch

    chosen = tokens[centres(tokens, CENTRES)]
    distances = torch.cdist(tokens, chosen)
    nearest, owner = distances.min(dim=1)
    weights = torch.where(nearest > 0, 1 / nearest.clamp_min(torch.finfo(tokens.dtype).tiny), 1.0)
    owned = torch.nn.functional.one_hot(owner, len(chosen)).to(tokens.dtype) * weights[:, None]
    return (owned.T @ tokens) / owned.sum(dim=0)[:, None]


def centres(tokens: torch.Tensor, count: int) -> list[int]:
    """Rows far from each other: the first, then the one furthest from those chosen; fewer where tokens are equal."""
    import torch

    chosen = [0]
    distance = torch.linalg.vector_norm(tokens - tokens[0], dim=1)
    while len(chosen) < min(count, len(tokens)) and float(distance.max()) > 0:
        chosen.append(int(distance.argmax()))
        distance = torch.minimum(distance, torch.linalg.vector_norm(tokens - tokens[chosen[-1]], dim=1))
    return chosen
