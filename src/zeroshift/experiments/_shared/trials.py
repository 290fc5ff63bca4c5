"""Runs of methods on the sets of an experiment, and their records summed up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zeroshift.evaluate import Job, MethodSpec, StreamSpec, Trial
from zeroshift.evaluate.stream_loop import EVERY
from zeroshift.experiments._shared.experiment import JobResults
from zeroshift.experiments._shared.findings import Value
from zeroshift.experiments._shared.suite import Member

__all__ = ["mean_of_sets", "measured", "points", "runs", "spread"]

BATCH_ROWS = 256
"""Rows an online method is given at a time, where its time is not the point: twice as quick as 64."""


def runs(
    member: Member,
    method: str,
    orders: int = 1,
    parameters: Mapping[str, Any] | None = None,
    *,
    prompt: str | None = None,
    shots: int | None = None,
    stream_spec: StreamSpec | None = None,
    timed: bool = False,
) -> list[Trial]:
    """A method on a set, in `orders` random orders where the order, or what is drawn, matters; else once.

    `method` may be `NAME+support`, with `shots` labelled samples of a class.
    """
    spec = MethodSpec.named(method, parameters)
    random = spec.streamed or spec.drawn or stream_spec is not None
    return [
        Trial(
            member.dataset.name,
            member.dataset.digest,
            member.dataset.prompt if prompt is None else prompt,
            spec,
            seed,
            shots,
            stream_spec,
            timed,
            EVERY if timed else BATCH_ROWS,
        )
        for seed in (range(orders) if random else (None,))
    ]


def measured(results: JobResults, trials: Sequence[Job], field: str = "accuracy") -> Value | None:
    """A number of a run's record: the mean of the orders, the least and the greatest. None where all failed."""
    values = [float(record[field]) for record in results.records(trials) if record.get(field) is not None]
    return spread(values) if values else None


def mean_of_sets(
    results: JobResults, by_set: Sequence[Sequence[Job]], field: str = "accuracy", *, paper: float | None = None
) -> Value | None:
    """The mean over sets, each counting the same, order by order; None unless every set has an answer."""
    columns = []
    for trials in by_set:
        values = [float(record[field]) for record in results.records(trials) if record.get(field) is not None]
        if not values:
            return None
        columns.append(values)
    if not columns:
        return None
    orders = max(map(len, columns))
    # A set whose method does not depend on the order, or that lacks one which failed, counts its mean in every order.
    even = [values if len(values) == orders else [float(np.mean(values))] * orders for values in columns]
    return spread([float(np.mean(row)) for row in zip(*even, strict=True)], paper)


def spread(values: Sequence[float], paper: float | None = None) -> Value:
    """The mean of several runs with the least and the greatest; of one run, that alone.

    >>> spread([0.25, 0.75]), spread([0.5]).low
    (Value(value=0.5, low=0.25, high=0.75, paper=None, best=False), None)
    """
    one = len(values) == 1
    return Value(float(np.mean(values)), None if one else min(values), None if one else max(values), paper)


def points(low: float, high: float) -> float:
    """From one fraction to another, in percentage points.

    >>> points(0.25, 0.5)
    25.0
    """
    return 100 * (high - low)
