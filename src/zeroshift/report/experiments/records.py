"""What experiments found as plain dictionaries, for JSON: full precision, accuracies as fractions, gains in points."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from zeroshift import __version__
from zeroshift.experiments import Chapter, Member, Suite
from zeroshift.experiments._shared.findings import Finding

__all__ = ["chapters_record"]


def chapters_record(chapters: Sequence[Chapter], suite: Suite) -> dict[str, Any]:
    """Everything the chapters hold, and the sets it was found on. Numbers that are not finite are None."""
    return {
        "zeroshift": __version__,
        "sets": [_set(member) for member in suite.members],
        "experiments": [_chapter(chapter) for chapter in chapters],
    }


def _set(member: Member) -> dict[str, Any]:
    entry = member.dataset
    return {
        "name": entry.name,
        "title": entry.title,
        "task": member.task,
        "data_set": member.data_set,
        "encoder": member.encoder,
        "corruption": member.corruption,
        "severity": member.severity,
        "prompt": entry.prompt,
        "prompts": list(member.prompts),
        "n_samples": entry.n_samples,
        "n_classes": entry.n_classes,
        "dimension": entry.dimension,
        "digest": entry.digest,
        "papers": member.papers,
    }


def _chapter(chapter: Chapter) -> dict[str, Any]:
    experiment = chapter.experiment
    return {
        "name": experiment.name,
        "title": experiment.title,
        "question": experiment.question,
        "where": experiment.where,
        "paper_tables": list(experiment.tables),
        "runs": len(chapter.jobs),
        "seconds": chapter.seconds,
        "findings": [_finding(finding) for finding in chapter.findings],
        "failed": list(chapter.failed),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    """Its fields, and as `type` what it is: "table", "heat_maps"."""
    kind = re.sub(r"(?<!^)([A-Z])", r"_\1", type(finding).__name__).lower()
    return {"type": kind, **_plain(finding)}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, (np.ndarray, np.generic)):
        return _plain(value.tolist())
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
