"""Each class's few surest samples, found while the set goes by: what is held never grows with the set."""

from __future__ import annotations

from zeroshift.arrays import Array, Home
from zeroshift.zero_shot import graded

__all__ = ["PENDING", "Surest"]

PENDING = 32_768
"""Samples gathered between two sorts: sorting after every chunk would cost more than the chunk."""


class Surest:
    """The `capacity` samples of highest confidence of every class, the earlier on a tie.

    >>> import numpy as np
    >>> surest = Surest(Home.of(np.zeros(1)), capacity=1)
    >>> surest.offer(np.array([0, 1, 1]), np.array([-0.5, -0.2, -0.1]), np.array([0.7, 0.8, 0.9]), first_row=0)
    >>> surest.offer(np.array([0]), np.array([-0.5]), np.array([0.7]), first_row=3)
    >>> classes, ranks, rows, confidences, probabilities = surest.chosen()
    >>> classes, rows
    (array([0, 1]), array([0, 2]))
    """

    def __init__(self, home: Home, capacity: int) -> None:
        self._home = home
        self._capacity = capacity
        self._parts: list[tuple[Array, ...]] = []
        self._pending = 0

    def offer(self, classes: Array, confidences: Array, probabilities: Array, first_row: int) -> None:
        """Consecutive samples from row `first_row` on: pseudo-class, confidence and own-class probability (n,)."""
        xp = self._home.xp
        n = int(classes.shape[0])
        rows = xp.arange(first_row, first_row + n, dtype=xp.int64, device=self._home.device)
        self._parts.append((classes, rows, confidences, probabilities))
        self._pending += n
        if self._pending >= PENDING:
            self.chosen()

    def chosen(self) -> tuple[Array, Array, Array, Array, Array]:
        """(class, rank in its class, row, confidence, probability) of every sample held, by class and rank."""
        xp = self._home.xp
        classes, rows, confidences, probabilities = (
            xp.concat(list(part), axis=0) for part in zip(*self._parts, strict=True)
        )
        # By class, then surest first, then first come: both sorts are stable, and what is held came earlier.
        order = xp.argsort(-graded(confidences), stable=True)
        order = order[xp.argsort(classes[order], stable=True)]
        by_class = classes[order]
        ranks = xp.arange(by_class.shape[0], device=self._home.device) - xp.searchsorted(by_class, by_class)
        keep = ranks < self._capacity
        order, ranks = order[keep], ranks[keep]
        held = (classes[order], rows[order], confidences[order], probabilities[order])
        self._parts, self._pending = [held], 0
        return held[0], ranks, *held[1:]
