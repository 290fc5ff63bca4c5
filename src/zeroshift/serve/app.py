"""The HTTP interface of a `Service`: a FastAPI application.

Requests pass `Guard` first, which limits the size and the duration of bodies, counts and logs. Endpoints check the API
key, then the stream. Errors are `{"error": {"code": ..., "message": ...}}`, without paths or traces.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from html import escape
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from fastapi import Depends, FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, ConfigDict, Field, SkipValidation, ValidationError
from pydantic_core import from_json, to_json
from starlette.exceptions import HTTPException

from zeroshift._version import __version__
from zeroshift.serve.errors import Problem
from zeroshift.serve.inputs import (
    Samples,
    check_key,
    check_keys,
    check_stream_id,
    check_top,
    parse_keys_header,
    parse_samples,
)
from zeroshift.serve.keys import ASKING, LOCAL, REREAD_SECONDS, Principal
from zeroshift.serve.service import Event, Service, usable_methods, visible
from zeroshift.serve.stream import Stream

__all__ = ["create_app"]

log = logging.getLogger("zeroshift.serve")

HEARTBEAT_SECONDS = REREAD_SECONDS
"""Longest pause of an event stream; then its key is looked up again."""
LARGE_BODY = 256 * 1024
"""Bytes from which a body is parsed in a thread."""
HEARTBEAT = ": heartbeat\n\n"
OVERVIEW_SECONDS = 0.5
"""Between two looks at all streams."""
BASIC_AUTH = ("/label-studio/", "/predict", "/setup", "/webhook")
"""Addresses that also take a key as the password of a user."""
WITHOUT_BODY = ("GET", "HEAD", "OPTIONS")
BINARY = (
    b"application/x-npy", b"application/octet-stream", b"application/x-safetensors", b"application/vnd.safetensors",
    b"multipart/form-data", b"image/",
)  # fmt: skip
"""Types of bodies that are not read as JSON."""
JSON_WEIGHT = 8
"""A byte of JSON counts as this many bytes of what is being received: the numbers and lists take more than the text."""
LOOPBACK = ("localhost", "127.0.0.1", "[::1]", "::1")
SECURITY = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
        "form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
"""Headers of every answer."""

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Thumbnails(Model):
    """How many thumbnails of disagreements are kept."""

    count: int = Field(64, ge=1, le=1000)
    bytes: int = Field(2**20, ge=1024, le=64 * 2**20)


class NewStream(Model):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "classes": ["cat", "dog"],
                    "prototypes": [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]],
                    "logit_scale": 100.0,
                    "method": "anchored_mixture_online",
                    "parameters": {},
                    "snapshot_every": 256,
                }
            ]
        },
    )
    classes: list[str] = Field(min_length=1, description="Names of the classes.")
    prototypes: SkipValidation[list[list[float]] | None] = Field(  # checked in a thread, since there may be millions
        None, description="One text embedding of unit length per class. May be left out if the service has an encoder."
    )
    logit_scale: float | None = Field(None, gt=0, le=1e6, description="Scale of the logits; 100 for CLIP.")
    method: str | None = Field(None, max_length=100, description="An online method; see `zeroshift methods`.")
    parameters: dict[str, Any] = Field({}, description="Parameters of the method.")
    snapshot_every: int | None = Field(None, ge=1, le=10**9, description="Samples between two snapshots; 4096.")
    snapshot_seconds: float | None = Field(
        None, ge=1, le=10**9, description="Longest time that samples wait for a snapshot; 600."
    )
    keep_snapshots: int | None = Field(None, ge=2, le=1000, description="Snapshots that are kept; 10.")
    retain: int | None = Field(
        None,
        ge=0,
        le=10**12,
        description="Samples of the log that are kept; null keeps all.",
    )
    on_drift: Literal["ignore", "alarm", "fallback"] | None = Field(
        None, description="What a drift alarm does; fallback answers with zero-shot until it is reset. alarm."
    )
    thumbnails: Thumbnails | None = Field(None, description="Keep small images of disagreements with zero-shot.")


class Rollback(Model):
    model_config = ConfigDict(json_schema_extra={"examples": [{"snapshot": 3}]})
    snapshot: int = Field(ge=0, le=2**62)


class Replay(Model):
    model_config = ConfigDict(json_schema_extra={"examples": [{"method": "tda", "parameters": {}}]})
    method: str = Field(max_length=100)
    parameters: dict[str, Any] = {}
    limit: int = Field(10_000, ge=1, le=100_000, description="Samples, from the start of the log.")


class Label(Model):
    seq: int = Field(ge=1, le=2**62)
    label: str = Field(max_length=1000)


class Labels(Model):
    model_config = ConfigDict(json_schema_extra={"examples": [{"labels": [{"seq": 17, "label": "cat"}]}]})
    labels: list[Label] = Field(min_length=1, max_length=1000)


StreamId = Annotated[str, Path(description="Id of the stream; it may contain slashes.", max_length=300)]


class SampleQuery(BaseModel):
    """Query parameters of samples."""

    model_config = ConfigDict(extra="forbid")
    learn: bool | None = None
    top: int | None = Field(None, ge=1, le=100_000)


POST_SAMPLES = {
    "parameters": [
        {
            "name": "stream_id", "in": "path", "required": True, "schema": {"type": "string", "maxLength": 300},
            "description": "Id of the stream; it may contain slashes.",
        },
        {
            "name": "learn", "in": "query", "schema": {"type": "boolean"},
            "description": "false: predict only, store nothing.",
        },
        {
            "name": "top", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": 100_000},
            "description": "Predictions per sample; 10.",
        },
    ],
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "features": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
                        "images": {"type": "array", "items": {"type": "string", "contentEncoding": "base64"}},
                        "keys": {"type": "array", "items": {"type": ["string", "null"]}},
                        "learn": {"type": "boolean"},
                        "top": {"type": "integer"},
                    },
                },
                "example": {"features": [[1.0, 0.0, 0.0]], "keys": ["frame-1"], "learn": True},
            },
            "application/x-npy": {"schema": {"type": "string", "format": "binary"}},
            "application/x-safetensors": {"schema": {"type": "string", "format": "binary"}},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {"images": {"type": "array", "items": {"type": "string", "format": "binary"}}},
                }
            },
            "image/*": {"schema": {"type": "string", "format": "binary"}},
        },
    },
}  # fmt: skip
"""How `/openapi.json` describes the request that sends samples."""


def create_app(make_service: Callable[[], Service]) -> FastAPI:
    """The application. `make_service` is called in the event loop when the application starts."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service = app.state.service = make_service()
        await service.start()
        log.info("started", extra={"streams": service.count, "auth": service.auth})
        yield
        await service.close()
        log.info("stopped")

    app = FastAPI(
        title="zeroshift", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None,
        redirect_slashes=False,
        description="Zero-shot classifiers that adapt to a stream. Acknowledged samples are stored; see docs/serve.md.",
    )  # fmt: skip
    app.add_middleware(Guard)
    app.router.route_class = JSONRoute
    _add_errors(app)
    _add_streams(app)
    _add_operations(app)
    from zeroshift.serve import protocols

    protocols.add_routes(app)
    # Last: the id of a stream may contain slashes, so these addresses match everything that follows.
    _add_stream(app)
    _add_dashboard(app)
    return app


# Who asks, and for which stream


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def identify(request: Request) -> Principal:
    """Who sends the request. Problem 401 without a valid key."""
    service = service_of(request)
    _check_origin(request, service)
    if not service.auth:
        return LOCAL
    found = (await service.current_keys()).find(_token(request))
    if found is None:
        raise Problem(401, "unauthorized", "An API key is needed. Fix: Authorization: Bearer KEY.")
    return found


async def principal_of(request: Request) -> Principal:
    """Who sends the request, if the rate of the key allows it."""
    principal = getattr(request.state, "principal", None) or await identify(request)
    service_of(request).check_rate(principal.key)
    request.state.key = principal.key
    ASKING.set(principal)
    return principal


def _token(request: Request) -> str:
    """The key in the header `Authorization`; Label Studio can only send it as the password of a user."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return token.strip()
    if kind.lower() == "basic" and request.url.path.startswith(BASIC_AUTH):
        with suppress(ValueError):
            return base64.b64decode(token.strip(), validate=True).decode().partition(":")[2]
    return ""


def _check_origin(request: Request, service: Service) -> None:
    """Refuse what a page of another site makes a browser send."""
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    if origin is not None and _host_of(origin) != host.lower():
        raise Problem(403, "other_origin", "Requests from pages of other sites are refused.")
    if not service.auth and host.rsplit(":", 1)[0].lower() not in LOOPBACK and host.lower() not in LOOPBACK:
        raise Problem(403, "other_host", "A service without keys answers to localhost only. Fix: use API keys.")


def _host_of(origin: str) -> str | None:
    """Host and port of an origin; None if it is `null`, as that of a page without one, or wrong."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


async def authorize(request: Request, scope: str) -> Principal:
    """Who sends the request. Problem 401 without a valid key, 403 if its scope is less than `scope`."""
    principal = await principal_of(request)
    if not principal.may(scope):
        raise Problem(403, "forbidden", f"This key has the scope {principal.scope}; {scope} is needed.")
    return principal


def require(scope: str) -> Any:
    async def check(request: Request) -> Principal:
        return await authorize(request, scope)

    return Depends(check)


def check_tenant(principal: Principal, stream_id: str) -> str:
    check_stream_id(stream_id)
    if not stream_id.startswith(principal.prefix):
        raise Problem(403, "forbidden", f"This key may use the streams that start with {principal.prefix!r}.")
    return stream_id


async def find_stream(request: Request, principal: Principal, stream_id: str) -> Stream:
    request.state.stream = check_tenant(principal, stream_id)
    return await service_of(request).stream(stream_id)


Reader = Annotated[Principal, require("read")]
Writer = Annotated[Principal, require("write")]
Admin = Annotated[Principal, require("admin")]


# Endpoints


def _add_streams(app: FastAPI) -> None:
    @app.get("/v1/streams", tags=["streams"], summary="All streams with their health")
    async def list_streams(request: Request, principal: Reader) -> Any:
        service = service_of(request)
        shown = visible(list(service.streams.values()), principal.prefix)
        return {"streams": [await service.overview(stream) for stream in shown]}

    @app.get("/v1/events", tags=["streams"], summary="Server-sent events of all streams")
    async def all_events(request: Request, principal: Reader) -> Any:
        service = service_of(request)
        release = service.take("listeners", service.limits.subscribers)
        return EventStream(_overview_events(service, principal), release)

    @app.get("/v1/methods", tags=["streams"], summary="Methods that a stream can have")
    async def list_methods(request: Request, principal: Reader) -> Any:
        found = [{"name": one.name, "headline": one.headline} for one in usable_methods()]
        return {"methods": found, "default": service_of(request).default_method}

    @app.post(
        "/v1/streams/{stream_id:path}/samples", tags=["samples"], summary="Classify samples and learn from them",
        openapi_extra=POST_SAMPLES,
    )  # fmt: skip
    async def post_samples(request: Request) -> Any:
        # Its parameters are read here, because those of FastAPI take as long as everything else in the event loop.
        principal = await authorize(request, "write")
        query = _sample_query(request.query_params)
        stream = await find_stream(request, principal, request.path_params["stream_id"])
        service = service_of(request)
        key = request.headers.get("idempotency-key")
        if key is not None:
            check_key(key)
        if request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
            samples = await _parse_form(request, service)
        else:
            body, kind = await request.body(), request.headers.get("content-type", "")
            given = kind, body, request.headers.get("sample-keys")
            if len(body) > LARGE_BODY:  # other streams do not wait for it
                samples = await service.read(parse_samples, *given)
            else:
                samples = parse_samples(*given)
        samples.learn = samples.learn if query.learn is None else query.learn
        samples.top = samples.top if query.top is None else query.top
        results = await service.samples(stream, samples, key)
        request.state.samples = len(results)
        return Response(to_json({"results": results}), media_type="application/json")

    @app.get("/v1/streams/{stream_id:path}/samples", tags=["samples"], summary="The log, in order")
    async def get_samples(
        request: Request,
        principal: Reader,
        stream_id: StreamId,
        after: Annotated[int, Query(ge=0, le=2**62)] = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> Any:
        stream = await find_stream(request, principal, stream_id)
        service = service_of(request)
        return Response(await service.read(_log_page, stream, service, after, limit), media_type="application/json")

    @app.get("/v1/streams/{stream_id:path}/events", tags=["streams"], summary="Server-sent events")
    async def events(request: Request, principal: Reader, stream_id: StreamId) -> Any:
        stream = await find_stream(request, principal, stream_id)
        service = service_of(request)
        release = service.take("listeners")
        try:
            waiting = service.subscribe(stream)
        except Problem:
            release()
            raise

        def ended() -> None:
            service.unsubscribe(stream, waiting)
            release()

        return EventStream(_events(service, stream, waiting, principal), ended)

    @app.get("/v1/streams/{stream_id:path}/statistics", tags=["streams"], summary="Everything a dashboard shows")
    async def statistics(request: Request, principal: Reader, stream_id: StreamId) -> Any:
        stream = await find_stream(request, principal, stream_id)
        return await _statistics(service_of(request), stream)

    @app.get("/v1/streams/{stream_id:path}/disagreements", tags=["streams"], summary="Answers unlike zero-shot's")
    async def disagreements(
        request: Request,
        principal: Reader,
        stream_id: StreamId,
        limit: Annotated[int, Query(ge=1, le=100)] = 50,
    ) -> Any:
        stream = await find_stream(request, principal, stream_id)
        service = service_of(request)
        labels = await service.read(service.store.labels, stream.record)
        return {"disagreements": (await _disagreements(service, stream, labels))[:limit]}

    @app.get("/v1/streams/{stream_id:path}/thumbnails/{seq}", tags=["streams"], summary="A small image of a sample")
    async def thumbnail(
        request: Request,
        principal: Reader,
        stream_id: StreamId,
        seq: Annotated[int, Path(ge=1, le=2**62)],
        number: Annotated[int | None, Query(alias="stream", description="As in the address of a disagreement.")] = None,
    ) -> Any:
        """With the number of the stream, browsers keep it: another stream of that name has another number."""
        stream = await find_stream(request, principal, stream_id)
        service = service_of(request)
        content = await service.read(service.store.thumbnail, stream.record, seq)
        if content is None:
            raise Problem(404, "no_thumbnail", f"No thumbnail of sample {seq} is kept.")
        kept = "private, max-age=3600" if number == stream.record.number else "no-store"
        return Response(content, media_type="image/jpeg", headers={"Cache-Control": kept})

    @app.get("/v1/streams/{stream_id:path}/snapshots", tags=["snapshots"], summary="Snapshots and epochs")
    async def snapshots(request: Request, principal: Reader, stream_id: StreamId) -> Any:
        stream = await find_stream(request, principal, stream_id)
        service = service_of(request)
        kept = await _snapshots(service, stream)
        epochs = await service.read(service.store.epochs, stream.record)
        return {"snapshots": kept, "epochs": [vars(one) for one in epochs]}

    @app.post("/v1/streams/{stream_id:path}/snapshots", tags=["snapshots"], summary="Take a snapshot now")
    async def take_snapshot(request: Request, principal: Writer, stream_id: StreamId) -> Any:
        stream = await find_stream(request, principal, stream_id)
        await service_of(request).check_bytes()
        return await run_command(stream, lambda: stream.take_snapshot(keep=principal.may("admin")))

    @app.post("/v1/streams/{stream_id:path}/rollback", tags=["snapshots"], summary="Begin a new epoch with a snapshot")
    async def rollback(request: Request, principal: Admin, stream_id: StreamId, body: Rollback) -> Any:
        stream = await find_stream(request, principal, stream_id)
        return await run_command(stream, lambda: stream.rollback(body.snapshot))

    @app.post("/v1/streams/{stream_id:path}/replay", tags=["snapshots"], summary="What another method would answer")
    async def replay(request: Request, principal: Reader, stream_id: StreamId, body: Replay) -> Any:
        stream = await find_stream(request, principal, stream_id)
        service = service_of(request)
        from zeroshift.serve.service import stream_config

        config = stream_config({**stream.config, "method": body.method, "parameters": body.parameters}, body.method)
        try:
            return await service.replay(stream, config["method"], config["parameters"], body.limit)
        except (ValueError, TypeError, MemoryError, OverflowError) as error:
            raise Problem(422, "invalid_method", str(error)[:1000]) from error

    @app.post("/v1/streams/{stream_id:path}/labels", tags=["labels"], summary="Confirm labels of samples")
    async def add_labels(request: Request, principal: Writer, stream_id: StreamId, body: Labels) -> Any:
        stream = await find_stream(request, principal, stream_id)
        return await confirm_labels(service_of(request), stream, [(one.seq, one.label) for one in body.labels])

    @app.post("/v1/streams/{stream_id:path}/relearn", tags=["labels"], summary="Learn again, with confirmed labels")
    async def relearn(request: Request, principal: Admin, stream_id: StreamId) -> Any:
        stream = await find_stream(request, principal, stream_id)
        return await run_command(stream, stream.relearn)

    @app.post("/v1/streams/{stream_id:path}/drift/reset", tags=["streams"], summary="End a drift alarm")
    async def reset_drift(request: Request, principal: Admin, stream_id: StreamId) -> Any:
        stream = await find_stream(request, principal, stream_id)
        return await run_command(stream, stream.reset_alarm)


def _add_stream(app: FastAPI) -> None:
    @app.put("/v1/streams/{stream_id:path}", tags=["streams"], summary="Create a stream", status_code=201)
    async def create_stream(request: Request, principal: Writer, stream_id: StreamId, body: NewStream) -> Any:
        check_tenant(principal, stream_id)
        request.state.stream = stream_id
        settings = {**body.model_dump(exclude={"prototypes"}), "prototypes": body.prototypes}
        stream, is_new = await service_of(request).create(stream_id, settings)
        return JSONResponse(await _describe(service_of(request), stream), 201 if is_new else 200)

    @app.get("/v1/streams/{stream_id:path}", tags=["streams"], summary="A stream, its snapshots and its health")
    async def get_stream(request: Request, principal: Reader, stream_id: StreamId) -> Any:
        stream = await find_stream(request, principal, stream_id)
        return await _describe(service_of(request), stream)

    @app.delete("/v1/streams/{stream_id:path}", tags=["streams"], summary="Delete a stream with its log")
    async def delete_stream(request: Request, principal: Admin, stream_id: StreamId) -> Any:
        await find_stream(request, principal, stream_id)
        await service_of(request).delete(stream_id)
        return {"deleted": stream_id}


def _add_operations(app: FastAPI) -> None:
    @app.get("/health/live", tags=["operation"], summary="The process runs")
    async def live() -> Any:
        return {"status": "live", "version": __version__}

    @app.get("/health/ready", tags=["operation"], summary="A test sample was learned and stored")
    async def ready(request: Request) -> Any:
        return await service_of(request).ready()

    @app.get("/metrics", tags=["operation"], summary="Prometheus metrics")
    async def metrics(request: Request, principal: Reader) -> Any:
        if principal.prefix:
            raise Problem(403, "forbidden", "Metrics show all streams. Fix: a key without a prefix.")
        service = service_of(request)
        service.metrics.refresh()
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/whoami", tags=["operation"], summary="The scope of the key")
    async def whoami(principal: Reader) -> Any:
        about = {"key": principal.key, "scope": principal.scope, "prefix": principal.prefix}
        return {**about, "quota": asdict(principal.quota)}


def _add_dashboard(app: FastAPI) -> None:
    """The page at `/`, and the files that it loads. Whoever has no key gets the page and no data."""
    folder = FilePath(__file__).parent / "dashboard"
    kinds = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
    files = {path.name: path for path in folder.iterdir() if path.suffix in kinds}
    page = files.pop("index.html")

    def answer(path: FilePath) -> Response:
        kind = f"{kinds[path.suffix]}; charset=utf-8"
        return Response(path.read_bytes(), media_type=kind, headers={"Cache-Control": "no-cache"})

    @app.get("/", include_in_schema=False)
    async def dashboard() -> Any:
        return answer(page)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Any:
        return Response(_requests_page(app), media_type="text/html; charset=utf-8")

    @app.get("/dashboard/{name}", include_in_schema=False)
    async def dashboard_file(name: str) -> Any:
        if name not in files:
            raise Problem(404, "not_found", "There is no such page.")
        return answer(files[name])


def _requests_page(app: FastAPI) -> str:
    """A list of all requests, which needs no code of other sites."""
    rows = [
        f"<tr><td>{method.upper()}</td><td><code>{escape(path)}</code><small>{escape(one['summary'])}</small></td></tr>"
        for path, methods in app.openapi()["paths"].items()
        for method, one in methods.items()
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>zeroshift: requests</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="dashboard/icon.svg" type="image/svg+xml">'
        '<link rel="stylesheet" href="dashboard/style.css"></head><body>'
        '<header class="bar"><a class="brand" href="./">zeroshift</a></header><main id="main"><h1>Requests</h1>'
        '<p><a href="openapi.json">openapi.json</a> describes their parameters, bodies and answers, for programs.</p>'
        '<table class="requests"><thead><tr><th>method</th><th>address and what it does</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></main></body></html>"
    )


async def run_command(stream: Stream, run: Callable[[], Any]) -> Any:
    from zeroshift.serve.records import StoreError

    try:
        return await stream.command(run)
    except StoreError as error:
        raise stream.store_problem(error) from error


async def _describe(service: Service, stream: Stream) -> dict[str, Any]:
    return {
        **await service.overview(stream),
        **stream.record.config,
        "sample_ms": round(1000 * stream.sample_seconds, 3) if stream.sample_seconds else None,
        "deadline_seconds": stream.deadline,
        "snapshots": await _snapshots(service, stream),
    }


async def _snapshots(service: Service, stream: Stream) -> list[dict[str, Any]]:
    found = await service.read(service.store.snapshots, stream.record)
    kept = await service.read(service.store.kept_snapshots, stream.record)
    return [one.public(kept) for one in found]


async def _statistics(service: Service, stream: Stream) -> dict[str, Any]:
    record, monitor = stream.record, stream.monitor
    labels = await service.read(service.store.labels, record)
    right = sum(label == predicted for _, label, predicted, *_ in labels)
    zero_shot_right = sum(label == zero_shot for _, label, _, zero_shot, *_ in labels)
    return {
        "id": record.id,
        "n_seen": record.seq,
        "epoch": record.epoch,
        "health": service.health(stream),
        "curve": monitor.curve(),
        "histogram": [
            {"label": name, "adapted": int(adapted), "zero_shot": int(zero_shot)}
            for name, adapted, zero_shot in zip(
                stream.classes, monitor.histogram, monitor.zero_shot_histogram, strict=True
            )
        ],
        "disagreements": await _disagreements(service, stream, labels),
        "labelled": {
            "samples": len(labels),
            "accuracy": right / len(labels) if labels else None,
            "zero_shot_accuracy": zero_shot_right / len(labels) if labels else None,
        },
    }


async def _disagreements(service: Service, stream: Stream, labels: Sequence[Any]) -> list[dict[str, Any]]:
    names, address, number = stream.classes, f"/v1/streams/{stream.record.id}/thumbnails", stream.record.number
    thumbnails = {seq for seq, _ in await service.read(service.store.thumbnails, stream.record)}
    confirmed = {seq: label for seq, label, *_ in labels}
    return [
        {
            **one,
            "label": names[one["label"]],
            "zero_shot": names[one["zero_shot"]],
            "thumbnail": f"{address}/{one['seq']}?stream={number}" if one["seq"] in thumbnails else None,
            "confirmed": names[confirmed[one["seq"]]] if one["seq"] in confirmed else None,
        }
        for one in stream.monitor.last_disagreements()
    ]


def _log_page(stream: Stream, service: Service, after: int, limit: int) -> bytes:
    return to_json({"samples": _log_rows(stream, service, after, limit), "last": stream.record.seq})


def _log_rows(stream: Stream, service: Service, after: int, limit: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for batch in service.store.read_batches(stream.record, after):
        start = max(0, after + 1 - batch.first)
        stop = min(batch.count, start + limit - len(rows))
        seqs = range(batch.first + start, batch.first + stop)
        for result in stream.results(batch.answers.part(start, stop), seqs, batch.epoch, batch.keys[start:stop], top=1):
            del result["replayed"]
            rows.append({**result, "time": batch.time, "learned": batch.learned})
        if len(rows) == limit:
            break
    return rows


async def confirm_labels(service: Service, stream: Stream, labels: list[tuple[int, str]]) -> dict[str, Any]:
    """Store labels that a person confirmed."""
    index = {name: k for k, name in enumerate(stream.classes)}
    for row, (_, label) in enumerate(labels):
        if label not in index:
            raise Problem(422, "unknown_label", f"{label[:80]!r} is no class of the stream.", row=row)
    chosen = [(seq, index[label]) for seq, label in labels]
    missing = await service.read(service.store.add_labels, stream.record, chosen)
    if missing is not None:
        raise Problem(404, "no_such_sample", f"The log has no sample {labels[missing][0]}.", row=missing)
    stream.grown += len(labels) * stream.record.prototypes[0].nbytes  # a label that replaces another counts twice
    return {"labels": await service.read(service.store.count_labels, stream.record)}


def _sample_query(given: Mapping[str, str]) -> SampleQuery:
    # A misspelt `learn` would store samples that were only to be predicted.
    unknown = sorted(set(given) - set(SampleQuery.model_fields))
    if unknown:
        raise Problem(422, "invalid_query", f"Unknown query parameter {unknown[0][:80]!r}. Known: learn, top.")
    try:
        return SampleQuery.model_validate(dict(given))
    except ValidationError as error:
        raise RequestValidationError([{**one, "loc": ("query", *one["loc"])} for one in error.errors()]) from error


async def _parse_form(request: Request, service: Service) -> Samples:
    """Images and keys of a form."""
    try:
        form = await request.form(
            max_files=service.limits.samples, max_fields=service.limits.samples + 10,
            max_part_size=service.limits.body_bytes,
        )  # fmt: skip
    except HTTPException as error:
        raise Problem(422, "invalid_body", str(error.detail)[:200]) from error
    try:
        images: list[bytes | Problem] = []
        keys: Any = []
        samples = Samples()
        for name, value in form.multi_items():
            if not isinstance(value, str):
                images.append(await value.read())
            elif name in ("key", "keys"):
                keys.append(value)
            elif name == "learn" and value in ("true", "false"):
                samples.learn = value == "true"
            elif name == "top" and value.isdecimal() and len(value) < 7:
                samples.top = check_top(int(value))
            else:
                raise Problem(422, "invalid_body", f"Unknown field {name[:80]!r}. Known: images, keys, learn, top.")
    finally:
        await form.close()
    samples.images = images
    if not keys and (header := request.headers.get("sample-keys")) is not None:
        keys = parse_keys_header(header)
    samples.keys = check_keys(keys, len(images))
    return samples


class EventStream(StreamingResponse):
    """Server-sent events. `ended` is called at the end, also of those that nobody began to read."""

    def __init__(self, events: AsyncIterator[str], ended: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()


async def _events(
    service: Service, stream: Stream, waiting: asyncio.Queue[Event], principal: Principal
) -> AsyncIterator[str]:
    """Events of a stream until the client leaves, its key is removed or the service stops.

    `samples` events come with the statistics.
    """
    stopping = asyncio.ensure_future(service.stopping.wait())
    try:
        yield _event("hello", stream.record.seq, {"seq": stream.record.seq, "epoch": stream.record.epoch})
        while not stopping.done() and await service.still_allows(principal):
            getting = asyncio.ensure_future(waiting.get())
            try:
                await asyncio.wait({getting, stopping}, timeout=HEARTBEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            finally:
                getting.cancel()  # without effect if it is done
            if not getting.done():
                yield HEARTBEAT
                continue
            event = getting.result()
            if event.text is None:  # written once for all who listen
                health = {"health": service.health(stream)} if event.name == "samples" else {}
                event.text = _event(event.name, stream.record.seq, {**event.content, **health})
            yield event.text
            if event.name == "deleted":
                return
    finally:
        stopping.cancel()


async def _overview_events(service: Service, principal: Principal) -> AsyncIterator[str]:
    """`hello` with all streams; then `streams`: those that have changed, and the names of those that were deleted."""
    known: dict[str, Any] | None = None
    stopping = asyncio.ensure_future(service.stopping.wait())
    try:
        while not stopping.done() and await service.still_allows(principal):
            started = time.monotonic()
            found = {stream.record.id: stream for stream in visible(list(service.streams.values()), principal.prefix)}
            now = {name: _version(stream) for name, stream in found.items()}
            changed = [found[name] for name in now if known is None or known.get(name) != now[name]]
            gone = sorted((known or now).keys() - now.keys())
            if changed or gone or known is None:
                content = {"streams": [await service.overview(stream) for stream in changed], "deleted": gone}
                yield _event("hello" if known is None else "streams", len(now), content)
            else:
                yield HEARTBEAT
            known = now
            # Many streams are compared less often, so that this never keeps the service busy.
            await asyncio.wait({stopping}, timeout=max(OVERVIEW_SECONDS, 10 * (time.monotonic() - started)))
    finally:
        stopping.cancel()


def _version(stream: Stream) -> tuple[Any, ...]:
    """Changes with everything that an overview shows."""
    record = stream.record
    return (
        record.number,
        record.seq,
        record.epoch,
        record.alarm is None,
        stream.failure and stream.failure.message,
        stream.queued,
    )


def _event(name: str, number: int, content: Mapping[str, Any]) -> str:
    return f"event: {name}\nid: {number}\ndata: {json.dumps(content)}\n\n"


# Errors and limits


def _problem_answer(path: str, problem: Problem) -> JSONResponse:
    content = problem.content()
    if path.startswith("/v2"):  # the Open Inference Protocol has a text there
        content = {**content["error"], "error": problem.message}
    return PlainJSON(content, problem.status, problem.headers())


def _add_errors(app: FastAPI) -> None:
    def answer(request: Request, problem: Problem) -> JSONResponse:
        return _problem_answer(request.url.path, problem)

    @app.exception_handler(Problem)
    async def problem(request: Request, error: Problem) -> JSONResponse:
        return answer(request, error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first, kind = error.errors()[0], request.headers.get("content-type", "")
        if first["loc"] == ("body",) and request.method != "GET" and "json" not in kind.lower():
            sent = f"Content-Type is {kind[:80]!r}" if kind else "The header Content-Type is missing"
            message = f"{sent}, and the body must be JSON. Fix: Content-Type: application/json."
            return answer(request, Problem(415, "unsupported_type", message))
        where = ".".join(str(part) for part in first["loc"])[:200]
        return answer(request, Problem(422, "invalid_request", f"{where}: {first['msg']}"[:500]))

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
        made = answer(request, Problem(error.status_code, code, str(error.detail)[:200]))
        made.headers.update(error.headers or {})
        return made

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        log.error("unexpected error", exc_info=error)
        return answer(
            request, Problem(500, "internal_error", "An unexpected error; the log of the service says which.")
        )


class JSONRequest(Request):
    """Its body is parsed ten times as fast: other requests are not answered meanwhile."""

    async def json(self) -> Any:
        body = await self.body()
        try:
            return await service_of(self).read(from_json, body) if len(body) > LARGE_BODY else from_json(body)
        except ValueError as error:
            if len(body) > LARGE_BODY:
                raise json.JSONDecodeError("Invalid JSON", "", 0) from error
            return json.loads(body)  # says where it is wrong, or takes what `from_json` does not


class JSONRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            return await handle(JSONRequest(request.scope, request.receive))

        return handle_json


class PlainJSON(JSONResponse):
    """JSON in ASCII, which can also write what a client sent and UTF-8 cannot."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content).encode("ascii")


class Guard:
    """Limits bodies, adds the security headers, counts requests and writes the log."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        service: Service = scope["app"].state.service
        limits, started = service.limits, time.monotonic()
        state = scope.setdefault("state", {})
        status, responded = 500, False
        headers = dict(scope["headers"])
        binary = headers.get(b"content-type", b"").strip().lower().startswith(BINARY)
        limit = limits.body_bytes if binary else min(limits.body_bytes, limits.json_bytes)
        size, complete, weight = 0, False, 1 if binary else JSON_WEIGHT
        refused: Problem | None = None

        async def limited_receive() -> Message:
            nonlocal size, complete, refused
            if complete:
                return await receive()
            left = limits.body_seconds - (time.monotonic() - started)
            try:
                async with asyncio.timeout(max(0.01, left)):
                    message = await receive()
            except TimeoutError:
                refused = Problem(408, "too_slow", f"The body did not arrive within {limits.body_seconds:g} s.")
                raise refused from None
            size += len(message.get("body", b""))
            service.receiving += weight * len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if size > limit:
                refused = _too_large(limit, binary)
                raise refused
            if service.receiving > limits.received_bytes:
                refused = Problem(429, "busy", "Too much is being sent at once. Fix: retry later.", retry_after=1)
                raise refused
            return message

        async def secured_send(message: Message) -> None:
            nonlocal status, responded
            if refused is not None and not is_refusal:
                return  # whatever the application makes of it, the client gets the refusal
            if message["type"] == "http.response.start":
                status, responded = message["status"], True
                extra = [(name.lower().encode(), value.encode()) for name, value in SECURITY.items()]
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        is_refusal = False
        try:
            if scope["method"] not in WITHOUT_BODY:  # nothing is read from somebody unknown
                try:
                    state["principal"] = await identify(Request(scope))
                    ASKING.set(state["principal"])  # a large body is parsed before the endpoint asks who sent it
                except Problem as problem:
                    refused = problem
            if not scope["path"].isprintable():  # a route would ignore a line feed at the end
                refused = Problem(400, "invalid_address", "The address has a control character. Fix: leave it out.")
            declared = headers.get(b"content-length", b"0")
            if declared.isdigit() and int(declared[:20]) > limit:
                refused = refused or _too_large(limit, binary)
            if refused is None:
                try:
                    await self.app(scope, limited_receive, secured_send)
                except Problem:
                    if refused is None:
                        raise
            if refused is not None and not responded:
                is_refusal = True
                made = _problem_answer(scope["path"], refused)
                made.headers["Connection"] = "close"
                await made(scope, receive, secured_send)
        finally:
            service.receiving -= weight * size
            route = getattr(scope.get("route"), "path", "none")
            seconds = time.monotonic() - started
            service.metrics.requests.labels(route, str(status)).inc()
            service.metrics.seconds.labels(route).observe(seconds)
            if route not in ("/health/live", "/health/ready", "/metrics"):
                log.info(
                    "request",
                    extra={
                        "method": scope["method"], "route": route, "status": status, "ms": round(1000 * seconds, 2),
                        **{name: state[name] for name in ("stream", "key", "samples") if name in state},
                    },
                )  # fmt: skip


def _too_large(limit: int, binary: bool) -> Problem:
    kind, fix = ("", "") if binary else (" that is not binary", "send features as .npy (application/x-npy), or ")
    return Problem(413, "too_large", f"A body{kind} may have {limit:,} bytes. Fix: {fix}send fewer samples at a time.")
