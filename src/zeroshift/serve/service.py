"""The service without HTTP: its streams, limits, events, metrics and health."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from zeroshift import methods
from zeroshift._version import __version__
from zeroshift.arrays import UNIT_NORM_TOLERANCE
from zeroshift.serialization import COUNTS_ROUNDS, MOST_ROUNDS
from zeroshift.serve.encoding import EncoderPool
from zeroshift.serve.errors import Problem
from zeroshift.serve.inputs import Samples, as_matrix, check_stream_id, feature_items, is_text
from zeroshift.serve.keys import ASKING, AccessKeys, Principal
from zeroshift.serve.learners import Learners
from zeroshift.serve.records import CANARY, Batch, DamagedError, DeletedError, StoreError, StreamRecord, is_canary
from zeroshift.serve.store import Committer, SqlStore
from zeroshift.serve.stream import SampleRequest, Stream, make_method
from zeroshift.serve.tenants import SharedThreads, Usage, check

__all__ = ["Event", "Limits", "Service"]

CANARIES = 100
"""Most processes that use a store at the same time: each has a canary of its own."""

DEFAULT_METHOD = "anchored_mixture_online"
DEFAULT_TOP = 10
LARGE_MATRIX = 2**18
"""Numbers from which features are checked in a thread."""
TRIAL_SAMPLES = 8
"""By then the usual methods have estimated everything once."""
READY_SECONDS = 1.0
"""A readiness check this recent is not repeated."""
CANARY_SECONDS = 10.0
"""How long the canary may take."""

T = TypeVar("T")

log = logging.getLogger("zeroshift.serve")


@dataclass(frozen=True)
class Limits:
    """What one client can ask for."""

    body_bytes: int = 64 * 2**20
    json_bytes: int = 25_000_000
    """Of a body in JSON, which takes many times its size while it is read."""
    body_seconds: float = 30.0
    """From the headers of a request to the end of its body."""
    header_seconds: float = 10.0
    write_seconds: float = 30.0
    """A connection is closed if the client takes nothing of its answer for so long."""
    samples: int = 1024
    """Per request."""
    predictions: int = 100_000
    """Per answer: samples times `top`."""
    scores: int = 2**22
    """Per request: samples times classes."""
    wait_seconds: float = 30.0
    """A request that is not begun by then is refused."""
    sample_seconds: float = 5.0
    """Streams that need longer for one sample are refused."""
    queued_samples: int = 4096
    """Per stream."""
    queued_images: int = 1024
    """In the encoder."""
    pixels: int = 50_000_000
    """Per image."""
    streams: int = 1000
    classes: int = 20_000
    dimension: int = 8192
    rate: float = 0.0
    """Requests per second and key; 0 does not limit them."""
    connections: int = 1000
    received_bytes: int = 512 * 2**20
    """Of all requests that are being received or answered."""
    replays: int = 2
    """At the same time."""
    subscribers: int = 50
    """Per stream."""


@dataclass
class Event:
    """What happened to a stream, for those who listen."""

    name: str
    content: dict[str, Any]
    text: str | None = None
    """As it is sent, once somebody has sent it."""


class Service:
    """Streams in a store. Made in the event loop; `start` before use, `close` at the end."""

    def __init__(
        self,
        store: SqlStore,
        *,
        encoder: Any = None,
        method: str = DEFAULT_METHOD,
        limits: Limits | None = None,
        auth: bool = True,
        threads: int | None = None,
        max_batch: int = 32,
        max_wait: float = 0.005,
    ) -> None:
        self.store, self.limits, self.auth = store, limits or Limits(), auth
        self.default_method = method
        self.keys = AccessKeys(store)
        self._reading_keys = asyncio.Lock()
        self.streams: dict[str, Stream] = {}
        self.stopping = asyncio.Event()
        self.receiving = 0
        """Bytes of the bodies of requests that are not answered yet."""
        self.usage = Usage()
        self._replays = 0
        self._replaying = ThreadPoolExecutor(max(1, self.limits.replays), "zeroshift-replay")
        self._committer = Committer(store)
        self._learners = Learners(threads or max(2, os.cpu_count() or 1))
        self._reading = SharedThreads(4, "zeroshift-read")
        self._subscribers: dict[str, set[asyncio.Queue[Event]]] = {}
        self._rates: dict[str, tuple[float, float]] = {}
        self._ready_at, self._ready = float("-inf"), dict[str, Any]()
        self._ready_lock = asyncio.Lock()
        self._canary = 0
        self._recovering: asyncio.Task[None] | None = None
        self._creating = asyncio.Lock()
        self.encoder = None
        if encoder is not None:
            self.encoder = EncoderPool(
                encoder, max_batch=max_batch, max_wait=max_wait, max_pixels=self.limits.pixels,
                max_queued=self.limits.queued_images,
            )  # fmt: skip
        self.metrics = Metrics(self)
        self.started = time.time()

    async def start(self) -> None:
        if self.encoder is not None:
            self.encoder.start()
        records, damaged = await self.read(self.store.streams)
        for record in records:
            self._add(record)
        for name, problem in damaged.items():
            log.error("a stream is damaged", extra={"stream": name, "error": problem})
        if self.store.exclusive:
            self._recovering = asyncio.get_running_loop().create_task(self._recover())

    async def _recover(self) -> None:
        """Recover the streams before anyone asks: health and damages are known, and no client waits for it."""
        for stream in list(self.streams.values()):
            try:
                await stream.command(stream.load)
            except StoreError as error:
                stream.store_problem(error)
            except Problem:  # the stream ends, such as because it was deleted
                continue

    @property
    def count(self) -> int:
        """Number of streams."""
        return sum(not is_canary(name) for name in self.streams)

    async def close(self) -> None:
        """Answer what waits, store snapshots, end."""
        self.stopping.set()
        results = await asyncio.gather(*(stream.close() for stream in self.streams.values()), return_exceptions=True)
        for error in results:
            if error is not None:
                log.error("a stream could not be closed", extra={"error": str(error)})
        if self._recovering is not None:
            await asyncio.gather(self._recovering, return_exceptions=True)
        if self.encoder is not None:
            await self.encoder.close()
        await asyncio.get_running_loop().run_in_executor(None, self._committer.close)
        self._learners.shutdown()
        self._reading.shutdown()
        self._replaying.shutdown()
        self.store.close()

    async def read(self, function: Any, *arguments: Any) -> Any:
        """Call something that reads the store, in a thread, in turn with other tenants."""
        return await self._store_errors(self._reading.run(ASKING.get().prefix, function, *arguments))

    async def _store_errors(self, reading: Awaitable[T]) -> T:
        """Its result; what the store raises becomes a Problem."""
        try:
            return await reading
        except DeletedError as error:
            raise Problem(404, "no_such_stream", "The stream was deleted.") from error
        except DamagedError as error:
            log.error("stored data is damaged", extra={"error": str(error)})
            raise Problem(
                503, "stream_damaged", f"The stored data of this stream is damaged: {error}. Fix: restore a backup."
            ) from error
        except StoreError as error:
            log.warning("the store failed", extra={"error": str(error)})
            raise Problem(
                503, "store_unavailable", "The store cannot be used now. Fix: retry.", retry_after=1
            ) from error

    async def current_keys(self) -> AccessKeys:
        """The access keys, as they were at most two seconds ago."""
        if self.keys.are_old:
            async with self._reading_keys:
                if self.keys.are_old:
                    await self.read(self.keys.read)
        return self.keys

    async def still_allows(self, principal: Principal) -> bool:
        """Whether the key of somebody who listens has not been removed; False if the store cannot tell."""
        try:
            return not self.auth or (await self.current_keys()).has(principal)
        except Problem:
            return False

    def _add(self, record: StreamRecord) -> Stream:
        learner = self._learners.learner(record.id.partition("/")[0], health=is_canary(record.id))
        stream = Stream(
            record, self.store, self._committer, learner,
            max_queued=self.limits.queued_samples, deadline=self.limits.wait_seconds,
            on_event=self._publish, on_batch=self.metrics.count_batch,
        )  # fmt: skip
        self.streams[record.id] = stream
        stream.start()
        return stream

    # Streams

    async def stream(self, name: str) -> Stream:
        check_stream_id(name)
        found = self._known(name)
        if found is None:
            record = await self.read(self.store.find_stream, name)  # another process may have made it
            if record is not None:
                found = self._known(name) or self._add(record)
        if found is None:
            raise Problem(404, "no_such_stream", f"There is no stream {name!r}. Fix: PUT /v1/streams/{name} makes it.")
        return found

    def _known(self, name: str) -> Stream | None:
        found = self.streams.get(name)
        if found is not None and found.deleted:
            self._forget(found)
            return None
        return found

    def _forget(self, stream: Stream) -> None:
        if self.streams.get(stream.record.id) is stream:
            del self.streams[stream.record.id]
            self.metrics.forget(stream.record.id)
            self._publish(stream, "deleted", {})
        stream.end()

    async def create(self, name: str, body: Mapping[str, Any]) -> tuple[Stream, bool]:
        """The stream, and whether it is new. Problem 409 if there is another of that name."""
        check_stream_id(name)
        config = stream_config(body, self.default_method)
        if len(config["classes"]) > self.limits.classes:
            raise Problem(422, "too_many_classes", f"A stream may have {self.limits.classes} classes.")
        prototypes = await self._prototypes(config, body.get("prototypes"))
        if (existing := await self._same(name, config, prototypes)) is not None:
            return existing, False
        cost = await self._sample_cost(config, prototypes)
        async with self._creating:
            if (existing := await self._same(name, config, prototypes)) is not None:
                return existing, False
            asking = ASKING.get()
            own = len(visible(list(self.streams.values()), asking.prefix))
            check(asking.prefix, "streams", own, asking.quota.streams)
            await self.check_bytes()
            if self.count >= self.limits.streams:
                raise Problem(429, "too_many_streams", f"The service has {self.limits.streams} streams, as it may.")
            record = await self.read(self.store.create_stream, name, config, prototypes)
            if not record.same_as(config, prototypes):
                raise Problem(409, "stream_exists", f"There is another stream {name!r}. Fix: another name.")
            stream = self._known(name) or self._add(record)  # a request that came meanwhile may have found it
            stream.sample_seconds = stream.learner.longest = cost
        log.info("stream created", extra={"stream": name, "method": config["method"]})
        return stream, True

    async def _same(self, name: str, config: Mapping[str, Any], prototypes: np.ndarray) -> Stream | None:
        """The stream of this name, if there is one; Problem 409 if it is another."""
        existing = self._known(name)
        if existing is None and (found := await self.read(self.store.find_stream, name)) is not None:
            existing = self._known(name) or self._add(found)
        if existing is not None and not existing.record.same_as(config, prototypes):
            raise Problem(
                409, "stream_exists", f"There is another stream {name!r}, with other classes, prototypes or "
                "settings. Fix: another name, or delete that one.",
            )  # fmt: skip
        return existing

    async def _sample_cost(self, config: Mapping[str, Any], prototypes: np.ndarray) -> float:
        """Processor time of the slowest of the first samples of a new stream; Problem 422 if it takes too long."""

        def measure() -> float:
            method, longest = make_method(config, prototypes), 0.0
            for number in range(TRIAL_SAMPLES):
                started = time.thread_time()
                method.adapt(prototypes[number % len(prototypes)])
                longest = max(longest, time.thread_time() - started)
                if longest > self.limits.sample_seconds:
                    break
            return longest

        try:
            cost = float(await self._learners.measure(measure))
        except (ValueError, TypeError, MemoryError, OverflowError) as error:
            raise Problem(422, "invalid_stream", str(error)[:1000]) from error
        if cost > self.limits.sample_seconds:
            raise Problem(
                422, "too_slow", f"One sample of {config['method']} with {len(prototypes)} classes and d = "
                f"{prototypes.shape[1]} takes {cost:.3g} s here, and may take {self.limits.sample_seconds:g} s. Fix: "
                "features with fewer dimensions, fewer classes, or another method, such as adapt_online.",
            )  # fmt: skip
        return cost

    async def _prototypes(self, config: dict[str, Any], given: Any) -> np.ndarray:
        classes = config["classes"]
        if given is None:
            if self.encoder is None:
                raise Problem(
                    422, "no_prototypes", "The service has no encoder, so prototypes are needed. "
                    'Fix: "prototypes": one list of numbers of unit length per class, or zeroshift serve --encoder.',
                )  # fmt: skip
            config.setdefault("logit_scale", float(self.encoder.encoder.logit_scale))
            return await self.encoder.prototypes(classes)
        config.setdefault("logit_scale", 100.0)
        prototypes = await self.read(as_matrix, given, "prototypes")
        if prototypes.ndim != 2 or len(prototypes) != len(classes) or not prototypes.shape[1] >= 1:
            raise Problem(
                422, "invalid_prototypes", f"prototypes must be one list of numbers per class ({len(classes)}); "
                f"got the shape {prototypes.shape}.",
            )  # fmt: skip
        if prototypes.shape[1] > self.limits.dimension:
            raise Problem(422, "invalid_prototypes", f"d may be {self.limits.dimension} at most.")
        with np.errstate(over="ignore", invalid="ignore"):
            lengths = np.linalg.norm(prototypes.astype(np.float64), axis=1)
        wrong = np.flatnonzero(~(np.abs(lengths - 1) <= UNIT_NORM_TOLERANCE))
        if len(wrong):
            raise Problem(
                422, "invalid_prototypes", f"Prototype {wrong[0]} has length {lengths[wrong[0]]:.4g}, not 1. "
                "Fix: divide it by its length.", row=int(wrong[0]),
            )  # fmt: skip
        return prototypes

    async def delete(self, name: str) -> None:
        async with self._creating:
            stream = await self.stream(name)
            await self.read(self.store.delete_stream, stream.record)
            stream.deleted = True
            self._forget(stream)
        log.info("stream deleted", extra={"stream": name})

    async def samples(self, stream: Stream, samples: Samples, key: str | None) -> list[dict[str, Any]]:
        """The results of a request."""
        if not 1 <= samples.count <= self.limits.samples:
            raise Problem(
                413 if samples.count else 422, "too_many_samples" if samples.count else "no_samples",
                f"A request has 1 to {self.limits.samples} samples; this one has {samples.count}.",
            )  # fmt: skip
        asking = ASKING.get()
        self.usage.send(asking.prefix, samples.count, asking.quota.rows)
        if samples.learn:
            await self.check_bytes()
        classes, dimension = stream.record.prototypes.shape
        top = min(samples.top or DEFAULT_TOP, classes)
        if samples.count * top > self.limits.predictions or samples.count * classes > self.limits.scores:
            most = min(self.limits.predictions // top, self.limits.scores // classes)
            raise Problem(
                422, "answer_too_large", f"{samples.count} samples with {top} predictions of {classes} classes are too "
                f"many for one answer. Fix: at most {most} samples at a time"
                f"{', or a smaller top' if samples.count * classes <= self.limits.scores else ''}.",
            )  # fmt: skip
        if samples.features is not None:
            given = samples.features, samples.keys, dimension
            large = samples.features.size > LARGE_MATRIX
            items: Any = await self.read(feature_items, *given) if large else feature_items(*given)
        else:
            items = self._encode(stream, samples)
        request = SampleRequest(
            items=items, count=samples.count, keys=samples.keys, learn=samples.learn, top=top, key=key,
            features=samples.features,
        )  # fmt: skip
        try:
            return await stream.submit(request)
        except Problem:
            if isinstance(items, asyncio.Task):
                items.cancel()
            raise

    async def replay(self, stream: Stream, method: str, parameters: Mapping[str, Any], limit: int) -> dict[str, Any]:
        """See `Stream.replay`."""
        if self._replays >= self.limits.replays:
            raise Problem(429, "busy", f"{self._replays} replays run already. Fix: retry later.", retry_after=5)
        release = self.take("replays")
        self._replays += 1
        given = method, parameters, limit
        try:
            running = asyncio.get_running_loop().run_in_executor(self._replaying, stream.replay, *given)
            return dict(await self._store_errors(running))
        finally:
            self._replays -= 1
            release()

    def _encode(self, stream: Stream, samples: Samples) -> asyncio.Task[Any]:
        if self.encoder is None:
            raise Problem(
                422, "no_encoder", "The service has no encoder. Fix: send features, or start it with --encoder."
            )
        if self.encoder.encoder.dimension != stream.record.prototypes.shape[1]:
            raise Problem(
                422, "other_encoder", f"The encoder gives d = {self.encoder.encoder.dimension}, the stream has "
                f"d = {stream.record.prototypes.shape[1]}. Fix: send features of the encoder of the prototypes.",
            )  # fmt: skip
        self.encoder.check_room(samples.count)
        images, keep = samples.images or (), bool(stream.config["thumbnails"])
        return asyncio.ensure_future(self.encoder.encode(images, samples.keys, thumbnails=keep))

    # Events

    def _publish(self, stream: Stream, name: str, content: dict[str, Any]) -> None:
        """Send an event to those who listen; one who is slow misses some and learns that."""
        event = Event(name, content)
        for waiting in self._subscribers.get(stream.record.id, ()):
            if waiting.full():
                with suppress(asyncio.QueueEmpty):
                    while True:
                        waiting.get_nowait()
                waiting.put_nowait(Event("missed", {}))
            else:
                waiting.put_nowait(event)

    def subscribe(self, stream: Stream) -> asyncio.Queue[Event]:
        listening = self._subscribers.setdefault(stream.record.id, set())
        if len(listening) >= self.limits.subscribers:
            raise Problem(429, "too_many_subscribers", f"{len(listening)} clients listen already.", retry_after=10)
        waiting: asyncio.Queue[Event] = asyncio.Queue(256)
        listening.add(waiting)
        return waiting

    def unsubscribe(self, stream: Stream, waiting: asyncio.Queue[Event]) -> None:
        listening = self._subscribers.get(stream.record.id, set())
        listening.discard(waiting)
        if not listening:
            self._subscribers.pop(stream.record.id, None)

    # Limits and health

    def take(self, what: str, most: int | None = None) -> Callable[[], None]:
        """Count one more of the `listeners` or `replays` of the tenant that asks; call the result when it ends."""
        asking = ASKING.get()
        allowed = [one for one in (getattr(asking.quota, what), most) if one is not None]
        return self.usage.take(asking.prefix, what, min(allowed, default=None))

    async def check_bytes(self) -> None:
        """Problem 429 if the streams of the tenant that asks have as many bytes as they may."""
        asking = ASKING.get()
        if asking.quota.bytes is None:
            return
        used = 0
        for stream in visible(list(self.streams.values()), asking.prefix):
            if stream.stored is None:
                before = stream.grown
                stream.stored = await self.read(self.store.stored_bytes, stream.record) - before
            used += stream.stored + stream.grown
        check(asking.prefix, "bytes", used, asking.quota.bytes)

    def check_rate(self, key: str) -> None:
        """Allow `rate` requests per second, and as many at once."""
        rate = self.limits.rate
        if not rate:
            return
        now = time.monotonic()
        left, at = self._rates.get(key, (max(1.0, rate), now))
        left = min(max(1.0, rate), left + (now - at) * rate)
        if left < 1:
            raise Problem(
                429, "rate_limited", f"This key may send {rate:g} requests per second. Fix: retry later.",
                retry_after=math.ceil((1 - left) / rate),
            )  # fmt: skip
        self._rates[key] = (left - 1, now)

    async def ready(self) -> dict[str, Any]:
        """Send a sample through the queue, the method and the store; Problem 503 if that does not work."""
        async with self._ready_lock:
            if time.monotonic() - self._ready_at < READY_SECONDS:
                return self._ready
            dead = [name for name, stream in self.streams.items() if not stream.alive and not self.stopping.is_set()]
            if self.stopping.is_set() or dead or not self._committer.alive:
                raise Problem(503, "not_ready", "The service is shutting down, or a part of it has ended.")
            if self.encoder is not None and not self.encoder.alive:
                raise Problem(503, "not_ready", "The encoder has ended.")
            started = time.monotonic()
            try:
                async with asyncio.timeout(CANARY_SECONDS):
                    await self._send_canary()
            except (Problem, TimeoutError) as error:
                reason = error.message if isinstance(error, Problem) else "it took too long"
                raise Problem(503, "not_ready", f"A test sample could not be stored: {reason}") from error
            self._ready_at = time.monotonic()
            self._ready = {
                "status": "ready", "version": __version__, "streams": self.count,
                "canary_ms": round(1000 * (self._ready_at - started), 2),
            }  # fmt: skip
            return self._ready

    async def _send_canary(self) -> None:
        sample = Samples(features=np.eye(1, 4, dtype=np.float32), keys=(None,))
        while True:
            name = f"{CANARY}-{self._canary}" if self._canary else CANARY
            stream = self._known(name)
            if stream is None:
                config = stream_config({"classes": ["a", "b"], "method": DEFAULT_METHOD}, DEFAULT_METHOD)
                config |= {"snapshot_every": 64, "retain": 64, "keep_snapshots": 2, "on_drift": "ignore"}
                config["logit_scale"] = 10.0
                record = await self.read(self.store.create_stream, name, config, np.eye(2, 4, dtype=np.float32))
                stream = self._known(name) or self._add(record)
            try:
                results = await self.samples(stream, sample, None)
            except Problem as problem:
                if problem.code != "owned_elsewhere" or self._canary >= CANARIES:
                    raise
                self._canary += 1
            else:
                if "error" in results[0]:
                    raise Problem(503, "not_ready", "it was refused")
                return

    async def overview(self, stream: Stream) -> dict[str, Any]:
        """A stream with its health, as lists show it."""
        record = stream.record
        return {
            "id": record.id,
            "method": record.config["method"],
            "n_classes": len(record.prototypes),
            "dimension": int(record.prototypes.shape[1]),
            "created": record.created,
            "n_seen": record.seq,
            "epoch": record.epoch,
            "health": self.health(stream),
            "trend": stream.monitor.trend(),
        }

    def health(self, stream: Stream) -> dict[str, Any]:
        return {
            "status": stream.status,
            "failure": None if stream.failure is None else stream.failure.message,
            "alarm": None if stream.record.alarm is None else dict(stream.record.alarm),
            "fallback": stream.falls_back,
            **stream.monitor.summary(),
            **stream.indicators,
            "queue": {"samples": stream.queued, "limit": stream.max_queued},
            "latency_ms": latency_summary(stream.latencies),
            "recovery": dict(stream.recovery),
        }


def latency_summary(latencies: deque[float]) -> dict[str, float | int | None]:
    """Median and 99th percentile of the last requests, in milliseconds."""
    values = np.array(latencies)
    if not len(values):
        return {"requests": 0, "p50": None, "p99": None}
    p50, p99 = np.quantile(values, [0.5, 0.99])
    return {"requests": len(values), "p50": round(1000 * float(p50), 3), "p99": round(1000 * float(p99), 3)}


def stream_config(body: Mapping[str, Any], default_method: str) -> dict[str, Any]:
    """The settings of a new stream with their defaults; Problem 422 if the method cannot be used in a stream."""
    classes = body.get("classes")
    if not isinstance(classes, list) or not classes or not all(isinstance(name, str) and name for name in classes):
        raise Problem(422, "invalid_classes", "classes must be a list of names.")
    if len(set(classes)) < len(classes):
        twice = next(name for i, name in enumerate(classes) if name in classes[:i])
        raise Problem(422, "invalid_classes", f"The class {twice[:80]!r} occurs twice.")
    if max(map(len, classes)) > 1000:
        raise Problem(422, "invalid_classes", "The name of a class may have 1000 characters.")
    wrong = next((name for name in classes if not is_text(name)), None)
    if wrong is not None:
        raise Problem(
            422, "invalid_classes", f"classes has {wrong[:80]!a}, which UTF-8 cannot encode. "
            r"Fix: names without lone surrogates (\ud800 to \udfff).",
        )  # fmt: skip
    name = body.get("method") or default_method
    try:
        info = methods.get(name)
    except ValueError as error:
        raise Problem(422, "unknown_method", str(error)[:1000]) from error
    required = [one for one in info.needs if one not in ("prototypes",)]
    if info.protocol != "online" or required or info.cls.model_parameters:
        usable = [one.name for one in usable_methods()]
        raise Problem(
            422, "unknown_method", f"{name} cannot run in a stream: it must be online and need nothing but "
            f"prototypes. Fix: one of {', '.join(usable)}, each also with +filter.",
        )  # fmt: skip
    for key, value in (body.get("parameters") or {}).items():
        if key.endswith(COUNTS_ROUNDS) and isinstance(value, int | float) and value > MOST_ROUNDS:
            raise Problem(
                422, "invalid_stream", f"parameters has {key} = {str(value)[:20]}; {MOST_ROUNDS:,} are allowed. "
                "More may take forever, and snapshots with more cannot be loaded. Fix: fewer.",
            )  # fmt: skip
    config: dict[str, Any] = {
        "classes": classes,
        "method": name,
        "parameters": dict(body.get("parameters") or {}),
        "snapshot_every": body.get("snapshot_every") or 4096,
        "snapshot_seconds": body.get("snapshot_seconds") or 600.0,
        "keep_snapshots": body.get("keep_snapshots") or 10,
        "retain": body.get("retain"),
        "on_drift": body.get("on_drift") or "alarm",
        "thumbnails": dict(body["thumbnails"]) if body.get("thumbnails") else None,
    }
    if body.get("logit_scale") is not None:
        config["logit_scale"] = float(body["logit_scale"])
    try:
        described = json.dumps(config, allow_nan=False, ensure_ascii=False)
    except ValueError as error:
        raise Problem(422, "invalid_stream", "Parameters must be finite.") from error
    if not is_text(described):
        raise Problem(
            422, "invalid_stream", "parameters has a text which UTF-8 cannot encode. "
            r"Fix: no lone surrogates (\ud800 to \udfff).",
        )  # fmt: skip
    return config


def usable_methods() -> list[methods.MethodInfo]:
    """The methods that can run in a stream: online, and in need of nothing but prototypes."""
    return [one for one in methods.list_methods("online") if one.needs == ("prototypes",)]


class Metrics:
    """Prometheus metrics of one service: counted where things happen, in the one process that owns a stream."""

    def __init__(self, service: Service) -> None:
        self.registry = CollectorRegistry()
        counter: dict[str, Any] = {"registry": self.registry}
        self.samples = Counter("zeroshift_samples", "Samples answered and stored.", ["stream"], **counter)
        self.requests = Counter("zeroshift_requests", "Requests by route and status.", ["route", "status"], **counter)
        self.seconds = Histogram(
            "zeroshift_request_seconds", "Time from the first byte to the answer.", ["route"],
            buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10), **counter,
        )  # fmt: skip
        self.commit_seconds = Histogram(
            "zeroshift_commit_seconds", "Time until a group of samples was on the disk.",
            buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5), **counter,
        )  # fmt: skip
        gauge: dict[str, Any] = {"labelnames": ["stream"], "registry": self.registry}
        self._gauges = {
            "queue": Gauge("zeroshift_queue_samples", "Samples that wait.", **gauge),
            "agreement": Gauge("zeroshift_agreement", "Recent share of answers equal to zero-shot's.", **gauge),
            "confidence": Gauge("zeroshift_confidence", "Recent mean confidence.", **gauge),
            "reject": Gauge("zeroshift_reject_rate", "Recent share of samples that fit no class.", **gauge),
            "drift": Gauge("zeroshift_drift_level", "How near a drift alarm is, from 0 to 1.", **gauge),
            "alarm": Gauge("zeroshift_alarm", "1 after a drift alarm.", **gauge),
            "damaged": Gauge("zeroshift_damaged", "1 if the stream cannot be used, such as damaged data.", **gauge),
            "differing": Gauge("zeroshift_differing_answers", "Replayed answers unlike the stored ones.", **gauge),
            "epoch": Gauge("zeroshift_epoch", "Epoch of the stream.", **gauge),
        }
        self._service = service

    def count_batch(self, stream: Stream, batch: Batch, seconds: float) -> None:
        if not is_canary(stream.record.id):
            self.samples.labels(stream.record.id).inc(batch.count)
        self.commit_seconds.observe(seconds)

    def forget(self, name: str) -> None:
        for one in (self.samples, *self._gauges.values()):
            with suppress(KeyError):
                one.remove(name)

    def refresh(self) -> None:
        """Set the gauges to what the streams are now."""
        for name, stream in self._service.streams.items():
            if is_canary(name):
                continue
            health = self._service.health(stream)
            values = {
                "queue": stream.queued,
                "agreement": health["recent"]["agreement"],
                "confidence": health["recent"]["confidence"],
                "reject": health["recent"]["reject_rate"],
                "drift": max(health["drift"].values()),
                "alarm": int(health["alarm"] is not None),
                "damaged": int(stream.failure is not None),
                "differing": stream.recovery.get("differing", 0),
                "epoch": stream.record.epoch,
            }
            for key, value in values.items():
                self._gauges[key].labels(name).set(math.nan if value is None else value)


def visible(streams: Sequence[Stream], prefix: str) -> list[Stream]:
    """The streams that a key may see, by name."""
    return sorted(
        (one for one in streams if one.record.id.startswith(prefix) and not is_canary(one.record.id)),
        key=lambda stream: stream.record.id,
    )
