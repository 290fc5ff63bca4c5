"""What a run takes out of a set: parameters that hold arrays, what a method is fed, the groups of what it sees."""

from __future__ import annotations

from typing import Any

import numpy as np

from zeroshift.evaluate.contestant import Contestant
from zeroshift.evaluate.measure import Fed
from zeroshift.evaluate.needs import LACKING, VIEWS
from zeroshift.evaluate.split import Split
from zeroshift.evaluate.streams import Stream
from zeroshift.features import FeatureSet

__all__ = ["fed", "filled", "grouped"]


def filled(features: FeatureSet, contestant: Contestant, parts: Split) -> dict[str, Any]:
    """The parameters that come from the set."""
    found: dict[str, Any] = {}
    if "logit_scale" in contestant.settings:
        found["logit_scale"] = features.logit_scale
    if "prompts" in contestant.given:
        found["prompts"] = features.prompts_of_each_class()
    for name, rows in (("support", parts.support), ("validation", parts.validation)):
        if rows is not None and features.labels is not None:
            found[name] = (np.asarray(features.features[rows]), features.labels[rows])
    if parts.unlabelled is not None:
        found["unlabelled"] = np.asarray(features.features[parts.unlabelled])
    return found


def grouped(stream: Stream, scored: np.ndarray, n_samples: int) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """The group of every scored row: what is given beforehand is no longer in the stream."""
    if stream.groups is None:
        return None, ()
    of_row = np.full(n_samples, -1)
    of_row[stream.rows] = stream.groups
    return of_row[scored], stream.group_names


def fed(features: FeatureSet, contestant: Contestant, scored: np.ndarray, stream: np.ndarray) -> Fed:
    if VIEWS not in contestant.given:
        return Fed(stream)
    if features.views is None:
        raise ValueError(f"{contestant.label} needs {LACKING[VIEWS]}.")
    if np.array_equal(scored, np.arange(features.n_samples)):
        return Fed(features.views)
    # A method that is given all images at once would copy them while its memory is weighed.
    whole = contestant.info.protocol == "transductive"
    return Fed(features.views[scored]) if whole else Fed(features.views, scored)
