"""ZLaP: labels spread from text nodes over a nearest-neighbour graph, solved by conjugate gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from plain.common import sparse

TOLERANCE = 1e-6
MAX_ITERATIONS = 50


def scores(
    features: Tensor,
    prototypes: Tensor,
    *,
    logit_scale: float = 100.0,  # not used by the method
    neighbours: int = 5,
    gamma: float = 5.0,
    alpha: float = 0.3,
    scale_similarities: bool = False,
    exact: bool = False,
) -> Tensor:
    """Transductive: scores (N, K) of features (N, d), all in one graph. `exact` inverts the matrix instead."""
    K = len(prototypes)
    laplacian, _ = _laplacian(features, prototypes, neighbours, gamma, alpha, scale_similarities)
    return _label_columns(laplacian, K, exact)[K:]


def inductive_scores(
    features: Tensor,
    prototypes: Tensor,
    *,
    unlabelled: Tensor,
    logit_scale: float = 100.0,  # not used by the method
    neighbours: int = 5,
    gamma: float = 5.0,
    alpha: float = 0.3,
    scale_similarities: bool = False,
    exact: bool = False,
) -> Tensor:
    """Inductive: the graph contains `unlabelled` (n, d); each feature is predicted by itself."""
    K = len(prototypes)
    laplacian, limits = _laplacian(unlabelled, prototypes, neighbours, gamma, alpha, scale_similarities)
    inverse = torch.linalg.inv(laplacian.to_dense()) if exact else None
    answers = []
    for x in features:
        y = _edges_of(x, unlabelled, prototypes, neighbours, gamma, limits)
        answers.append((inverse @ y if exact else _solve(laplacian, y))[:K])
    return torch.stack(answers)


def sparse_inductive_scores(
    features: Tensor,
    prototypes: Tensor,
    *,
    unlabelled: Tensor,
    logit_scale: float = 100.0,  # not used by the method
    neighbours: int = 5,
    gamma: float = 5.0,
    alpha: float = 0.3,
    scale_similarities: bool = False,
    exact: bool = False,
) -> Tensor:
    """Like `inductive_scores`, with one class per node: that of its largest score."""
    K = len(prototypes)
    laplacian, limits = _laplacian(unlabelled, prototypes, neighbours, gamma, alpha, scale_similarities)
    columns = _label_columns(laplacian, K, exact)
    largest, label = columns.max(1, keepdim=True)
    one_class = torch.zeros_like(columns).scatter_(1, label, largest)
    return torch.stack([_edges_of(x, unlabelled, prototypes, neighbours, gamma, limits) @ one_class for x in features])


def _laplacian(
    features: Tensor, prototypes: Tensor, neighbours: int, gamma: float, alpha: float, scale: bool
) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
    """I - alpha D^-1/2 W D^-1/2, sparse, K text nodes first; and the limits that similarities were scaled with."""
    N, K = len(features), len(prototypes)
    image, image_node = torch.topk(features @ features.T, min(neighbours, N))
    text, text_node = torch.topk(features @ prototypes.T, min(neighbours, K))
    limits = None
    if scale:
        limits = torch.minimum(image.min(), text.min()), torch.maximum(image.max(), text.max())
        image, text = ((values - limits[0]) / (limits[1] - limits[0]) for values in (image, text))
    values = torch.cat([image.clamp(min=0), text.clamp(min=0) ** gamma], 1)
    ends = torch.cat([image_node + K, text_node], 1)
    starts = (torch.arange(N, device=features.device) + K)[:, None].expand_as(ends)
    starts, ends, values = starts.reshape(-1), ends.reshape(-1), values.reshape(-1)
    others = starts != ends
    starts, ends, values = starts[others], ends[others], values[others]
    positions = torch.cat([torch.stack([starts, ends]), torch.stack([ends, starts])], 1)
    values = torch.cat([values, values])
    degree = torch.zeros(K + N, dtype=values.dtype, device=values.device).index_add_(0, positions[0], values)
    degree[degree == 0] = 1
    values = -alpha * values / (degree[positions[0]].sqrt() * degree[positions[1]].sqrt())
    diagonal = torch.arange(K + N, device=values.device)
    positions = torch.cat([positions, torch.stack([diagonal, diagonal])], 1)
    values = torch.cat([values, torch.ones_like(degree)])
    return sparse(positions, values, (K + N, K + N)), limits


def _label_columns(laplacian: Tensor, K: int, exact: bool) -> Tensor:
    """The first K columns of the inverse, one linear system per class."""
    if exact:
        return torch.linalg.inv(laplacian.to_dense())[:, :K]
    unit_vectors = torch.eye(len(laplacian), K, dtype=laplacian.dtype, device=laplacian.device)
    return torch.stack([_solve(laplacian, unit_vectors[:, k]) for k in range(K)], dim=1)


def _solve(A: Tensor, b: Tensor) -> Tensor:
    """Conjugate gradients from zero."""
    x, r = torch.zeros_like(b), b.clone()
    p, squared = r.clone(), r @ r
    smallest = TOLERANCE**2 * squared
    for _ in range(MAX_ITERATIONS):
        if squared <= smallest:
            break
        Ap = torch.mv(A, p)
        step = squared / (p @ Ap)
        x = x + step * p
        r = r - step * Ap
        before, squared = squared, r @ r
        p = r + squared / before * p
    return x


def _edges_of(
    x: Tensor,
    unlabelled: Tensor,
    prototypes: Tensor,
    neighbours: int,
    gamma: float,
    limits: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """Weights (K + n,) of a new sample's edges. Here similarities are cut at 0 before they are scaled, not after."""
    image, image_node = torch.topk(unlabelled @ x, min(neighbours, len(unlabelled)))
    text, text_node = torch.topk(prototypes @ x, min(neighbours, len(prototypes)))
    image, text = image.clamp(min=0), text.clamp(min=0)
    if limits is not None:
        image, text = ((values - limits[0]) / (limits[1] - limits[0]) for values in (image, text))
    y = torch.zeros(len(prototypes) + len(unlabelled), dtype=x.dtype, device=x.device)
    y[text_node] = text**gamma
    y[len(prototypes) + image_node] = image
    return y
