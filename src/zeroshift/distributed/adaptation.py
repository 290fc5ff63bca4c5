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
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from threadpoolctl import threadpool_limits

from zeroshift._version import __version__
from zeroshift.arrays import Array, check_matrix, to_numpy
from zeroshift.arrays import normalize as unit_rows
from zeroshift.distributed.device_rows import is_gpu, kept_rows
from zeroshift.distributed.executors import Executor, LocalExecutor, count_cores, use_executor
from zeroshift.distributed.folders import Folder
from zeroshift.distributed.shards import FeatureShards, Shard, ShardError
from zeroshift.method import Method
from zeroshift.methods import ZeroShot
from zeroshift.mixture.transductive import WHOLE_ROUNDS
from zeroshift.parameters import Number
from zeroshift.passes import Pass, RowsWanted

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

PROBE_ROWS = 4096

PROGRESS = ".progress"
"""Folder in the output folder with what an interrupted run continues from."""

RECORD = ".predictions.json"
"""File in the output folder that says which run wrote `predictions`, and the names of its files."""


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
    answered: int = 0
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


@dataclass(frozen=True)
class Reading:
    """How rows become features."""

    normalize: bool
    skip_bad: bool

    def rows(self, task: Task, *, check: bool, numbers: np.ndarray | None = None) -> tuple[np.ndarray, list[str]]:
        """The rows of a task, or those with these numbers in it, and the shards that could not be read."""
        found, bad, offset = [], [], 0
        for shard, start, stop in task.pieces:
            count = stop - start
            try:
                rows, taken = shard.read(start, stop), np.arange(count)
                if numbers is not None:
                    taken = numbers[(numbers >= offset) & (numbers < offset + count)] - offset
                    rows = rows[taken]
                if (self.normalize or check) and len(rows):
                    try:
                        rows = self._checked(rows)
                    except ValueError:
                        raise self._bad_row(shard, rows, start + taken) from None
                found.append(rows)
            except ShardError as error:
                if not self.skip_bad:
                    raise
                bad.append(error.path)
            offset += count
        if len(found) == 1:
            return found[0], bad
        return (np.concatenate(found) if found else np.zeros((0, 1), np.float32)), bad

    def _checked(self, rows: np.ndarray) -> np.ndarray:
        if self.normalize:
            return np.asarray(unit_rows(rows))
        check_matrix("features", rows)
        return rows

    def _bad_row(self, shard: Shard, rows: np.ndarray, numbers: np.ndarray) -> ShardError:
        """What is wrong with the first bad row, by its number in the file."""
        first, stop = 0, len(rows)
        while stop - first > 1:
            middle = (first + stop) // 2
            try:
                self._checked(rows[first:middle])
                first = middle
            except ValueError:
                stop = middle
        try:
            self._checked(rows[first:stop])
        except ValueError as error:
            reason = str(error).removeprefix("features ").replace("row 0 ", f"row {numbers[first]} ", 1)
            return ShardError(shard.path, reason)
        return ShardError(shard.path, "its rows cannot be used")


@dataclass
class PassTask:
    """A pass over one task, in a worker; over a share of its rows, if the pass is over a sample."""

    work: Pass
    reading: Reading
    share: float
    device: str | None
    run: str = ""
    """A key of the run, whose rows a GPU keeps."""

    def __call__(self, task: Task) -> tuple[dict[str, np.ndarray], list[str], int]:
        numbers = None if self.work.sample is None else sample_numbers(task, self.share, self.work.sample)
        if self.device is not None and is_gpu(self.device):  # it takes a millisecond to limit the threads of a BLAS
            return self._part(task, *self._device_rows(task, self.device, numbers))
        with threadpool_limits(1, user_api="blas"):
            return self._part(task, *self.reading.rows(task, check=self.work.first_visit, numbers=numbers))

    def _part(self, task: Task, rows: Array, bad: list[str]) -> tuple[dict[str, np.ndarray], list[str], int]:
        return ({} if not len(rows) else self.work.part(rows, task.first_row, self.device)), bad, len(rows)

    def _device_rows(self, task: Task, device: str, numbers: np.ndarray | None) -> tuple[Array, list[str]]:
        """The rows of a task on a GPU, or those with these numbers, and the shards that could not be read."""
        kept = kept_rows()
        found = kept.find(self.run, device, task.number)
        if found is not None:
            return (found if numbers is None else found[numbers]), []
        rows, bad = self.reading.rows(task, check=False, numbers=numbers)
        moved = kept.move(rows, device)
        if self.work.first_visit and len(rows) and not self.reading.normalize and not _pass_check(moved):
            # Read once more, to find out which row of which shard is bad.
            rows, bad = self.reading.rows(task, check=True, numbers=numbers)
            moved = kept.move(rows, device)
        if not bad and numbers is None:
            kept.keep(self.run, device, task.number, moved)
        return moved, bad


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
        return np.array(self.reading.rows(task, check=False, numbers=numbers)[0])


@dataclass
class AnswerTask:
    """Answers for the rows of a task, written to a file of its own."""

    state: bytes
    method: type[Method]
    reading: Reading
    device: str | None
    folder: Folder
    class_names: tuple[str, ...] | None
    _loaded: list[Method] = field(default_factory=list, repr=False)

    def __call__(self, task: Task) -> tuple[int, list[str]]:
        with threadpool_limits(1, user_api="blas"):
            method = copy.deepcopy(self._method())  # its checks of float32 products start again for every task
            zero_shot = ZeroShot(method.prototypes, logit_scale=getattr(method, "logit_scale", 100.0))
            parts: list[dict[str, Any]] = []
            bad: list[str] = []
            for shard, start, stop in task.pieces:
                for first in range(start, stop, ANSWER_ROWS):
                    last = min(stop, first + ANSWER_ROWS)
                    rows, failed = self.reading.rows(Task(0, 0, ((shard, first, last),)), check=False)
                    bad += failed
                    if not failed:
                        answer = method.predict(rows)
                        parts.append(answer_columns(answer, zero_shot, rows, shard, first, self.class_names))
        write_answers(self.folder, answers_name(task), parts)
        return sum(len(part["row"]) for part in parts), bad

    def _method(self) -> Method:
        if not self._loaded:
            library = {} if self.device is None else {"library": "torch", "device": self.device}
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "state.safetensors")
                path.write_bytes(self.state)
                self._loaded.append(self.method.load(path, **library))
        return self._loaded[0]


def answers_name(task: Task) -> str:
    return f"predictions_{task.number:05d}.parquet"


def answer_columns(
    answer: Array, zero_shot: Method, rows: np.ndarray, shard: Shard, first: int, names: tuple[str, ...] | None
) -> dict[str, Any]:
    """The columns of a file of predictions, for rows of a shard and their probabilities."""
    probabilities, base = to_numpy(answer), to_numpy(zero_shot.predict(rows))
    best, usual = probabilities.argmax(axis=1), base.argmax(axis=1)
    known = None if names is None else np.array(names)
    return {
        "shard": np.full(len(rows), shard.name),
        "row": np.arange(first, first + len(rows)),
        "prediction": best if known is None else known[best],
        "probability": probabilities.max(axis=1),
        "zero_shot": usual if known is None else known[usual],
    }


def write_answers(folder: Folder, name: str, parts: list[dict[str, Any]]) -> None:
    import pyarrow
    from pyarrow import parquet

    names = ("shard", "row", "prediction", "probability", "zero_shot")
    columns = {
        name: np.concatenate([part[name] for part in parts]) if parts else np.zeros(0, np.int64) for name in names
    }
    columns["shard"] = pyarrow.array(columns["shard"].tolist(), pyarrow.string()).dictionary_encode()
    content = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), content)
    folder.write(name, content.getvalue())


@dataclass(frozen=True)
class Predictions:
    """The files that a run writes to `out/predictions`. Files that no run recorded are never deleted.

    `run` is the key of what the user asked for. A run that did not finish continues if it is asked for again; other
    files are in its way, and `force` allows to replace those that are recorded.
    """

    out: Folder
    run: str
    force: bool = False

    @property
    def folder(self) -> Folder:
        return self.out / "predictions"

    def _record(self) -> dict[str, Any]:
        content = self.out.read(RECORD)
        return {"run": "", "key": "", "finished": False, "files": []} if content is None else json.loads(content)

    def check(self, names: Iterable[str]) -> None:
        """Refuse to write files with these names if others are in the way."""
        record = self._record()
        present = {name for name in self.folder.names() if name.endswith(".parquet")}
        recorded = present & set(record["files"])
        if taken := sorted((present - recorded) & set(names)):
            raise FileExistsError(
                f"{self.folder} has {taken[0]}, which no run recorded as its own and this one would replace. "
                "Fix: move it, or another --out (out=)."
            )
        if self.force or not present:
            return
        if other := sorted(present - recorded):
            raise FileExistsError(
                f"{self.folder} has files that zeroshift did not record as its own, such as {other[0]}. Fix: another "
                "--out (out=), or --force (force=True), which keeps them next to the predictions."
            )
        if record["run"] != self.run or record["finished"]:
            what = "another run" if record["run"] != self.run else "this run, which is finished"
            raise FileExistsError(
                f"{self.folder} has the predictions of {what} ({len(recorded):,} files). Fix: --force (force=True) to "
                "replace them, or another --out (out=)."
            )

    def begin(self, key: str, names: Iterable[str]) -> set[str]:
        """Record the files that will be written, and delete those of other runs. Returns the files that are there
        already, if they were written with the same key."""
        record, names = self._record(), list(names)
        self.check(names)
        present = set(self.folder.names())
        if (record["run"], record["key"], record["finished"]) == (self.run, key, False):
            return present
        for old in present & set(record["files"]):
            self.folder.remove(old)
        self._write(key, names, finished=False)
        return set()

    def finish(self) -> None:
        record = self._record()
        self._write(record["key"], record["files"], finished=True)
        (self.out / PROGRESS).remove_all()

    def _write(self, key: str, names: list[str], *, finished: bool) -> None:
        record = {"run": self.run, "key": key, "finished": finished, "files": names}
        self.out.write(RECORD, json.dumps(record).encode())


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
    method: Method, shards: FeatureShards, class_names: Sequence[str] | None, on_bad_shard: str
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
) -> Predictions | None:
    """The files of a run, after a check that it may write them."""
    if out is None:
        return None
    names = None if class_names is None else list(class_names)
    run = run_key(method, shards, fitted=fitted, task_rows=task_rows, normalize=normalize, class_names=names)
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
) -> Plan:
    """What `adapt` would do with these arguments, which are checked as there. With `probe`, a few thousand rows are
    predicted to estimate the time."""
    check_arguments(method, shards, class_names, on_bad_shard)
    fitted = _fit_rows(method, shards, fit_rows, exact)
    _check_out(method, shards, out, class_names, fitted, task_rows, normalize, force)
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
        rows, _ = Reading(True, on_bad_shard == "skip").rows(_first_task(shards, PROBE_ROWS), check=True)
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
    force: bool = False,
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
    on_bad_shard : "raise", or "skip" to leave out shards that cannot be read.
    task_rows : rows per task.
    device : torch device of the workers, such as "cuda"; NumPy if None.
    progress : called after every task.
    force : replace the predictions of another run, or of this one if it is finished. Files that no run recorded as its
        own are never deleted.
    """
    check_learns_in_passes(type(method))
    check_arguments(method, shards, class_names, on_bad_shard)
    began = time.perf_counter()
    fitted = _fit_rows(method, shards, fit_rows, exact)
    reading = Reading(normalize, on_bad_shard == "skip")
    predictions = _check_out(method, shards, out, class_names, fitted, task_rows, normalize, force)
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
            predictions,
        )
        try:
            passes = run.learn()
        finally:
            kept_rows().release()  # those of this process; the executor's own end with it
        answered = run.answer(None if class_names is None else tuple(class_names)) if out is not None else 0
    rounds = int(getattr(getattr(method, "diagnostics", None), "rounds", 0) or 1)
    skipped = [error.path for error in shards.skipped] + sorted(run.bad)
    seconds = time.perf_counter() - began
    kept = run.shards.rows
    return Result(
        kept, min(run.fitted, kept), rounds, passes, seconds, skipped, answered, None if out is None else str(out)
    )


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
    predictions: Predictions | None
    bad: set[str] = field(default_factory=set)
    runs_before: set[str] = field(init=False)
    """Keys of runs that were interrupted, until one of them is continued."""

    def __post_init__(self) -> None:
        self.runs_before = set() if self.out is None else set((self.out / PROGRESS).names())

    def learn(self) -> int:
        """Learn the set; again without them if shards turn out to be unusable. Returns the number of passes."""
        while True:
            self._prepare()
            passes, bad = self._learn_once()
            if not bad:
                return passes
            self.bad |= set(bad)
            self.shards = self.shards.without(bad)

    def _prepare(self) -> None:
        self.tasks = make_tasks(self.shards, self.task_rows)
        self.sampled = self.fitted < self.shards.rows
        self.share = self.fitted / self.shards.rows
        self.key = run_key(
            self.method, self.shards, fitted=self.fitted, task_rows=self.task_rows, normalize=self.reading.normalize
        )
        self.saved = None if self.out is None else self.out / PROGRESS / self.key

    def _learn_once(self) -> tuple[int, list[str]]:
        try:
            first = self._first_rows()
        except ShardError as error:
            if not self.reading.skip_bad:
                raise
            return 0, [error.path]
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

    def _first_rows(self) -> np.ndarray:
        """The first rows of the set, checked; an unusable shard is an error here, whatever the setting."""
        reading = Reading(self.reading.normalize, skip_bad=False)
        return reading.rows(_first_task(self.shards, FIRST_ROWS), check=True)[0]

    def _pass(self, work: Pass, number: int) -> tuple[dict[str, np.ndarray], list[str]]:
        sampled = work.sample is not None
        total, done, bad = self._saved_sums(number)
        all_rows = self.fitted if sampled else self.shards.rows
        what = f"pass {number}{' (sample)' if sampled else ''}"
        rows, saved_at = int(total.pop("__rows", np.array(0))), time.monotonic()
        function = PassTask(work, self.reading, self.share, self.device, self.key)
        for part, failed, count in self.executor.map(function, self.tasks[done:]):
            done, rows = done + 1, rows + count
            bad += failed
            if part:
                total = work.add(total, part)
            self.progress(what, rows, all_rows)
            if time.monotonic() - saved_at > SAVE_SECONDS or done == len(self.tasks):
                self._save_sums(number, {**total, "__rows": np.array(rows)}, done, bad)
                saved_at = time.monotonic()
        return total, sorted(set(bad))

    def _saved_sums(self, number: int) -> tuple[dict[str, np.ndarray], int, list[str]]:
        """The sums of a pass that an earlier driver saved, the number of tasks in them, and unusable shards."""
        content = None if self.saved is None else self.saved.read(f"pass-{number:03d}.npz")
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
        self.runs_before = set()
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            done, bad = int(arrays.pop("__tasks")), json.loads(str(arrays.pop("__bad")))
        except (OSError, ValueError, KeyError, zipfile.BadZipFile):
            return {}, 0, []  # damaged: the pass is run again
        return arrays, done, bad

    def _save_sums(self, number: int, total: dict[str, np.ndarray], done: int, bad: list[str]) -> None:
        if self.saved is None:
            return
        content = io.BytesIO()
        arrays: dict[str, Any] = {**total, "__tasks": np.array(done), "__bad": np.array(json.dumps(bad))}
        np.savez(content, **arrays)
        self.saved.write(f"pass-{number:03d}.npz", content.getvalue())

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

    def answer(self, class_names: tuple[str, ...] | None) -> int:
        """Write the answers that are not written yet; returns their number."""
        assert self.predictions is not None
        names = {task.number: answers_name(task) for task in self.tasks}
        written = self.predictions.begin(self.key, names.values())
        with tempfile.TemporaryDirectory() as local:
            path = Path(local, "state.safetensors")
            self.method.save(path)
            state = path.read_bytes()
        left = [task for task in self.tasks if names[task.number] not in written]
        rows = self.shards.rows - sum(task.rows for task in left)
        folder = self.predictions.folder
        function = AnswerTask(state, type(self.method), self.reading, self.device, folder, class_names)
        for answered, bad in self.executor.map(function, left):
            rows += answered
            self.bad |= set(bad)
            self.progress("answers", rows, self.shards.rows)
        self.predictions.finish()
        return rows


def _identity(value: Any) -> Any:
    """A parameter as JSON; arrays as a checksum."""
    if isinstance(value, tuple):
        return [_identity(item) for item in value]
    if hasattr(value, "shape"):
        return hashlib.sha256(np.ascontiguousarray(to_numpy(value)).tobytes()).hexdigest()
    return value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)
