"""Streams in which neighbours tend to share a class, as the frames of a film do. Every row comes once."""

from __future__ import annotations

import numpy as np

from zeroshift.evaluate.streams.stream import Stream
from zeroshift.parameters import Number, Optional

__all__ = ["dirichlet", "few_classes", "run_length"]

CONCENTRATION = 0.1
"""What work on correlated streams most often takes."""


def dirichlet(
    labels: np.ndarray, seed: int, *, concentration: float = CONCENTRATION, slots: int | None = None
) -> Stream:
    """The stream is `slots` stretches of time; a Dirichlet draw for each class says how its rows fall on them.

    Parameters
    ----------
    labels : (N,) class indices.
    seed : of every draw.
    concentration : of the Dirichlet distribution. Near 0 a class falls into one slot; when it is large, every slot
        holds every class alike, which is the random order.
    slots : by default as many as there are classes. Inside a slot the order is random; an empty one does not show.

    >>> labels = np.repeat([0, 1, 2], 4)
    >>> labels[dirichlet(labels, seed=0, concentration=0.01).rows].tolist()
    [1, 1, 1, 0, 0, 1, 0, 0, 2, 2, 2, 2]
    """
    concentration = float(Number(0, above=True).check("concentration", concentration))
    slots = Optional(Number(1, integer=True)).check("slots", slots)
    classes, members = np.unique(labels, return_inverse=True)
    slots = len(classes) if slots is None else slots
    draw = np.random.default_rng(seed)
    mixed = draw.permutation(len(labels))
    slot_of = np.empty(len(labels), int)
    for k in range(len(classes)):
        rows = mixed[members[mixed] == k]
        borders = np.cumsum(draw.dirichlet(np.full(slots, concentration)))[:-1]
        cuts = np.rint(borders * len(rows)).astype(int)
        slot_of[rows] = np.searchsorted(cuts, np.arange(len(rows)), side="right")
    # Shuffled anew: in the order that was cut, a class ahead of the others would come first in every slot.
    mixed = draw.permutation(len(labels))
    return Stream(mixed[np.argsort(slot_of[mixed], kind="stable")])


def few_classes(labels: np.ndarray, seed: int, *, classes_per_batch: int = 2, batch_size: int = 64) -> Stream:
    """Every `batch_size` rows in a row hold at most `classes_per_batch` classes, until rows run out.

    Each class is cut into runs just long enough that no batch can meet more of them; the runs come in a random order,
    and inside a batch the rows do. Rows that make no whole run come last, a class at a time: those of a class with
    fewer rows than `run_length`, and, with one class a batch, what is left over of each class. There alone a batch may
    hold more classes.

    >>> labels = np.repeat([0, 1, 2, 3], 10)
    >>> batches = labels[few_classes(labels, seed=0, classes_per_batch=2, batch_size=4).rows].reshape(-1, 4)
    >>> max(len(set(batch)) for batch in batches.tolist())
    2
    """
    classes_per_batch = int(Number(1, integer=True).check("classes_per_batch", classes_per_batch))
    batch_size = int(Number(1, integer=True).check("batch_size", batch_size))
    length = run_length(classes_per_batch, batch_size)
    draw = np.random.default_rng(seed)
    mixed = draw.permutation(len(labels))
    whole: list[np.ndarray] = []
    left: list[np.ndarray] = []
    for k in np.unique(labels):
        rows = mixed[labels[mixed] == k]
        # With one class a batch runs are as long as batches, so that each fills one; else they may be longer.
        kept = len(rows) // length * length if classes_per_batch == 1 or len(rows) < length else len(rows)
        whole += np.array_split(rows[:kept], len(rows) // length) if kept else []
        left += [rows[kept:]] if kept < len(rows) else []
    runs = [whole[i] for i in draw.permutation(len(whole))] + [left[i] for i in draw.permutation(len(left))]
    rows = np.concatenate(runs) if runs else mixed
    batches = [draw.permutation(rows[i : i + batch_size]) for i in range(0, len(rows), batch_size)]
    return Stream(np.concatenate(batches) if batches else rows)


def run_length(classes_per_batch: int, batch_size: int) -> int:
    """Rows of one class in a row so that no batch meets more classes: a batch cuts two runs, and holds others whole.

    >>> run_length(2, 64), run_length(1, 64), run_length(4, 64)
    (63, 64, 21)
    """
    if classes_per_batch == 1:
        return batch_size
    return max(1, (batch_size - 2) // (classes_per_batch - 1) + 1)
