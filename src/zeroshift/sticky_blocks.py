"""The estimate of order for many samples at once, for a GPU, where one small operation per sample would be slow.

`StickyClasses.observe` is a recursion over the samples. Here all samples of a block take each step together, starting
from a guess, and the steps are repeated until nothing changes. After j repetitions at least the first j samples are
those of the recursion, and in most streams all of them after a few: what a sample takes over from the one before
matters only while the class stays. The result is that of the recursion but for rounding.
"""

from __future__ import annotations

import numpy as np

from zeroshift.arrays import Array, Backend, to_numpy
from zeroshift.sticky import MEMORY, STAY_VALUES, StickyClasses

__all__ = ["observe_together"]

STEPS = 12
"""Repetitions from one look at the result to the next: a look waits for the GPU."""

LOOKS = 4
"""Looks after which the block is left to the recursion."""

SETTLED = 1e-12
"""Relative change in one repetition at which nothing changes any more."""


def observe_together(chain: StickyClasses, y: Array) -> tuple[np.ndarray, StickyClasses] | None:
    """`chain.observe` for zero-shot posteriors `y` (n, K) in any library; None if the repetitions do not settle.

    n must not be above a few hundred: old samples are forgotten by factors of 0.99, which are computed as powers.
    """
    backend = Backend.of(y)
    xp, n = backend.xp, y.shape[0]
    start = backend.asarray(np.stack([chain.posteriors, chain.frequencies, chain.zero_shot]), xp.float64)
    running = xp.concat([start[:1], y], axis=0)
    running = xp.cumulative_sum(running, axis=0)
    e = y / running[:-1]
    e /= xp.sum(e, axis=1)[:, None]
    numbers = xp.arange(n, dtype=xp.float64, device=backend.device)
    n_frequencies = numbers + float(chain.frequencies.sum())
    forgotten = (1.0 - 1.0 / MEMORY) ** (numbers + (1.0 if chain.follows else 0.0))[:, None]
    values = backend.asarray(np.array(STAY_VALUES), xp.float64)
    first_likelihoods = backend.asarray(chain.log_likelihoods, xp.float64)

    # Each sample adds its posterior in random order to the frequencies, which the next ones are weighted by.
    added = xp.concat([start[1:2], start[1] * e], axis=0)
    added[1:] /= xp.sum(added[1:], axis=1)[:, None]
    # The posterior of each sample, which the next one may take over.
    f = xp.concat([start[2:], added[1:]], axis=0)
    a = values[1 + int(chain.log_likelihoods[1:].argmax())] + 0.0 * n_frequencies
    n_drawn = total = xp.ones_like(n_frequencies)
    for _ in range(LOOKS):
        for _ in range(STEPS):
            drawn = xp.cumulative_sum(added, axis=0)[:-1]
            drawn *= e
            before, n_drawn = n_drawn, xp.sum(drawn, axis=1)
            xp.divide(drawn, n_drawn[:, None], out=added[1:])
        changes = [xp.max(xp.abs(n_drawn / before - 1.0))]
        new = n_drawn / n_frequencies
        stays = a[:, None] * e
        drawn *= ((1.0 - a) / n_frequencies)[:, None]
        for _ in range(STEPS):
            terms = stays * f[:-1]
            terms += drawn
            before, total = total, xp.sum(terms, axis=1)
            xp.divide(terms, total[:, None], out=f[1:])
        changes.append(xp.max(xp.abs(total / before - 1.0)))
        excess = (total / new - 1.0) / a
        gains = xp.log1p(excess[:, None] * values)
        if not chain.follows:
            gains[0, :] = 0.0
        likelihoods = (xp.cumulative_sum(gains / forgotten, axis=0) + first_likelihoods) * forgotten
        used, a = a, values[1 + xp.argmax(likelihoods[:, 1:], axis=1)]
        changes.append(xp.max(xp.abs(used - a)))
        # One transfer from the GPU.
        parts = (xp.stack(changes), xp.reshape(likelihoods, (-1,)), running[-1], xp.sum(added, axis=0), f[-1])
        found = to_numpy(xp.concat(parts))
        if (found[:3] <= SETTLED).all():
            return _chain_after(chain, found[3:], n)
    return None


def _chain_after(chain: StickyClasses, numbers: np.ndarray, n: int) -> tuple[np.ndarray, StickyClasses]:
    """`stay` before each sample, and the chain, from log-likelihoods (n, values) and three vectors (K,)."""
    likelihoods = numbers[: n * len(STAY_VALUES)].reshape(n, -1)
    posteriors, frequencies, f = numbers[likelihoods.size :].reshape(3, -1).copy()
    before = np.concatenate([chain.log_likelihoods[None], likelihoods[:-1]])
    stay = np.array([chain.stay_given(row) for row in before.tolist()])
    if not chain.follows:
        stay[0] = 0.0
    return stay, chain.after(posteriors, frequencies, f, likelihoods[-1].copy())
