"""Answers over time: segments of equal labels, as a file, as a table and as a drawing for a page."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from zeroshift.files import atomic_path
from zeroshift.reject import rejected_label
from zeroshift.report.formatting import counted, most_of, visible
from zeroshift.report.predictions import ClassColumn, PartialColumn, SecondsColumn, write_csv
from zeroshift.report.style import CLASS_COLOURS
from zeroshift.report.tables import ReportColumn, ReportTable

__all__ = ["Segment", "Timeline", "write_segments"]

MAX_LANES = len(CLASS_COLOURS)
"""Classes with a line of their own in the drawing; the others share one."""

MAX_BARS = 2000
"""Segments in the drawing: about two for each pixel of a wide window."""

MAX_NAME = 40
"""Letters of a class name in the drawing: as many fit on a phone."""

MAX_INTERVALS = 5
"""Most steps of the time axis: that many times fit next to each other on a phone."""

LANE, BAR, AXIS = 34, 14, 22
"""Heights in pixels: a class with its name above, its bar, and the times below."""

PALEST = 0.35
"""Opacity of a segment of probability zero; that of probability one is opaque."""


class Segment(NamedTuple):
    """A run of frames with the same label."""

    start: float
    """Time of its first frame."""
    end: float
    """Time of the first frame of the next segment; of the last one, the end of the sequence."""
    label: int
    """Class index; the number of classes for frames that show none of them."""
    probability: float | None
    """Mean, over its frames, of the probability of the label; None for frames that show none of the classes."""
    first: int
    """Position of its first frame among the frames that have an answer."""
    frames: int


@dataclass(frozen=True)
class Timeline:
    """The answers for a sequence of frames.

    >>> predictions, probabilities = np.array([0, 0, 1]), np.array([0.5, 1.0, 0.75])
    >>> timeline = Timeline.of(
    ...     predictions, probabilities, times=np.array([0.0, 0.5, 1.0]), end=1.5, names=["cat", "dog"]
    ... )
    >>> for segment in timeline.segments:
    ...     print(*segment)
    0.0 1.0 0 0.75 0 2
    1.0 1.5 1 0.75 2 1
    """

    segments: tuple[Segment, ...]
    times: np.ndarray
    """Of each frame, ascending."""
    names: Sequence[str]
    """Of the classes, and of frames that show none of them."""
    in_seconds: bool
    """Whether times are seconds; otherwise they are numbers of frames."""

    @classmethod
    def of(
        cls,
        predictions: np.ndarray,
        probabilities: np.ndarray,
        *,
        times: np.ndarray,
        end: float,
        names: Sequence[str],
        in_seconds: bool = True,
        rejected: np.ndarray | None = None,
    ) -> Timeline:
        """From the label of each frame, the label's probability and whether the frame is rejected, each (N,)."""
        if rejected is not None:
            predictions = np.where(rejected, len(names), predictions)
        starts = np.flatnonzero(np.r_[True, predictions[1:] != predictions[:-1]])
        stops = np.append(starts[1:], len(predictions))
        segments = tuple(
            Segment(
                start=float(times[first]),
                end=float(times[stop] if stop < len(times) else end),
                label=int(predictions[first]),
                probability=None if predictions[first] == len(names) else float(np.mean(probabilities[first:stop])),
                first=int(first),
                frames=int(stop - first),
            )
            for first, stop in zip(starts, stops, strict=True)
        )
        return cls(segments, times, (*names, rejected_label(names)), in_seconds)

    @property
    def start(self) -> float:
        return self.segments[0].start

    @property
    def end(self) -> float:
        return self.segments[-1].end

    @property
    def headline(self) -> str:
        """How many segments of how many classes, and how long."""
        classes = len({segment.label for segment in self.segments if segment.probability is not None})
        of = counted(classes, "class", "classes")
        none = sum(segment.probability is None for segment in self.segments)
        rejected = f", {none:,} of them {self.names[-1]}," if none else ""
        return f"{counted(len(self.segments), 'segment')}{rejected} of {of} in {self.length}"

    @property
    def found(self) -> str:
        """The labels of most of the time, and how long each; rejected frames last."""
        amounts = [0.0] * len(self.names)
        for one in self.segments:
            amounts[one.label] += one.end - one.start if self.in_seconds else one.frames
        found = most_of(self.names, amounts, self.moment if self.in_seconds else "{:,.0f}".format)
        return f"{found} in {self.length}"

    @property
    def length(self) -> str:
        return self.moment(self.end - self.start) if self.in_seconds else counted(len(self.times), "frame")

    def records(self) -> list[dict[str, Any]]:
        """For JSON; numbers of frames are integers."""
        time = float if self.in_seconds else int
        return [
            {
                "start": time(segment.start),
                "end": time(segment.end),
                "label": self.names[segment.label],
                "probability": segment.probability,
                "frames": segment.frames,
            }
            for segment in self.segments
        ]

    def table(self, limit: int, more: str) -> ReportTable:
        """The first `limit` segments, for people; `more` says where the others are."""
        columns = (
            ReportColumn("start", format=self.moment, is_right=True, is_whole=True),
            ReportColumn("end", format=self.moment, is_right=True, is_whole=True),
            ReportColumn("label"),
            ReportColumn("probability", format="{:.2f}".format, is_right=True),
            ReportColumn("frames", is_right=True),
        )
        rows = (
            (one.start, one.end, self.names[one.label], one.probability, one.frames) for one in self.segments[:limit]
        )
        hidden = len(self.segments) - limit
        notes = (f"and {counted(hidden, 'more segment')}: {more}",) if hidden > 0 else ()
        return ReportTable.from_values(columns, rows, notes=notes)

    def moment(self, time: float) -> str:
        """A time as people read it: minutes and seconds, or the number of a frame."""
        return clock(time, decimals=1) if self.in_seconds else f"{time:.0f}"

    def drawing(self) -> dict[str, Any]:
        """Positions for the template: lanes with bars, and times below. Widths and positions are in percent."""
        lasted: defaultdict[int, float] = defaultdict(float)
        for segment in self.segments:
            lasted[segment.label] += segment.end - segment.start
        longest = sorted(lasted, key=lambda label: -lasted[label])[:MAX_LANES]
        labels = [label for label in lasted if label in longest]  # in the order in which they first appear
        none = len(self.names) - 1
        lanes: list[dict[str, Any]] = [
            {
                "name": _shortened(visible(self.names[label])),
                "colour": "currentColor" if label == none else CLASS_COLOURS[place],
                "bars": [],
            }
            for place, label in enumerate(labels)
        ]
        others = len(lasted) - len(labels)
        if others:
            lanes.append(
                {"name": counted(others, "other class", "other classes"), "colour": "currentColor", "bars": []}
            )
        place_of = {label: place for place, label in enumerate(labels)}
        bars = sorted(self.segments, key=lambda segment: segment.start - segment.end)[:MAX_BARS]
        for segment in sorted(bars):
            probability = "" if segment.probability is None else f"{segment.probability:.2f}"
            lanes[place_of.get(segment.label, -1)]["bars"].append(
                {
                    "x": self._position(segment.start),
                    "width": self._position(self.start + segment.end - segment.start),
                    "opacity": f"{PALEST + (1 - PALEST) * (segment.probability or 0):.2f}",
                    "text": f"{self.span(segment)}: {visible(self.names[segment.label])} {probability}".rstrip(),
                }
            )
        for place, lane in enumerate(lanes):
            lane.update(y_name=LANE * place + 12, y_bar=LANE * place + 17)
        return {
            "lanes": lanes,
            "ticks": self._ticks(),
            "bar": BAR,
            "y_axis": LANE * len(lanes),
            "height": LANE * len(lanes) + AXIS,
            "left_out": len(self.segments) - len(bars),
        }

    def span(self, segment: Segment) -> str:
        return f"{self.moment(segment.start)} to {self.moment(segment.end)}"

    def _position(self, time: float) -> str:
        return f"{100 * (time - self.start) / max(self.end - self.start, 1e-9):.3f}"

    def _ticks(self) -> list[dict[str, str]]:
        step = next(step for step in _steps(self.in_seconds) if step * MAX_INTERVALS >= self.end - self.start)
        count = int((self.end - self.start) / step + 1e-9)
        times = [self.start + step * i for i in range(count + 1)]
        decimals = 0 if step >= 1 and self.start % 1 == 0 else 2 if step < 0.1 else 1
        return [
            {
                "x": self._position(time),
                "anchor": "start" if i == 0 else "end" if float(self._position(time)) > 95 else "middle",
                "text": clock(time, decimals=decimals) if self.in_seconds else f"{time:.0f}",
            }
            for i, time in enumerate(times)
        ]


def _shortened(name: str) -> str:
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"


def _steps(in_seconds: bool) -> Any:
    """Round numbers of seconds, minutes and hours, or of frames, ascending without an end."""
    if in_seconds:
        yield from (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800)
    unit = 3600 if in_seconds else 1
    while True:
        yield from (unit, 2 * unit, 5 * unit)
        unit *= 10


def clock(seconds: float, *, decimals: int) -> str:
    """
    >>> clock(62.54, decimals=1), clock(3600, decimals=0), clock(59.96, decimals=1)
    ('1:02.5', '1:00:00', '1:00.0')
    """
    parts = round(seconds * 10**decimals)  # before it is divided: 59.96 is a minute
    whole, part = divmod(parts, 10**decimals)
    minutes, second = divmod(whole, 60)
    text = f"{minutes // 60}:{minutes % 60:02d}:{second:02d}" if minutes >= 60 else f"{minutes}:{second:02d}"
    return f"{text}.{part:0{decimals}d}" if decimals else text


def write_segments(path: str | os.PathLike[str], timeline: Timeline, *, raw_csv: bool = False) -> None:
    """Write a .csv with one row per segment: `start`, `end`, `label`, `probability`, `frames`; completely or not at
    all. A segment that shows none of the classes has no probability. `raw_csv` as in `write_predictions`."""
    segments = timeline.segments
    starts, ends = (np.array(times) for times in ([s.start for s in segments], [s.end for s in segments]))
    time = SecondsColumn if timeline.in_seconds else lambda times: times.astype(np.int64)
    with atomic_path(path) as temporary:
        write_csv(
            temporary,
            {
                "start": time(starts),
                "end": time(ends),
                "label": ClassColumn(np.array([segment.label for segment in segments]), timeline.names),
                "probability": PartialColumn(
                    np.array([segment.probability or 0.0 for segment in segments]),
                    np.array([segment.probability is None for segment in segments]),
                ),
                "frames": np.array([segment.frames for segment in segments]),
            },
            raw=raw_csv,
        )
