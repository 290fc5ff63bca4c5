"""The estimate of order for many samples at once, for a GPU, where one small operation per sample would be slow.

`StickyClasses.observe` is a recursion over the samples. Here all samples of a block take each step together, starting
from a guess, and the steps are repeated until nothing changes. After j repetitions at least the first j samples are
those of the recursion, and in most streams all of them after a few: what a sample takes over from the one before
matters only while the class stays. The result is that of the recursion but for rounding.

On a GPU these are about a hundred small operations, which take longer to launch than to run. They are recorded as CUDA
graphs for blocks of `MOST_ROWS` samples, which smaller ones are filled up to.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from zeroshift.arrays import Array, Backend, to_numpy
from zeroshift.recording import Recordings, record
from zeroshift.sticky import MEMORY, STAY_VALUES, StickyClasses

__all__ = ["observe_together"]

FREQUENCY_STEPS, STEPS = 8, 12
"""Repetitions from one look at the result to the next, of the frequencies and of the posteriors: a look waits for the
GPU."""

LOOKS = 4
"""Looks after which the block is left to the recursion."""

SETTLED = 1e-12
"""Relative change in one repetition at which nothing changes any more."""

MOST_ROWS = 256
"""Samples of a recorded block. Old samples are forgotten by factors of 0.99, which are computed as powers: there must
not be many more."""


def observe_together(chain: StickyClasses, y: Array) -> tuple[np.ndarray, StickyClasses] | None:
    """`chain.observe` for zero-shot posteriors `y` (n, K) in any library; None if the repetitions do not settle.

    n must not be above a few hundred.
    """
    backend, (n, classes) = Backend.of(y), y.shape
    if n <= MOST_ROWS:
        with _RECORDINGS.use(y, classes, lambda: _RecordedBlock(backend, classes)) as recorded:
            if recorded is not None:
                return recorded.observe(chain, y)
    return _Block(backend, classes, n).observe(chain, y)


class _Block:
    """The steps, with memory for a number of samples."""

    def __init__(self, backend: Backend, classes: int, rows: int) -> None:
        self.backend, self.rows, self.classes = backend, rows, classes
        xp, values = backend.xp, len(STAY_VALUES)
        self.y = backend.zeros((rows, classes)) + 1.0 / classes
        self.inputs = backend.zeros((3 * classes + values + 4,))
        """See `_begin`."""
        self._numbers = xp.arange(rows, dtype=xp.float64, device=backend.device)
        self._sums = xp.astype(self._numbers[:, None] >= self._numbers, xp.float64)
        """A product with this lower triangular matrix adds up rows, faster than a sum down the columns does."""
        self._values = backend.asarray(np.array(STAY_VALUES), xp.float64)

    def observe(self, chain: StickyClasses, y: Array) -> tuple[np.ndarray, StickyClasses] | None:
        n = y.shape[0]
        likeliest = STAY_VALUES[1 + int(chain.log_likelihoods[1:].argmax())]
        scalars = (likeliest, float(chain.frequencies.sum()), float(chain.follows), float(n))
        self._send(y, np.concatenate(
            [chain.posteriors, chain.frequencies, chain.zero_shot, chain.log_likelihoods, scalars]
        ))  # fmt: skip
        self._begin()
        for _ in range(LOOKS):
            self._repeat()
            found = self._result()
            if (found[:3] <= SETTLED).all():
                return _chain_after(chain, found[3:], n, self.rows)
        return None

    def _send(self, y: Array, inputs: np.ndarray) -> None:
        self.y[: y.shape[0]] = y
        self.inputs[:] = self.backend.asarray(inputs)

    def _result(self) -> np.ndarray:
        return to_numpy(self.found)  # one transfer from a GPU

    def _begin(self) -> None:
        xp, classes, values = self.backend.xp, self.classes, len(STAY_VALUES)
        start = xp.reshape(self.inputs[: 3 * classes], (3, classes))
        self.first_likelihoods = self.inputs[3 * classes : 3 * classes + values]
        likeliest, n_frequencies, follows, n = (self.inputs[number] for number in range(-4, 0))
        self.live = xp.astype(self._numbers < n, xp.float64)
        self.last = xp.astype(self.inputs[-1:], xp.int64)
        self.follows = follows
        running = self._sums @ xp.concat([start[:1], self.y[:-1]], axis=0)
        self.posteriors = start[0] + self.live @ self.y
        self.e = self.y / running
        self.e /= xp.sum(self.e, axis=1)[:, None]
        self.n_frequencies = self._numbers + n_frequencies
        self.forgotten = ((1.0 - 1.0 / MEMORY) ** (self._numbers + follows))[:, None]
        # Each sample adds its posterior in random order to the frequencies, which the next ones are weighted by.
        self.added = xp.concat([start[1:2], start[1] * self.e], axis=0)
        self.added[1:, :] /= xp.sum(self.added[1:, :], axis=1)[:, None]
        # The posterior of each sample, which the next one may take over.
        self.f = xp.concat([start[2:], self.added[1:, :]], axis=0)
        self.a = likeliest + 0.0 * self._numbers
        self.n_drawn, self.total = xp.ones_like(self._numbers), xp.ones_like(self._numbers)

    def _repeat(self) -> None:
        xp, added, f, a, n_drawn, total = self.backend.xp, self.added, self.f, self.a, self.n_drawn, self.total
        drawn = added[1:, :]
        for _ in range(FREQUENCY_STEPS):
            drawn = self._sums @ added[:-1, :]
            drawn *= self.e
            before, n_drawn = n_drawn, xp.sum(drawn, axis=1)
            xp.divide(drawn, n_drawn[:, None], out=added[1:, :])
        changes = [xp.max(xp.abs(n_drawn / before - 1.0) * self.live)]
        new = n_drawn / self.n_frequencies
        stays = a[:, None] * self.e
        drawn *= ((1.0 - a) / self.n_frequencies)[:, None]
        for _ in range(STEPS):
            terms = stays * f[:-1, :]
            terms += drawn
            before, total = total, xp.sum(terms, axis=1)
            xp.divide(terms, total[:, None], out=f[1:, :])
        changes.append(xp.max(xp.abs(total / before - 1.0) * self.live))
        excess = (total / new - 1.0) / a
        gains = xp.log1p(excess[:, None] * self._values)
        gains[0, :] *= self.follows
        likelihoods = (self._sums @ (gains / self.forgotten) + self.first_likelihoods) * self.forgotten
        used = self._values[1 + xp.argmax(likelihoods[:, 1:], axis=1)]
        changes.append(xp.max(xp.abs(used - a) * self.live))
        a[:], self.n_drawn[:], self.total[:] = used, n_drawn, total
        frequencies = added[0, :] + self.live @ added[1:, :]
        last = xp.take(f, self.last, axis=0)[0, :]
        self.found = xp.concat(
            [xp.stack(changes), xp.reshape(likelihoods, (-1,)), self.posteriors, frequencies, last]
        )  # fmt: skip


class _RecordedBlock(_Block):
    """The steps as CUDA graphs."""

    def __init__(self, backend: Backend, classes: int) -> None:
        super().__init__(backend, classes, MOST_ROWS)
        torch: Any = sys.modules["torch"]
        self.inputs[:] = self.backend.asarray(self._example())
        self._graphs = record(backend.device, super()._begin, super()._repeat)
        self._host_inputs = torch.empty(self.inputs.shape, dtype=torch.float64, pin_memory=True)
        self._host_found = torch.empty(self.found.shape, dtype=torch.float64, pin_memory=True)
        self._used = 0
        """Rows of `y` that hold samples."""

    def _example(self) -> np.ndarray:
        chain = StickyClasses(self.classes)
        return np.concatenate(
            [chain.posteriors, chain.frequencies, chain.zero_shot, chain.log_likelihoods, [0.5, 1.0, 0.0, 1.0]]
        )

    def _send(self, y: Array, inputs: np.ndarray) -> None:
        n = y.shape[0]
        self.y[:n] = y
        if n < self._used:
            self.y[n : self._used] = 1.0 / self.classes
        self._used = n
        self._host_inputs.numpy()[:] = inputs  # the last transfer has ended: its result was waited for
        self.inputs.copy_(self._host_inputs, non_blocking=True)

    def _begin(self) -> None:
        self._graphs[0].replay()

    def _repeat(self) -> None:
        self._graphs[1].replay()

    def _result(self) -> np.ndarray:
        self._host_found.copy_(self.found)
        return np.array(self._host_found.numpy())


_RECORDINGS: Recordings[_RecordedBlock] = Recordings()


def _chain_after(chain: StickyClasses, numbers: np.ndarray, n: int, rows: int) -> tuple[np.ndarray, StickyClasses]:
    """`stay` before each of n samples, and the chain, from log-likelihoods (rows, values) and three vectors (K,)."""
    likelihoods = numbers[: rows * len(STAY_VALUES)].reshape(rows, -1)[:n]
    posteriors, frequencies, f = numbers[rows * len(STAY_VALUES) :].reshape(3, -1).copy()
    stay = chain.stay_of(np.concatenate([chain.log_likelihoods[None], likelihoods[:-1]]))
    if not chain.follows:
        stay[0] = 0.0
    return stay, chain.after(posteriors, frequencies, f, likelihoods[-1].copy())
