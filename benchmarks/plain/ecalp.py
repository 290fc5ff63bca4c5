"""ECALP: labels spread from text nodes over a graph that grows by one sample at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from plain.common import sparse, unit

EPSILON = 1e-6
KEPT = 5.0
NO_NEIGHBOUR = -torch.inf
"""Cosine of an empty slot in a list of neighbours."""


def scores(
    features: Tensor,
    prototypes: Tensor,
    *,
    logit_scale: float = 100.0,  # not used by the method
    support: tuple[Tensor, Tensor] | None = None,
    text_neighbours: int = 3,
    image_neighbours: int = 8,
    support_neighbours: int = 8,
    gamma: float = 10.0,
    alpha: float = 1.0,
    rounds: int = 3,
    copy_first: bool = True,
    details: dict | None = None,
) -> Tensor:
    """Scores (N, K) of features (N, d), with the exact neighbours of every sample.

    Order of the nodes: K text nodes, the support if there is one, the samples, and a second copy of the newest sample,
    which is predicted and then removed. The newest sample and its copy are equally near to any other sample; if only
    one fits into its list, the released code's topk selects the copy (`copy_first`).
    """
    N, K = len(features), len(prototypes)
    fixed = torch.eye(K, dtype=features.dtype, device=features.device)
    context = prototypes.var(0)
    context = context / context.norm()
    if support is not None:
        shots, labels = support
        fixed = torch.cat([fixed, fixed[labels]])
        shot_context = 1 / shots.var(0)
    first = len(fixed)
    nodes = torch.arange(first + N + 1, device=features.device)

    # Nearest samples of every sample so far, without the copy: cosines (i, k) and nodes (i, k).
    near = features.new_full((0, image_neighbours), NO_NEIGHBOUR)
    near_nodes = nodes.new_zeros((0, image_neighbours))
    outside, outside_nodes = [], []
    kept_labels = features.new_zeros((0, K))
    answers = []
    for i, x in enumerate(features):
        # Of two samples the earlier one is weighted. The last cosine is that of x with itself, and with its copy.
        cosines = unit(features[: i + 1] * context) @ unit(x)
        own, copy = nodes[first + i], nodes[first + i + 1]
        earlier = cosines[:i, None]
        to_own, to_copy = own.expand(i, 1), copy.expand(i, 1)
        of_x = _nearest(cosines[None], nodes[None, first : first + i + 1], image_neighbours)
        of_x_now = _nearest(
            torch.cat([cosines, cosines[i:]])[None], nodes[None, first : first + i + 2], image_neighbours
        )
        of_others = _nearest(torch.cat([near, earlier], 1), torch.cat([near_nodes, to_own], 1), image_neighbours)
        newest_two = [to_copy, to_own] if copy_first else [to_own, to_copy]
        of_others_now = _nearest(
            torch.cat([near, earlier, earlier], 1), torch.cat([near_nodes, *newest_two], 1), image_neighbours
        )
        near, near_nodes = torch.cat([of_others[0], of_x[0]]), torch.cat([of_others[1], of_x[1]])

        values, indices = torch.topk(prototypes @ unit(x), min(text_neighbours, K))
        if support is not None:
            more, more_indices = torch.topk(unit(shots) @ unit(x * shot_context), min(support_neighbours, len(shots)))
            values, indices = torch.cat([values, more]), torch.cat([indices, K + more_indices])
        outside.append(values)
        outside_nodes.append(indices)

        n = i + 2
        weights = torch.cat([of_others_now[0], of_x_now[0], of_x_now[0]])
        weights = torch.cat([weights, torch.stack([*outside, values])], 1)
        ends = torch.cat([of_others_now[1], of_x_now[1], of_x_now[1]])
        ends = torch.cat([ends, torch.stack([*outside_nodes, indices])], 1)
        starts = nodes[first : first + n, None].expand_as(ends)
        present = weights != NO_NEIGHBOUR
        W = _normalised(starts[present], ends[present], weights[present] ** gamma, first, first + n)

        start = torch.cat([kept_labels, features.new_zeros((2, K))])
        Y = start
        for _ in range(rounds):
            Y = alpha * torch.sparse.mm(W, torch.cat([fixed, Y])) + (1 - alpha) * start
        answers.append(Y[-1])
        largest, label = Y[:-1].max(1, keepdim=True)
        kept_labels = features.new_zeros((i + 1, K)).scatter_(1, label, largest / KEPT)
    answers = torch.stack(answers)
    if details is not None:
        details["probs"] = torch.softmax(10000 * answers, dim=1)
    return answers


def _nearest(cosines: Tensor, nodes: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of every row and their nodes, padded with NO_NEIGHBOUR."""
    order = torch.argsort(cosines, dim=1, descending=True, stable=True)[:, :count]
    missing = (0, count - order.shape[1])
    pad = torch.nn.functional.pad
    return pad(cosines.gather(1, order), missing, value=NO_NEIGHBOUR), pad(nodes.gather(1, order), missing)


def _normalised(starts: Tensor, ends: Tensor, weights: Tensor, first: int, size: int) -> Tensor:
    """The rows of the image nodes of W + W^T, scaled by the roots of the degrees; the diagonal stays."""
    rows, columns, weights = torch.cat([starts, ends]), torch.cat([ends, starts]), torch.cat([weights, weights])
    root = weights.new_zeros(size).index_add_(0, rows, weights).sqrt() + EPSILON
    weights = weights / (root[rows] * root[columns])
    images = rows >= first
    positions = torch.stack([rows[images] - first, columns[images]])
    return sparse(positions, weights[images], (size - first, size))
