"""Experiments answered with numbers of our choosing: what they say of them is tested, and nothing is run."""

from __future__ import annotations

from collections.abc import Callable

from zeroshift.evaluate import Job, JobOutcome
from zeroshift.experiments import Chapter, Experiment, Investigation, Options, Suite


def record(accuracy: float, zero_shot: float = 0.5, samples: int = 1000, **more: object) -> dict[str, object]:
    """A run's, in which the method is right wherever zero-shot is, or the other way round."""
    counts = [round(samples * part) for part in (accuracy, zero_shot)]
    both = min(counts)
    paired = [both, counts[0] - both, counts[1] - both, samples - max(counts)]
    outcome_text = {"accuracy": accuracy, "zero_shot_accuracy": zero_shot, "scored": samples, "paired": paired}
    return {**outcome_text, "seconds": 1.0, "setup_seconds": 0.0, "peak_bytes": None, **more}


def answered(
    experiment: Experiment, suite: Suite, answer: Callable[[Job], dict[str, object] | None], **options: int
) -> Chapter:
    """Its chapter if `answer(job)` came out of every run; None is a run that failed."""
    investigation = Investigation.of([experiment], suite, Options(**options))
    outcomes = []
    for job in investigation.jobs:
        found = answer(job)
        outcomes.append(JobOutcome(job, found, "failed" if found is None else None, False))
    (chapter,) = investigation.chapters(outcomes)
    return chapter
