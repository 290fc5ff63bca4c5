"""Transductive ADAPT with float32 products on a GPU: as few operations as possible, and none that depend on the data.

A GPU executes most operations faster than the host starts them, and the host must not wait for results in between.
So here a chunk takes a few operations on large arrays. The bank term of every class comes from the products with all
entries of the bank: on a GPU with tensor cores these take less time than finding out which are needed, and the same
time for any features.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zeroshift.adapt.bank import KnowledgeBank
from zeroshift.arrays import Array, Backend, Rows
from zeroshift.linalg import Float32Factor

if TYPE_CHECKING:
    from zeroshift.adapt.transductive_float32 import Candidates, FirstPass

__all__ = ["GpuBank", "GpuFusion", "collect"]


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
        others, products = y.sum(1), logits.mul_(y).sum(1)
        y.scatter_(1, pseudo, 1.0)
        # y is not normalised: scaling the d columns of x is cheaper than scaling the K columns of y.
        share = torch.reciprocal(others + 1.0)
        weighted_sum += y.T @ (x * share[:, None])
        weight += share @ y
        if log_normalisers is not None:
            log_normalisers[block] = top[:, 0] + torch.log1p(others) + x @ first.centre
        parts.append((pseudo[:, 0], second, others, products))
        del logits, y  # before the next chunk needs as much
    pseudo, second, others, products = (torch.cat(part) for part in zip(*parts, strict=True))
    confidences = (products / (others + 1.0) - torch.log1p(others)).to(torch.float64)
    error = torch.where(second < -2 * first.logit_error, first.confidence_error(confidences), torch.inf)
    numbers = torch.arange(within.start, within.stop, device=backend.device)
    candidates.offer(pseudo, confidences - error, confidences + error, numbers)
    return weighted_sum, weight


LONGEST_ENTRY = 1.01
"""p_j x_j is not longer (`arrays.UNIT_NORM_TOLERANCE`)."""

AHEAD = 2
"""Chunks whose products with the bank are computed before the scores: their memory is free at that time."""

SMALL_PRODUCTS = 4_000_000
"""Products with the entries of the bank computed together, at least: 16 MB."""


@dataclass(frozen=True)
class GpuBank:
    """The entries of a bank on a GPU, prepared for products."""

    factor: Float32Factor
    """p_j x_j of all entries, slots outermost."""
    half_sums: Array
    """Half of sum_j p_j x_j, (K, d) float64."""
    slots: int

    @classmethod
    def of(cls, bank: KnowledgeBank) -> GpuBank:
        weighted = bank.features * bank.weights[:, :, None]
        _, slots, d = weighted.shape
        factor = Float32Factor(weighted.transpose(0, 1).reshape(-1, d), LONGEST_ENTRY)
        return cls(factor, 0.5 * weighted.sum(1), slots)

    @property
    def share(self) -> float:
        """What the lengths have to be multiplied by for half of sum_j |x.p_j x_j|."""
        return 0.5 * self.factor.unit

    def lengths(self, rows: Array) -> Array:
        """sum_j |x.p_j x_j|, times a number, (n, K) float32, of prepared rows."""
        torch: Any = sys.modules["torch"]
        n, classes = rows.shape[0], self.half_sums.shape[0]
        lengths = torch.empty((n, classes), dtype=torch.float32, device=rows.device)
        block = max(-(-n // self.slots), SMALL_PRODUCTS // (self.slots * classes), 1)  # the memory of the lengths
        for part, out in zip(rows.split(block), lengths.split(block), strict=True):
            products = self.factor.unscaled_product(part).view(-1, self.slots, classes)
            torch.linalg.vector_norm(products, ord=1, dim=1, out=out)
            del products  # before the next block needs as much
        return lengths

    def lengths_ahead(self, rows: Rows, chunk_rows: int) -> list[Array]:
        """The lengths of the first chunks. They need no precision, so that the device works on them while the host
        prepares the scores."""
        last = min(AHEAD * chunk_rows, len(rows))
        return [
            self.lengths(self.factor.rows(x)) for _, x in rows.blocks(chunk_rows, reuse=True, within=slice(0, last))
        ]


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
    bank: GpuBank | None

    @classmethod
    def of(cls, directions: Array, offsets: Array, bank: GpuBank | None, longest: float) -> GpuFusion:
        """From s t_k + P mu_k + s_k and the offsets in float64, each less what all classes share; the directions have
        lengths up to `longest`."""
        torch: Any = sys.modules["torch"]
        if bank is not None:
            directions = directions - bank.half_sums
            longest += 0.5 * bank.slots * LONGEST_ENTRY
        return cls(directions, offsets, Float32Factor(directions, longest), offsets.to(torch.float32), bank)

    def scores(self, x: Array, lengths: Array | None = None) -> Array:
        """Scores (n, K) float32 of the rows `x` (float32), less what `NarrowFusion.means` returns. `lengths` are those
        of the bank, if they are known; they are overwritten."""
        rows = self.linear.rows(x)
        if self.bank is None:
            return self.linear.product(rows, self.narrow_offsets)
        scores = self.bank.lengths(rows) if lengths is None else lengths
        self.linear.add_product(rows, scores, share=self.bank.share)
        scores += self.narrow_offsets
        return scores

    def exact(self, x: Array) -> Array:
        """The same in float64, with a float64 product for the large part, which is linear."""
        torch: Any = sys.modules["torch"]
        scores = torch.addmm(self.offsets, x.to(torch.float64), self.directions.T)
        if self.bank is not None:
            scores.add_(self.bank.lengths(self.linear.rows(x)), alpha=self.bank.share)
        return scores

    def scores_of_rows(
        self,
        rows: Rows,
        part: slice,
        chunk_rows: int,
        ahead: list[Array],
        largest: list[Array] | None,
        *,
        complete: bool,
    ) -> Iterator[tuple[slice, Array, Array]]:
        """(rows, features, scores) of a part of the rows, chunk by chunk; without `complete`, probabilities instead of
        scores. The host never waits for the device.

        `ahead` are the lengths of the first chunks. The largest probabilities are appended to `largest`."""
        torch: Any = sys.modules["torch"]
        for chunk, x in rows.blocks(chunk_rows, reuse=True, within=part):
            scores = self.scores(x, ahead.pop(0) if ahead else None)
            if not complete:
                torch.softmax(scores, 1, out=scores)
            if largest is not None:
                largest.append((scores.softmax(1) if complete else scores).amax(1))
            yield chunk, x, scores
            del scores  # before the next chunk needs as much

    def exact_scores(
        self, rows: Rows, numbers: Array, at_once: int, *, complete: bool
    ) -> Iterator[tuple[Array, Array, Array]]:
        """The same of rows with these numbers, in float64."""
        for some in numbers.split(max(1, at_once)) if numbers.shape[0] else ():
            x = rows.take(some)
            scores = self.exact(x)
            yield some, x, scores if complete else scores.softmax(1)
