"""What is known about a stream without labels: agreement with zero-shot, confidence, samples of no class, drift.

A `Monitor` follows from the answers alone. Its state is stored with each snapshot and continued from the log, so it is
the same after a restart.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from zeroshift.reject import REJECT_ABOVE, RejectRule
from zeroshift.serve.records import Answers

__all__ = ["Monitor", "PageHinkley"]

WINDOW = 1024
"""Samples that the rule for rejecting is found from: the last ones."""

REFIT, SETTLED_REFIT = 64, 256
"""The rule is found again when this many samples have come: before and after there are `WINDOW`."""

POINTS = 240
"""Most points of a curve over time; when there are more, two neighbours become one."""

TREND_POINTS = 60
"""Points of `trend`."""

FIRST_POINT = 32
"""Samples in a point, at first."""

DISAGREEMENTS = 100
"""How many of the last samples that zero-shot answers differently are listed."""

RECENT = 200
"""Samples that "recent" shares are computed from."""


@dataclass
class PageHinkley:
    """Page and Hinkley's test for a change of a mean, upwards or downwards.

    The mean and the spread are those of the first `REFERENCE` samples. Deviations beyond half a standard deviation are
    summed; an alarm is raised if a sum exceeds `THRESHOLD` standard deviations. For independent samples of the first
    distribution that happens about once in e**50 samples; a shift of one standard deviation is found after 100.

    >>> test = PageHinkley()
    >>> test.update([0.1 * (i % 3) for i in range(2000)]), test.update([1.0] * 200)
    (False, True)
    """

    n: int = 0
    mean: float = 0.0
    squares: float = 0.0
    """Sum of squared deviations from the mean, of the reference samples."""
    above: float = 0.0
    below: float = 0.0

    REFERENCE = 256
    SLACK = 0.5
    THRESHOLD = 50.0

    def update(self, values: Sequence[float]) -> bool:
        """Add samples; whether the mean has changed at one of them."""
        reference = values[: max(0, self.REFERENCE - self.n)]
        for value in reference:
            self.n += 1
            before = value - self.mean
            self.mean += before / self.n
            self.squares += before * (value - self.mean)
        self.n += len(values) - len(reference)
        spread = max(math.sqrt(self.squares / self.REFERENCE), 1e-3)
        mean, above, below, slack, highest = self.mean, self.above, self.below, self.SLACK, 0.0
        for value in values[len(reference) :]:
            deviation = (value - mean) / spread
            deviation = -10.0 if deviation < -10.0 else 10.0 if deviation > 10.0 else deviation
            above, below = above + deviation - slack, below - deviation - slack
            above, below = above if above > 0.0 else 0.0, below if below > 0.0 else 0.0
            if above > highest or below > highest:
                highest = max(above, below)
        self.above, self.below = above, below
        return highest > self.THRESHOLD

    @property
    def level(self) -> float:
        """How near an alarm is, from 0 to 1."""
        return min(1.0, max(self.above, self.below) / self.THRESHOLD)


class Monitor:
    SIGNALS = ("reject", "entropy")

    def __init__(self, n_classes: int) -> None:
        self._lock = threading.Lock()  # a thread observes while another reads
        self.n = 0
        self.agreeing = 0
        self.rejected = 0
        self.histogram = np.zeros(n_classes, np.int64)
        self.zero_shot_histogram = np.zeros(n_classes, np.int64)
        self.distances: deque[tuple[float, float]] = deque(maxlen=WINDOW)
        self.rule: RejectRule | None = None
        self.points: list[dict[str, float]] = []
        self.samples_per_point = FIRST_POINT
        self._open: dict[str, float] = {}
        self.disagreements: deque[dict[str, Any]] = deque(maxlen=DISAGREEMENTS)
        self.recent: deque[tuple[int, float, float, int]] = deque(maxlen=RECENT)
        self.drift = {name: PageHinkley() for name in self.SIGNALS}

    def reject_scores(self, distances: np.ndarray) -> np.ndarray:
        """Scores of samples that have not been observed yet, from their distances to the classes (n, 2)."""
        rule = self.rule
        if rule is None:
            rule = RejectRule.fit(np.array([*self.distances, *map(tuple, distances)]))
        return rule.scores(distances)

    def observe(
        self,
        answers: Answers,
        *,
        first: int,
        time: float,
        keys: tuple[str | None, ...],
        order: float | None,
        reliability: float | None,
    ) -> str | None:
        """Count answers that are about to be stored; the signal whose mean has changed, if any."""
        with self._lock:
            return self._observe(answers, first, time, keys, order, reliability)

    def _observe(
        self,
        answers: Answers,
        first: int,
        time: float,
        keys: tuple[str | None, ...],
        order: float | None,
        reliability: float | None,
    ) -> str | None:
        predicted, zero_shot = answers.classes[:, 0].astype(np.int64), answers.zero_shot.astype(np.int64)
        same, rejected = predicted == zero_shot, answers.reject > REJECT_ABOVE
        confidences = answers.scores[:, 0].astype(float)
        before, self.n = self.n, self.n + len(answers)
        self.agreeing += int(same.sum())
        self.rejected += int(rejected.sum())
        np.add.at(self.histogram, predicted, 1)
        np.add.at(self.zero_shot_histogram, zero_shot, 1)
        self.recent.extend(
            zip(
                same.astype(int).tolist(), confidences.tolist(), answers.zero_shot_scores.tolist(),
                rejected.astype(int).tolist(), strict=True,
            )
        )  # fmt: skip
        for row in np.flatnonzero(~same)[-DISAGREEMENTS:]:
            self.disagreements.append(
                {
                    "seq": first + int(row),
                    "key": keys[row],
                    "time": time,
                    "label": int(predicted[row]),
                    "score": float(answers.scores[row, 0]),
                    "zero_shot": int(zero_shot[row]),
                    "zero_shot_score": float(answers.zero_shot_scores[row]),
                    "reject": float(answers.reject[row]),
                }
            )
        self._add_to_point(answers, same, rejected, first, time, order, reliability)
        changed = None
        for name, values in (("reject", answers.reject), ("entropy", answers.entropies)):
            if self.drift[name].update(values.tolist()) and changed is None:
                changed = name
        self.distances.extend(map(tuple, answers.distances.tolist()))
        every = REFIT if before < WINDOW else SETTLED_REFIT
        if self.n // every > before // every:
            self.rule = RejectRule.fit(np.array(self.distances))
        return changed

    def reset_drift(self) -> None:
        """Take the next samples as the new normal."""
        self.drift = {name: PageHinkley() for name in self.SIGNALS}

    def _add_to_point(
        self,
        answers: Answers,
        same: np.ndarray,
        rejected: np.ndarray,
        first: int,
        time: float,
        order: float | None,
        reliability: float | None,
    ) -> None:
        part = {
            "n": float(len(answers)),
            "seq": float(first + len(answers) - 1),
            "time": time,
            "agreement": float(same.mean()),
            "confidence": float(answers.scores[:, 0].mean()),
            "zero_shot_confidence": float(answers.zero_shot_scores.mean()),
            "entropy": float(answers.entropies.mean()),
            "reject_rate": float(rejected.mean()),
            "order": order or 0.0,
            "reliability": reliability or 0.0,
        }
        self._open = _joined(self._open, part) if self._open else part
        if self._open["n"] >= self.samples_per_point:
            self.points.append(self._open)
            self._open = {}
        if len(self.points) > POINTS:
            pairs = [self.points[i : i + 2] for i in range(0, len(self.points), 2)]
            self.points = [_joined(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
            self.samples_per_point *= 2

    def summary(self) -> dict[str, Any]:
        """The numbers that an overview shows."""
        with self._lock:
            return self._summary()

    def _summary(self) -> dict[str, Any]:
        recent = np.array(self.recent, float).reshape(-1, 4).mean(axis=0) if self.recent else [None] * 4
        return {
            "n": self.n,
            "agreement": self.agreeing / self.n if self.n else None,
            "reject_rate": self.rejected / self.n if self.n else None,
            "recent": {
                "samples": len(self.recent),
                **{
                    name: None if value is None else float(value)
                    for name, value in zip(
                        ("agreement", "confidence", "zero_shot_confidence", "reject_rate"), recent, strict=True
                    )
                },
            },
            "drift": {name: round(test.level, 4) for name, test in self.drift.items()},
        }

    def curve(self) -> list[dict[str, float]]:
        """Points over time, oldest first; the last may have fewer samples."""
        with self._lock:
            return [*self.points, *([self._open] if self._open else [])]

    def trend(self) -> list[float]:
        """Agreement with zero-shot at the last points of the curve, for a drawing as small as a word."""
        with self._lock:
            return [round(point["agreement"], 4) for point in self.points[-TREND_POINTS:]]

    def last_disagreements(self) -> list[dict[str, Any]]:
        """Newest first."""
        with self._lock:
            return list(reversed(self.disagreements))

    def state(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        return {
            "n": self.n,
            "agreeing": self.agreeing,
            "rejected": self.rejected,
            "histogram": self.histogram.tolist(),
            "zero_shot_histogram": self.zero_shot_histogram.tolist(),
            "distances": [list(pair) for pair in self.distances],
            "rule": None if self.rule is None else asdict(self.rule),
            "points": self.points,
            "samples_per_point": self.samples_per_point,
            "open": self._open,
            "disagreements": list(self.disagreements),
            "recent": [list(one) for one in self.recent],
            "drift": {name: asdict(test) for name, test in self.drift.items()},
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Monitor:
        """What `state` returned."""
        made = cls(len(state["histogram"]))
        made.n, made.agreeing, made.rejected = state["n"], state["agreeing"], state["rejected"]
        made.histogram = np.array(state["histogram"], np.int64)
        made.zero_shot_histogram = np.array(state["zero_shot_histogram"], np.int64)
        made.distances.extend((near, far) for near, far in state["distances"])
        made.rule = None if state["rule"] is None else RejectRule(**state["rule"])
        made.points, made.samples_per_point = [dict(one) for one in state["points"]], state["samples_per_point"]
        made._open = dict(state["open"])
        made.disagreements.extend(state["disagreements"])
        made.recent.extend(tuple(one) for one in state["recent"])
        made.drift = {name: PageHinkley(**test) for name, test in state["drift"].items()}
        return made


def _joined(first: dict[str, float], second: dict[str, float]) -> dict[str, float]:
    """Two neighbouring points as one: means weighted by their samples, the end of the second."""
    n = first["n"] + second["n"]
    means = {name: (first["n"] * first[name] + second["n"] * second[name]) / n for name in first}
    return {**means, "n": n, "seq": second["seq"], "time": second["time"]}
