"""Cutting a known timeline into blocks that can be worked on as matrices, each with the ridges to factorise at."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

import numpy as np

from zeroshift.adapt.engines.ridge import node_error, nodes
from zeroshift.adapt.engines.timeline import Timeline

__all__ = ["GPU_RANK_LIMIT", "RANK_LIMIT", "SMALLEST_RANK_LIMIT", "Block", "Segments", "cut", "groups", "segments"]

RANK_LIMIT, SMALLEST_RANK_LIMIT, GPU_RANK_LIMIT = 448, 64, 1024
"""Scatter changes worked on together, at most (d of them, within these limits): beyond, their own small factorisation
outweighs what they share. A GPU would rather multiply more than be asked more often."""

NODES_LIMIT = 6
"""Ridges factorised at in one block, at most."""

SCORE_TOLERANCE = 5e-7
"""Bound on the error of a score by interpolating between ridges."""

LENGTHS = 1.6
"""|mu| |x| + |mu|^2 / 2 is at most this for unit vectors (which may be 1% longer)."""


class Segments(NamedTuple):
    """Runs of rows with the same statistics. Segment s: rows starts[s] .. starts[s + 1], after events[s] insertions."""

    starts: np.ndarray
    events: np.ndarray


def segments(first_row: int, rows: int, entered_at: np.ndarray, batch_size: int) -> Segments:
    """`entered_at`: offered row of every insertion. A batch is predicted after all of it was learned."""
    begins = np.maximum(entered_at // batch_size * batch_size, first_row)
    starts = np.unique(np.concatenate([[first_row], begins]))
    events = np.searchsorted(begins, starts, side="right")
    return Segments(np.append(starts, rows), events)


class Block(NamedTuple):
    """Segments first .. last: the statistics of the first are factorised, the others' changes are followed."""

    first: int
    last: int
    ridges: np.ndarray


def cut(
    line: Timeline, runs: Segments, size: int, trace: float, dimension: int, classes: int, rank_limit: int = RANK_LIMIT
) -> list[Block]:
    """Greedy blocks of least work an insertion. `size` and `trace` are the bank's before the first insertion."""
    sizes, traces = np.append(size, line.sizes)[runs.events], np.append(trace, line.traces)[runs.events]
    ranks = np.append(0, line.row_ends)[runs.events]
    ridges = traces / np.maximum(sizes - 1, 1)
    scales = dimension * sizes / traces
    blocks, first, count = [], 0, len(runs.events)
    while first < count:
        last = min(count, int(np.searchsorted(ranks, ranks[first] + rank_limit, side="right")))
        low = np.minimum.accumulate(ridges[first:last])
        high = np.maximum.accumulate(ridges[first:last])
        allowed = SCORE_TOLERANCE / (LENGTHS * np.maximum.accumulate(scales[first:last]))
        best: tuple[float, int, int] | None = None
        for q in range(1, NODES_LIMIT + 1):
            bounds = _errors(low, high, q)
            fits = int(np.searchsorted(bounds > allowed, True)) if (bounds > allowed).any() else len(bounds)
            fits = max(fits, 1)
            rank = int(ranks[first + fits - 1] - ranks[first])
            cost = q * _work(rank, dimension, classes) / (1 + fits)
            if best is None or cost < best[0]:
                best = (cost, q, fits)
        assert best is not None
        _, q, fits = best
        ends = (float(low[fits - 1]), float(high[fits - 1]))
        blocks.append(Block(first, first + fits - 1, nodes(*ends, q if ends[1] > ends[0] else 1)))
        first += fits
    return blocks


def _errors(low: np.ndarray, high: np.ndarray, q: int) -> np.ndarray:
    """`ridge.node_error` for growing intervals; it grows with them."""
    unit = node_error(1.0, 3.0, q)
    errors: np.ndarray = unit * (((high - low) / 2) / low) ** q
    return errors


def _work(rank: int, d: int, classes: int) -> float:
    """Multiplications at one ridge: inverse and quadratic terms once, then what every scatter change costs."""
    return d**3 + classes * d**2 + rank * (d**2 + 2 * rank * d + d * classes + rank * rank / 3)


def groups(blocks: list[Block], together: int) -> Iterator[list[Block]]:
    """Neighbouring blocks with equally many ridges, at most `together` at a time."""
    for _, alike in groupby(blocks, key=lambda block: len(block.ridges)):
        run = list(alike)
        for start in range(0, len(run), together):
            yield run[start : start + together]
