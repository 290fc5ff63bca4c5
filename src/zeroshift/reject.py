"""Samples that show none of the classes: distances to the classes, and a rule that says from where on to reject.

A posterior divides the evidence for a class by that for all classes, so it cannot say "none of these". The distance to
the nearest class can: it is large where no class fits. How large is too large depends on the encoder and on the class
names, and is found without labels. The second nearest class of a sample is nearly always a wrong one, so its distance
shows how near a class comes to a sample that does not belong to it.

The constants were chosen on the bundled packs, PACS, real CLIP features and a folder of 147 drawings; what else was
tried, and what the cut rejects, is in benchmarks/results/reject.md.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from zeroshift._version import __version__
from zeroshift.arrays import Array, Backend, Rows, as_floats, check_matrix, to_numpy
from zeroshift.files import FileFormatError, atomic_path
from zeroshift.parameters import Number
from zeroshift.parsers import read_json

__all__ = [
    "DOUBTFUL_ABOVE",
    "NONE_OF_THESE",
    "REJECT_ABOVE",
    "RejectRule",
    "Rejects",
    "class_distances",
    "median_of_neighbours",
    "medians_of_runs",
    "rejected_label",
]

FIRST = 20
"""Samples that the rule always takes as members of the classes, those nearest to a class; of the others it takes half,
so that up to half of the samples may be strangers. Of a set that is not larger than this, nothing is rejected."""

MOST_WRONG = 0.98
"""Quantile of the distances to the second nearest class: few wrong classes are farther away, and as few are nearer than
one minus it."""

NEAREST = 0.1
"""Quantile of the distances to the nearest class: few members are nearer."""

SPREAD = 4.0
"""No member is expected to be farther beyond the typical one than this many times the distance to `NEAREST`."""

LOOSER = 0.1
"""How far the looser cut is from the stricter one towards the typical member, as a share of that distance."""

EXPECTED = 0.1
"""Without strangers, rarely more than this share of the samples is beyond the looser cut."""

TYPICAL_SCORE = 0.05
"""Score of the typical member."""

REJECT_ABOVE = 0.5
"""Scores above this are rejected by default: those beyond the cut."""

DOUBTFUL_ABOVE = 0.3
"""Scores above this are worth a look: most strangers have one, and about one in ten members."""

NARROWEST = 1e-6
"""Least distance from the typical member to the cut, where all samples are alike: distances have six decimals."""

FARTHEST = 2.0
"""One minus the smallest cosine; the distance to a second class where there is only one."""

BLOCK_ENTRIES = 2**22
"""Numbers in a block of features or of cosines."""

NONE_OF_THESE = "none of these"
"""What a rejected sample is called."""


def class_distances(features: Array, prototypes: Array) -> np.ndarray:
    """(N, 2) one minus the cosine with the nearest and the second nearest prototype, from features (N, d) and
    prototypes (K, d) of unit length; (2,) for one sample (d,).

    They depend neither on the logit scale nor on what a method has learned. With one class, the second distance is 2.

    >>> class_distances(np.array([[1.0, 0.0], [0.6, 0.8]]), np.array([[1.0, 0.0], [0.0, 1.0]])).tolist()
    [[0.0, 1.0], [0.2, 0.4]]
    """
    features, prototypes = as_floats("features", features), check_matrix("prototypes", prototypes)
    single = len(features.shape) == 1
    matrix = features[None, :] if single else features
    classes, dimension = prototypes.shape
    check_matrix("features", matrix, columns=dimension, classes=classes, empty=True)
    numpy = Backend.named("numpy", "cpu")
    transposed = to_numpy(prototypes).astype(np.float32).T
    found = np.full((matrix.shape[0], 2), FARTHEST)
    for rows, block in Rows(matrix, numpy, np.float32).blocks(max(1, BLOCK_ENTRIES // max(classes, dimension))):
        cosines = block @ transposed
        nearest = np.partition(cosines, -2, axis=1)[:, :-3:-1] if classes > 1 else cosines
        found[rows, : nearest.shape[1]] = 1 - nearest
    found = np.clip(found, 0.0, FARTHEST).round(6) + 0.0  # rounding can make a row slightly longer than 1; no "-0"
    return found[0] if single else found


@dataclass(frozen=True)
class RejectRule:
    """From where on a sample is rejected, found from the distances of unlabelled samples by `fit`.

    Examples
    --------
    >>> from zeroshift.data import packs
    >>> photographs, clothes = packs.load("cifar10"), packs.load("fmnist")
    >>> rule = RejectRule.fit(class_distances(photographs.features, photographs.prototypes_for()))
    >>> strangers = class_distances(clothes.features, photographs.prototypes_for())
    >>> print(f"{rule.rejected(strangers).mean():.2f}")
    0.58
    """

    typical: float
    """Median distance of the members to their nearest class."""
    cut: float
    """Distance to the nearest class beyond which samples are rejected."""
    n_samples: int
    """Number of samples that the rule was found from."""

    KIND: ClassVar[str] = "reject rule"
    SCHEMA: ClassVar[int] = 1

    @classmethod
    def fit(cls, distances: Array) -> RejectRule:
        """The rule for samples like these, from their `class_distances` (N, 2).

        The members are the `FIRST` samples nearest to a class, and half of the others. Let m1 and m2 be the medians of
        the members' distances to their nearest and to their second nearest class, l the 0.1 quantile of the former, f
        and h the 0.02 and 0.98 quantiles of the latter, and u = h - m2. The stricter cut is the smaller of

        - m2 + u min(1, u / (m2 - m1)): the best class is as far away as wrong classes are. Where best and second
          classes differ clearly, this is near m2. Where they hardly differ, many samples are as far away as m2, and
          this is beyond nearly all wrong classes;
        - m1 + 4 (m1 - l), or f if that is more: no member is expected there. It is the smaller one only where all
          samples of the classes are much nearer than wrong classes.

        It spares the members, but it misses strangers that are a little nearer than wrong classes. Whether a looser
        cut, a tenth of the way from the stricter one to m1, is worth it shows in the number of samples beyond it.
        Measured in the steps of the score, the distances are distributed alike in all sets without strangers: rarely
        more than a tenth are beyond the looser cut. If there are twice as many, probably half of them or more are
        strangers, and the looser cut is taken. In between, the cut moves in proportion, so that a few samples more do
        not make it jump.

        For up to `FIRST` samples, the cut is the largest distance to a second nearest class: nothing is rejected. The
        order of the samples does not matter. Distances of other samples may then be compared with the cut.
        """
        values = checked_distances(distances)
        if values.ndim != 2:
            raise ValueError(
                f"distances must have the shape (N, 2), of several samples; got {values.shape}. "
                "Fix: class_distances(features, prototypes) of a whole set."
            )
        order = np.lexsort((values[:, 1], values[:, 0]))
        members = values[order[: len(values) - max(0, len(values) - FIRST) // 2]]
        typical, wrong = np.median(members, axis=0)
        least, most = np.quantile(members[:, 1], [1 - MOST_WRONG, MOST_WRONG])
        reach, gap = most - wrong, wrong - typical
        as_wrong = wrong + (reach if gap <= reach else reach * reach / gap)
        no_member = max(typical + SPREAD * (typical - np.quantile(members[:, 0], NEAREST)), least)
        cut = min(as_wrong, no_member)
        if len(values) <= FIRST:
            cut = values[:, 1].max()
        else:
            step = LOOSER * (cut - typical)
            beyond = np.count_nonzero(values[:, 0] > cut - step) / len(values)
            cut -= step * min(max(beyond / EXPECTED - 1, 0), 1)
        return cls(typical=float(typical), cut=float(cut), n_samples=len(values))

    def scores(self, distances: Array) -> np.ndarray:
        """(N,) numbers from 0 to 1 that rise with the distance to the nearest class: 0.05 for the typical member, 0.5
        at the cut, 0.95 as far beyond the cut as the typical member is before it. From `class_distances`, (N, 2)."""
        nearest = checked_distances(distances)[..., 0]
        steps = (nearest - self.cut) / max(self.cut - self.typical, NARROWEST)
        odds = math.log(1 / TYPICAL_SCORE - 1)
        return np.asarray(1 / (1 + np.exp(np.clip(-odds * steps, -700, 700))))

    def rejected(self, distances: Array, *, above: float = REJECT_ABOVE) -> np.ndarray:
        """(N,) whether the score is higher than `above`, from 0 to 1; with `above=1` nothing is rejected. A rule from
        up to `FIRST` samples rejects nothing, whatever `above` is: it has no cut yet."""
        above = float(Number(0, 1).check("above", above))
        return np.asarray(self.scores(distances) > above) & (self.n_samples > FIRST)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the rule as JSON, completely or not at all."""
        content = {"kind": self.KIND, "schema": self.SCHEMA, "zeroshift": __version__, **asdict(self)}
        with atomic_path(path) as temporary:
            temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> RejectRule:
        """Read what `save` wrote."""
        content = read_json(path)
        if not isinstance(content, dict) or content.get("kind") != cls.KIND:
            raise FileFormatError(f"{path} is no reject rule of zeroshift. Fix: a file that RejectRule.save wrote.")
        if content.get("schema") != cls.SCHEMA:
            raise FileFormatError(
                f"{path} has schema {content.get('schema')!r}; this version of zeroshift reads {cls.SCHEMA}. "
                "Fix: use the version that wrote it, or fit the rule again."
            )
        fields: dict[str, Any] = {name: content.get(name) for name in ("typical", "cut", "n_samples")}
        if not _is_rule(**fields):
            shown = ", ".join(f"{name} {value!r}" for name, value in fields.items())
            raise FileFormatError(f"{path} has numbers that no rule has: {shown}. Fix: fit and save the rule again.")
        return cls(float(fields["typical"]), float(fields["cut"]), fields["n_samples"])


@dataclass(frozen=True)
class Rejects:
    """Which samples of a set are rejected, and why.

    >>> distances = np.column_stack([np.r_[np.linspace(0.2, 0.4, 99), 0.9], np.linspace(0.7, 0.91, 100)])
    >>> rejects = Rejects.of(distances)
    >>> int(rejects.rejected.sum()), bool(rejects.rejected[-1])
    (1, True)
    """

    rule: RejectRule
    above: float
    """Scores above this are rejected; 1 if nothing is."""
    scores: np.ndarray
    """(N,) from 0 to 1; see `RejectRule.scores`."""
    rejected: np.ndarray
    """(N,) True or False."""

    @classmethod
    def of(cls, distances: Array, *, above: float = REJECT_ABOVE, sequence: np.ndarray | None = None) -> Rejects:
        """From the `class_distances` (N, 2) of all samples, which the rule is found from.

        `sequence` (N,) has the predicted classes of samples that are frames in the order of time. Frames next to each
        other are alike: those of a run of equal classes then count as one sample, their median, when the rule is found,
        and each frame is scored by the median of its neighbours.
        """
        values = checked_distances(distances)
        if sequence is not None and np.shape(sequence) != (len(values),):
            raise ValueError(
                f"sequence must have one class for each of the {len(values)} samples; got shape {np.shape(sequence)}. "
                "Fix: the predicted classes, in the order of distances."
            )
        rule = RejectRule.fit(values if sequence is None else medians_of_runs(values, sequence))
        scored = values if sequence is None else median_of_neighbours(values)
        rejected = rule.rejected(scored, above=above)
        return cls(rule, float(above), rule.scores(scored), rejected)

    @property
    def count(self) -> int:
        return int(np.count_nonzero(self.rejected))

    @property
    def doubtful(self) -> int:
        """How many more have a score above `DOUBTFUL_ABOVE`: not rejected, but worth a look."""
        return 0 if self.too_few else int(np.count_nonzero((self.scores > DOUBTFUL_ABOVE) & ~self.rejected))

    @property
    def too_few(self) -> bool:
        """Whether the set has too few samples, or the sequence too few runs, to find a cut that rejects any of them."""
        return self.rule.n_samples <= FIRST


def _is_rule(typical: Any, cut: Any, n_samples: Any) -> bool:
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in (typical, cut, n_samples)):
        return False
    return 0 <= typical <= cut <= 2 * FARTHEST and isinstance(n_samples, int) and n_samples >= 1


def checked_distances(distances: Array) -> np.ndarray:
    """Distances (N, 2) or (2,) in float64; an error where they are not what `class_distances` gives."""
    values = to_numpy(as_floats("distances", distances)).astype(np.float64)
    fix = "Fix: class_distances(features, prototypes)."
    if values.ndim not in (1, 2) or values.shape[-1] != 2 or not values.size:
        raise ValueError(
            f"distances must have the shape (N, 2), to the nearest and the second nearest class; got {values.shape}. "
            f"{fix}"
        )
    pairs = values.reshape(-1, 2)
    faulty = ~((pairs >= 0) & (pairs <= FARTHEST)).all(axis=1) | (pairs[:, 0] > pairs[:, 1])
    if faulty.any():
        at = int(np.argmax(faulty))
        raise ValueError(
            f"distances must be from 0 to {FARTHEST:g}, the nearest first; got {pairs[at].tolist()} for sample {at}. "
            f"{fix}"
        )
    return values


NEIGHBOURS = 2
"""Frames on either side that count for a frame of a sequence."""


def median_of_neighbours(distances: np.ndarray) -> np.ndarray:
    """Distances (N, 2) of a sequence, each replaced by the median of it and two before and after it: one odd frame does
    not make a segment. At the ends there are fewer.

    >>> frames = np.array([[0.2, 0.5], [0.9, 0.9], [0.3, 0.6], [0.2, 0.5]])
    >>> median_of_neighbours(frames)[:, 0].round(2).tolist()
    [0.3, 0.25, 0.25, 0.3]
    """
    count = len(distances)
    windows = (distances[max(0, i - NEIGHBOURS) : i + NEIGHBOURS + 1] for i in range(count))
    return np.array([np.median(window, axis=0) for window in windows])


def medians_of_runs(distances: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """(R, 2) medians of the distances (N, 2) in each run of equal classes (N,).

    >>> medians_of_runs(np.array([[0.2, 0.5], [0.4, 0.5], [0.9, 0.9]]), np.array([1, 1, 0])).round(2).tolist()
    [[0.3, 0.5], [0.9, 0.9]]
    """
    starts = np.flatnonzero(classes[1:] != classes[:-1]) + 1
    return np.array([np.median(run, axis=0) for run in np.split(distances, starts)])


def rejected_label(class_names: Sequence[str]) -> str:
    """What rejected samples are called: "none of these", and more where a class has that name.

    >>> rejected_label(["cat", "dog"]), rejected_label(["cat", "None of these"])
    ('none of these', 'none of these (rejected)')
    """
    taken = {" ".join(name.split()).casefold() for name in class_names}
    label = NONE_OF_THESE
    while label in taken:
        label = f"{label} (rejected)"
    return label
