"""How many rows are worked on together, so that a call keeps to its memory budget."""

from __future__ import annotations

from zeroshift.adapt.bank import KnowledgeBank
from zeroshift.adapt.gaussians import Evidence
from zeroshift.adapt.surest import PENDING
from zeroshift.arrays import Array, Home

__all__ = ["keeps_normalisers", "rows_at_once"]

FEWEST_ROWS = 16
"""However small the budget: fewer rows make the products slow and save next to nothing."""

CACHED_NUMBERS = 3_000_000
"""Numbers in one chunk's features and scores on a processor: what stays in its caches is worked on twice as fast."""

NORMALISERS_SHARE = 8
"""Log-normalisers are kept from one pass to the next where they take at most one part in this of the budget."""

CANDIDATE_BYTES = 100
"""For each of the samples gathered between two sorts: class, row, confidence and probability, and the sort's own."""


def rows_at_once(memory_budget: int, rows: int, prototypes: Array, evidence: Evidence) -> int:
    """Of `rows` rows of d features and K scores, how many the budget (bytes) has room for beside what is learned."""
    classes, d = prototypes.shape
    slots = evidence.weights.shape[1] if isinstance(evidence, KnowledgeBank) else 0
    # The bank, and a copy of the half of it that may be summed exactly; prototypes, means, sums; scatter and precision.
    learned = 8 * (classes * slots * d * 3 // 2 + 7 * classes * d + 3 * d * d)
    kept = 8 * rows if keeps_normalisers(memory_budget, rows) else 0
    candidates = CANDIDATE_BYTES * min(rows, PENDING + classes * slots)
    # Two arrays of scores (logits and posteriors, or scores and bounds) and a byte or two a score; features twice.
    # With the bank off the posteriors come from `zero_shot`, which makes a new array at every step.
    row = 8 * ((2 if slots else 4) * classes + 2 * d) + 2 * classes + 64
    room = (memory_budget - learned - kept - candidates) // row
    if str(Home.of(prototypes).device) == "cpu":
        room = min(room, CACHED_NUMBERS // (classes + d))
    return max(FEWEST_ROWS, room)


def keeps_normalisers(memory_budget: int, rows: int) -> bool:
    """Whether 8 bytes for every row of the set fit."""
    return 8 * rows <= memory_budget // NORMALISERS_SHARE
