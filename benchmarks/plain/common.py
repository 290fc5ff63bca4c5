"""Functions that several methods use."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


def unit(x: Tensor) -> Tensor:
    """Rows scaled to length 1; zero rows stay zero."""
    return torch.nn.functional.normalize(x, dim=-1)


def entropy(logits: Tensor) -> Tensor:
    """Entropy of the softmax, in nats."""
    log_p = torch.log_softmax(logits, dim=-1)
    return -(log_p.exp() * log_p).sum(-1)


def accuracy(logits: Tensor, labels: Tensor) -> float:
    return (logits.argmax(1) == labels).double().mean().item()


def epoch_rate(epoch: int, epochs: int, rate: float) -> float:
    """Learning rate of an epoch in the authors' training framework: a constant one first, then half a cosine."""
    return 1e-5 if epoch == 0 else rate * (1 + math.cos(math.pi * (epoch - 1) / epochs)) / 2


def few_shot_batches(
    samples: int, batch: int, epoch: int, order: Tensor | None = None, *, drop_last: bool = True
) -> list[Tensor]:
    """The rows of each batch of an epoch, in a random order or that of row `epoch` of `order`."""
    rows = torch.randperm(samples) if order is None else order[epoch]
    if drop_last and samples >= batch:
        rows = rows[: samples // batch * batch]
    return list(rows.split(batch))


class SampleSummary(NamedTuple):
    """The mean of a sample's most confident views, or the sample itself if it has one view."""

    feature: Tensor
    logits: Tensor
    probabilities: Tensor
    entropy: float
    features: Tensor
    """(m, d) The views kept."""
    kept: Tensor
    """(m,) Their indices, the most confident first."""


def summarise(sample: Tensor, prototypes: Tensor, logit_scale: float, share: float = 0.1) -> SampleSummary:
    """Summary of a sample (d,), or of the views (V, d) of one; the `share` of lowest entropy is kept."""
    views = sample[None] if sample.ndim == 1 else sample
    logits = logit_scale * views @ prototypes.T
    kept = torch.argsort(entropy(logits))[: max(1, int(share * len(views)))]
    log_p = torch.log_softmax(logits[kept], dim=1)
    mean_log_p = torch.logsumexp(log_p, dim=0) - math.log(len(kept))
    mean_entropy = -(mean_log_p.exp() * mean_log_p).sum().item()
    return SampleSummary(
        views[kept].mean(0), logits[kept].mean(0), log_p.exp().mean(0), mean_entropy, views[kept], kept
    )


def ridge_precision(residuals: Tensor) -> Tensor:
    """d pinv((n - 1) M + tr(M) I), M the covariance of n residuals (n, d)."""
    n, d = residuals.shape
    centred = residuals - residuals.mean(0)
    M = centred.T @ centred / (n - 1)
    return d * torch.linalg.pinv((n - 1) * M + M.trace() * torch.eye(d, dtype=M.dtype, device=M.device))


def gda(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gaussian discriminant analysis: W (K, d), b (K,), the precision (d, d) and the class means (K, d)."""
    means = torch.stack([features[labels == k].mean(0) for k in range(classes)])
    residuals = torch.cat([features[labels == k] - means[k] for k in range(classes)])
    precision = ridge_precision(residuals)
    W = means @ precision
    b = -math.log(classes) - 0.5 * (means * W).sum(1)
    return W, b, precision, means


def nearest_neighbours(features: Tensor, count: int) -> Tensor:
    """Sparse (N, N): the cosines of every sample with its `count` nearest, without the very nearest, itself."""
    values, columns = torch.topk(features @ features.T, min(count + 1, len(features)))
    return sparse_rows(values[:, 1:], columns[:, 1:], len(features))


def sparse_rows(values: Tensor, columns: Tensor, width: int) -> Tensor:
    """A sparse matrix of `width` columns from the entries (n, k) of its rows."""
    rows = torch.arange(len(values), device=values.device)[:, None].expand_as(columns)
    positions = torch.stack([rows.reshape(-1), columns.reshape(-1)])
    return sparse(positions, values.reshape(-1), (len(values), width))


def sparse(positions: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """A sparse matrix; values at the same position are added."""
    # Some versions of torch warn unless the check is disabled explicitly in this way.
    with torch.sparse.check_sparse_tensor_invariants(enable=False):
        return torch.sparse_coo_tensor(positions, values, shape).coalesce()
