"""Adapt a method to shards: passes over tasks of a fixed size, added in order, then a pass that writes the answers.

The tasks do not depend on the number of workers, each is computed in one thread, and their sums are added in order.
So the result has the same bits for any number of workers on equal machines. After a pass, and every few seconds within
one, the sums so far are saved in the output folder: a driver that was killed continues there.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
import os
import time
import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from threadpoolctl import threadpool_limits

from zeroshift._version import __version__
from zeroshift.arrays import CHECK_ROWS, Array, check_matrix, to_numpy
from zeroshift.arrays import normalize as unit_rows
from zeroshift.distributed.answers import (
    PROGRESS,
    AnswerOptions,
    Answers,
    Predictions,
    RowAnswers,
    Totals,
    damaged_file,
)
from zeroshift.distributed.device_rows import is_gpu, kept_rows
from zeroshift.distributed.executors import Executor, LocalExecutor, count_cores, use_executor
from zeroshift.distributed.folders import Folder
from zeroshift.distributed.shards import FeatureShards, Shard, ShardChangedError, ShardError
from zeroshift.files import TemporaryFolder
from zeroshift.method import Method
from zeroshift.methods import ZeroShot
from zeroshift.mixture.transductive import WHOLE_ROUNDS
from zeroshift.parameters import Number
from zeroshift.passes import Pass, RowsWanted
from zeroshift.reject import RejectRule, class_distances

__all__ = ["Plan", "Result", "adapt", "plan"]

TASK_ROWS = 131_072
"""Rows per task. Smaller tasks waste less when a worker dies, larger ones send fewer sums."""

ALL_ROUNDS_ROWS = 2_000_000
"""Up to so many rows every round is over all rows; beyond, most rounds are over samples of this size."""

SAVE_SECONDS = 10.0
"""Time between two saves of the sums within a pass."""

ANSWER_ROWS = 8192
"""Rows answered together in a worker."""

FIRST_ROWS = 256

RULE_ROWS = 131_072
"""Rows, spread over all tasks, that the rule about rejects is found from."""

PROBE_ROWS = 4096


CHECKSUM_BYTES = 32
"""Of the SHA-256 before the sums in a file."""

NO_OPTIONS = AnswerOptions()


@dataclass(frozen=True)
class Task:
    """Rows that one worker processes together: pieces (shard, first row, last row + 1) of one or several shards."""

    number: int
    first_row: int
    pieces: tuple[tuple[Shard, int, int], ...]

    @property
    def rows(self) -> int:
        return sum(stop - start for _, start, stop in self.pieces)


@dataclass(frozen=True)
class Plan:
    """What a call of `adapt` will do."""

    shards: int
    rows: int
    bytes: int
    tasks: int
    fit_rows: int
    """Rows of the rounds that are over samples; all rows if none is."""
    most_rounds: int
    whole_rounds: int
    """Rounds that are over all rows, if all rounds are needed."""
    most_bytes_read: int
    """In all rounds and in the pass that answers."""
    workers: int
    memory_per_worker: int
    """Bytes that a worker needs for its rows and products, in addition to Python itself."""
    seconds: float | None = None
    """Estimated from a probe; None if nothing was measured."""


@dataclass
class Result:
    """What `adapt` did."""

    rows: int
    fit_rows: int
    rounds: int
    passes: int
    seconds: float
    skipped: list[str] = field(default_factory=list)
    """Shards that could not be used."""
    skipped_rows: dict[str, int] = field(default_factory=dict)
    """By shard, how many of its rows could not be used."""
    reasons: dict[str, str] = field(default_factory=dict)
    """By shard, what is wrong with it or with its first unusable row."""
    answered: int = 0
    rejected: int | None = None
    """Answers that are "none of these", if rejects were asked for."""
    accuracy: float | None = None
    zero_shot_accuracy: float | None = None
    out: str | None = None


Progress = Callable[[str, int, int], None]
"""Gets what is being done, the rows done and the rows in all."""


def make_tasks(shards: FeatureShards, task_rows: int) -> list[Task]:
    """Pieces of large shards, and groups of small ones, of up to `task_rows` rows."""
    task_rows = Number(1, integer=True).check("task_rows", task_rows)
    tasks: list[Task] = []
    pieces: list[tuple[Shard, int, int]] = []
    first = count = 0
    for shard in shards.shards:
        start = 0
        while start < shard.rows:
            stop = min(shard.rows, start + task_rows - count)
            pieces.append((shard, start, stop))
            count, start = count + stop - start, stop
            if count == task_rows:
                tasks.append(Task(len(tasks), first, tuple(pieces)))
                pieces, first, count = [], first + count, 0
    if pieces:
        tasks.append(Task(len(tasks), first, tuple(pieces)))
    return tasks


def _first_task(shards: FeatureShards, rows: int) -> Task:
    """The first rows of the set, as many as there are up to `rows`."""
    pieces, left = [], rows
    for shard in shards.shards:
        pieces.append((shard, 0, min(left, shard.rows)))
        left -= min(left, shard.rows)
        if not left:
            break
    return Task(0, 0, tuple(pieces))


class Found(NamedTuple):
    """Rows that were read."""

    rows: np.ndarray
    bad: list[ShardError]
    """What could not be used."""
    checksums: list[int]
    """Of the content of each piece, if all rows of the task were asked for."""


@dataclass(frozen=True)
class Reading:
    """How rows become features."""

    normalize: bool
    skip_bad: bool

    def rows(self, task: Task, *, check: bool, numbers: np.ndarray | None = None) -> Found:
        """The rows of a task, or those with these numbers in it."""
        found = Found(np.zeros((0, 1), np.float32), [], [])
        parts, offset = [], 0
        for shard, start, stop in task.pieces:
            count = stop - start
            try:
                rows, at = shard.read(start, stop), np.arange(count)
                if numbers is None:
                    found.checksums.append(zlib.crc32(np.ascontiguousarray(rows).data))
                else:
                    at = numbers[(numbers >= offset) & (numbers < offset + count)] - offset
                    rows = rows[at]
                if (self.normalize or check) and len(rows):
                    rows = self._usable(shard, rows, shard.numbers(start, stop)[at], found.bad)
                parts.append(rows)
            except ShardError as error:
                if not self.skip_bad:
                    raise
                found.bad.append(error)
            offset += count
        if not parts:
            return found
        return found._replace(rows=parts[0] if len(parts) == 1 else np.concatenate(parts))

    def _usable(self, shard: Shard, rows: np.ndarray, numbers: np.ndarray, bad: list[ShardError]) -> np.ndarray:
        """The rows that can be used, which have these numbers in their file."""
        try:
            return self._checked(rows)
        except ValueError:
            error = self._bad_rows(shard, rows, numbers)
        if not self.skip_bad or not error.rows:
            raise error
        bad.append(error)
        kept = rows[~np.isin(numbers, error.rows)]
        return self._checked(kept) if len(kept) else kept

    def _checked(self, rows: np.ndarray) -> np.ndarray:
        if self.normalize:
            return np.asarray(unit_rows(rows))
        check_matrix("features", rows)
        return rows

    def _bad_rows(self, shard: Shard, rows: np.ndarray, numbers: np.ndarray) -> ShardError:
        """The rows that cannot be used, by their numbers in the file, and what is wrong with the first; the whole
        shard, if none can in a block of them."""
        found: list[int] = []
        first = "its rows cannot be used"
        for start in range(0, len(rows), CHECK_ROWS):
            if not self._why_not(rows[start : start + CHECK_ROWS]):
                continue
            reasons = [self._why_not(row[None, :]) for row in rows[start : start + CHECK_ROWS]]
            bad = [start + at for at, reason in enumerate(reasons) if reason]
            if bad and not found:
                first = reasons[bad[0] - start].replace("row 0 ", f"row {numbers[bad[0]]} ", 1)
            found += numbers[bad].tolist()
            if len(bad) == CHECK_ROWS:
                return ShardError(shard.path, first)
            if found and not self.skip_bad:
                break
        return ShardError(shard.path, first, found)

    def _why_not(self, rows: np.ndarray) -> str:
        """What is wrong with rows; nothing if they can be used."""
        try:
            self._checked(rows)
        except ValueError as error:
            return str(error).removeprefix("features ")
        return ""


@dataclass
class PassTask:
    """A pass over one task, in a worker; over a share of its rows, if the pass is over a sample."""

    work: Pass
    reading: Reading
    share: float
    device: str | None
    run: str = ""
    """A key of the run, whose rows a GPU keeps."""

    def __call__(self, task: Task) -> tuple[dict[str, np.ndarray], list[ShardError], int, list[int]]:
        """The result, what could not be used, the number of rows, and the checksums of the pieces that were read."""
        numbers = None if self.work.sample is None else sample_numbers(task, self.share, self.work.sample)
        if self.device is not None and is_gpu(self.device):  # it takes a millisecond to limit the threads of a BLAS
            return self._part(task, *self._device_rows(task, self.device, numbers))
        with threadpool_limits(1, user_api="blas"):
            return self._part(task, *self.reading.rows(task, check=self.work.first_visit, numbers=numbers))

    def _part(
        self, task: Task, rows: Array, bad: list[ShardError], checksums: list[int]
    ) -> tuple[dict[str, np.ndarray], list[ShardError], int, list[int]]:
        part = {} if not len(rows) else self.work.part(rows, task.first_row, self.device)
        return part, bad, len(rows), checksums

    def _device_rows(
        self, task: Task, device: str, numbers: np.ndarray | None
    ) -> tuple[Array, list[ShardError], list[int]]:
        """As `Reading.rows`, with the rows on a GPU. Those that are kept there are not read."""
        kept = kept_rows()
        rows = kept.find(self.run, device, task.number)
        if rows is not None:
            return (rows if numbers is None else rows[numbers]), [], []
        found = self.reading.rows(task, check=False, numbers=numbers)
        moved = kept.move(found.rows, device)
        if self.work.first_visit and len(found.rows) and not self.reading.normalize and not _pass_check(moved):
            # Read once more, to find out which row of which shard is bad.
            found = self.reading.rows(task, check=True, numbers=numbers)
            moved = kept.move(found.rows, device)
        if not found.bad and numbers is None:
            kept.keep(self.run, device, task.number, moved)
        return moved, found.bad, found.checksums


def _pass_check(rows: Array) -> bool:
    """Whether the rows are usable features. On a GPU this takes a fraction of the time."""
    try:
        check_matrix("features", rows)
    except ValueError:
        return False
    return True


def sample_numbers(task: Task, share: float, sample: int) -> np.ndarray:
    """Rows of a uniform sample within a task. Other samples have other rows, until all rows were in one."""
    count = int((task.first_row + task.rows) * share) - int(task.first_row * share)
    order = np.random.default_rng([task.number, 23]).permutation(task.rows)
    return np.sort(np.roll(order, -sample * count)[:count])


@dataclass
class TakeTask:
    """Some rows of a task."""

    reading: Reading

    def __call__(self, request: tuple[Task, np.ndarray]) -> np.ndarray:
        task, numbers = request
        return np.array(self.reading.rows(task, check=False, numbers=numbers).rows)


@dataclass
class DistancesTask:
    """The distances to the classes of a sample of the rows of a task, which the rule about rejects is found from."""

    reading: Reading
    share: float
    prototypes: np.ndarray

    def __call__(self, task: Task) -> np.ndarray:
        with threadpool_limits(1, user_api="blas"):
            rows = self.reading.rows(task, check=True, numbers=sample_numbers(task, self.share, 0)).rows
            return class_distances(rows, self.prototypes) if len(rows) else np.zeros((0, 2))


def find_reject_rule(executor: Executor, tasks: Sequence[Task], reading: Reading, method: Method) -> RejectRule:
    """The rule about rejects, from up to `RULE_ROWS` rows spread over all tasks; from all rows if there are fewer."""
    share = min(1.0, RULE_ROWS / sum(task.rows for task in tasks))
    function = DistancesTask(reading, share, to_numpy(method.prototypes))
    return RejectRule.fit(np.concatenate(list(executor.map(function, tasks))))


@dataclass
class AnswerTask:
    """Answers for the rows of a task, written to a file of its own. An item is a task with the checksums of its pieces
    in the passes before, and the labels of its pieces if there are any."""

    state: bytes
    method: type[Method]
    reading: Reading
    device: str | None
    folder: Folder
    answers: Answers
    _loaded: list[Method] = field(default_factory=list, repr=False)

    def __call__(self, item: tuple[Task, list[int] | None, list[np.ndarray] | None]) -> tuple[int, list[ShardError]]:
        task, checksums, labels = item
        parts: list[RowAnswers] = []
        bad: list[ShardError] = []
        with threadpool_limits(1, user_api="blas"):
            method = copy.deepcopy(self._method())  # its checks of float32 products start again for every task
            zero_shot = ZeroShot(method.prototypes, logit_scale=getattr(method, "logit_scale", 100.0))
            for index, (shard, start, stop) in enumerate(task.pieces):
                found = self.reading.rows(Task(0, 0, ((shard, start, stop),)), check=False)
                if checksums is not None and found.checksums not in ([], [checksums[index]]):
                    raise ShardChangedError(shard.path)
                bad += found.bad
                if found.bad:
                    continue
                for first in range(0, stop - start, ANSWER_ROWS):
                    rows = found.rows[first : first + ANSWER_ROWS]
                    numbers = shard.numbers(start + first, start + first + len(rows))
                    part = self.answers.of_rows(method.predict(rows), zero_shot, rows, shard, numbers)
                    if labels is not None:
                        part.columns["label"] = labels[index][first : first + ANSWER_ROWS]
                    parts.append(part)
        if parts:
            self.answers.write(self.folder, answers_name(task), parts)
        return sum(len(part.numbers) for part in parts), bad

    def _method(self) -> Method:
        if not self._loaded:
            library = {} if self.device is None else {"library": "torch", "device": self.device}
            with TemporaryFolder() as folder:
                path = Path(folder, "state.safetensors")
                path.write_bytes(self.state)
                self._loaded.append(self.method.load(path, **library))
        return self._loaded[0]


def answers_name(task: Task) -> str:
    return f"predictions_{task.number:05d}.parquet"


def run_key(method: Any, shards: FeatureShards, **settings: Any) -> str:
    """A key of what determines the answers of a run."""
    identity = {
        "zeroshift": __version__,
        "method": method.name,
        "params": {name: _identity(value) for name, value in sorted(method.get_params().items())},
        "shards": [asdict(shard) for shard in shards.shards],
        **settings,
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def written_key(class_names: Sequence[str] | None, answers: AnswerOptions) -> dict[str, Any]:
    """What determines the answers of a run in addition to what it learns."""
    return {
        "class_names": None if class_names is None else list(class_names),
        **{name: _identity(value) for name, value in vars(answers).items()},
    }


def _fit_rows(method: Method, shards: FeatureShards, fit_rows: float | None, exact: bool) -> int:
    """Rows of the rounds: `fit_rows` is a share up to 1, or a number of rows."""
    if exact and fit_rows is not None:
        raise ValueError(f"fit_rows={fit_rows!r} and exact=True exclude each other. Fix: leave out one of them.")
    if exact:
        return shards.rows
    if fit_rows is None:
        return min(shards.rows, ALL_ROUNDS_ROWS)
    fit_rows = float(Number(0, above=True).check("fit_rows", fit_rows))
    if fit_rows > 1 and fit_rows != round(fit_rows):
        raise ValueError(
            f"fit_rows (--fit-rows) must be a share up to 1 or a whole number of rows; got {fit_rows:g}. "
            f"Fix: 0.1, or {max(method.n_classes, round(fit_rows))}."
        )
    fitted = min(shards.rows, round(shards.rows * fit_rows if fit_rows <= 1 else fit_rows))
    if fitted < min(method.n_classes, shards.rows):
        raise ValueError(
            f"fit_rows={fit_rows:g} (--fit-rows) is a sample of {fitted:,} rows, but there are {method.n_classes:,} "
            f"classes. Fix: at least {min(method.n_classes, shards.rows)} rows, better many times as many."
        )
    return fitted


def check_learns_in_passes(method: type[Method]) -> None:
    """Refuse methods without `learn_in_passes`."""
    if not hasattr(method, "learn_in_passes"):
        raise TypeError(
            f"{method.name} cannot learn from shards. Fix: anchored_mixture_transductive or adapt_transductive."
        )


def check_arguments(
    method: Method,
    shards: FeatureShards,
    class_names: Sequence[str] | None,
    on_bad_shard: str,
    answers: AnswerOptions,
) -> None:
    if on_bad_shard not in ("raise", "skip"):
        raise ValueError(f"on_bad_shard must be 'raise' or 'skip'; got {on_bad_shard!r}. Fix: on_bad_shard='skip'.")
    if shards.dimension != method.dimension:
        raise ValueError(
            f"the shards have d = {shards.dimension} columns, but the prototypes have d = {method.dimension}. "
            "Features and prototypes must come from the same encoder."
        )
    if class_names is not None and len(class_names) != method.n_classes:
        raise ValueError(f"class_names must be {method.n_classes} names; got {len(class_names)}.")
    answers.check(method, shards)


def _gpus(device: str | None) -> float:
    """What a task on Ray needs for this device."""
    return 1.0 if is_gpu(device) else 0.0


def _check_out(
    method: Method,
    shards: FeatureShards,
    out: str | os.PathLike[str] | None,
    class_names: Sequence[str] | None,
    fitted: int,
    task_rows: int,
    normalize: bool,
    force: bool,
    answers: AnswerOptions,
) -> Predictions | None:
    """The files of a run, after a check that it may write them."""
    if out is None:
        return None
    run = run_key(
        method, shards, fitted=fitted, task_rows=task_rows, normalize=normalize, **written_key(class_names, answers)
    )
    predictions = Predictions(Folder.of(out), run, force)
    predictions.check(answers_name(task) for task in make_tasks(shards, task_rows))
    return predictions


def plan(
    method: Method,
    shards: FeatureShards,
    *,
    on: str | Executor = "local",
    fit_rows: float | None = None,
    exact: bool = False,
    task_rows: int = TASK_ROWS,
    device: str | None = None,
    probe: bool = False,
    out: str | os.PathLike[str] | None = None,
    class_names: Sequence[str] | None = None,
    normalize: bool = False,
    on_bad_shard: str = "raise",
    force: bool = False,
    answers: AnswerOptions = NO_OPTIONS,
) -> Plan:
    """What `adapt` would do with these arguments, which are checked as there. With `probe`, a few thousand rows are
    predicted to estimate the time."""
    check_arguments(method, shards, class_names, on_bad_shard, answers)
    fitted = _fit_rows(method, shards, fit_rows, exact)
    _check_out(method, shards, out, class_names, fitted, task_rows, normalize, force, answers)
    with use_executor(on, gpus=_gpus(device)) as executor:
        workers = executor.workers
        cores = count_cores() if isinstance(executor, LocalExecutor) else workers
    rounds = int(getattr(method, "rounds", 1))
    whole = rounds if fitted == shards.rows else min(rounds, WHOLE_ROUNDS + 1)
    visited = (whole + 1) * shards.rows + (rounds - whole) * fitted
    tasks = len(make_tasks(shards, task_rows))
    seconds = None
    rows = np.zeros((0, 1))
    if probe:
        rows = Reading(True, on_bad_shard == "skip").rows(_first_task(shards, PROBE_ROWS), check=True).rows
    if len(rows):
        with threadpool_limits(1, user_api="blas"):
            method.predict(rows)
            began = time.perf_counter()
            method.predict(rows)
            per_row = (time.perf_counter() - began) / len(rows)
        # A round costs about two products, as do the answers with those of zero-shot.
        seconds = 2.0 * per_row * visited / min(workers, tasks, cores)
    rows_bytes = task_rows * shards.dimension * np.dtype(shards.shards[0].dtype).itemsize
    numbers = method.n_classes * method.dimension + method.dimension**2
    memory = rows_bytes + int(getattr(method, "memory_budget", 256_000_000)) + 100 * numbers
    return Plan(
        shards=len(shards.shards),
        rows=shards.rows,
        bytes=shards.bytes,
        tasks=tasks,
        fit_rows=fitted,
        most_rounds=rounds,
        whole_rounds=whole,
        most_bytes_read=visited * (shards.bytes // shards.rows),
        workers=workers,
        memory_per_worker=memory,
        seconds=seconds,
    )


def adapt(
    method: Method,
    shards: FeatureShards,
    *,
    on: str | Executor = "local",
    out: str | os.PathLike[str] | None = None,
    class_names: Sequence[str] | None = None,
    fit_rows: float | None = None,
    exact: bool = False,
    normalize: bool = False,
    on_bad_shard: str = "raise",
    task_rows: int = TASK_ROWS,
    device: str | None = None,
    progress: Progress | None = None,
    note: Callable[[str], None] | None = None,
    force: bool = False,
    answers: AnswerOptions = NO_OPTIONS,
) -> Result:
    """Adapt a transductive method to shards, and write the answers to `out/predictions/predictions_*.parquet`.

    Parameters
    ----------
    method : transductive mixture or transductive ADAPT. Afterwards it has learned the set and can `predict`.
    on : `local`, `local:N`, `ray`, `ray://host:port`, or an executor.
    out : folder for the answers and for what a killed run continues from; without it, the method only learns.
    class_names : the predictions are these names instead of class indices.
    fit_rows : share (up to 1) or number of rows in a uniform sample. The first three rounds and the last one are over
        all rows, the others over such samples, each another. By default all rows, up to two million.
    exact : every round over all rows.
    normalize : scale rows to unit length.
    on_bad_shard : "raise", or "skip" to leave out shards that cannot be read, and rows that cannot be used.
    task_rows : rows per task.
    device : torch device of the workers, such as "cuda"; NumPy if None.
    progress : called after every task.
    note : called with a sentence if the run continues one that was interrupted.
    force : replace the predictions of another run, or of this one if it is finished. Files that no run recorded as its
        own are never deleted.
    answers : what is written about each row in addition to its prediction.
    """
    check_learns_in_passes(type(method))
    check_arguments(method, shards, class_names, on_bad_shard, answers)
    began = time.perf_counter()
    fitted = _fit_rows(method, shards, fit_rows, exact)
    reading = Reading(normalize, on_bad_shard == "skip")
    predictions = _check_out(method, shards, out, class_names, fitted, task_rows, normalize, force, answers)
    with use_executor(on, gpus=_gpus(device)) as executor:
        run = _Run(
            method,
            shards,
            executor,
            None if out is None else Folder.of(out),
            reading,
            fitted,
            task_rows,
            device,
            progress or (lambda *_: None),
            note or (lambda _: None),
            predictions,
        )
        try:
            passes = run.learn()
        finally:
            kept_rows().release()  # those of this process; the executor's own end with it
        totals = Totals()
        if out is not None:
            totals = run.answer(answers, None if class_names is None else tuple(class_names))
    whole, rows, reasons = describe_skipped([*shards.skipped, *run.bad])
    kept = run.shards.rows
    return Result(
        rows=kept,
        fit_rows=min(run.fitted, kept),
        rounds=int(getattr(getattr(method, "diagnostics", None), "rounds", 0) or 1),
        passes=passes,
        seconds=time.perf_counter() - began,
        skipped=whole,
        skipped_rows=rows,
        reasons=reasons,
        **(NO_OPTIONS if out is None else answers).describe(totals),
        out=None if out is None else str(out),
    )


def shard_starts(shards: FeatureShards) -> dict[str, int]:
    """By shard, the number in the set of its first row."""
    starts, start = {}, 0
    for shard in shards.shards:
        starts[shard.path] = start
        start += shard.rows_in_file
    return starts


def describe_skipped(errors: Sequence[ShardError]) -> tuple[list[str], dict[str, int], dict[str, str]]:
    """The shards that were left out, by shard how many rows were, and by shard the first reason."""
    whole = list(dict.fromkeys(error.path for error in errors if not error.rows))
    reasons: dict[str, str] = {}
    rows: dict[str, set[int]] = {}
    for error in errors:
        reasons.setdefault(error.path, error.reason)
        if error.path not in whole:
            rows.setdefault(error.path, set()).update(error.rows)
    return whole, {path: len(numbers) for path, numbers in rows.items()}, reasons


@dataclass
class _Run:
    method: Any
    shards: FeatureShards
    executor: Executor
    out: Folder | None
    reading: Reading
    fitted: int
    task_rows: int
    device: str | None
    progress: Progress
    note: Callable[[str], None]
    predictions: Predictions | None
    bad: list[ShardError] = field(default_factory=list)
    checksums: dict[int, list[int]] = field(init=False)
    """Of the pieces of each task, in the first pass that read it."""
    starts: dict[str, int] = field(init=False)
    continues: bool = False
    """Whether sums of an earlier driver are used, and the user does not know it yet."""
    runs_before: set[str] = field(init=False)
    """Keys of runs that were interrupted, until one of them is continued."""

    def __post_init__(self) -> None:
        self.starts = shard_starts(self.shards)
        self.runs_before = set() if self.out is None else set((self.out / PROGRESS).names())

    def learn(self) -> int:
        """Learn the set; again without them if shards turn out to be unusable. Returns the number of passes."""
        while True:
            self._prepare()
            passes, bad = self._learn_once()
            if not bad:
                return passes
            self.bad += bad
            self.shards = self.shards.without(bad)

    def _prepare(self) -> None:
        self.tasks, self.checksums = make_tasks(self.shards, self.task_rows), {}
        self.sampled = self.fitted < self.shards.rows
        self.share = self.fitted / self.shards.rows
        self.key = run_key(
            self.method, self.shards, fitted=self.fitted, task_rows=self.task_rows, normalize=self.reading.normalize
        )
        self.saved = None if self.out is None else self.out / PROGRESS / self.key

    def _learn_once(self) -> tuple[int, list[ShardError]]:
        first, bad, _ = self.reading.rows(_first_task(self.shards, FIRST_ROWS), check=True)
        if bad:
            return 0, bad
        steps = self.method.learn_in_passes(first, sampled=self.sampled)
        passes, answer = 0, cast(Any, None)
        while True:
            try:
                step = steps.send(answer)
            except StopIteration:
                return passes, []
            if isinstance(step, RowsWanted):
                answer = self._take(step.numbers)
                continue
            passes += 1
            answer, bad = self._pass(step, passes)
            if bad:
                steps.close()
                return passes, bad

    def _pass(self, work: Pass, number: int) -> tuple[dict[str, np.ndarray], list[ShardError]]:
        sampled = work.sample is not None
        total, done, bad = self._saved_sums(number)
        all_rows = self.fitted if sampled else self.shards.rows
        what = f"pass {number}{' (sample)' if sampled else ''}"
        rows, saved_at = int(total.pop("__rows", np.array(0))), time.monotonic()
        if self.continues and done < len(self.tasks):
            self._note(f"in {what}, after {rows:,} of {all_rows:,} rows")
        function = PassTask(work, self.reading, self.share, self.device, self.key)
        tasks = self.tasks[done:]
        for task, (part, failed, count, checksums) in zip(tasks, self.executor.map(function, tasks), strict=True):
            done, rows = done + 1, rows + count
            bad += failed
            if not failed:
                self._check_content(task, checksums)
            if part:
                total = work.add(total, part)
            self.progress(what, rows, all_rows)
            if time.monotonic() - saved_at > SAVE_SECONDS or done == len(self.tasks):
                self._save_sums(number, {**total, "__rows": np.array(rows)}, done, bad)
                saved_at = time.monotonic()
        return total, bad

    def _note(self, where: str) -> None:
        self.note(f"this run continues one that was interrupted, {where}")
        self.continues = False

    def _check_content(self, task: Task, checksums: list[int]) -> None:
        """Refuse a shard with other content than in the first pass that read it; there are no checksums of samples."""
        if not checksums:
            return
        known = self.checksums.setdefault(task.number, checksums)
        for (shard, _, _), before, now in zip(task.pieces, known, checksums, strict=True):
            if before != now:
                raise ShardChangedError(shard.path)

    def _saved_sums(self, number: int) -> tuple[dict[str, np.ndarray], int, list[ShardError]]:
        """The sums of a pass that an earlier driver saved, the number of tasks in them, and what was unusable."""
        content = None if self.saved is None else self.saved.read(f"pass-{number:03d}.sums")
        if content is None:
            if self.runs_before:
                warnings.warn(
                    f"an interrupted run into {self.out} had other shards (or they were written again since), other "
                    "parameters or another version of zeroshift: this run does not continue it, and starts from its "
                    "beginning",
                    UserWarning,
                    stacklevel=2,
                )
            self.runs_before = set()
            return {}, 0, []
        assert self.saved is not None
        self.runs_before, self.continues = set(), True
        if hashlib.sha256(content[CHECKSUM_BYTES:]).digest() != content[:CHECKSUM_BYTES]:
            raise damaged_file(self.saved / f"pass-{number:03d}.sums", "delete it; its pass is then made again")
        with np.load(io.BytesIO(content[CHECKSUM_BYTES:]), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        about = json.loads(str(arrays.pop("__about")))
        self.checksums = {int(task): checksums for task, checksums in about["checksums"].items()}
        return arrays, about["tasks"], [ShardError(*error) for error in about["bad"]]

    def _save_sums(self, number: int, total: dict[str, np.ndarray], done: int, bad: list[ShardError]) -> None:
        if self.saved is None:
            return
        errors = [(error.path, error.reason, error.rows) for error in bad]
        about = json.dumps({"tasks": done, "bad": errors, "checksums": self.checksums})
        file = io.BytesIO()
        arrays: dict[str, Any] = {**total, "__about": np.array(about)}
        np.savez(file, **arrays)
        content = file.getvalue()
        self.saved.write(f"pass-{number:03d}.sums", hashlib.sha256(content).digest() + content)

    def _take(self, numbers: np.ndarray) -> np.ndarray:
        """The rows with these numbers, in this order."""
        order = np.argsort(numbers, kind="stable")
        starts = np.array([task.first_row for task in self.tasks])
        of_task = np.searchsorted(starts, numbers[order], side="right") - 1
        requests = [
            (self.tasks[index], numbers[order][of_task == index] - starts[index]) for index in np.unique(of_task)
        ]
        found = np.concatenate(list(self.executor.map(TakeTask(self.reading), requests)))
        result = np.empty_like(found)
        result[order] = found
        return result

    def answer(self, options: AnswerOptions, class_names: tuple[str, ...] | None) -> Totals:
        """Write the answers that are not written yet. Returns the totals of all."""
        assert self.predictions is not None
        names = {task.number: answers_name(task) for task in self.tasks}
        written = self.predictions.begin(self.key, names.values()) & set(names.values())
        if self.continues:
            self._note(f"with {len(written):,} of {len(names):,} files of predictions written")
        rule = None
        if options.reject_above is not None:
            rule = find_reject_rule(self.executor, self.tasks, self.reading, self.method)
        with TemporaryFolder() as local:
            path = Path(local, "state.safetensors")
            self.method.save(path)
            state = path.read_bytes()
        left = [task for task in self.tasks if names[task.number] not in written]
        rows = self.shards.rows - sum(task.rows for task in left)
        folder = self.predictions.folder
        answers = Answers(replace(options, labels=None), class_names, rule)
        function = AnswerTask(state, type(self.method), self.reading, self.device, folder, answers)
        items = [(task, self.checksums.get(task.number), self._labels(task, options.labels)) for task in left]
        for answered, bad in self.executor.map(function, items):
            rows += answered
            self.bad += bad
            self.progress("answers", rows, self.shards.rows)
        self.predictions.finish()
        return self.predictions.totals()

    def _labels(self, task: Task, labels: np.ndarray | None) -> list[np.ndarray] | None:
        """The labels of each piece, still in their file if they are memory-mapped and no row is left out."""
        if labels is None:
            return None
        found = []
        for shard, start, stop in task.pieces:
            numbers = shard.numbers(start, stop)
            rows = labels[self.starts[shard.path] :][numbers[0] : numbers[-1] + 1]
            found.append(rows if len(rows) == len(numbers) else rows[numbers - numbers[0]])
        return found


def _identity(value: Any) -> Any:
    """A parameter as JSON; arrays as a checksum."""
    if isinstance(value, tuple):
        return [_identity(item) for item in value]
    if hasattr(value, "shape"):
        return hashlib.sha256(np.ascontiguousarray(to_numpy(value)).tobytes()).hexdigest()
    return value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)
