"""The engines of `OnlineADAPT` on one stream: `direct` on sampled steps, the others on all of it, all compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from zeroshift.adapt import OnlineADAPT
from zeroshift.arrays import Array, Home, to_numpy
from zeroshift.benchmarks.clip_like import ClipLike
from zeroshift.benchmarks.clock import Clock, latencies, spread
from zeroshift.benchmarks.schedule import Schedule
from zeroshift.benchmarks.stepping import Steps, agreement, scores_along, steps_from, stream

__all__ = ["DEFINITION", "WHOLE_ARRAY", "Notify", "measure_online"]

DEFINITION = "direct"
"""The engine the others are compared with. Too slow for whole streams, so it is timed on sampled steps only."""

WHOLE_ARRAY = ("replay",)
"""Engines that are given the whole array at once."""

WINDOWS = 20
"""Stretches of a stream whose times show whether a sample costs more the more were seen."""

Notify = Callable[[str], None]


def measure_online(
    problem: ClipLike,
    features: Array,
    plan: Schedule,
    engines: Sequence[str],
    home: Home,
    *,
    steps: int,
    repeats: int,
    notify: Notify,
) -> dict[str, Any]:
    """A record for each engine; `features` are the problem's, at `home`."""
    rows = {seen: plan.rows_from(seen, steps) for seen in plan.states}
    notify(f"{DEFINITION} on sampled steps")
    definition = {
        seen: steps_from(state, DEFINITION, features, rows[seen], home, scores=True)
        for seen, state in plan.states.items()
    }
    records: dict[str, Any] = {DEFINITION: _definition_record(definition, plan)}
    prototypes = home.bring(np.asarray(problem.prototypes))

    def fresh(engine: str) -> OnlineADAPT:
        return OnlineADAPT(prototypes, logit_scale=problem.logit_scale, engine=engine)

    for engine in engines:
        if engine == DEFINITION:
            continue
        notify(engine)
        if engine in WHOLE_ARRAY:
            records[engine] = _whole_array(partial(fresh, engine), features, plan, definition, home, repeats)
        else:
            records[engine] = _one_by_one(engine, partial(fresh, engine), features, plan, definition, home)
        records[engine]["times_faster_than_direct"] = records[DEFINITION]["seconds"] / records[engine]["seconds"]
    return records


def _definition_record(definition: dict[int, Steps], plan: Schedule) -> dict[str, Any]:
    """Times at the sampled points, and what they add up to over the stream when interpolated between the points."""
    points = [_point(seen, taken, plan) for seen, taken in definition.items()]
    # A kind of sample that no point met hardly occurs; where it does, it counts as the other kind.
    entering = _interpolated(points, "entering", "other", len(plan.entered))
    other = _interpolated(points, "other", "entering", len(plan.entered))
    seconds = float(np.sum(np.where(plan.entered, entering, other)))
    return {
        "timed": "sampled steps, interpolated over the stream",
        "seconds": seconds,
        "seconds_a_sample": seconds / len(plan.entered),
        "points": points,
    }


def _interpolated(points: Sequence[Mapping[str, Any]], kind: str, instead: str, samples: int) -> np.ndarray:
    """Time of a sample of this kind at every place of the stream: medians, so that one disturbed step tells nothing."""
    kind = kind if any(point[kind] for point in points) else instead
    known = [point for point in points if point[kind]]
    at, times = [point["seen"] for point in known], [point[kind]["p50"] for point in known]
    return np.interp(np.arange(samples), at, times)


def _point(seen: int, taken: Steps, plan: Schedule) -> dict[str, Any]:
    enters = plan.entered[taken.rows]
    return {
        "seen": seen,
        "entries": int(plan.entries[seen - 1]) if seen else 0,
        "entering": latencies(taken.seconds[enters]),
        "other": latencies(taken.seconds[~enters]),
    }


def _one_by_one(
    engine: str,
    fresh: Callable[[], OnlineADAPT],
    features: Array,
    plan: Schedule,
    definition: dict[int, Steps],
    home: Home,
) -> dict[str, Any]:
    """The whole stream, one sample a call; and beside `direct` from the same states."""
    keep, adapter = _sampled(definition), fresh()
    whole = stream(adapter, features, keep, home)
    same_state = {
        seen: steps_from(plan.states[seen], engine, features, d.rows, home, scores=True)
        for seen, d in definition.items()
    }
    points = []
    for seen, taken in same_state.items():
        point = _point(seen, taken, plan)
        reference = _point(seen, definition[seen], plan)
        for kind in ("entering", "other"):
            both = point[kind] is not None
            ratio = reference[kind]["p50"] / point[kind]["p50"] if both else None
            point[f"{kind}_times_faster_than_direct"] = ratio
        reference_steps = definition[seen]
        point |= agreement(taken.probabilities, reference_steps.probabilities, taken.scores, reference_steps.scores)
        points.append(point)
    scores = scores_along(fresh(), features, keep, home)
    seconds = float(whole.seconds.sum())
    return {
        "timed": "the whole stream, one sample a call",
        "seconds": seconds,
        "seconds_a_sample": seconds / len(whole.seconds),
        "latency": {
            "all": latencies(whole.seconds),
            "entering": latencies(whole.seconds[plan.entered]),
            "other": latencies(whole.seconds[~plan.entered]),
        },
        "windows": [
            {"seen": int(part[-1]) + 1, "seconds_a_sample": float(np.median(whole.seconds[part]))}
            for part in np.array_split(np.arange(len(whole.seconds)), min(WINDOWS, len(whole.seconds)))
        ],
        "points": points,
        "agreement": agreement(whole.probabilities, _answers(definition), scores, _scores(definition)),
        "banks_equal": _banks_equal(adapter, plan),
        "health": asdict(adapter.health),
    }


def _whole_array(
    fresh: Callable[[], OnlineADAPT],
    features: Array,
    plan: Schedule,
    definition: dict[int, Steps],
    home: Home,
    repeats: int,
) -> dict[str, Any]:
    clock = Clock(home)
    taken, adapter, answer = [], fresh(), None
    for _ in range(repeats):
        adapter, answer = fresh(), None
        seconds, answer = clock.time(adapter.adapt, features)
        taken.append(seconds)
    banks_equal, health = _banks_equal(adapter, plan), asdict(adapter.health)
    # Slices one after the other, from one state to the next: whether a sample costs more the more were seen.
    adapter, windows = fresh(), []
    for part in np.array_split(np.arange(features.shape[0]), min(WINDOWS, features.shape[0])):
        rows = slice(int(part[0]), int(part[-1]) + 1)
        seconds, _ = clock.time(adapter.adapt, features[rows])
        windows.append({"seen": rows.stop, "seconds_a_sample": seconds / len(part)})
    sampled = to_numpy(answer)[_sampled(definition)].astype(np.float64)
    del answer
    scores = scores_along(fresh(), features, _sampled(definition), home)
    times = spread(taken)
    return {
        "timed": "the whole array in one call",
        "seconds": times["median"],
        "seconds_a_sample": times["median"] / features.shape[0],
        "repeated": times,
        "windows": windows,
        "banks_equal": banks_equal,
        "health": health,
        "agreement": agreement(sampled, _answers(definition), scores, _scores(definition)),
    }


def _sampled(definition: dict[int, Steps]) -> np.ndarray:
    """Every row `direct` answered; a row that two points share counts twice."""
    return np.concatenate([taken.rows for taken in definition.values()])


def _answers(definition: dict[int, Steps]) -> np.ndarray:
    return np.concatenate([taken.probabilities for taken in definition.values()])


def _scores(definition: dict[int, Steps]) -> np.ndarray:
    return np.concatenate([taken.scores for taken in definition.values() if taken.scores is not None])


def _banks_equal(adapter: OnlineADAPT, plan: Schedule) -> bool:
    """Whether as many samples are in the banks at the end as the definition put there."""
    return int(to_numpy(adapter.bank_counts).sum()) == int(plan.entries[-1])
