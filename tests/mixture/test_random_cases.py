"""Random streams and parameters: answers at once, late, for a recording and for a set equal the transcription."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import pytest

from mixture import transcription
from mixture.sets import make_support
from streams import Stream
from zeroshift import OnlineAnchoredMixture, TransductiveAnchoredMixture, methods, normalize
from zeroshift.testing import make_problem

TOLERANCE = 1e-7
SEEDS = pytest.mark.parametrize("seed", range(20))


class Case(NamedTuple):
    stream: Stream
    second: np.ndarray | None
    cuts: list[int]
    """Where the stream is divided into calls."""
    parameters: dict


def pair(draw, high):
    return tuple(sorted(draw.uniform(0.01, high, 2).tolist()))


SHARED = {
    "anchor_count": lambda draw: 10 ** draw.uniform(-2, 1.5),
    "cautious_anchor_count": lambda draw: 10 ** draw.uniform(-2, 1.5),
    "spread_range": lambda draw: pair(draw, 4),
    "shrinkage": lambda draw: draw.uniform(0.05, 1),
    "shrinkage_samples": lambda draw: draw.uniform(0, 10),
    "reliability_samples": lambda draw: draw.uniform(0, 40),
    "weight": lambda draw: draw.uniform(0, 2),
    "first_samples": lambda draw: int(draw.integers(1, 30)),
    "occurring": lambda draw: pair(draw, 1),
    "varying": lambda draw: pair(draw, 1),
    "calm": lambda draw: draw.uniform(0, 1),
}
ONLINE = SHARED | {
    "order": lambda draw: "none",
    "relative_samples": lambda draw: 10 ** draw.uniform(-1, 2),
    "balance": lambda draw: draw.uniform(0, 1),
    "half_life": lambda draw: draw.uniform(16, 80),
    "staleness": lambda draw: float(draw.choice([0.0, 0.1, 0.5, 1.0])),
}
TRANSDUCTIVE = SHARED | {
    "few_classes_weight": lambda draw: draw.uniform(0, 1),
    "proportions": lambda draw: draw.uniform(0, 3),
    "rounds": lambda draw: int(draw.integers(1, 6)),
}


def make_case(seed, ranges) -> Case:
    """A third of the parameters differ from their defaults."""
    draw = np.random.default_rng(seed)
    classes, dimension, n = int(draw.integers(1, 9)), int(draw.integers(2, 13)), int(draw.integers(6, 80))
    problem = make_problem(classes, dimension, n, seed=seed, noise=draw.uniform(0.1, 1), cone=draw.uniform(0, 2))
    orders = [
        np.arange(n),
        np.argsort(problem.labels, kind="stable"),
        np.repeat(np.arange(n), 3)[:n],
        np.flatnonzero(problem.labels < max(1, classes // 3)),
    ]
    rows = orders[seed % 4] if len(orders[seed % 4]) > 2 else orders[0]
    stream = Stream(problem.features[rows], problem.prototypes, 10 ** draw.uniform(0, 2))
    parameters = {name: value(draw) for name, value in ranges.items() if draw.random() < 0.3}
    if draw.random() < 0.3:
        parameters["support"] = make_support(stream, int(draw.integers(1, 4)))
    second = None
    if draw.random() < 0.5:
        noise = draw.normal(size=(len(rows), int(draw.integers(1, 9))))
        second = normalize(noise + stream.features @ draw.normal(size=(dimension, noise.shape[1])))
    cuts = np.unique(draw.integers(0, len(rows), size=3)).tolist()
    return Case(stream, second, cuts, parameters)


def calls(case, call):
    """What the calls for each part answer."""
    answers = []
    for a, b in itertools.pairwise(sorted({0, *case.cuts, len(case.stream.features)})):
        answers.append(call(case.stream.features[a:b], second=None if case.second is None else case.second[a:b]))
    return np.concatenate(answers)


def transcribed(case):
    stream = case.stream
    given = {"logit_scale": stream.logit_scale, "second": case.second, **case.parameters}
    return transcription.online(stream.features, stream.prototypes, **given)


@SEEDS
def test_streams(seed, tmp_path):
    """Saved and loaded between the calls."""
    case = make_case(seed, ONLINE)
    method = OnlineAnchoredMixture(case.stream.prototypes, logit_scale=case.stream.logit_scale, **case.parameters)

    def adapt(features, second):
        nonlocal method
        answer = method.adapt(features, second=second)
        method.save(tmp_path / "state.safetensors")
        method = methods.load(tmp_path / "state.safetensors")
        return answer

    np.testing.assert_allclose(calls(case, adapt), transcribed(case).probabilities, rtol=0, atol=TOLERANCE)


@SEEDS
def test_late_answers_and_recordings(seed):
    case, lag = make_case(1000 + seed, ONLINE), seed % 7
    stream, given = case.stream, {"logit_scale": case.stream.logit_scale, **case.parameters}
    run = transcribed(case)
    method = OnlineAnchoredMixture(stream.prototypes, lag=lag, **given)
    found = np.concatenate([calls(case, method.adapt_late), method.finish()])
    np.testing.assert_allclose(found, transcription.late(run, lag), rtol=0, atol=TOLERANCE)
    used = {name: value for name, value in given.items() if name not in ("support", "staleness")}
    expected = transcription.smooth(run, transcription.Settings(**used))
    found = OnlineAnchoredMixture(stream.prototypes, **given).smooth(stream.features, second=case.second)
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


@SEEDS
def test_sets(seed):
    case = make_case(2000 + seed, TRANSDUCTIVE)
    stream, given = case.stream, {"logit_scale": case.stream.logit_scale, **case.parameters}
    expected, _ = transcription.transductive(stream.features, stream.prototypes, second=case.second, **given)
    method = TransductiveAnchoredMixture(stream.prototypes, chunk_size=1 + seed, **given)
    np.testing.assert_allclose(method.adapt(stream.features, second=case.second), expected, rtol=0, atol=TOLERANCE)
