"""A method let loose on a stream: its answers, and what they took in time, memory and passes of the encoder."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zeroshift.evaluate.costs import Counts, costs_of
from zeroshift.evaluate.follow import EVERY, follow
from zeroshift.evaluate.gauge import HostGauge, settle
from zeroshift.method import Method

__all__ = ["Fed", "measured"]

WARMING = 2
"""Images with views to warm up with: what is allocated once is there after the first, and one can take seconds."""


@dataclass(frozen=True)
class Fed:
    """What a method is fed: rows in the order they come; or the views of all images, and which come in which order."""

    features: np.ndarray
    rows: np.ndarray | None = None

    @property
    def n_views(self) -> int:
        """Encoded for each image."""
        return 1 if self.features.ndim == 2 else int(self.features.shape[1])

    def begin(self, method: Method) -> None:
        """The first few, so that what happens once in a process has happened."""
        few = EVERY if self.features.ndim == 2 or method.protocol == "transductive" else WARMING
        rows = np.arange(len(self.features)) if self.rows is None else self.rows
        for _ in follow(method, self.features[rows[:few]]):
            pass


def measured(make: Callable[[], Method], fed: Fed, counts: Counts, *, every: int) -> dict[str, Any]:
    """Let a new method adapt to the stream. What it is made with adds to `counts`; set-up is told apart."""
    # What is imported or allocated once a process is there before anything is counted.
    fed.begin(make())
    settle()
    gauge = HostGauge()
    before, asked = gauge.now(), replace(counts)
    gauge.reset()
    began = time.perf_counter()
    method = make()
    setup = time.perf_counter() - began
    peak, made = gauge.peak(), replace(counts)
    # Looks at the whole stream, which a method that learns row by row does not.
    steps = follow(method, fed.features, rows=fed.rows, every=every)
    settle()
    gauge.reset()
    answers = [(step.probabilities, step.seconds) for step in steps]
    peak = max(peak, gauge.peak())
    probabilities = np.concatenate([probabilities for probabilities, _ in answers])
    taken = counts.since(made)
    return {
        "probabilities": probabilities,
        "seconds": sum(seconds for _, seconds in answers),
        "setup_seconds": setup,
        "setup_prompts": made.since(asked).prompts,
        "peak_bytes": max(0, peak - before) if gauge.resets else None,
        **costs_of(taken, images=len(probabilities), views=fed.n_views, steps=int(method.gradient_steps)),
    }
