"""One sample at a time through an engine, every step timed: a stretch from a saved state, or a whole stream."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from zeroshift.adapt import OnlineADAPT
from zeroshift.arrays import Array, Home, to_numpy
from zeroshift.benchmarks.clock import Clock

__all__ = ["Steps", "agreement", "scores_along", "steps_from", "stream"]


@dataclass(frozen=True)
class Steps:
    rows: np.ndarray
    seconds: np.ndarray
    """Of each step, (n,)."""
    probabilities: np.ndarray
    """(n, K), as the engine answered."""
    scores: np.ndarray | None = None
    """(n, K), float64, where they were asked for."""


def steps_from(
    state: Path, engine: str, features: Array, rows: np.ndarray, home: Home, *, scores: bool = False
) -> Steps:
    """Adapt to `rows` of `features`, one sample a call, from a saved state; with `scores`, once more for the scores."""
    adapter = OnlineADAPT.load(state, library=home.library, device=str(home.device), engine=engine)
    # What is built when it is first needed is built before the clock runs; a stream has it long since.
    adapter.predict(features[0])
    clock = Clock(home)
    seconds, answers = [], []
    for row in rows:
        taken, answer = clock.time(adapter.adapt, features[int(row)])
        seconds.append(taken)
        answers.append(to_numpy(answer).astype(np.float64))
    found = Steps(rows, np.array(seconds), np.array(answers).reshape(len(rows), adapter.n_classes))
    if not scores:
        return found
    # A second time, unobserved: asking an engine for more than its answer could change what its next step costs.
    adapter = OnlineADAPT.load(state, library=home.library, device=str(home.device), engine=engine)
    wide = [adapter.adapt_scores(home.bring(features[int(row)], home.xp.float64)) for row in rows]
    return replace(found, scores=np.array([to_numpy(one) for one in wide]).reshape(len(rows), adapter.n_classes))


def stream(adapter: OnlineADAPT, features: Array, keep: np.ndarray, home: Home) -> Steps:
    """Adapt to all of `features`, one sample a call; the answers to the rows in `keep` are kept."""
    clock = Clock(home)
    kept = set(keep.tolist())
    seconds = np.zeros(features.shape[0])
    answers = {}
    for row in range(features.shape[0]):
        seconds[row], answer = clock.time(adapter.adapt, features[row])
        if row in kept:
            answers[row] = to_numpy(answer).astype(np.float64)
    probabilities = np.array([answers[row] for row in keep.tolist()]).reshape(len(keep), adapter.n_classes)
    return Steps(keep, seconds, probabilities)


def scores_along(adapter: OnlineADAPT, features: Array, rows: np.ndarray, home: Home) -> np.ndarray:
    """Scores of `rows`, in float64, from one call with the whole stream."""
    wide = adapter.adapt_scores(home.bring(features, home.xp.float64))
    return to_numpy(wide)[rows]


def agreement(
    probabilities: np.ndarray,
    definition: np.ndarray,
    scores: np.ndarray | None = None,
    definition_scores: np.ndarray | None = None,
) -> dict[str, float]:
    """How far answers are from those of the definition on the same samples: fast and wrong must not pass unseen.

    ADAPT's probabilities are so sure, early in a stream above all, that they hardly show an error; its scores do. They
    are compared as differences to the row's largest, relative where they are large.
    """
    found: dict[str, float] = {
        "samples": len(definition),
        "largest_difference": float(np.abs(probabilities - definition).max(initial=0.0)),
        "argmax_equal": float(np.mean(probabilities.argmax(axis=1) == definition.argmax(axis=1))),
    }
    if scores is not None and definition_scores is not None:
        one, other = (each - each.max(axis=1, keepdims=True) for each in (scores, definition_scores))
        relative = np.abs(one - other) / np.maximum(1.0, np.abs(other))
        found["largest_score_difference"] = float(relative.max(initial=0.0))
    return found
