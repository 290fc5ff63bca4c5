"""`classify --stream`: images in the order of time, their times, and answers that use the order."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from zeroshift.arrays import to_numpy
from zeroshift.cli._inputs import load_images
from zeroshift.cli._method_options import MethodOptions
from zeroshift.cli.console import console
from zeroshift.data.image_set import ImageSet
from zeroshift.data.readers.table import TABLE_SUFFIXES
from zeroshift.data.video import DEFAULT_FPS, FPS_RANGE, VideoFrames, open_video
from zeroshift.encode.prompts import parse_class_names
from zeroshift.evaluate import Comparison, Result, StreamRun, compare, zero_shot_baseline
from zeroshift.features import FeatureSet
from zeroshift.method import Method
from zeroshift.parameters import Number
from zeroshift.reject import Rejects
from zeroshift.report.formatting import counted
from zeroshift.report.tables import ReportTable
from zeroshift.report.timeline import Timeline

__all__ = [
    "End",
    "Every",
    "Fps",
    "FrameSequence",
    "Lag",
    "Start",
    "Stream",
    "StreamOptions",
    "StreamSummary",
]

STREAM_PANEL = "Video and sequences of frames"

MOST_LAG = 1_000_000

Stream = Annotated[
    bool,
    typer.Option(
        "--stream", help="The images are frames in the order of time: a video, or a folder of numbered files.",
        rich_help_panel=STREAM_PANEL,
    ),
]  # fmt: skip
Lag = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=0, max=MOST_LAG,
        help="Answer each frame this many frames late; 0 answers at once, as for a camera.",
        show_default="the whole sequence", rich_help_panel=STREAM_PANEL,
    ),
]  # fmt: skip
Fps = Annotated[
    float | None,
    typer.Option(
        metavar="NUMBER", help="Frames per second: read from a video, or of the files of a folder.",
        show_default="2 of a video",
        rich_help_panel=STREAM_PANEL,
    ),
]  # fmt: skip
Every = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="Seconds between frames; instead of --fps.", rich_help_panel=STREAM_PANEL),
]
Start = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="Where to start in a video.", rich_help_panel=STREAM_PANEL)
]
End = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="Where to end in a video.", rich_help_panel=STREAM_PANEL)
]


@dataclass(frozen=True)
class FrameSequence:
    """Images in the order of time."""

    options: StreamOptions
    images: ImageSet
    times: np.ndarray
    """Of each image: seconds, or its number."""
    end: float
    in_seconds: bool
    order: str
    """How the images are ordered and chosen, for people."""

    def classify(self, method: Method, features: FeatureSet, *, second: str | None) -> tuple[Comparison, str]:
        """Zero-shot and the method on the features of the frames, and in words when the answers are given; `second`
        names the features of a second encoder."""
        return self.options.compare(method, features, name=self.images.name, second=second)

    def timeline(self, comparison: Comparison, rejects: Rejects) -> Timeline:
        """Of the last method's answers."""
        result = comparison.results[-1]
        return Timeline.of(
            result.predictions,
            result.run.probabilities.max(axis=1),
            times=self._times_of(comparison.features),
            end=self.end,
            names=comparison.features.class_names,
            in_seconds=self.in_seconds,
            rejected=rejects.rejected,
        )

    def _times_of(self, features: FeatureSet) -> np.ndarray:
        """The times of the samples; images that could not be read are not among them."""
        place = {self.images.images.name(i): i for i in range(len(self.images))}
        return self.times[[place[name] for name in features.sample_names or ()]]


@dataclass(frozen=True)
class StreamOptions:
    """The options of `--stream`, checked."""

    segments: Path
    """Where the segments are written."""
    lag: int | None
    fps: float | None
    start: float | None
    end: float | None

    @classmethod
    def parse(
        cls,
        stream: bool,
        out: Path,
        *,
        transductive: bool,
        lag: int | None,
        fps: float | None,
        every: float | None,
        start: float | None,
        end: float | None,
    ) -> StreamOptions | None:
        """None without `--stream`; `out` is the file of the predictions."""
        given = {"--lag": lag, "--fps": fps, "--every": every, "--start": start, "--end": end}
        if not stream:
            for option, value in given.items():
                if value is not None:
                    raise ValueError(f"{option} is for frames in the order of time. Fix: add --stream.")
            return None
        if transductive:
            raise ValueError(
                "--stream and --transductive contradict each other: a transductive method does not use the order of "
                "the frames. Fix: leave out one of them."
            )
        if fps is not None and every is not None:
            raise ValueError("--fps and --every contradict each other. Fix: give one.")
        if every is not None:
            fps = 1 / float(Number(1 / FPS_RANGE.high).check("--every", every))
        elif fps is not None:
            FPS_RANGE.check("--fps", fps)
        if start is not None:
            Number(0).check("--start", start)
        if end is not None and float(Number(0, above=True).check("--end", end)) <= (start or 0):
            raise ValueError(f"--end must be later than --start; got --end {end:g}, --start {start or 0:g}.")
        return cls(out.with_suffix(".segments.csv"), lag, fps, start, end)

    def check_method(self, chosen: MethodOptions) -> MethodOptions:
        """The method with the lag; an error if it cannot be used for a sequence."""
        info = chosen.info
        if info.protocol == "transductive":
            raise ValueError(
                f"--stream and --method {info.name} contradict each other: {info.name} is transductive and does not "
                "use the order of the frames. Fix: leave out one of them."
            )
        setting = chosen.parameters.get("lag")
        if setting is not None and self.lag is None:
            raise ValueError(f"--set lag={setting}: with --stream, --lag sets it. Fix: --lag {setting}.")
        if setting is not None and setting != self.lag:
            raise ValueError(f"--lag {self.lag} and --set lag={setting} set the same parameter. Fix: keep --lag.")
        if not self.lag:
            return chosen
        if not hasattr(info.cls, "adapt_late"):
            raise ValueError(
                f"--lag {self.lag}: {info.name} answers every frame at once. Fix: --method {info.name}+filter, or "
                "--lag 0."
            )
        return replace(chosen, parameters={**chosen.parameters, "lag": self.lag})

    def load(
        self, source: str, *, classes: str | None, labelled: bool | None, root: Path | None = None
    ) -> FrameSequence:
        """A video, or images in the order of the table, of the array, or of the numbers in their names."""
        path = Path(source)
        if path.is_file() and path.suffix.lower() not in (*TABLE_SUFFIXES, ".npy"):
            if root is not None:
                raise ValueError(f"--data is for data sets and tables; {source} is neither. Fix: leave it out.")
            return self._load_video(path, classes, labelled)
        for option, value in (("--start", self.start), ("--end", self.end)):
            if value is not None:
                raise ValueError(f"{option} is for videos; {source} is none. Fix: leave it out.")
        images = load_images(source, classes=classes, labelled=labelled, root=root)
        order = "in the order of the list"
        if path.is_dir():
            images = _in_natural_order(images)
            order = "in the order of their names and numbers (frame2 before frame10)"
        numbers = np.arange(len(images) + 1)
        if self.fps is None:
            return FrameSequence(self, images, numbers[:-1], len(images), False, order)
        seconds = numbers / self.fps
        return FrameSequence(self, images, seconds[:-1], float(seconds[-1]), True, f"{order}, {self.fps:g} per second")

    def _load_video(self, path: Path, classes: str | None, labelled: bool | None) -> FrameSequence:
        if labelled is not None:
            raise ValueError(f"--labelled and --unlabelled are for folders; {path} is a file. Fix: leave them out.")
        names = None if classes is None else parse_class_names(classes, "--classes")
        fps = DEFAULT_FPS if self.fps is None else self.fps
        with console(stderr=True).status(f"reading {path.name}"):
            images = open_video(path, names, fps=fps, start=self.start, end=self.end)
        frames = images.images
        assert isinstance(frames, VideoFrames)
        option = "--fps or --every changes it" if self.fps is None else ""
        chosen = f"{fps:g} per second" if fps >= 1 else f"one every {1 / fps:g} seconds"
        return FrameSequence(self, images, frames.times, frames.end, True, f"{chosen}; {option}".rstrip("; "))

    def compare(self, method: Method, features: FeatureSet, *, name: str, second: str | None) -> tuple[Comparison, str]:
        """Zero-shot and the method on the frames, and in words when the answers are given."""
        zero_shot = zero_shot_baseline(method, features)
        learner: Any = method
        other = {} if second is None else {"second": features.extra[second]}
        started = time.perf_counter()
        if self.lag:
            rows = [learner.adapt_late(features.features, **other), learner.finish()]
            probabilities = np.concatenate([to_numpy(part) for part in rows])
            when = f"{counted(self.lag, 'frame')} late"
        elif self.lag is None and hasattr(method, "smooth"):
            probabilities = to_numpy(learner.smooth(features.features, **other))
            when = "from the whole sequence; --lag 0 answers as for a live camera"
        else:
            return compare(features, [zero_shot, method], name=name, second=second), "at once, from the frames so far"
        seen = np.array([features.n_samples])
        run = StreamRun(probabilities, time.perf_counter() - started, seen, bank_history=None)
        comparison = compare(features, [zero_shot], name=name)
        return replace(comparison, results=(*comparison.results, Result.of(method, features, run))), when


SHOWN_SEGMENTS = 20
"""Segments in the terminal; the file has all."""


@dataclass(frozen=True)
class StreamSummary:
    """What is reported about a sequence in addition to what is reported about a set."""

    sequence: FrameSequence
    timeline: Timeline
    answers: str
    """When the answers are given, in words."""

    @property
    def segments(self) -> Path:
        return self.sequence.options.segments

    def record(self) -> dict[str, Any]:
        return {
            "lag": self.sequence.options.lag,
            "time_unit": "seconds" if self.timeline.in_seconds else "frames",
            "segments": self.timeline.records(),
            "segments_out": str(self.segments),
        }

    def entries(self) -> dict[str, str]:
        return {"order": self.sequence.order, "answers": self.answers, "timeline": self.timeline.headline}

    def table(self) -> ReportTable:
        return self.timeline.table(SHOWN_SEGMENTS, f"see {self.segments}")


def _in_natural_order(images: ImageSet) -> ImageSet:
    """The images sorted by name, numbers by their value."""
    order = sorted(range(len(images)), key=lambda i: natural_key(images.images.name(i)))
    labels = None if images.labels is None else images.labels[order]
    return replace(images, images=images.images.take(order), labels=labels)


def natural_key(name: str) -> tuple[Any, ...]:
    """
    >>> sorted(["b/1.jpg", "a10.jpg", "a2.jpg"], key=natural_key)
    ['a2.jpg', 'a10.jpg', 'b/1.jpg']
    """
    folders = (re.split(r"(\d+)", folder) for folder in name.split("/"))
    # Every second part is a number. The name itself distinguishes 1 and 01.
    return tuple(tuple(int(p) if i % 2 else p for i, p in enumerate(parts)) for parts in folders), name
