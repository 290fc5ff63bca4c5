"""One stream: its queue, its method, and how requests become answers that are stored before they leave.

A task takes the waiting requests in the order of their arrival, a group at a time. A `Learner` computes the answers of
the group, in turn with other streams; the `Committer` stores them; then the requests are answered. If the store fails,
what is in memory may be ahead of what is stored: it is thrown away, and the stream is recovered from the store before
the next group.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
import platform
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import threadpoolctl

from zeroshift import methods
from zeroshift._version import __version__
from zeroshift.method import Method
from zeroshift.serialization import without_retired
from zeroshift.serve.errors import Problem
from zeroshift.serve.learners import Learner
from zeroshift.serve.monitor import Monitor
from zeroshift.serve.records import (
    Answers,
    Append,
    Batch,
    DamagedError,
    DeletedError,
    Epoch,
    OwnedElsewhereError,
    Snapshot,
    StoreError,
    StreamRecord,
    UnusableError,
    newest_kept,
    superfluous,
)
from zeroshift.serve.store import SCRATCH_PREFIX, Committer, SqlStore
from zeroshift.zero_shot import softmax

__all__ = ["Item", "SampleRequest", "Stream", "features_digest", "make_method"]

GROUP_REQUESTS = 32
"""Most requests that are computed and stored together."""

GROUP_SECONDS = 0.5
"""A group gets no further requests if it would take longer than this."""

STORED_TOP = 10
"""Predictions per sample that the log keeps of requests without keys: nobody can ask for these again."""

ZERO_SHOT_PRODUCTS, ZERO_SHOT_SCORES = 2**27, 2**20
"""Multiplications and scores of the zero-shot answers that are computed together, in a few milliseconds."""

RETRY_SECONDS = 1.0

REPLAY_SECONDS = 0.001
"""A replay computes for so long and then leaves the interpreter alone for twice that time: requests come first."""

log = logging.getLogger("zeroshift.serve")


@dataclass
class Item:
    """One sample of a request."""

    features: np.ndarray | None
    """(d,) float32 of unit length; None if it cannot be used."""
    given_digest: str | None
    """Of the bytes that were sent, if they are not those of the features."""
    key: str | None = None
    error: dict[str, Any] | None = None
    thumbnail: bytes | None = None

    @cached_property
    def digest(self) -> str:
        """Of its content. Computed only for samples with a key, or in a request with one."""
        if self.given_digest is not None:
            return self.given_digest
        assert self.features is not None
        return features_digest(self.features)


def features_digest(features: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(features, "<f4").tobytes()).hexdigest()


@dataclass
class SampleRequest:
    """Samples that arrived together."""

    items: Sequence[Item] | Awaitable[Sequence[Item]]
    """Later, if they are images."""
    count: int
    """Number of samples, known from the start."""
    keys: Sequence[str | None]
    learn: bool = True
    top: int = 10
    key: str | None = None
    """Of the whole request."""
    features: np.ndarray | None = None
    """The features of all items (n, d), with those that cannot be used; None if they are images."""
    done: asyncio.Future[list[dict[str, Any]]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    arrived: float = field(default_factory=time.monotonic)

    @property
    def names(self) -> set[str]:
        """All its keys, with a letter that says what they are keys of; none if it learns nothing, and so uses none."""
        if not self.learn:
            return set()
        return {f"s{key}" for key in self.keys if key is not None} | ({f"r{self.key}"} if self.key else set())

    def digest(self, items: Sequence[Item]) -> str:
        content = json.dumps([self.learn, [(item.digest, item.key) for item in items]])
        return hashlib.sha256(content.encode()).hexdigest()


@dataclass
class _Command:
    """Something else that a stream does in turn, such as a rollback; runs in a thread."""

    run: Callable[[], Any]
    done: asyncio.Future[Any]


def make_method(config: Mapping[str, Any], prototypes: np.ndarray, *, stored: bool = False, **inputs: Any) -> Method:
    """A new method for a stream. ValueError or TypeError if the configuration does not fit the method. One that is
    `stored` may have parameters of earlier versions."""
    info = methods.get(config["method"])
    parameters = {name: tuple(v) if isinstance(v, list) else v for name, v in config["parameters"].items()}
    if stored:
        parameters = without_retired(info.cls, parameters)
    if "logit_scale" in info.cls.declared_parameters and config.get("logit_scale") is not None:
        parameters.setdefault("logit_scale", config["logit_scale"])
    return info.cls(prototypes, **parameters, **inputs)


def environment() -> dict[str, Any]:
    """What the bits of answers depend on."""
    pools = threadpoolctl.threadpool_info()
    return {
        "zeroshift": __version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "blas": sorted({f"{pool['internal_api']} {pool.get('version')}" for pool in pools}),
        "threads": max([1, *(pool["num_threads"] for pool in pools)]),
    }


class Stream:
    """The stream `record` of a store. Created in the event loop; `start` begins its task."""

    def __init__(
        self,
        record: StreamRecord,
        store: SqlStore,
        committer: Committer,
        learner: Learner,
        *,
        max_queued: int,
        deadline: float,
        on_event: Callable[[Stream, str, dict[str, Any]], None],
        on_batch: Callable[[Stream, Batch, float], None] = lambda *_: None,
    ) -> None:
        self.record = record
        self._store, self._committer, self.learner = store, committer, learner
        self._on_event, self._on_batch = on_event, on_batch
        self.max_queued, self.deadline = max_queued, deadline
        self.sample_seconds = 0.0
        """What a sample cost in the last group, or when the stream was created; 0 if that is not known."""
        self.monitor = Monitor(len(record.prototypes))
        self.recovery: dict[str, Any] = {}
        """How the state was recovered: seconds, replayed samples, answers that differ, damaged snapshots."""
        self.failure: Problem | None = None
        """Why the stream cannot be used, if it cannot."""
        self._method: Method | None = None
        self._found: Batch | None = None
        """The row of the log that was read last while a group is computed."""
        self._lost = True
        """Whether memory may differ from the store, so that the state must be recovered."""
        self.deleted = False
        """Whether the store no longer has it."""
        self._since_snapshot = 0
        self._snapshot_due = math.inf
        self._queue: deque[SampleRequest | _Command] = deque()
        self._arrival = asyncio.Event()
        self._in_flight: set[str] = set()
        self._closing = False
        self._task: asyncio.Task[None] | None = None
        self.queued = 0
        """Samples that wait or are being computed."""
        self.indicators: dict[str, float | None] = {"order": None, "reliability": None}
        """What the method says about the stream: strength of an order, weight of what it has learned."""
        self.stored: int | None = None
        """Bytes in the store, when they were measured; None if they must be."""
        self.grown = 0
        """Bytes stored since then, without what was deleted."""
        self.latencies: deque[float] = deque(maxlen=1000)
        """Seconds from arrival to answer of the last requests."""

    # In the event loop

    @property
    def config(self) -> Mapping[str, Any]:
        return self.record.config

    @property
    def classes(self) -> Sequence[str]:
        return self.record.config["classes"]

    @property
    def falls_back(self) -> bool:
        """Whether it answers with zero-shot after an alarm."""
        return self.record.alarm is not None and self.config["on_drift"] == "fallback"

    @property
    def status(self) -> str:
        """`ok`, `alarm`, `damaged` or `failed`."""
        if self.failure is not None:
            return "damaged" if self.failure.code == "stream_damaged" else "failed"
        return "ok" if self.record.alarm is None else "alarm"

    @property
    def alive(self) -> bool:
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"stream {self.record.number}")
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Nothing may wait for a task that has ended."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the task of a stream ended", extra={"stream": self.record.id}, exc_info=error)
        if not self._closing:
            self.failure = self._not_running()
        while self._queue:
            _fail(self._queue.popleft().done, self._not_running())

    def _not_running(self) -> Problem:
        if self._closing:
            return Problem(503, "shutting_down", "The service is shutting down. Fix: retry.", retry_after=RETRY_SECONDS)
        return Problem(503, "stream_ended", "The task of the stream has ended. Fix: restart the service; see its log.")

    async def submit(self, request: SampleRequest) -> list[dict[str, Any]]:
        """The results of a request, when they are stored. Problem if it cannot be accepted."""
        if self._closing or not self.alive:
            raise self._not_running()
        if taken := request.names & self._in_flight:
            name = min(taken)[1:]
            raise Problem(
                409, "key_in_flight", f"A request with the key {name!r} is being processed. Fix: retry.",
                retry_after=RETRY_SECONDS, key=name,
            )  # fmt: skip
        if self.queued + request.count > self.max_queued:
            raise Problem(
                429, "queue_full", f"{self.queued} samples of this stream are waiting, {self.max_queued} may. Fix: "
                "retry later, or send fewer at a time.", retry_after=RETRY_SECONDS,
            )  # fmt: skip
        self.queued += request.count
        self._in_flight |= request.names
        self._queue.append(request)
        self._arrival.set()
        try:
            return await asyncio.shield(request.done)
        except asyncio.CancelledError:
            # The client left. The request is answered all the same: it may have been learned already.
            request.done.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise

    async def command(self, run: Callable[[], Any]) -> Any:
        """The result of `run`, called in a thread when all requests before it are answered."""
        if self._closing or not self.alive:
            raise self._not_running()
        command = _Command(run, asyncio.get_running_loop().create_future())
        self._queue.append(command)
        self._arrival.set()
        return await asyncio.shield(command.done)

    async def close(self, *, snapshot: bool = True) -> None:
        """Answer what waits, then store a snapshot and end."""
        self._closing = True
        self._arrival.set()
        if self._task is not None:
            await self._task
        if snapshot and not self._lost and self._since_snapshot and self.failure is None:
            try:
                await self.learner.run(self._snapshot)
            except StoreError as error:
                log.warning("snapshot failed", extra={"stream": self.record.id, "error": str(error)})

    def end(self) -> None:
        """End without a snapshot, such as after the stream was deleted. What waits is refused."""
        self._closing = True
        self._arrival.set()

    async def _run(self) -> None:
        while True:
            if not self._queue:
                if self._closing:
                    return
                self._arrival.clear()
                left = self._snapshot_left()
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, left) if left < math.inf else None):
                        await self._arrival.wait()
                await self._snapshot_if_due()
                continue
            if isinstance(self._queue[0], _Command):
                await self._run_command(self._queue.popleft())  # type: ignore[arg-type]
                continue
            group = self._take_group()
            try:
                await self._answer_group(group)
            except Exception as error:
                self._lost = True
                log.exception("a stream failed", extra={"stream": self.record.id})
                for request in group:
                    _fail(request.done, error)
            finally:
                for request in group:  # before anyone who waits for an answer continues
                    self._leave(request)
            await self._snapshot_if_due()

    def _take_group(self) -> list[SampleRequest]:
        """The requests that are computed and stored together. Those that have waited for too long are refused."""
        group: list[SampleRequest] = []
        while len(group) < GROUP_REQUESTS and self._queue and isinstance(request := self._queue[0], SampleRequest):
            count = sum(one.count for one in [*group, request])
            if group and count * self.sample_seconds > GROUP_SECONDS:
                break
            self._queue.popleft()
            if time.monotonic() - request.arrived <= self.deadline:
                group.append(request)
                continue
            self._leave(request)
            problem = Problem(
                503, "deadline_passed", f"The request waited for {self.deadline:g} s and was not begun; nothing of it "
                "was learned. Fix: retry later, send fewer samples at a time, or use more streams.",
                retry_after=min(60.0, max(RETRY_SECONDS, self.queued * self.sample_seconds)),
            )  # fmt: skip
            _fail(request.done, problem)
        return group

    def _leave(self, request: SampleRequest) -> None:
        """A request no longer waits."""
        self.queued -= request.count
        self._in_flight -= request.names
        self.latencies.append(time.monotonic() - request.arrived)

    def _snapshot_left(self) -> float:
        """Seconds until samples have waited `snapshot_seconds` for a snapshot."""
        return self._snapshot_due - time.monotonic() if self._since_snapshot and not self._lost else math.inf

    def _count_since_snapshot(self, samples: int) -> None:
        if not self._since_snapshot:
            self._snapshot_due = time.monotonic() + self.config.get("snapshot_seconds", 600.0)
        self._since_snapshot += samples

    async def _snapshot_if_due(self) -> None:
        if self._lost or (self._since_snapshot < self.config["snapshot_every"] and self._snapshot_left() > 0):
            return
        try:
            await self.learner.run(self._snapshot)
        except StoreError as error:
            # The log has everything: recovery only takes longer. The next group tries again.
            self._lost = True
            log.warning("snapshot failed", extra={"stream": self.record.id, "error": str(error)})
        except Exception:
            self._lost = True
            log.exception("snapshot failed", extra={"stream": self.record.id})

    async def _run_command(self, command: _Command) -> None:
        try:
            result = await self.learner.run(command.run)
            if not command.done.done():
                command.done.set_result(result)
        except Exception as error:
            if not isinstance(error, Problem):
                self._lost = True
            _fail(command.done, error)

    async def _answer_group(self, group: list[SampleRequest]) -> None:
        ready: list[tuple[SampleRequest, Sequence[Item]]] = []
        for request in group:
            try:
                items = request.items if isinstance(request.items, Sequence) else await request.items
                ready.append((request, items))
            except Exception as error:
                _fail(request.done, error)
        try:
            outcomes, append = await self.learner.run(self._compute, ready)
            if ready:
                self.sample_seconds = self.learner.spent / sum(request.count for request, _ in ready)
            if append:
                started = time.monotonic()
                await asyncio.wrap_future(self._committer.submit(append))
                self._committed(append, time.monotonic() - started)
        except StoreError as error:
            self._lost = True
            problem = self.store_problem(error)
            for request, _ in ready:
                _fail(request.done, problem)
            return
        for (request, _), outcome in zip(ready, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                _fail(request.done, outcome)
            elif not request.done.done():
                request.done.set_result(outcome)

    def _committed(self, append: Append, seconds: float) -> None:
        raised = append.alarm is not None and self.record.alarm is None
        self.record = append.after()
        self.grown += append.nbytes
        for batch in append.batches:
            self._count_since_snapshot(batch.count)
            self._on_batch(self, batch, seconds)
            self._on_event(self, "samples", {"first": batch.first, "last": batch.last, "epoch": batch.epoch})
        if raised:
            self._on_event(self, "alarm", dict(append.alarm or {}))

    def store_problem(self, error: StoreError) -> Problem:
        log.warning("the store failed", extra={"stream": self.record.id, "error": str(error)})
        if isinstance(error, DamagedError):
            self.failure = Problem(
                503, "stream_damaged", f"The stored data of this stream is damaged: {error}. Fix: roll back to a "
                "snapshot, or restore a backup.",
            )  # fmt: skip
            return self.failure
        if isinstance(error, UnusableError):
            self.failure = Problem(
                503, "stream_failed", f"The state of this stream cannot be computed: {error}. Its stored data is not "
                "damaged. Fix: install what its method needs and restart the service, or roll back to a snapshot.",
            )  # fmt: skip
            return self.failure
        if isinstance(error, DeletedError):
            self.deleted = True
            return Problem(404, "no_such_stream", f"The stream {self.record.id!r} was deleted.")
        if isinstance(error, OwnedElsewhereError):
            return Problem(
                503, "owned_elsewhere", "Another service process owns this stream. Fix: retry, or ask that one.",
                retry_after=RETRY_SECONDS,
            )  # fmt: skip
        return Problem(
            503, "store_unavailable", "The store cannot be used now, and nothing of this request is certain to be "
            "stored. Fix: retry with the same keys.", retry_after=RETRY_SECONDS,
        )  # fmt: skip

    # In a thread, one call at a time. Generators yield where other streams may have a turn.

    def load(self) -> Generator[None, None, Method]:
        """The method with the state that the store has."""
        if self._method is None or self._lost:
            try:
                self._method = yield from self._recover()
            except StoreError:
                raise
            except Exception as error:
                log.exception("a stream cannot be recovered", extra={"stream": self.record.id})
                raise UnusableError(f"{type(error).__name__}; the log of the service says more") from error
        return self._method

    def _recover(self) -> Generator[None, None, Method]:
        if self._lost:
            self._method, self.stored = None, None  # a write that failed was counted
        started = time.monotonic()
        record = self._store.claim(self.record.number)
        if (last := self._store.last_sample(record)) > record.seq:
            raise DamagedError(f"the log ends at sample {last}, but {record.seq} were answered")
        try:
            methods.get(record.config["method"])
        except ValueError as error:
            raise UnusableError(str(error)[:300].rstrip(".")) from error
        self.recovery = {"replayed": 0, "differing": 0, "damaged_snapshots": [], "unusable_snapshots": []}
        try:
            method, monitor, since = yield from self._state_at(record, record.epoch, record.seq)
        except DamagedError as error:
            if unusable := self.recovery["unusable_snapshots"]:  # with them, it would not need what is missing
                raise UnusableError(f"its snapshots {unusable} cannot be loaded; without them, {error}") from error
            raise
        self.recovery["seconds"] = round(time.monotonic() - started, 4)
        if self.recovery["differing"]:
            log.error(
                "replayed answers differ from the stored ones: the version, BLAS or number of threads changed",
                extra={"stream": record.id, "samples": self.recovery["differing"]},
            )
        self.record, self.monitor, self._since_snapshot = record, monitor, 0
        if since:
            self._count_since_snapshot(since)
        self._lost, self.failure = False, None
        self.indicators = _indicators(method)
        return method

    def _state_at(
        self, record: StreamRecord, epoch: int, seq: int
    ) -> Generator[None, None, tuple[Method, Monitor, int]]:
        """Method and monitor after sample `seq` of an epoch, and how many samples were replayed for that."""
        start = {one.epoch: one for one in self._store.epochs(record)}.get(epoch)
        if start is None:
            raise DamagedError(f"epoch {epoch} is not recorded")
        for snapshot in self._store.snapshots(record):
            if snapshot.epoch == epoch and snapshot.seq <= seq:
                try:
                    method, monitor = self._load_snapshot(snapshot)
                except DamagedError as error:
                    self.recovery["damaged_snapshots"].append(snapshot.number)
                    log.error("a snapshot is damaged", extra={"stream": record.id, "error": str(error)})
                    continue
                except UnusableError as error:
                    self.recovery["unusable_snapshots"].append(snapshot.number)
                    log.error("a snapshot cannot be loaded", extra={"stream": record.id}, exc_info=error)
                    continue
                return method, monitor, (yield from self._replay(record, method, monitor, epoch, snapshot.seq, seq))
        if start.parent_epoch is not None and start.parent_seq is not None:
            method, monitor, _ = yield from self._state_at(record, start.parent_epoch, start.parent_seq)
        elif epoch == 0:
            method, monitor = (
                make_method(record.config, record.prototypes, stored=True),
                Monitor(len(record.prototypes)),
            )
        else:
            raise DamagedError(f"no snapshot of epoch {epoch} can be read")
        return method, monitor, (yield from self._replay(record, method, monitor, epoch, start.start, seq))

    def _load_snapshot(self, snapshot: Snapshot) -> tuple[Method, Monitor]:
        content = self._store.read_snapshot(snapshot)
        with self._temporary_path() as path:
            path.write_bytes(content)
            try:
                return methods.load(path), Monitor.restore(snapshot.monitor)
            except (ValueError, TypeError, LookupError, ImportError) as error:  # its checksum is right
                raise UnusableError(f"snapshot {snapshot.number} cannot be loaded ({type(error).__name__})") from error

    def _replay(
        self, record: StreamRecord, method: Method, monitor: Monitor, epoch: int, after: int, through: int
    ) -> Generator[None, None, int]:
        """Learn samples `after + 1` to `through` of the log again; how many there were."""
        expected = after + 1
        for batch in self._store.read_batches(record, after):
            if batch.first > through:
                break
            if batch.first != expected or batch.epoch != epoch:
                raise DamagedError(f"the log has no samples {expected} to {batch.first - 1} of epoch {epoch}")
            expected = batch.last + 1
            if batch.learned:
                for rows, probabilities in method._answering(batch.features, learn=True):
                    top = np.take_along_axis(probabilities, batch.answers.classes[rows].astype(np.int64), axis=1)
                    self.recovery["differing"] += int((top != batch.answers.scores[rows]).any(axis=1).sum())
                    yield
            self.recovery["replayed"] += batch.count
            self._observe(monitor, method, batch)
            yield
        if expected != through + 1:
            raise DamagedError(f"the log has no samples {expected} to {through}")
        return through - after

    def _observe(self, monitor: Monitor, method: Method, batch: Batch) -> str | None:
        return monitor.observe(
            batch.answers,
            first=batch.first,
            time=batch.time,
            keys=batch.keys,
            **_indicators(method),
        )

    def _compute(
        self, ready: list[tuple[SampleRequest, Sequence[Item]]]
    ) -> Generator[None, None, tuple[list[list[dict[str, Any]] | BaseException], Append]]:
        """The outcome of each request, and what must be stored before they are answered."""
        method = yield from self.load()
        append = Append(self.record, alarm=self.record.alarm)
        sample_keys = [item.key for one, items in ready if one.learn for item in items if item.key is not None]
        known = self._store.find_keys(self.record, sample_keys) if sample_keys else {}
        requests = self._store.find_requests(self.record, [one.key for one, _ in ready if one.key and one.learn])
        outcomes: list[list[dict[str, Any]] | BaseException] = []
        for request, items in ready:
            try:
                if not request.learn:
                    outcomes.append((yield from self._answer(method, request, items, {}, append)))
                elif request.key in requests:
                    outcomes.append((yield from self._repeated(request, items, *requests[request.key])))
                else:
                    outcomes.append((yield from self._answer(method, request, items, known, append)))
                yield
            except Problem as problem:
                outcomes.append(problem)
            except StoreError:
                raise
            except Exception as error:  # the method failed: its state may be incomplete
                log.exception("the method failed", extra={"stream": self.record.id})
                self._lost = True
                outcomes += [error] * (len(ready) - len(outcomes))
                break
        self._found = None
        if not self._lost:
            self.indicators = _indicators(method)
        return outcomes, append

    def _answer(
        self,
        method: Method,
        request: SampleRequest,
        items: Sequence[Item],
        known: Mapping[str, tuple[str, int]],
        append: Append,
    ) -> Generator[None, None, list[dict[str, Any]]]:
        for row, item in enumerate(items):
            stored = None if item.key is None else known.get(item.key)
            if stored is not None and item.error is None and stored[0] != item.digest:
                raise Problem(
                    422, "key_conflict", f"The key {item.key!r} belongs to another sample. Fix: one key per sample.",
                    row=row, key=item.key,
                )  # fmt: skip
        fresh = [row for row, item in enumerate(items) if item.features is not None and item.key not in known]
        results: list[dict[str, Any]] = [{}] * len(items)
        layout: list[Any] = [None] * len(items)
        before = append.seq
        if fresh:
            if request.features is None:
                features = np.stack([np.asarray(items[row].features) for row in fresh])
            else:
                features = request.features if len(fresh) == len(items) else request.features[fresh]
            learned = request.learn and not self.falls_back
            answers = yield from self._predict(method, features, learned, request.top)
            keys = tuple(items[row].key for row in fresh)
            epoch = self.record.epoch
            kept = answers if request.names else answers.first(STORED_TOP)
            batch = Batch(before + 1, epoch, learned, time.time(), keys, features, kept)
            seqs = range(batch.first, batch.last + 1) if request.learn else [None] * len(fresh)
            for row, seq, result in zip(fresh, seqs, self.results(answers, seqs, epoch, keys), strict=True):
                layout[row], results[row] = seq, result
            if request.learn:
                changed = self._observe(self.monitor, method, batch)
                if changed and append.alarm is None and self.config["on_drift"] != "ignore":
                    append.alarm = {"signal": changed, "seq": batch.last, "time": batch.time}
                append.batches.append(batch)
                append.keys += [
                    (item.key, item.digest, batch.first + at)
                    for at, item in enumerate(items[row] for row in fresh)
                    if item.key is not None
                ]
                if self.config["thumbnails"]:
                    disagree = answers.classes[:, 0] != answers.zero_shot
                    append.thumbnails += [
                        (batch.first + at, content)
                        for at, row in enumerate(fresh)
                        if disagree[at] and (content := items[row].thumbnail) is not None
                    ]
        for row, item in enumerate(items):
            if item.error is not None:
                results[row] = layout[row] = {"key": item.key, "error": {**item.error, "row": row}}
            elif item.key is not None and item.key in known:
                layout[row] = known[item.key][1]
                results[row] = self._stored_result(layout[row], item.key, row)
                yield
        if request.key is not None and request.learn:
            append.requests.append((request.key, request.digest(items), json.dumps(layout), before))
        return results

    def _predict(self, method: Method, features: np.ndarray, learn: bool, top: int) -> Generator[None, None, Answers]:
        n, classes = len(features), len(self.record.prototypes)
        answers = Answers.empty(n, min(top, classes))
        rows = max(1, min(ZERO_SHOT_PRODUCTS // self.record.prototypes.size, ZERO_SHOT_SCORES // classes))
        for start in range(0, n, rows):
            self._zero_shot(features[start : start + rows], answers.part(start, start + rows))
            yield
        answers.reject[:] = self.monitor.reject_scores(answers.distances)
        if not self.falls_back:
            for block, probabilities in method._answering(features, learn=learn):
                answers.fill(block, probabilities)
                yield
        return answers

    def _zero_shot(self, features: np.ndarray, answers: Answers) -> None:
        """Write zero-shot's part of the answers, and all of it if the stream falls back."""
        cosines = (features @ self.record.prototypes.T).astype(np.float64)
        probabilities = np.asarray(softmax(float(self.config["logit_scale"]) * cosines))
        classes = probabilities.shape[1]
        nearest = -np.partition(-cosines, min(1, classes - 1), axis=1)[:, :2]
        answers.distances[:] = 2.0
        answers.distances[:, : nearest.shape[1]] = np.clip(1 - nearest, 0.0, 2.0).round(6) + 0.0
        entropies = -(probabilities * np.log(np.maximum(probabilities, 1e-30))).sum(axis=1)
        answers.entropies[:] = entropies / np.log(max(2, classes))
        answers.zero_shot[:] = winners = probabilities.argmax(axis=1)
        answers.zero_shot_scores[:] = probabilities[np.arange(len(winners)), winners]
        if self.falls_back:
            answers.fill(slice(None), probabilities.astype(np.float32))

    def results(
        self,
        answers: Answers,
        seqs: Sequence[int | None],
        epoch: int,
        keys: Sequence[str | None],
        *,
        replayed: bool = False,
        top: int | None = None,
    ) -> list[dict[str, Any]]:
        """The answers to samples, as clients get them; with their `top` predictions, or all."""
        names = self.classes
        columns = (
            answers.classes[:, :top], answers.scores[:, :top], answers.zero_shot, answers.zero_shot_scores,
            answers.reject,
        )  # fmt: skip
        rows = zip(seqs, keys, *(column.tolist() for column in columns), strict=True)
        return [
            {
                "seq": seq,
                "epoch": epoch,
                "key": key,
                "predictions": [{"label": names[k], "score": score} for k, score in zip(best, scores, strict=True)],
                "zero_shot": {"label": names[zero_shot], "score": zero_shot_score},
                "reject": reject,
                "replayed": replayed,
            }
            for seq, key, best, scores, zero_shot, zero_shot_score, reject in rows
        ]

    def _stored_result(self, seq: int, key: str | None, row: int) -> dict[str, Any]:
        """The answer to sample `seq`, which the request has in this row; an error if the log was deleted up to it."""
        batch = self._found
        if batch is None or not batch.first <= seq <= batch.last:
            batch = self._found = self._store.find_batch(self.record, seq)
        if batch is None:
            first = self._store.first_sample(self.record)
            if self.config["retain"] is None or (first and seq > first):
                raise DamagedError(f"the log has no sample {seq}")
            problem = (
                f"Row {row} is sample {seq}, which the log no longer has (retain = {self.config['retain']}). "
                "Fix: send it in a new request; it is learned again."
            )
            return {"key": key, "error": {"code": "key_expired", "message": problem, "row": row}}
        at = seq - batch.first
        if key is not None and batch.keys[at] != key:
            raise DamagedError(f"sample {seq} has another key than the store says")
        return self.results(batch.answers.part(at, at + 1), [seq], batch.epoch, [batch.keys[at]], replayed=True)[0]

    def _repeated(
        self, request: SampleRequest, items: Sequence[Item], digest: str, layout: list[Any]
    ) -> Generator[None, None, list[dict[str, Any]]]:
        if request.digest(items) != digest:
            raise Problem(
                422, "key_conflict", f"The Idempotency-Key {request.key!r} belongs to another request. "
                "Fix: one key per request.", key=request.key,
            )  # fmt: skip
        results = []
        for row, (one, item) in enumerate(zip(layout, items, strict=True)):
            found = self._stored_result(one, item.key, row) if isinstance(one, int) else {**one, "replayed": True}
            results.append(found)
            yield
        return results

    # Commands: run them with `command`

    def _content(self) -> bytes:
        assert self._method is not None
        with self._temporary_path() as path:
            self._method.save(path)
            content = path.read_bytes()
        self.grown += len(content)
        return content

    @contextmanager
    def _temporary_path(self) -> Iterator[Path]:
        """Where a state is written or read; StoreError if the folder cannot be used."""
        try:
            with tempfile.TemporaryDirectory(dir=self._store.scratch, prefix=SCRATCH_PREFIX) as folder:
                yield Path(folder) / "state.safetensors"
        except OSError as error:
            raise StoreError(f"no temporary file can be written ({error.strerror or error})") from error

    def _snapshot(self, *, keep: bool = False) -> None:
        """Store the state, `keep` it for the operator, and delete what it replaces."""
        self.record = self._store.add_snapshot(
            self.record, self._content(), self.monitor.state(), environment(), alarm=self.record.alarm
        )
        self._since_snapshot = 0
        if keep:
            self._store.keep_snapshot(self.record, self._store.snapshots(self.record)[0].number)
        self._prune()
        self._on_event_later("snapshot", {"seq": self.record.seq, "epoch": self.record.epoch})

    def _prune(self) -> None:
        """Delete snapshots beyond what the stream keeps, and the log that is no longer needed."""
        record, config, count = self.record, self.config, self.config["keep_snapshots"]
        snapshots = self._store.snapshots(record)
        old = superfluous(snapshots, self._store.kept_snapshots(record), count)
        if old:
            self._store.delete_snapshots(record, old)
            self.grown -= sum(one.size for one in old)
        gone = {one.number for one in old}
        own = [one.seq for one in snapshots if one.epoch == record.epoch and one.number not in gone]
        own = own[: newest_kept(count)]
        if config["retain"] is not None and len(own) > 1:
            self.grown -= self._store.compact(record, min(min(own), record.seq - config["retain"]))

    def _on_event_later(self, name: str, content: dict[str, Any]) -> None:
        """Publish an event from a thread."""
        if self._task is not None:
            self._task.get_loop().call_soon_threadsafe(self._on_event, self, name, content)

    def take_snapshot(self, keep: bool) -> Generator[None, None, dict[str, Any]]:
        yield from self.load()
        self._snapshot(keep=keep)
        snapshot = self._store.snapshots(self.record)[0]
        return snapshot.public({snapshot.number} if keep else ())

    def rollback(self, number: int) -> dict[str, Any]:
        """Begin a new epoch with the state of a snapshot. Works although the present state is damaged."""
        record = self._store.claim(self.record.number) if self._lost else self.record
        chosen = next((one for one in self._store.snapshots(record) if one.number == number), None)
        if chosen is None:
            raise Problem(404, "no_such_snapshot", f"The stream has no snapshot {number}. Fix: see its snapshots.")
        try:
            method, monitor = self._load_snapshot(chosen)
        except DamagedError as error:
            raise Problem(409, "snapshot_damaged", f"{error}. Fix: another snapshot.") from error
        except UnusableError as error:
            raise Problem(409, "snapshot_unusable", f"{error}. Fix: another snapshot; see the log.") from error
        self._store.keep_snapshot(record, number)
        epoch = Epoch(record.epoch + 1, record.seq, chosen.epoch, chosen.seq, f"rollback to {number}", time.time())
        return self._begin(record, epoch, method, monitor)

    def _begin(self, record: StreamRecord, epoch: Epoch, method: Method, monitor: Monitor) -> dict[str, Any]:
        self._lost = True
        monitor.reset_drift()
        self._method, self.record, self.monitor, self._since_snapshot = method, record, monitor, 0
        self._lost, self.failure = False, None
        try:
            self.record = self._store.add_snapshot(
                record, self._content(), monitor.state(), environment(), new_epoch=epoch
            )
        except BaseException:
            self._lost = True
            raise
        self._on_event_later("epoch", {"epoch": epoch.epoch, "reason": epoch.reason, "seq": record.seq})
        return {"epoch": self.record.epoch, "seq": self.record.seq, "reason": epoch.reason}

    def reset_alarm(self) -> Generator[None, None, dict[str, Any]]:
        """End the fallback; the next samples are the new reference."""
        yield from self.load()
        self.monitor.reset_drift()
        self.record = replace(self.record, alarm=None)
        try:
            self.record = self._store.add_snapshot(self.record, self._content(), self.monitor.state(), environment())
        except BaseException:
            self._lost = True
            raise
        self._since_snapshot = 0
        self._on_event_later("alarm_reset", {"seq": self.record.seq})
        return {"alarm": None}

    def relearn(self) -> Generator[None, None, dict[str, Any]]:
        """Begin a new epoch whose method has the confirmed labels too, and learns again what the state has learned."""
        yield from self.load()
        record = self.record
        labels = self._store.labels(record)
        if "support" not in methods.get(self.config["method"]).cls.declared_parameters:
            raise Problem(422, "no_support", f"The method {self.config['method']} takes no labelled samples.")
        if not labels:
            raise Problem(409, "no_labels", "The stream has no confirmed labels. Fix: POST .../labels first.")
        support = (np.stack([one[4] for one in labels]), np.array([one[1] for one in labels]))
        method = make_method(self.config, record.prototypes, stored=True, support=support)
        monitor, count = Monitor(len(record.prototypes)), 0
        history = self._history(record)
        for batch in self._store.read_batches(record, 0):
            if batch.last > history.get(batch.epoch, 0):
                continue  # it was rolled back
            if batch.learned:
                for _ in method._answering(batch.features, learn=True):
                    yield
                count += batch.count
            self._observe(monitor, method, batch)
        epoch = Epoch(record.epoch + 1, record.seq, None, None, f"learned again with {len(labels)} labels", time.time())
        return {**self._begin(record, epoch, method, monitor), "labels": len(labels), "samples": count}

    def _history(self, record: StreamRecord) -> dict[int, int]:
        """The epochs from which the state of a stream comes, each with the last sample of it that the state has."""
        epochs = {one.epoch: one for one in self._store.epochs(record)}
        found, epoch, seq = dict[int, int](), record.epoch, record.seq
        while True:
            if epoch not in epochs:
                raise DamagedError(f"epoch {epoch} is not recorded")
            found[epoch], start = seq, epochs[epoch]
            if epoch == 0:
                return found
            if start.parent_epoch is None or start.parent_seq is None:  # it learned the epoch before it again
                epoch, seq = epoch - 1, start.start
            else:
                epoch, seq = start.parent_epoch, start.parent_seq

    def replay(self, method_name: str, parameters: Mapping[str, Any], limit: int) -> dict[str, Any]:
        """What another method would have answered to the log. Nothing of the stream changes.

        Runs next to the stream, not in its turn.
        """
        record = self._store.stream(self.record.number)
        config = {**self.config, "method": method_name, "parameters": parameters}
        method = make_method(config, record.prototypes)
        labels = {seq: label for seq, label, *_ in self._store.labels(record)}
        count = changed = labelled = right_before = right_now = 0
        confidence_before = confidence_now = 0.0
        examples: list[dict[str, Any]] = []
        first = self._store.first_sample(record)
        for batch in self._store.read_batches(record, 0):
            answers = np.empty((batch.count, len(record.prototypes)), np.float32)
            began = time.thread_time()
            for rows, part in method._answering(batch.features, learn=True):
                if self._closing:
                    raise self._not_running()
                answers[rows] = part
                if (spent := time.thread_time() - began) > REPLAY_SECONDS:
                    time.sleep(2 * spent)
                    began = time.thread_time()
            now, before = answers.argmax(axis=1), batch.answers.classes[:, 0].astype(np.int64)
            count += batch.count
            changed += int((now != before).sum())
            confidence_before += float(batch.answers.scores[:, 0].sum())
            confidence_now += float(answers.max(axis=1).sum())
            for row in range(batch.count):
                if (label := labels.get(batch.first + row)) is not None:
                    labelled += 1
                    right_before += int(before[row] == label)
                    right_now += int(now[row] == label)
            for row in np.flatnonzero(now != before)[: max(0, 20 - len(examples))]:
                examples.append(
                    {
                        "seq": batch.first + int(row),
                        "answered": self.classes[int(before[row])],
                        "would_answer": self.classes[int(now[row])],
                    }
                )
            if count >= limit:
                break
        return {
            "method": method_name,
            "parameters": dict(parameters),
            "first": first,
            "samples": count,
            "changed": changed,
            "agreement": 1 - changed / count if count else None,
            "mean_confidence": confidence_now / count if count else None,
            "mean_confidence_answered": confidence_before / count if count else None,
            "labelled": {"samples": labelled, "right": right_now, "right_answered": right_before},
            "examples": examples,
        }


def _indicators(method: Method) -> dict[str, float | None]:
    return {"order": getattr(method, "stay", None), "reliability": getattr(method, "reliability", None)}


def _fail(done: asyncio.Future[Any], error: BaseException) -> None:
    if not done.done():
        done.set_exception(error)
        done.exception()  # whoever waits gets it; nobody may
