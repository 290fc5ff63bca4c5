"""Streams that hold every row once, and differ only in the order."""

from __future__ import annotations

import numpy as np

from zeroshift.arrays import Array
from zeroshift.evaluate.streams.stream import Stream, checked_classes, checked_confidences, checked_seed
from zeroshift.parameters import Constraint, Number, Optional
from zeroshift.zero_shot import graded

__all__ = [
    "CONCENTRATION",
    "CONSTRAINTS",
    "class_sorted",
    "dirichlet",
    "easy_to_hard",
    "few_classes",
    "few_confident",
    "hard_to_easy",
    "random_order",
    "run_length",
]


CONSTRAINTS: dict[str, Constraint] = {
    "concentration": Number(0, above=True),
    "slots": Optional(Number(1, integer=True)),
    "classes_per_batch": Number(1, integer=True),
    "batch_size": Number(1, integer=True),
    "per_class": Number(0, integer=True),
    "share": Number(0, 1),
}


def random_order(n_rows: int, seed: int) -> Stream:
    """Every row once, in an order `seed` draws.

    >>> random_order(4, seed=0).rows.tolist()
    [2, 0, 1, 3]
    """
    n_rows = int(Number(1, integer=True).check("n_rows", n_rows))
    return Stream(np.random.default_rng(checked_seed(seed)).permutation(n_rows))


def easy_to_hard(confidences: Array, seed: int) -> Stream:
    """The surest rows first; equally sure ones in an order `seed` draws.

    >>> easy_to_hard(np.array([-0.7, -0.1, -0.4]), seed=0).rows.tolist()
    [1, 2, 0]
    """
    return _sorted(-graded(checked_confidences(confidences)), seed)


def hard_to_easy(confidences: Array, seed: int) -> Stream:
    """The least sure rows first; equally sure ones in an order `seed` draws.

    >>> hard_to_easy(np.array([-0.7, -0.1, -0.4]), seed=0).rows.tolist()
    [0, 2, 1]
    """
    return _sorted(graded(checked_confidences(confidences)), seed)


def class_sorted(labels: Array, seed: int) -> Stream:
    """One class after the other; `seed` draws the order of the classes, and of the rows inside each.

    >>> labels = np.array([0, 1, 0, 1, 2])
    >>> labels[class_sorted(labels, seed=1).rows].tolist()
    [0, 0, 1, 1, 2]
    """
    labels = checked_classes("labels", labels)
    draw = np.random.default_rng(checked_seed(seed))
    classes, members = np.unique(labels, return_inverse=True)
    places = draw.permutation(len(classes))
    mixed = draw.permutation(len(labels))
    return Stream(mixed[np.argsort(places[members[mixed]], kind="stable")])


def _sorted(keys: np.ndarray, seed: int) -> Stream:
    mixed = np.random.default_rng(checked_seed(seed)).permutation(len(keys))
    return Stream(mixed[np.argsort(keys[mixed], kind="stable")])


# Streams in which neighbours tend to share a class, as the frames of a film do. Every row comes once.


CONCENTRATION = 1.0
"""In all: for ten classes 0.1 a slot, which work on correlated streams most often takes."""


def dirichlet(labels: Array, seed: int, *, concentration: float = CONCENTRATION, slots: int | None = None) -> Stream:
    """The stream is `slots` stretches of time; a Dirichlet draw for each class says how its rows fall on them.

    Parameters
    ----------
    labels : (N,) class indices.
    seed : of every draw.
    concentration : of the Dirichlet distribution, in all: each slot has an equal part of it, so that a class falls into
        about as few slots however many there are. Near 0 it falls into one; when it is large, every slot holds the same
        share of every class, which is more even than a random order.
    slots : at most as many as rows; by default as many as there are classes. Inside a slot the order is random; an
        empty one does not show.

    >>> labels = np.repeat([0, 1, 2], 4)
    >>> labels[dirichlet(labels, seed=0, concentration=0.03).rows].tolist()
    [1, 1, 1, 0, 0, 1, 0, 0, 2, 2, 2, 2]
    """
    concentration = float(CONSTRAINTS["concentration"].check("concentration", concentration))
    slots = CONSTRAINTS["slots"].check("slots", slots)
    labels = checked_classes("labels", labels)
    classes, members = np.unique(labels, return_inverse=True)
    slots = len(classes) if slots is None else slots
    if slots > len(labels):
        raise ValueError(
            f"slots must be at most {len(labels)}, the number of rows; got {slots}. "
            "Fix: slots=None, which is as many as there are classes."
        )
    draw = np.random.default_rng(checked_seed(seed))
    mixed = draw.permutation(len(labels))
    slot_of = np.empty(len(labels), int)
    for k in range(len(classes)):
        rows = mixed[members[mixed] == k]
        borders = np.cumsum(draw.dirichlet(np.full(slots, concentration / slots)))[:-1]
        cuts = np.rint(borders * len(rows)).astype(int)
        slot_of[rows] = np.searchsorted(cuts, np.arange(len(rows)), side="right")
    # Shuffled anew: in the order that was cut, a class ahead of the others would come first in every slot.
    mixed = draw.permutation(len(labels))
    return Stream(mixed[np.argsort(slot_of[mixed], kind="stable")])


def few_classes(labels: Array, seed: int, *, classes_per_batch: int = 2, batch_size: int = 64) -> Stream:
    """Every `batch_size` rows in a row hold at most `classes_per_batch` classes, until rows run out.

    Each class is cut into runs just long enough that no batch can meet more of them; the runs come in a random order,
    and inside a batch the rows do. Rows that make no whole run come last, a class at a time: those of a class with
    fewer rows than a run is long, and, with one class a batch, what is left over of each class. There alone a batch may
    hold more classes.

    >>> labels = np.repeat([0, 1, 2, 3], 10)
    >>> batches = labels[few_classes(labels, seed=0, classes_per_batch=2, batch_size=4).rows].reshape(-1, 4)
    >>> max(len(set(batch)) for batch in batches.tolist())
    2
    """
    classes_per_batch = int(CONSTRAINTS["classes_per_batch"].check("classes_per_batch", classes_per_batch))
    batch_size = int(CONSTRAINTS["batch_size"].check("batch_size", batch_size))
    labels = checked_classes("labels", labels)
    length = run_length(classes_per_batch, batch_size)
    draw = np.random.default_rng(checked_seed(seed))
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
    rows = np.concatenate(runs)
    batches = [draw.permutation(rows[i : i + batch_size]) for i in range(0, len(rows), batch_size)]
    return Stream(np.concatenate(batches))


def run_length(classes_per_batch: int, batch_size: int) -> int:
    """Rows of one class in a row so that no batch meets more classes: a batch cuts two runs, and holds others whole.

    >>> run_length(2, 64), run_length(1, 64), run_length(4, 64)
    (63, 64, 21)
    """
    if classes_per_batch == 1:
        return batch_size
    return max(1, (batch_size - 2) // (classes_per_batch - 1) + 1)


# A stream from which most of the confident samples are gone.


def few_confident(
    confidences: Array, pseudo_classes: Array, seed: int, *, per_class: int = 2, share: float = 0.5
) -> Stream:
    """Of the surest `share` of every pseudo-class, `per_class` rows drawn at random stay; the rest of it is left out.

    The less sure rows all stay. The order is random. The paper does not say how it made its streams with N confident
    samples a class; this goes by what a method without labels can know.

    >>> few_confident(np.array([-0.1, -0.2, -0.3, -0.4]), np.zeros(4, int), seed=0, per_class=1).rows.tolist()
    [2, 1, 3]
    """
    per_class = int(CONSTRAINTS["per_class"].check("per_class", per_class))
    share = float(CONSTRAINTS["share"].check("share", share))
    confidences = checked_confidences(confidences)
    pseudo_classes = checked_classes("pseudo_classes", pseudo_classes, rows=len(confidences))
    draw = np.random.default_rng(checked_seed(seed))
    mixed = draw.permutation(len(confidences))
    ordered = mixed[np.argsort(-graded(confidences)[mixed], kind="stable")]
    gone = np.zeros(len(confidences), bool)
    for k in np.unique(pseudo_classes):
        rows = ordered[pseudo_classes[ordered] == k]
        confident = draw.permutation(rows[: round(share * len(rows))])
        gone[confident[per_class:]] = True
    return Stream(mixed[~gone[mixed]])
