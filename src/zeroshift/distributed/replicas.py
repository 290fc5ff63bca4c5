"""An online mixture in several replicas: each follows its own sub-stream, and they exchange what they learned.

What a mixture learns is sums. A replica gives others the difference between its sums now and at its last exchange, so
no sample counts twice. Between two exchanges, a replica knows its own samples and those that the others had given.
"""

from __future__ import annotations

import copy
import os
import secrets
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from zeroshift.arrays import Array, check_matrix, to_numpy
from zeroshift.distributed.adaptation import (
    NO_OPTIONS,
    TASK_ROWS,
    Progress,
    Reading,
    Task,
    check_arguments,
    find_reject_rule,
    make_tasks,
    run_key,
    shard_starts,
    written_key,
)
from zeroshift.distributed.answers import AnswerOptions, Answers, Predictions, RowAnswers
from zeroshift.distributed.executors import Executor, use_executor
from zeroshift.distributed.folders import Folder
from zeroshift.distributed.shards import FeatureShards, ShardError
from zeroshift.methods import ZeroShot
from zeroshift.mixture.online import OnlineAnchoredMixture

__all__ = ["EVERY", "Changes", "Replica", "adapt_replicas", "assign_keys", "follow_shards"]

EVERY = 1000
"""Samples of a replica from one exchange to the next."""

FILE_ROWS = 65_536
"""Rows of a file of predictions, about."""


@dataclass(frozen=True)
class Changes:
    """What a replica learned from its own samples since its changes before these."""

    replica: str
    number: int
    """1, 2, ... for each replica."""
    samples: int
    sums: dict[str, np.ndarray]


class Replica:
    """An online mixture that follows one of several sub-streams.

    >>> from zeroshift import OnlineAnchoredMixture
    >>> first, second = (Replica(OnlineAnchoredMixture(np.eye(3, 8)), name) for name in "ab")
    >>> answer = first.method.adapt(np.eye(3, 8)[[0, 1, 2]])
    >>> changes = first.take_changes()
    >>> second.receive(changes), second.method.n_seen
    (True, 3)
    >>> second.receive(changes), second.method.n_seen  # delivered twice, counted once
    (False, 3)
    """

    def __init__(self, method: OnlineAnchoredMixture, name: str) -> None:
        if not isinstance(method, OnlineAnchoredMixture):
            raise TypeError(
                f"method must be an OnlineAnchoredMixture, whose state is sums; got {type(method).__name__}. "
                "Fix: anchored_mixture_online."
            )
        self.method, self.name = method, name
        self._base, self._base_samples = method.sums(), method.n_seen
        self._number = 0
        self._received: dict[str, int] = {}
        """Number of the last changes from each other replica."""

    def take_changes(self) -> Changes:
        """What this replica learned from its own samples since the last call, to be given to all others."""
        now, samples = self.method.sums(), self.method.n_seen
        sums = {name: array - self._base[name] for name, array in now.items()}
        changes = Changes(self.name, self._number + 1, samples - self._base_samples, sums)
        self._base, self._base_samples, self._number = now, samples, self._number + 1
        return changes

    def receive(self, changes: Changes) -> bool:
        """Learn what another replica learned. Changes that came before, and its own, are ignored: False."""
        last = self._received.get(changes.replica, 0)
        if changes.replica == self.name or changes.number <= last:
            return False
        if changes.number > last + 1:
            raise ValueError(
                f"changes {changes.number} of replica {changes.replica} came, but {last + 1} did not. "
                "Fix: deliver the changes of a replica in order."
            )
        if changes.samples:
            self.method.add_sums(changes.sums, changes.samples)
            for name, array in changes.sums.items():
                self._base[name] = self._base[name] + array
            self._base_samples += changes.samples
        self._received[changes.replica] = changes.number
        return True


def assign_keys(keys: Sequence[object] | np.ndarray, replicas: int) -> np.ndarray:
    """The replica (N,) of each sample: the same for the same key, on every machine.

    >>> assign_keys(["door", "yard", "door"], 4)
    array([1, 0, 1])
    """
    return np.array([zlib.crc32(str(key).encode()) % replicas for key in keys], dtype=np.int64)


@dataclass
class _Follow:
    """One replica adapts to its next rows, in a worker. A pure function, so that it can be run again."""

    reading: Reading
    answers: Answers = field(default_factory=Answers)

    def __call__(self, request: tuple[Replica, np.ndarray | Task]) -> tuple[Replica, Changes, Any, list[ShardError]]:
        replica, rows = request
        method = replica.method
        with threadpool_limits(1, user_api="blas"):
            if isinstance(rows, np.ndarray):
                return replica, *_with_changes(replica, to_numpy(method.adapt(rows)), [])
            zero_shot = ZeroShot(method.prototypes, logit_scale=method.logit_scale)
            parts: list[RowAnswers] = []
            bad: list[ShardError] = []
            for shard, start, stop in rows.pieces:
                found = self.reading.rows(Task(0, 0, ((shard, start, stop),)), check=True)
                bad += found.bad
                if len(found.rows):
                    numbers = np.setdiff1d(shard.numbers(start, stop), [row for one in found.bad for row in one.rows])
                    parts.append(self.answers.of_rows(method.adapt(found.rows), zero_shot, found.rows, shard, numbers))
        return replica, *_with_changes(replica, parts, bad)


def _with_changes(replica: Replica, answer: Any, bad: list[ShardError]) -> tuple[Changes, Any, list[ShardError]]:
    return replica.take_changes(), answer, bad


def _rounds(
    replicas: list[Replica],
    following: _Follow,
    next_rows: Callable[[int], np.ndarray | Task | None],
    executor: Executor,
) -> Iterator[tuple[int, Any, list[ShardError]]]:
    """Yield (replica, answer, what was unusable) for every part of every sub-stream. `next_rows` gives the next rows of
    a replica, None at its end. All changes of a round are received before the next one begins."""
    while True:
        requests = [(index, rows) for index in range(len(replicas)) if (rows := next_rows(index)) is not None]
        if not requests:
            return
        items = [(replicas[index], rows) for index, rows in requests]
        round_changes = []
        for (index, _), (replica, changes, answer, bad) in zip(requests, executor.map(following, items), strict=True):
            replicas[index] = replica
            round_changes.append(changes)
            yield index, answer, bad
        for replica in replicas:
            for changes in round_changes:
                replica.receive(changes)


def _make_replicas(method: OnlineAnchoredMixture, count: int, every: int) -> list[Replica]:
    if every < 1:
        raise ValueError(f"every must be at least 1; got {every}. Fix: every={EVERY}.")
    if count < 1:
        raise ValueError(f"replicas must be at least 1; got {count}. Fix: replicas=4.")
    return [Replica(copy.deepcopy(method), str(index)) for index in range(count)]


def adapt_replicas(
    method: OnlineAnchoredMixture,
    features: Array,
    *,
    keys: Sequence[object] | np.ndarray,
    replicas: int,
    every: int = EVERY,
    on: str | Executor = "local",
) -> np.ndarray:
    """Answer samples (N, d) in several replicas, each of which follows the samples with some of the keys, in order.

    After `every` samples of each, they exchange what they learned. The answers (N, K) do not depend on where the
    replicas run. Afterwards `method` has learned all samples.
    """
    rows = check_matrix("features", features, columns=method.dimension, classes=method.n_classes)
    if len(keys) != len(rows):
        raise ValueError(f"keys must have one entry per sample; got {len(keys)} for {len(rows)}. Fix: keys=cameras.")
    made = _make_replicas(method, replicas, every)
    of_replica = assign_keys(keys, replicas)
    indices = [np.flatnonzero(of_replica == index) for index in range(replicas)]
    starts = [0] * replicas
    answers = np.empty((len(rows), method.n_classes))

    def next_rows(index: int) -> np.ndarray | None:
        part = indices[index][starts[index] : starts[index] + every]
        starts[index] += len(part)
        return np.asarray(to_numpy(rows[part])) if len(part) else None

    done = [0] * replicas
    with use_executor(on) as executor:
        for index, answer, _ in _rounds(made, _Follow(Reading(False, False)), next_rows, executor):
            answers[indices[index][done[index] : done[index] + len(answer)]] = answer
            done[index] += len(answer)
    _learn_all(method, made[0])
    return answers


def _learn_all(method: OnlineAnchoredMixture, replica: Replica) -> None:
    """Give a method what the replicas, which began as its copies, have learned."""
    before, samples = method.sums(), method.n_seen
    sums = {name: array - before[name] for name, array in replica.method.sums().items()}
    method.add_sums(sums, replica.method.n_seen - samples)


class _OnlineFiles:
    """Gathers the answers of replicas into files of about `FILE_ROWS` rows of one shard."""

    def __init__(self, shards: FeatureShards, predictions: Predictions, labels: np.ndarray | None) -> None:
        self.predictions = predictions
        self._labels, self._starts = labels, shard_starts(shards)
        self._numbers = {shard.path: number for number, shard in enumerate(shards.shards)}
        self.names = [
            self._name(shard.path, part) for shard in shards.shards for part in range(-(-shard.rows // FILE_ROWS))
        ]
        self._gathered: dict[int, tuple[str, int, list[RowAnswers]]] = {}
        """By replica: its shard, the number of its next file, and the answers that are not written yet."""
        predictions.check(self.names)

    def _name(self, path: str, part: int) -> str:
        return f"predictions_{self._numbers[path]:05d}_{part:04d}.parquet"

    def begin(self, answers: Answers) -> None:
        self.answers = answers
        self.predictions.begin(secrets.token_hex(8), self.names)  # a key of no other run: nothing is continued

    def add(self, replica: int, answered: list[RowAnswers]) -> None:
        for part in answered:
            path = part.shard.path
            if self._labels is not None:
                part.columns["label"] = self._labels[self._starts[path] + part.numbers]
            if replica in self._gathered and self._gathered[replica][0] != path:
                self._write(replica)
                del self._gathered[replica]
            self._gathered.setdefault(replica, (path, 0, []))[2].append(part)
            if sum(len(one.numbers) for one in self._gathered[replica][2]) >= FILE_ROWS:
                self._write(replica)

    def _write(self, replica: int) -> None:
        path, part, gathered = self._gathered[replica]
        if gathered:
            self.answers.write(self.predictions.folder, self._name(path, part), gathered)
        self._gathered[replica] = path, part + 1, []

    def finish(self) -> None:
        for replica in list(self._gathered):
            self._write(replica)
        self.predictions.finish()


def check_online_out(
    method: OnlineAnchoredMixture,
    shards: FeatureShards,
    out: str | os.PathLike[str] | None,
    replicas: int,
    every: int,
    class_names: Sequence[str] | None,
    normalize: bool,
    force: bool,
    answers: AnswerOptions = NO_OPTIONS,
) -> _OnlineFiles | None:
    """The files of an online run, after a check that it may write them."""
    if out is None:
        return None
    run = run_key(
        method, shards, replicas=replicas, every=every, normalize=normalize, **written_key(class_names, answers)
    )
    return _OnlineFiles(shards, Predictions(Folder.of(out), run, force), answers.labels)


def follow_shards(
    method: OnlineAnchoredMixture,
    shards: FeatureShards,
    *,
    replicas: int,
    every: int = EVERY,
    on: str | Executor = "local",
    out: str | os.PathLike[str] | None = None,
    class_names: Sequence[str] | None = None,
    normalize: bool = False,
    on_bad_shard: str = "raise",
    progress: Progress | None = None,
    force: bool = False,
    answers: AnswerOptions = NO_OPTIONS,
) -> list[ShardError]:
    """As `adapt_replicas`, for shards: each belongs to one replica, which follows its shards one after the other.

    The answers are written to `out/predictions`, of which `force` allows to replace those of another run, or of this
    one if it is finished; a run that did not finish starts again. Returns what could not be used.
    """
    made = _make_replicas(method, replicas, every)
    check_arguments(method, shards, class_names, on_bad_shard, answers)
    files = check_online_out(method, shards, out, replicas, every, class_names, normalize, force, answers)
    parts = [_parts(shards, index, replicas, every) for index in range(replicas)]
    reading = Reading(normalize, on_bad_shard == "skip")
    bad: list[ShardError] = []
    rows = 0
    with use_executor(on) as executor:
        rule = None
        if files is not None and answers.reject_above is not None:
            rule = find_reject_rule(executor, make_tasks(shards, TASK_ROWS), reading, method)
        names = None if class_names is None else tuple(class_names)
        written = Answers(replace(answers, labels=None), names, rule)
        if files is not None:
            files.begin(written)
        following = _Follow(reading, written)
        for index, answered, failed in _rounds(made, following, lambda index: next(parts[index], None), executor):
            bad += failed
            rows += sum(len(part.numbers) for part in answered)
            if files is not None:
                files.add(index, answered)
            if progress is not None:
                progress("online", rows, shards.rows)
    if files is not None:
        files.finish()
    _learn_all(method, made[0])
    return bad


def _parts(shards: FeatureShards, index: int, replicas: int, every: int) -> Iterator[Task]:
    pieces: list[Any] = []
    count = 0
    for shard in shards.shards[index::replicas]:
        start = 0
        while start < shard.rows:
            stop = min(shard.rows, start + every - count)
            pieces.append((shard, start, stop))
            count, start = count + stop - start, stop
            if count == every:
                yield Task(0, 0, tuple(pieces))
                pieces, count = [], 0
    if pieces:
        yield Task(0, 0, tuple(pieces))
