"""Runs of methods on the sets of an experiment, and summaries of their records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from zeroshift.evaluate import Analysis, Job, MethodSpec, StreamSpec, Trial
from zeroshift.evaluate.stream_loop import EVERY
from zeroshift.experiments._shared.experiment import JobResults
from zeroshift.experiments._shared.findings import Cell, Value
from zeroshift.experiments._shared.suite import Member

__all__ = ["analysis", "mean_of_sets", "measured", "points", "runs", "spread"]


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
    """Trials of a method on a set: `orders` random orders if order or drawn rows matter, otherwise one.

    `method` may be `NAME+support`, with `shots` labelled samples per class. An online method whose time is measured
    (`timed`) gets a few rows at a time, as from a live stream, others get all rows in one call.
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
            EVERY if timed else None,
        )
        for seed in (range(orders) if random else (None,))
    ]


def analysis(
    member: Member,
    function: Callable[..., dict[str, Any]],
    parameters: Mapping[str, Any] | None = None,
    *,
    timed: bool = False,
) -> Analysis:
    """A job that calls `function` on a set with its default prompt mode."""
    dataset = member.dataset
    return Analysis(dataset.name, dataset.digest, dataset.prompt, function, parameters or {}, timed)


def measured(results: JobResults, trials: Sequence[Job], field: str = "accuracy") -> Value | None:
    """Mean, minimum and maximum of a field over orders; None if all runs failed."""
    values = [float(record[field]) for record in results.records(trials) if record.get(field) is not None]
    return spread(values) if values else None


def mean_of_sets(
    results: JobResults, by_set: Sequence[Sequence[Job]], field: str = "accuracy", *, paper: float | None = None
) -> Value | None:
    """The mean over sets, weighted equally, per order; None unless every set has a result."""
    columns = []
    for trials in by_set:
        values = [float(record[field]) for record in results.records(trials) if record.get(field) is not None]
        if not values:
            return None
        columns.append(values)
    if not columns:
        return None
    orders = max(map(len, columns))
    # A set with fewer orders contributes its mean to every order.
    even = [values if len(values) == orders else [float(np.mean(values))] * orders for values in columns]
    return spread([float(np.mean(row)) for row in zip(*even, strict=True)], paper)


def spread(values: Sequence[float], paper: float | None = None) -> Value:
    """Mean, minimum and maximum of several runs; the value alone for one run.

    >>> spread([0.25, 0.75]), spread([0.5]).low
    (Value(value=0.5, low=0.25, high=0.75, paper=None, best=False), None)
    """
    one = len(values) == 1
    return Value(float(np.mean(values)), None if one else min(values), None if one else max(values), paper)


def points(low: float, high: float) -> float:
    """The difference of two fractions, in percentage points.

    >>> points(0.25, 0.5)
    25.0
    """
    return 100 * (high - low)


def difference(value: Cell, base: Cell) -> Value | None:
    """The difference of two cells of fractions in percentage points, also of the paper's; None if one is missing.

    >>> difference(Value(0.75, paper=0.5), Value(0.5))
    Value(value=25.0, low=None, high=None, paper=None, best=False)
    """
    if not isinstance(value, Value) or not isinstance(base, Value):
        return None
    paper = None if value.paper is None or base.paper is None else points(base.paper, value.paper)
    return Value(points(base.value, value.value), paper=paper)
