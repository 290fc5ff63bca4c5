"""Which samples of a stream enter a bank, and the saved state after some of them: known without predicting any.

What enters depends on the zero-shot posterior alone. So a state far into a stream costs one product and a walk over the
samples, and every engine can be started from the very same one, `direct` too, which could not come that far in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from zeroshift.adapt import OnlineADAPT
from zeroshift.benchmarks.clip_like import ClipLike
from zeroshift.zero_shot import log_posterior

__all__ = ["Schedule", "schedule"]

BLOCK_ROWS = 1024


@dataclass(frozen=True)
class Schedule:
    entered: np.ndarray
    """Whether each sample enters a bank, (N,)."""
    entries: np.ndarray
    """Bank entries after each sample, (N,)."""
    states: dict[int, Path]
    """Saved states, by the number of samples they have seen."""

    def rows_from(self, seen: int, steps: int) -> np.ndarray:
        """Rows to step through from the state at `seen`: up to `steps` that enter a bank and up to `steps` that do not.

        Samples that do not enter leave no trace, so they may be skipped; every sample that enters before the last row
        chosen is among the chosen. The state at each of them is that of the whole stream.
        """
        enters = seen + np.flatnonzero(self.entered[seen:])
        end = int(enters[steps]) if len(enters) > steps else len(self.entered)
        others = seen + np.flatnonzero(~self.entered[seen:end])
        return np.sort(np.concatenate([enters[:steps], others[:steps]]))


def schedule(problem: ClipLike, points: Sequence[int], folder: Path) -> Schedule:
    """Walk the stream through the banks of the definition; save the state at each of `points` (samples seen)."""
    adapter = OnlineADAPT(np.asarray(problem.prototypes), logit_scale=problem.logit_scale, engine="direct")
    prototypes = np.asarray(problem.prototypes, np.float64)
    n_rows = len(problem.features)
    entered = np.zeros(n_rows, dtype=bool)
    entries = np.zeros(n_rows, dtype=np.int64)
    states: dict[int, Path] = {}

    def save(seen: int) -> None:
        adapter.n_seen = seen
        adapter._engine.refresh()
        states[seen] = folder / f"seen-{seen}.safetensors"
        adapter.save(states[seen])

    held = 0
    for row in range(n_rows):
        if row in points:
            save(row)
        block = row % BLOCK_ROWS
        if block == 0:
            features = np.asarray(problem.features[row : row + BLOCK_ROWS], np.float64)
            log_y = log_posterior(features, prototypes, problem.logit_scale)
        entered[row] = adapter._evidence.offer(features[block : block + 1], log_y[block : block + 1])
        held = adapter._evidence.size if entered[row] else held
        entries[row] = held
    return Schedule(entered, entries, states)
