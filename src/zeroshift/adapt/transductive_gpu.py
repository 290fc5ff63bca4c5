"""Transductive ADAPT with float32 products on a GPU: as few operations as possible, and none that depend on the data.

A GPU executes most operations faster than the host starts them, and the host must not wait for results in between.
So here a chunk takes a few operations on large arrays. The bank term of every class comes from the products with all
entries of the bank: on a GPU with tensor cores these take less time than finding out which are needed, and the same
time for any features.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zeroshift.adapt.bank import KnowledgeBank
from zeroshift.arrays import Array, Backend, Rows
from zeroshift.linalg import Float32Factor

if TYPE_CHECKING:
    from zeroshift.adapt.transductive_float32 import Candidates, FirstPass

__all__ = ["GpuFusion", "collect"]


def collect(
    first: FirstPass,
    factor: Float32Factor,
    rows: Rows,
    within: slice,
    chunk_rows: int,
    candidates: Candidates,
    log_normalisers: Array | None,
) -> tuple[Array, Array]:
    """`FirstPass.collect`; `factor` are the scaled prototypes."""
    torch: Any = sys.modules["torch"]
    backend = Backend.of(first.prototypes)
    weighted_sum, weight = backend.zeros(first.prototypes.shape), backend.zeros(first.prototypes.shape[:1])
    lowest = torch.finfo(torch.float32).min / 2  # its exponential is 0, and so is its product with 0
    parts = []
    for block, x in rows.blocks(chunk_rows, reuse=True, within=within):
        logits = factor.product(factor.rows(x))
        top, pseudo = logits.max(dim=1, keepdim=True)
        logits -= top
        # Without the largest: the second shows near-ties, and the sum of the others keeps its digits.
        logits.scatter_(1, pseudo, lowest)
        second = logits.amax(1)
        y = logits.exp()
        others, products = y.sum(1), torch.linalg.vecdot(y, logits)
        y.scatter_(1, pseudo, 1.0)
        # y is not normalised: scaling the d columns of x is cheaper than scaling the K columns of y.
        share = torch.reciprocal(others + 1.0)
        weighted_sum += y.T @ (x * share[:, None])
        weight += share @ y
        if log_normalisers is not None:
            log_normalisers[block] = top[:, 0] + torch.log1p(others) + x @ first.centre
        parts.append((pseudo[:, 0], second, others, products))
    pseudo, second, others, products = (torch.cat(part) for part in zip(*parts, strict=True))
    confidences = (products / (others + 1.0) - torch.log1p(others)).to(torch.float64)
    error = torch.where(second < -2 * first.logit_error, first.confidence_error(confidences), torch.inf)
    numbers = torch.arange(within.start, within.stop, device=backend.device)
    candidates.offer(pseudo, confidences - error, confidences + error, numbers)
    return weighted_sum, weight


@dataclass(frozen=True)
class GpuFusion:
    """`NarrowFusion` on a GPU, where the bank term is complete.

    sum_j max(0, x.x_j) p_j is half of x.s + sum_j |x.p_j x_j|, s = sum_j p_j x_j; x.s is part of the linear classifier.
    """

    directions: Array
    """s t_k + P mu_k + s_k / 2, less a vector that all classes share, (K, d) float64."""
    offsets: Array
    """The offsets, less a number, (K,) float64."""
    linear: Float32Factor
    """The directions."""
    narrow_offsets: Array
    """(K,) float32."""
    entries: Float32Factor | None
    """p_j x_j of all entries, slots outermost; None without a bank."""
    slots: int

    @classmethod
    def of(cls, directions: Array, offsets: Array, bank: KnowledgeBank | None) -> GpuFusion:
        """From s t_k + P mu_k + s_k and the offsets in float64, each less what all classes share."""
        torch: Any = sys.modules["torch"]
        entries, slots = None, 0
        if bank is not None:
            weighted = bank.features * bank.weights[:, :, None]
            directions = directions - 0.5 * weighted.sum(1)
            slots = weighted.shape[1]
            entries = Float32Factor(weighted.transpose(0, 1).reshape(-1, weighted.shape[2]))
        return cls(directions, offsets, Float32Factor(directions), offsets.to(torch.float32), entries, slots)

    def scores(self, x: Array) -> Array:
        """Scores (n, K) float32 of the rows `x` (float32), less what `NarrowFusion.means` returns."""
        rows = self.linear.rows(x)
        scores = self.linear.product(rows, self.narrow_offsets)
        self._add_bank_terms(scores, rows)
        return scores

    def exact(self, x: Array) -> Array:
        """The same in float64, with a float64 product for the large part, which is linear."""
        torch: Any = sys.modules["torch"]
        scores = torch.addmm(self.offsets, x.to(torch.float64), self.directions.T)
        self._add_bank_terms(scores, self.linear.rows(x))
        return scores

    def _add_bank_terms(self, scores: Array, rows: Array) -> None:
        """Add half of sum_j |x.p_j x_j|."""
        if self.entries is None:
            return
        torch: Any = sys.modules["torch"]
        n, classes = scores.shape
        block = -(-2 * n // self.slots)  # twice the memory of the scores
        for start in range(0, n, block):
            products = self.entries.unscaled_product(rows[start : start + block])
            lengths = torch.linalg.vector_norm(products.view(-1, self.slots, classes), ord=1, dim=1)
            scores[start : start + block].add_(lengths, alpha=0.5 * self.entries.unit)

    def scores_of_rows(
        self, rows: Rows, part: slice, chunk_rows: int, doubtful_rows: Callable[[Array], Array | None]
    ) -> Iterator[tuple[Any, Array, Array]]:
        """(rows, features, scores) of a part of the rows, chunk by chunk; then again those of doubtful rows in float64,
        by their numbers. Only before these does the host wait for the device."""
        torch: Any = sys.modules["torch"]
        doubtful = []
        for chunk, x in rows.blocks(chunk_rows, reuse=True, within=part):
            scores = self.scores(x)
            doubtful.append(doubtful_rows(scores))
            yield chunk, x, scores
        if not doubtful or doubtful[0] is None:
            return
        numbers = torch.nonzero(torch.cat(doubtful))[:, 0] + part.start
        block = max(1, chunk_rows // 4)  # float64, and more arrays
        for start in range(0, numbers.shape[0], block):
            some = numbers[start : start + block]
            x = rows.take(some)
            yield some, x, self.exact(x)
