"""Time of the engines of `OnlineADAPT`, of `TransductiveADAPT` and of the anchored mixture, and how exact they are.

`direct`, the definition, is too slow for whole streams. It is timed on sampled steps from saved states, and the other
engines are compared with it on the same steps. The states are known without a prediction (`bank_schedule`): which
samples enter a bank depends on the zero-shot posterior only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from zeroshift.adapt import OnlineADAPT, TransductiveADAPT
from zeroshift.adapt.statistics import (
    bank_scatter,
    bank_term,
    class_means,
    discriminant,
    fuse,
    linear_head,
    ridge_precision,
)
from zeroshift.arrays import Array, Backend, to_numpy
from zeroshift.benchmarks.problems import BenchProblem
from zeroshift.benchmarks.timing import (
    Clock,
    TimedSteps,
    agreement,
    latency_percentiles,
    time_spread,
    time_steps,
    time_stream,
)
from zeroshift.mixture import OnlineAnchoredMixture, TransductiveAnchoredMixture
from zeroshift.zero_shot import confidence, log_posterior, pseudo_class, softmax

__all__ = [
    "DEFINITION",
    "MIXTURE_METHODS",
    "MIXTURE_SINGLE",
    "WHOLE_ARRAY",
    "BankSchedule",
    "Notify",
    "bank_schedule",
    "measure_mixture",
    "measure_online",
    "measure_transductive",
]

DEFINITION = "direct"
"""The engine with which the others are compared."""

WHOLE_ARRAY = ("replay",)
"""Engines that get the whole array in one call."""

MIXTURE_SINGLE, MIXTURE_CALL, MIXTURE_SET = "mixture", "mixture call", "mixture set"
"""One sample per call; the whole stream in one call; transductive."""

MIXTURE_METHODS: dict[str, type[OnlineAnchoredMixture] | type[TransductiveAnchoredMixture]] = {
    MIXTURE_CALL: OnlineAnchoredMixture,
    MIXTURE_SET: TransductiveAnchoredMixture,
}
"""Forms of the mixture that get the whole array in one call."""

LONG = 60.0
"""Seconds after which a measurement is not repeated."""

N_WINDOWS = 20
"""Parts of a stream whose times show whether the time per sample grows with the samples seen."""

CHECKED_ROWS = 200
"""Rows, evenly spread over the set, whose transductive answers are compared with the definition's."""

MIXTURE_CHECKED_ROWS = 500
"""Rows, evenly spread over the stream, on which the mixture one by one and in one call are compared."""

SCHEDULE_BLOCK_ROWS, BLOCK_ROWS = 1024, 4096

PRODUCTS = 3
"""N K d products that the transductive method needs: posterior, discriminant, bank term."""

Notify = Callable[[str], None]


@dataclass(frozen=True)
class BankSchedule:
    entered: np.ndarray
    """Whether each sample enters a bank, (N,)."""
    entries: np.ndarray
    """Bank entries after each sample, (N,)."""
    states: dict[int, Path]
    """Saved states, by the number of samples they have seen."""

    def rows_from(self, seen: int, steps: int) -> np.ndarray:
        """Rows to process from the state at `seen`: up to `steps` that enter a bank and up to `steps` that do not.

        Samples that do not enter change nothing and may be skipped; every sample that enters before the last of these
        rows is one of them. So the state at each row is that of the whole stream.
        """
        enters = seen + np.flatnonzero(self.entered[seen:])
        end = int(enters[steps]) if len(enters) > steps else len(self.entered)
        others = seen + np.flatnonzero(~self.entered[seen:end])
        return np.sort(np.concatenate([enters[:steps], others[:steps]]))


def bank_schedule(problem: BenchProblem, points: Sequence[int], folder: Path) -> BankSchedule:
    """Fill the banks of the definition with the stream; save the state at each of `points` (samples seen)."""
    adapter = OnlineADAPT(np.asarray(problem.prototypes), logit_scale=problem.logit_scale, engine="direct")
    prototypes = np.asarray(problem.prototypes, np.float64)
    n_rows = len(problem.features)
    entered = np.zeros(n_rows, dtype=bool)
    entries = np.zeros(n_rows, dtype=np.int64)
    states: dict[int, Path] = {}

    def save(seen: int) -> None:
        adapter.n_seen = seen
        adapter._engine.refresh()
        states[seen] = folder / f"seen-{seen}.safetensors"
        adapter.save(states[seen])

    held = 0
    for row in range(n_rows):
        if row in points:
            save(row)
        block = row % SCHEDULE_BLOCK_ROWS
        if block == 0:
            features = np.asarray(problem.features[row : row + SCHEDULE_BLOCK_ROWS], np.float64)
            log_y = log_posterior(features, prototypes, problem.logit_scale)
        entered[row] = adapter._evidence.offer(features[block : block + 1], log_y[block : block + 1])
        held = adapter._evidence.size if entered[row] else held
        entries[row] = held
    return BankSchedule(entered, entries, states)


def measure_online(
    problem: BenchProblem,
    features: Array,
    schedule: BankSchedule,
    engines: Sequence[str],
    array_backend: Backend,
    *,
    steps: int,
    repeats: int,
    notify: Notify,
) -> dict[str, Any]:
    """One record per engine; `features` are those of the problem, on the device of `array_backend`."""
    rows = {seen: schedule.rows_from(seen, steps) for seen in schedule.states}
    notify(f"{DEFINITION} on sampled steps")
    definition = {
        seen: time_steps(state, DEFINITION, features, rows[seen], array_backend, scores=True)
        for seen, state in schedule.states.items()
    }
    records: dict[str, Any] = {DEFINITION: _definition_record(definition, schedule)}
    prototypes = array_backend.asarray(np.asarray(problem.prototypes))

    def fresh(engine: str, precision: str = "auto") -> OnlineADAPT:
        return OnlineADAPT(prototypes, logit_scale=problem.logit_scale, engine=engine, precision=precision)

    for engine in engines:
        if engine == DEFINITION:
            continue
        notify(engine)
        if engine in WHOLE_ARRAY:
            records[engine] = _whole_array(
                partial(fresh, engine), features, schedule, definition, array_backend, repeats
            )
        else:
            records[engine] = _one_by_one(engine, partial(fresh, engine), features, schedule, definition, array_backend)
        records[engine]["times_faster_than_direct"] = records[DEFINITION]["seconds"] / records[engine]["seconds"]
    return records


def _definition_record(definition: dict[int, TimedSteps], schedule: BankSchedule) -> dict[str, Any]:
    """Times at the sampled points, and the time of the whole stream, interpolated between the points."""
    seconds = _interpolated_seconds(definition, schedule)
    return {
        "timed": "sampled steps, interpolated over the stream",
        "seconds": seconds,
        "seconds_per_sample": seconds / len(schedule.entered),
        "points": [_point(seen, taken, schedule) for seen, taken in definition.items()],
    }


def _interpolated_seconds(steps: dict[int, TimedSteps], schedule: BankSchedule) -> float:
    """Time of the whole stream, from steps at sampled points."""
    points = [_point(seen, taken, schedule) for seen, taken in steps.items()]
    # A kind of sample that occurs at no point is rare, and counts as the other kind.
    entering = _interpolated(points, "entering", "other", len(schedule.entered))
    other = _interpolated(points, "other", "entering", len(schedule.entered))
    return float(np.sum(np.where(schedule.entered, entering, other)))


def _interpolated(points: Sequence[Mapping[str, Any]], kind: str, other_kind: str, samples: int) -> np.ndarray:
    """Time of a sample of this kind at every position, from medians, which ignore single disturbed steps."""
    kind = kind if any(point[kind] for point in points) else other_kind
    known = [point for point in points if point[kind]]
    at, times = [point["seen"] for point in known], [point[kind]["p50"] for point in known]
    return np.interp(np.arange(samples), at, times)


def _point(seen: int, taken: TimedSteps, schedule: BankSchedule) -> dict[str, Any]:
    enters = schedule.entered[taken.rows]
    return {
        "seen": seen,
        "entries": int(schedule.entries[seen - 1]) if seen else 0,
        "entering": latency_percentiles(taken.seconds[enters]),
        "other": latency_percentiles(taken.seconds[~enters]),
    }


def _one_by_one(
    engine: str,
    fresh: Callable[..., OnlineADAPT],
    features: Array,
    schedule: BankSchedule,
    definition: dict[int, TimedSteps],
    array_backend: Backend,
) -> dict[str, Any]:
    """The whole stream, one sample per call; and steps from the same states as `direct`."""
    keep, adapter = _sampled(definition), fresh()
    whole = time_stream(adapter, features, keep, array_backend)
    same_state = {
        seen: time_steps(schedule.states[seen], engine, features, d.rows, array_backend, scores=True)
        for seen, d in definition.items()
    }
    points = []
    for seen, taken in same_state.items():
        point = _point(seen, taken, schedule)
        reference = _point(seen, definition[seen], schedule)
        for kind in ("entering", "other"):
            both = point[kind] is not None
            ratio = reference[kind]["p50"] / point[kind]["p50"] if both else None
            point[f"{kind}_times_faster_than_direct"] = ratio
        reference_steps = definition[seen]
        point |= agreement(taken.probabilities, reference_steps.probabilities, taken.scores, reference_steps.scores)
        points.append(point)
    seconds = float(whole.seconds.sum())
    # With float64 products, the same steps as those of `direct`, interpolated in the same way.
    wide = _interpolated_seconds({seen: _in_float64(taken) for seen, taken in same_state.items()}, schedule)
    return {
        "timed": "the whole stream, one sample per call",
        "seconds": seconds,
        "seconds_per_sample": seconds / len(whole.seconds),
        "latency": {
            "all": latency_percentiles(whole.seconds),
            "entering": latency_percentiles(whole.seconds[schedule.entered]),
            "other": latency_percentiles(whole.seconds[~schedule.entered]),
        },
        "windows": [
            {"seen": int(part[-1]) + 1, "seconds_per_sample": float(np.median(whole.seconds[part]))}
            for part in np.array_split(np.arange(len(whole.seconds)), min(N_WINDOWS, len(whole.seconds)))
        ],
        "points": points,
        "float64": {"seconds": wide, "seconds_per_sample": wide / len(whole.seconds), "interpolated": True},
        "agreement": agreement(whole.probabilities, _answers(definition), _scores(same_state), _scores(definition)),
        "banks_equal": _banks_equal(adapter, schedule),
        "health": asdict(adapter.diagnostics),
    }


def _in_float64(taken: TimedSteps) -> TimedSteps:
    """The times of the steps with float64 products."""
    assert taken.float64_seconds is not None
    return replace(taken, seconds=taken.float64_seconds)


def _whole_array(
    fresh: Callable[..., OnlineADAPT],
    features: Array,
    schedule: BankSchedule,
    definition: dict[int, TimedSteps],
    array_backend: Backend,
    repeats: int,
) -> dict[str, Any]:
    clock = Clock(array_backend)
    taken, adapter, answer = [], fresh(), None
    for _ in range(repeats):
        adapter, answer = fresh(), None
        seconds, answer = clock.time(adapter.adapt, features)
        taken.append(seconds)
        if sum(taken) > LONG:
            break
    banks_equal, health = _banks_equal(adapter, schedule), asdict(adapter.diagnostics)
    # In slices, from one state to the next: does the time per sample grow with the samples seen?
    adapter, windows = fresh(), []
    for part in np.array_split(np.arange(features.shape[0]), min(N_WINDOWS, features.shape[0])):
        rows = slice(int(part[0]), int(part[-1]) + 1)
        seconds, _ = clock.time(adapter.adapt, features[rows])
        windows.append({"seen": rows.stop, "seconds_per_sample": seconds / len(part)})
    sampled = to_numpy(answer)[_sampled(definition)].astype(np.float64)
    del answer
    wide_features = array_backend.asarray(features, array_backend.xp.float64)
    wide, all_scores = clock.time(fresh(precision="float64").adapt_scores, wide_features)
    scores = to_numpy(all_scores)[_sampled(definition)]
    del wide_features, all_scores
    times = time_spread(taken)
    return {
        "timed": "the whole array in one call",
        "seconds": times["median"],
        "seconds_per_sample": times["median"] / features.shape[0],
        "repeated": times,
        "float64": {"seconds": wide, "seconds_per_sample": wide / features.shape[0]},
        "windows": windows,
        "banks_equal": banks_equal,
        "health": health,
        "agreement": agreement(sampled, _answers(definition), scores, _scores(definition)),
    }


def _sampled(definition: dict[int, TimedSteps]) -> np.ndarray:
    """Every row that `direct` processed; a row that two points share counts twice."""
    return np.concatenate([taken.rows for taken in definition.values()])


def _answers(definition: dict[int, TimedSteps]) -> np.ndarray:
    return np.concatenate([taken.probabilities for taken in definition.values()])


def _scores(definition: dict[int, TimedSteps]) -> np.ndarray:
    return np.concatenate([taken.scores for taken in definition.values() if taken.scores is not None])


def _banks_equal(adapter: OnlineADAPT, schedule: BankSchedule) -> bool:
    """Whether the banks hold as many samples at the end as those of the definition."""
    return int(to_numpy(adapter.bank_counts).sum()) == int(schedule.entries[-1])


def measure_transductive(
    problem: BenchProblem, features: Array, array_backend: Backend, floor_seconds: float, repeats: int
) -> dict[str, Any]:
    prototypes = array_backend.asarray(np.asarray(problem.prototypes))
    clock, taken, answer = Clock(array_backend), [], None
    wide = TransductiveADAPT(prototypes, logit_scale=problem.logit_scale, precision="float64")
    wide_seconds, _ = clock.time(wide.adapt, features)
    del wide
    adapter = TransductiveADAPT(prototypes, logit_scale=problem.logit_scale)
    for _ in range(repeats + 1):
        answer = None  # two answers at a time might not fit into memory
        seconds, answer = clock.time(adapter.adapt, features)
        taken.append(seconds)
    rows = np.unique(np.linspace(0, features.shape[0] - 1, CHECKED_ROWS).round().astype(np.int64))
    times, health = time_spread(taken[1:]), asdict(adapter.diagnostics)
    sampled = to_numpy(answer)[rows].astype(np.float64)
    scores = to_numpy(
        adapter.predict_scores(array_backend.asarray(np.asarray(problem.features[rows]), array_backend.xp.float64))
    )
    definition = _definition(problem, rows, adapter)
    return {
        "timed": "the whole set in one call",
        "seconds": times["median"],
        "seconds_per_sample": times["median"] / features.shape[0],
        "repeated": times,
        "float64": {"seconds": wide_seconds, "seconds_per_sample": wide_seconds / features.shape[0]},
        "times_three_products": times["median"] / (PRODUCTS * floor_seconds),
        "health": health,
        "agreement": agreement(sampled, softmax(definition), scores, definition),
    }


def _definition(problem: BenchProblem, rows: np.ndarray, adapter: TransductiveADAPT) -> np.ndarray:
    """Scores of the given rows by the equations of Algorithm 2, in NumPy float64."""
    prototypes = np.asarray(problem.prototypes, np.float64)
    classes, d = prototypes.shape
    sums, weight = np.zeros((classes, d)), np.zeros(classes)
    pseudo, confidences, own = [], [], []
    for start in range(0, len(problem.features), BLOCK_ROWS):
        x = np.asarray(problem.features[start : start + BLOCK_ROWS], np.float64)
        log_y = log_posterior(x, prototypes, problem.logit_scale)
        y = np.exp(log_y)
        sums, weight = sums + y.T @ x, weight + y.sum(axis=0)
        pseudo.append(pseudo_class(log_y))
        confidences.append(confidence(log_y))
        own.append(y[np.arange(len(x)), pseudo[-1]])
    k, c, p = (np.concatenate(parts) for parts in (pseudo, confidences, own))
    banks, weights = np.zeros((classes, adapter.bank_size, d)), np.zeros((classes, adapter.bank_size))
    for label in range(classes):
        of_class = np.flatnonzero(k == label)
        chosen = of_class[np.argsort(-c[of_class], kind="stable")][: adapter.bank_size]
        banks[label, : len(chosen)] = problem.features[chosen]
        weights[label, : len(chosen)] = p[chosen]
    sums = sums + (weights[:, :, None] * banks).sum(axis=1)
    means = class_means(sums, weight + weights.sum(axis=1), prototypes, adapter.alpha, adapter.beta)
    occupied = (weights > 0).astype(np.float64)
    precision = ridge_precision(bank_scatter(banks, occupied, means), float(occupied.sum()))
    x = np.asarray(problem.features[rows], np.float64)
    g = discriminant(x, *linear_head(means, precision))
    scores: np.ndarray = fuse(log_posterior(x, prototypes, problem.logit_scale), g, bank_term(x, banks, weights))
    return scores


def measure_mixture(problem: BenchProblem, features: Array, array_backend: Backend, repeats: int) -> dict[str, Any]:
    """One record per form of the mixture; `features` are those of the problem, on the device of `array_backend`."""
    prototypes, clock = array_backend.asarray(np.asarray(problem.prototypes)), Clock(array_backend)
    n = features.shape[0]
    rows = np.unique(np.linspace(0, n - 1, MIXTURE_CHECKED_ROWS).round().astype(np.int64))
    records: dict[str, Any] = {}
    kept = {}
    for name, method in MIXTURE_METHODS.items():
        taken: list[float] = []
        for _ in range(repeats):
            adapter, answer = method(prototypes, logit_scale=problem.logit_scale), None
            seconds, answer = clock.time(adapter.adapt, features)
            taken.append(seconds)
            if sum(taken) > LONG:
                break
        kept[name] = to_numpy(answer)[rows].astype(np.float64)
        del answer
        wide = method(prototypes, logit_scale=problem.logit_scale, precision="float64")
        seconds, _ = clock.time(wide.adapt, features)
        repeated = time_spread(taken)
        records[name] = _record("the whole array in one call", repeated["median"], n, repeated=repeated)
        records[name]["float64"] = {"seconds": seconds, "seconds_per_sample": seconds / n}
    single = OnlineAnchoredMixture(prototypes, logit_scale=problem.logit_scale)
    times, answers, wanted = np.zeros(n), [], set(rows.tolist())
    for row in range(n):
        times[row], one = clock.time(single.adapt, features[row])
        if row in wanted:
            answers.append(to_numpy(one).astype(np.float64))
    records[MIXTURE_CALL]["agreement"] = agreement(kept[MIXTURE_CALL], np.array(answers))
    first = _record(
        "the whole stream, one sample per call", float(times.sum()), n, latency={"all": latency_percentiles(times)}
    )
    # Means, because updates of the statistics count; for ADAPT, medians show the usual sample.
    first["windows"] = [
        {"seen": int(part[-1]) + 1, "seconds_per_sample": float(times[part].mean())}
        for part in np.array_split(np.arange(n), min(N_WINDOWS, n))
    ]
    return {MIXTURE_SINGLE: first, **records}


def _record(timed: str, seconds: float, samples: int, **more: Any) -> dict[str, Any]:
    return {"timed": timed, "seconds": seconds, "seconds_per_sample": seconds / samples, **more}
