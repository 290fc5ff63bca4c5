"""Orders of a set: random, by confidence, by class, correlated in time; and streams with few confident samples or with
some of the classes only."""

from __future__ import annotations

import numpy as np

from zeroshift.arrays import Array
from zeroshift.evaluate.streams.stream import Stream, checked_classes, checked_confidences, checked_seed
from zeroshift.parameters import Constraint, Number, Optional
from zeroshift.zero_shot import quantize

__all__ = [
    "CLASS_SHARE",
    "CONCENTRATION",
    "CONSTRAINTS",
    "MEAN_LENGTH",
    "ROUNDS",
    "bursts",
    "class_sorted",
    "dirichlet",
    "easy_to_hard",
    "few_classes",
    "few_confident",
    "hard_to_easy",
    "random_order",
    "recurring",
    "run_length",
    "some_classes",
    "some_classes_sorted",
]


CONSTRAINTS: dict[str, Constraint] = {
    "concentration": Number(0, above=True),
    "slots": Optional(Number(1, integer=True)),
    "classes_per_batch": Number(1, integer=True),
    "batch_size": Number(1, integer=True),
    "per_class": Number(0, integer=True),
    "share": Number(0, 1),
    "mean_length": Number(1),
    "rounds": Number(1, integer=True),
    "class_share": Number(0, 1, above=True),
}


def random_order(n_rows: int, seed: int) -> Stream:
    """Every row once, in random order.

    >>> random_order(4, seed=0).rows.tolist()
    [2, 0, 1, 3]
    """
    n_rows = int(Number(1, integer=True).check("n_rows", n_rows))
    return Stream(np.random.default_rng(checked_seed(seed)).permutation(n_rows))


def easy_to_hard(confidences: Array, seed: int) -> Stream:
    """The most confident rows first; ties in random order.

    >>> easy_to_hard(np.array([-0.7, -0.1, -0.4]), seed=0).rows.tolist()
    [1, 2, 0]
    """
    return _sorted(-quantize(checked_confidences(confidences)), seed)


def hard_to_easy(confidences: Array, seed: int) -> Stream:
    """The least confident rows first; ties in random order.

    >>> hard_to_easy(np.array([-0.7, -0.1, -0.4]), seed=0).rows.tolist()
    [0, 2, 1]
    """
    return _sorted(quantize(checked_confidences(confidences)), seed)


def class_sorted(labels: Array, seed: int) -> Stream:
    """One class after the other; the order of classes and of rows within a class is random.

    >>> labels = np.array([0, 1, 0, 1, 2])
    >>> labels[class_sorted(labels, seed=1).rows].tolist()
    [0, 0, 1, 1, 2]
    """
    labels = checked_classes("labels", labels)
    return Stream(_sorted_by_class(labels, np.random.default_rng(checked_seed(seed))))


def _sorted_by_class(labels: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    classes, members = np.unique(labels, return_inverse=True)
    places = draw.permutation(len(classes))
    mixed = draw.permutation(len(labels))
    return mixed[np.argsort(places[members[mixed]], kind="stable")]


def _sorted(keys: np.ndarray, seed: int) -> Stream:
    mixed = np.random.default_rng(checked_seed(seed)).permutation(len(keys))
    return Stream(mixed[np.argsort(keys[mixed], kind="stable")])


CONCENTRATION = 1.0
"""Total over all slots: 0.1 per slot for ten classes, the usual value for correlated streams."""


def dirichlet(labels: Array, seed: int, *, concentration: float = CONCENTRATION, slots: int | None = None) -> Stream:
    """Neighbours tend to share a class: a Dirichlet draw per class distributes its rows over `slots` periods.

    Parameters
    ----------
    labels : (N,) class indices.
    seed : seed of all draws.
    concentration : total concentration of the Dirichlet distribution, shared equally by the slots, so that the number
        of slots a class occupies hardly depends on `slots`. Near 0 a class falls into one slot; a large value gives
        every slot the same share of every class, which is more even than a random order.
    slots : number of periods, at most the number of rows; by default the number of classes. The order within a slot is
        random.

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
    # Shuffle again: otherwise the classes would have the same order in every slot.
    mixed = draw.permutation(len(labels))
    return Stream(mixed[np.argsort(slot_of[mixed], kind="stable")])


def few_classes(labels: Array, seed: int, *, classes_per_batch: int = 2, batch_size: int = 64) -> Stream:
    """Every batch of `batch_size` consecutive rows holds at most `classes_per_batch` classes.

    Each class is cut into runs long enough that no batch meets more classes; the order of runs, and of rows within a
    batch, is random. Rows that do not fill a run come last, class by class: classes with fewer rows than a run, and,
    with one class per batch, the remainder of each class. Only these batches may hold more classes.

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
        # With one class per batch, runs are exactly as long as batches; otherwise they may be longer.
        kept = len(rows) // length * length if classes_per_batch == 1 or len(rows) < length else len(rows)
        whole += np.array_split(rows[:kept], len(rows) // length) if kept else []
        left += [rows[kept:]] if kept < len(rows) else []
    runs = [whole[i] for i in draw.permutation(len(whole))] + [left[i] for i in draw.permutation(len(left))]
    rows = np.concatenate(runs)
    batches = [draw.permutation(rows[i : i + batch_size]) for i in range(0, len(rows), batch_size)]
    return Stream(np.concatenate(batches))


def run_length(classes_per_batch: int, batch_size: int) -> int:
    """Length of runs of one class such that no batch meets more classes: a batch can cut two runs and contain others.

    >>> run_length(2, 64), run_length(1, 64), run_length(4, 64)
    (63, 64, 21)
    """
    if classes_per_batch == 1:
        return batch_size
    return max(1, (batch_size - 2) // (classes_per_batch - 1) + 1)


MEAN_LENGTH = 10.0
"""Mean length of a burst, in samples."""


def bursts(labels: Array, seed: int, *, mean_length: float = MEAN_LENGTH) -> Stream:
    """Runs of one class, like a camera that sees one animal after another.

    The lengths of the runs have a geometric distribution, so that in the middle of a run the probability that the next
    row is of the same class is always 1 - 1/`mean_length`. The last run of a class ends where its rows do. A run
    follows another of the same class only if one class has more than half of all runs.

    Parameters
    ----------
    labels : (N,) class indices.
    seed : seed of all draws.
    mean_length : mean of the geometric distribution, at least 1.

    >>> labels = np.repeat([0, 1, 2], 6)
    >>> labels[bursts(labels, seed=0, mean_length=3).rows].tolist()
    [1, 1, 0, 2, 2, 2, 2, 1, 0, 0, 0, 0, 1, 2, 2, 1, 1, 0]
    """
    mean_length = float(CONSTRAINTS["mean_length"].check("mean_length", mean_length))
    labels = checked_classes("labels", labels)
    draw = np.random.default_rng(checked_seed(seed))
    mixed = draw.permutation(len(labels))
    runs: list[list[np.ndarray]] = []
    for k in np.unique(labels):
        rows = mixed[labels[mixed] == k]
        ends = np.cumsum(draw.geometric(1 / mean_length, len(rows)).astype(float))
        runs.append(np.split(rows, ends[ends < len(rows)].astype(int)))
    order = _alternating(np.array([len(own) for own in runs]), draw)
    return Stream(np.concatenate([runs[k].pop() for k in order]))


def _alternating(counts: np.ndarray, draw: np.random.Generator) -> list[int]:
    """A random sequence with `counts[k]` times each k, where neighbours differ as far as the counts allow."""
    left, order = counts.copy(), [-1]
    for total in range(int(counts.sum()), 0, -1):
        largest = int(left.argmax())
        free = np.where(np.arange(len(left)) == order[-1], 0, left)
        if 2 * left[largest] > total and largest != order[-1]:
            chosen = largest  # later, others would no longer suffice to separate its runs
        elif free.any():
            chosen = int(draw.choice(len(left), p=free / free.sum()))
        else:
            chosen = largest
        left[chosen] -= 1
        order.append(chosen)
    return order[1:]


ROUNDS = 3
"""How often a class comes back, with its first time."""


def recurring(labels: Array, seed: int, *, rounds: int = ROUNDS) -> Stream:
    """Every round shows the classes one after the other, in an order of its own, like a robot on patrol.

    The rows of a class are divided among the rounds as evenly as possible; a class with fewer rows than rounds is
    missing in some. There are at most as many rounds as rows. A round does not begin with the class that the round
    before ended with, unless it has no other.

    >>> labels = np.repeat([0, 1, 2], 4)
    >>> labels[recurring(labels, seed=0, rounds=2).rows].tolist()
    [1, 1, 2, 2, 0, 0, 2, 2, 1, 1, 0, 0]
    """
    rounds = int(CONSTRAINTS["rounds"].check("rounds", rounds))
    labels = checked_classes("labels", labels)
    rounds = min(rounds, len(labels))
    draw = np.random.default_rng(checked_seed(seed))
    mixed = draw.permutation(len(labels))
    round_of = np.empty(len(labels), int)
    for k in np.unique(labels):
        rows = mixed[labels[mixed] == k]
        # Whole sets of all rounds, and a different round for each row that is left.
        whole = len(rows) // rounds * rounds
        round_of[rows[:whole]] = np.arange(whole) % rounds
        round_of[rows[whole:]] = draw.permutation(rounds)[: len(rows) - whole]
    blocks: list[np.ndarray] = []
    for number in range(rounds):
        rows = mixed[round_of[mixed] == number]
        classes = draw.permutation(np.unique(labels[rows]))
        if blocks and len(classes) > 1 and classes[0] == labels[blocks[-1][0]]:
            classes = np.roll(classes, -1)
        blocks += [rows[labels[rows] == k] for k in classes]
    return Stream(np.concatenate(blocks))


CLASS_SHARE = 1 / 3


def some_classes(labels: Array, seed: int, *, class_share: float = CLASS_SHARE) -> Stream:
    """The rows of a random share of the classes, at least one class, in random order.

    `class_share` refers to the classes that occur in `labels`, and is rounded to whole classes.

    >>> labels = np.repeat([0, 1, 2, 3, 4, 5], 2)
    >>> labels[some_classes(labels, seed=0).rows].tolist()
    [2, 3, 2, 3]
    """
    rows, draw = _of_some_classes(labels, seed, class_share)
    return Stream(draw.permutation(rows))


def some_classes_sorted(labels: Array, seed: int, *, class_share: float = CLASS_SHARE) -> Stream:
    """The same rows as `some_classes` with the same seed, one class after the other.

    >>> labels = np.repeat([0, 1, 2, 3, 4, 5], 2)
    >>> labels[some_classes_sorted(labels, seed=0).rows].tolist()
    [3, 3, 2, 2]
    """
    rows, draw = _of_some_classes(labels, seed, class_share)
    return Stream(rows[_sorted_by_class(checked_classes("labels", labels)[rows], draw)])


def _of_some_classes(labels: Array, seed: int, class_share: float) -> tuple[np.ndarray, np.random.Generator]:
    """The rows of the classes drawn, in the order of the set, and the generator for what is drawn next."""
    class_share = float(CONSTRAINTS["class_share"].check("class_share", class_share))
    labels = checked_classes("labels", labels)
    draw = np.random.default_rng(checked_seed(seed))
    classes = draw.permutation(np.unique(labels))
    kept = classes[: max(1, round(class_share * len(classes)))]
    return np.flatnonzero(np.isin(labels, kept)), draw


def few_confident(
    confidences: Array, pseudo_classes: Array, seed: int, *, per_class: int = 2, share: float = 0.5
) -> Stream:
    """Of the most confident `share` of every pseudo-class, only `per_class` random rows stay; the others are removed.

    All less confident rows stay. The order is random. The paper does not say how it built its streams with N confident
    samples per class; this version uses only what a method without labels can know.

    >>> few_confident(np.array([-0.1, -0.2, -0.3, -0.4]), np.zeros(4, int), seed=0, per_class=1).rows.tolist()
    [2, 1, 3]
    """
    per_class = int(CONSTRAINTS["per_class"].check("per_class", per_class))
    share = float(CONSTRAINTS["share"].check("share", share))
    confidences = checked_confidences(confidences)
    pseudo_classes = checked_classes("pseudo_classes", pseudo_classes, rows=len(confidences))
    draw = np.random.default_rng(checked_seed(seed))
    mixed = draw.permutation(len(confidences))
    ordered = mixed[np.argsort(-quantize(confidences)[mixed], kind="stable")]
    removed = np.zeros(len(confidences), bool)
    for k in np.unique(pseudo_classes):
        rows = ordered[pseudo_classes[ordered] == k]
        confident = draw.permutation(rows[: round(share * len(rows))])
        removed[confident[per_class:]] = True
    return Stream(mixed[~removed[mixed]])
