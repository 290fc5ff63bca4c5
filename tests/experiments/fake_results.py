"""Chapters of experiments from synthetic records, without running anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from zeroshift.evaluate import Job, JobOutcome
from zeroshift.experiments import Chapter, Experiment, Investigation, Options, Suite


def record(accuracy: float, zero_shot: float = 0.5, samples: int = 1000, **more: object) -> dict[str, object]:
    """The record of a run in which the better of method and zero-shot is right wherever the other is."""
    counts = [round(samples * part) for part in (accuracy, zero_shot)]
    both = min(counts)
    paired = [both, counts[0] - both, counts[1] - both, samples - max(counts)]
    scores = {"accuracy": accuracy, "zero_shot_accuracy": zero_shot, "scored": samples, "paired": paired}
    return {**scores, "seconds": 1.0, "setup_seconds": 0.0, "peak_bytes": None, **more}


def chapter_with(
    experiment: Experiment, suite: Suite, record_of: Callable[[Job], Mapping[str, Any] | None], **options: int
) -> Chapter:
    """The chapter of an experiment where `record_of(job)` is the record of every job; None is a failure."""
    investigation = Investigation.of([experiment], suite, Options(**options))
    outcomes = []
    for job in investigation.jobs:
        made_up = record_of(job)
        complete = None if made_up is None else {"seconds": 0.0, **made_up}
        outcomes.append(JobOutcome(job, complete, "made to fail" if complete is None else None, False))
    (chapter,) = investigation.chapters(outcomes)
    return chapter


def chapter_with_accuracies(
    experiment: Experiment, suite: Suite, accuracy: Callable[[Job], float], **options: int
) -> Chapter:
    """The chapter of an experiment where `accuracy(job)` is the accuracy of every job."""
    return chapter_with(experiment, suite, lambda job: {"accuracy": accuracy(job)}, **options)


def nothing(job: Job) -> None:
    """The record of a job that failed."""
