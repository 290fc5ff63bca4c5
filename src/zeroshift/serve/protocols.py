"""Interfaces of other tools: the Open Inference Protocol v2, and a machine learning backend for Label Studio."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from html import unescape
from typing import Annotated, Any

import numpy as np
from fastapi import FastAPI, Path, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field, SkipValidation
from pydantic_core import to_json

from zeroshift._version import __version__
from zeroshift.serve.app import Reader, StreamId, Writer, confirm_labels, find_stream, run_command, service_of
from zeroshift.serve.errors import Problem
from zeroshift.serve.inputs import Samples, as_matrix, check_key, feature_items, is_text
from zeroshift.serve.keys import Principal
from zeroshift.serve.stream import Stream

__all__ = ["add_routes"]

OUTPUTS = ("probabilities", "label", "reject")
NUMBERS = {"FP16": np.float16, "FP32": np.float32, "FP64": np.float64}


Version = Annotated[str, Path(description="The epoch of the stream.", max_length=20)]


def add_routes(app: FastAPI) -> None:
    _add_inference(app)
    _add_label_studio(app)


# Open Inference Protocol v2: a stream is a model


class Tensor(BaseModel):
    name: str = Field(max_length=200)
    shape: list[Annotated[int, Field(ge=0, le=2**31)]] = Field(max_length=8)
    datatype: str = Field(max_length=20)
    parameters: dict[str, Any] = {}
    data: SkipValidation[list[Any]]


class Output(BaseModel):
    name: str = Field(max_length=200)
    parameters: dict[str, Any] = {}


class InferRequest(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "frame-1",
                    "inputs": [{"name": "features", "shape": [1, 3], "datatype": "FP32", "data": [1.0, 0.0, 0.0]}],
                }
            ]
        }
    )
    id: str | None = Field(None, max_length=200, description="Also the Idempotency-Key, if that is not given.")
    parameters: dict[str, Any] = {}
    inputs: list[Tensor] = Field(min_length=1, max_length=1)
    outputs: list[Output] = Field([], max_length=100, description="Which outputs are wanted; none given are all.")


def _add_inference(app: FastAPI) -> None:
    @app.get("/v2", tags=["Open Inference Protocol"], summary="The server")
    async def server() -> Any:
        return {"name": "zeroshift", "version": __version__, "extensions": []}

    @app.get("/v2/health/live", tags=["Open Inference Protocol"], summary="The process runs")
    async def live() -> Any:
        return {"live": True}

    @app.get("/v2/health/ready", tags=["Open Inference Protocol"], summary="A test sample was stored")
    async def ready(request: Request) -> Any:
        await service_of(request).ready()
        return {"ready": True}

    tags: list[Any] = ["Open Inference Protocol"]

    @app.get("/v2/models/{stream_id:path}/versions/{version}/ready", tags=tags, summary="The stream is at this epoch")
    async def version_ready(request: Request, principal: Reader, stream_id: StreamId, version: Version) -> Any:
        return model_is_ready(await at_version(request, principal, stream_id, version))

    @app.get("/v2/models/{stream_id:path}/ready", tags=tags, summary="The stream can be used")
    async def model_ready(request: Request, principal: Reader, stream_id: StreamId) -> Any:
        return model_is_ready(await find_stream(request, principal, stream_id))

    def model_is_ready(stream: Stream) -> dict[str, Any]:
        if stream.failure is not None:
            raise stream.failure.with_traceback(None)
        return {"name": stream.record.id, "ready": True}

    @app.post("/v2/models/{stream_id:path}/versions/{version}/infer", tags=tags, summary="Only if it is at this epoch")
    async def infer_at_version(
        request: Request, principal: Writer, stream_id: StreamId, version: Version, body: InferRequest
    ) -> Any:
        return await answer(request, await at_version(request, principal, stream_id, version), body)

    @app.post("/v2/models/{stream_id:path}/infer", tags=tags, summary="Classify and learn")
    async def infer(request: Request, principal: Writer, stream_id: StreamId, body: InferRequest) -> Any:
        return await answer(request, await find_stream(request, principal, stream_id), body)

    async def answer(request: Request, stream: Stream, body: InferRequest) -> Response:
        unknown = {one.name for one in body.outputs} - set(OUTPUTS)
        if unknown:
            raise Problem(
                422, "unknown_output", f"There is no output {min(unknown)[:80]!r}. Fix: {', '.join(OUTPUTS)}."
            )
        key = request.headers.get("idempotency-key") or body.id
        if key is not None:
            check_key(key)
        learn = body.parameters.get("learn", True)
        if not isinstance(learn, bool):
            raise Problem(422, "invalid_body", "The parameter learn must be true or false.")
        service = service_of(request)
        features = await service.read(_features, body.inputs[0])
        classes, dimension = stream.record.prototypes.shape
        samples = Samples(features=features, keys=(None,) * len(features), learn=learn, top=classes)
        # The protocol has no errors of single rows: a wrong one refuses the request before any row is learned.
        for row, item in enumerate(await service.read(feature_items, features, samples.keys, dimension)):
            if item.error is not None:
                raise Problem(422, item.error["code"], item.error["message"], row=row)
        results = await service.samples(stream, samples, key)
        content = await service.read(_infer_answer, stream, body.id, results)
        wanted = {one.name for one in body.outputs} or set(OUTPUTS)
        content["outputs"] = [one for one in content["outputs"] if one["name"] in wanted]
        return Response(to_json(content), media_type="application/json")

    @app.get("/v2/models/{stream_id:path}/versions/{version}", tags=tags, summary="Inputs and outputs of this epoch")
    async def model_at_version(request: Request, principal: Reader, stream_id: StreamId, version: Version) -> Any:
        return metadata(await at_version(request, principal, stream_id, version))

    @app.get("/v2/models/{stream_id:path}", tags=tags, summary="Inputs and outputs of a stream")
    async def model(request: Request, principal: Reader, stream_id: StreamId) -> Any:
        return metadata(await find_stream(request, principal, stream_id))

    async def at_version(request: Request, principal: Principal, stream_id: str, version: str) -> Stream:
        """The stream, if `version` is its epoch: no other state of it answers."""
        stream = await find_stream(request, principal, stream_id)
        if version != str(stream.record.epoch):
            raise Problem(
                404, "no_such_version", f"The version of this stream is {stream.record.epoch}, its epoch; earlier ones "
                "do not answer. Fix: leave the version out.",
            )  # fmt: skip
        return stream

    def metadata(stream: Stream) -> dict[str, Any]:
        classes, dimension = stream.record.prototypes.shape
        return {
            "name": stream.record.id,
            "versions": [str(stream.record.epoch)],
            "platform": f"zeroshift {stream.config['method']}",
            "inputs": [{"name": "features", "datatype": "FP32", "shape": [-1, dimension]}],
            "outputs": [
                {"name": "probabilities", "datatype": "FP32", "shape": [-1, classes]},
                {"name": "label", "datatype": "BYTES", "shape": [-1]},
                {"name": "reject", "datatype": "FP64", "shape": [-1]},
            ],
        }


def _features(tensor: Tensor) -> np.ndarray:
    if tensor.datatype not in NUMBERS or len(tensor.shape) != 2:
        raise Problem(
            422, "invalid_shape", f"The input must have a datatype of {', '.join(NUMBERS)} and the shape [n, d]; got "
            f"{tensor.datatype!r} and {tensor.shape}.",
        )  # fmt: skip
    try:
        with np.errstate(over="ignore"):
            values = np.array(tensor.data, np.float64).astype(np.float32).reshape(-1)
    except (ValueError, TypeError, OverflowError) as error:
        raise Problem(422, "invalid_shape", "data must be numbers.") from error
    rows, columns = tensor.shape
    if len(values) != rows * columns or not rows or not columns:
        raise Problem(422, "invalid_shape", f"The shape {tensor.shape} does not fit {len(values)} numbers.")
    return values.reshape(rows, columns)


def _infer_answer(stream: Stream, name: str | None, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    index = {label: k for k, label in enumerate(stream.classes)}
    probabilities = np.zeros((len(results), len(index)), np.float32)
    for row, one in enumerate(results):
        for prediction in one["predictions"]:
            probabilities[row, index[prediction["label"]]] = prediction["score"]
    labels = [one["predictions"][0]["label"] for one in results]
    n = len(results)
    return {
        "model_name": stream.record.id,
        "model_version": str(stream.record.epoch),
        **({} if name is None else {"id": name}),
        "parameters": {"first_seq": results[0]["seq"]},
        "outputs": [
            {"name": "probabilities", "datatype": "FP32", "shape": list(probabilities.shape),
             "data": probabilities.reshape(-1).tolist()},
            {"name": "label", "datatype": "BYTES", "shape": [n], "data": labels},
            {"name": "reject", "datatype": "FP64", "shape": [n], "data": [one["reject"] for one in results]},
        ],
    }  # fmt: skip


# Label Studio: the address of the backend is http://HOST:PORT/label-studio/STREAM


class Task(BaseModel):
    id: int | str | None = None
    data: dict[str, Any] = {}


class PredictRequest(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"tasks": [{"id": 1, "data": {"features": [1.0, 0.0]}}]}]}
    )
    tasks: list[Task] = Field(max_length=1000)
    label_config: str | None = Field(None, description="The labelling interface of the project.")


class Webhook(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "action": "ANNOTATION_CREATED",
                    "task": {"id": 1, "data": {"image": "data:image/png;base64,..."}},
                    "annotation": {"result": [{"type": "choices", "value": {"choices": ["cat"]}}]},
                }
            ]
        }
    )
    action: str = Field(max_length=100)
    task: Task | None = None
    annotation: dict[str, Any] | None = None


StreamQuery = Annotated[str, Query(alias="stream", description="Id of the stream.", max_length=300)]


def _add_label_studio(app: FastAPI) -> None:
    tags: list[Any] = ["Label Studio"]

    async def predict(request: Request, principal: Any, stream_id: str, body: PredictRequest) -> Any:
        """Predictions for tasks; each task with an id is a sample with a key of its own, so it is learned once."""
        stream = await find_stream(request, principal, stream_id)
        answers = []
        if not is_text(body.label_config or ""):
            raise Problem(
                422, "invalid_body", "label_config is not text which UTF-8 can encode. "
                r"Fix: no lone surrogates (\ud800 to \udfff).",
            )  # fmt: skip
        names = _choices_names(body.label_config)
        for task in body.tasks:
            try:
                one = (await service_of(request).samples(stream, _task_samples(task), None))[0]
            except Problem as problem:
                if problem.status != 422 or problem.code in ("no_encoder", "other_encoder"):
                    raise  # it is not about this task
                one = problem.content()
            if "error" in one:
                empty = {"result": [], "score": 0.0, "model_version": str(stream.record.epoch)}
                answers.append({**empty, "error": one["error"]})
                continue
            best = one["predictions"][0]
            choice = {**names, "type": "choices", "value": {"choices": [best["label"]]}, "score": best["score"]}
            answers.append({"result": [choice], "score": best["score"], "model_version": str(stream.record.epoch)})
        return {"results": answers, "model_version": str(stream.record.epoch)}

    async def setup(request: Request, principal: Any, stream_id: str) -> Any:
        stream = await find_stream(request, principal, stream_id)
        return {"model_version": str(stream.record.epoch)}

    async def webhook(request: Request, principal: Any, stream_id: str, body: Webhook) -> Any:
        """A confirmed label becomes a support sample; START_TRAINING learns again with them."""
        stream = await find_stream(request, principal, stream_id)
        service = service_of(request)
        if body.action in ("ANNOTATION_CREATED", "ANNOTATION_UPDATED") and body.task is not None:
            label = _chosen_label(body.annotation or {})
            key = f"label-studio-{body.task.id}"
            found = await service.read(service.store.find_keys, stream.record, [key])
            if label is None or body.task.id is None or key not in found:
                return {"status": "ignored", "reason": "the task has no choice, or was not predicted here"}
            return {"status": "stored", **await confirm_labels(service, stream, [(found[key][1], label)])}
        if body.action == "START_TRAINING":
            if not principal.may("admin"):
                raise Problem(403, "forbidden", "Learning again needs the scope admin.")
            return {"status": "learned again", **await run_command(stream, stream.relearn)}
        return {"status": "ignored", "reason": f"action {body.action}"}

    @app.get("/label-studio/{stream_id:path}/health", tags=tags, summary="The backend runs")
    async def health_of_stream(request: Request, stream_id: StreamId) -> Any:
        return {"status": "UP", "model_class": "zeroshift"}

    @app.post("/label-studio/{stream_id:path}/predict", tags=tags, summary="Predictions for tasks")
    async def predict_of_stream(request: Request, principal: Writer, stream_id: StreamId, body: PredictRequest) -> Any:
        return await predict(request, principal, stream_id, body)

    @app.post("/label-studio/{stream_id:path}/setup", tags=tags, summary="Connect")
    async def setup_of_stream(request: Request, principal: Writer, stream_id: StreamId) -> Any:
        return await setup(request, principal, stream_id)

    @app.post("/label-studio/{stream_id:path}/webhook", tags=tags, summary="Confirmed labels")
    async def webhook_of_stream(request: Request, principal: Writer, stream_id: StreamId, body: Webhook) -> Any:
        return await webhook(request, principal, stream_id, body)

    @app.post("/predict", tags=tags, summary="Predictions for tasks, with the stream as a parameter")
    async def predict_by_query(request: Request, principal: Writer, stream: StreamQuery, body: PredictRequest) -> Any:
        return await predict(request, principal, stream, body)

    @app.post("/setup", tags=tags, summary="Connect, with the stream as a parameter")
    async def setup_by_query(request: Request, principal: Writer, stream: StreamQuery) -> Any:
        return await setup(request, principal, stream)

    @app.post("/webhook", tags=tags, summary="Confirmed labels, with the stream as a parameter")
    async def webhook_by_query(request: Request, principal: Writer, stream: StreamQuery, body: Webhook) -> Any:
        return await webhook(request, principal, stream, body)


def _task_samples(task: Task) -> Samples:
    """The sample of a task: `features`, or an image as a data address. Other addresses are not fetched."""
    key = None if task.id is None else check_key(f"label-studio-{task.id}")
    if "features" in task.data:
        matrix = as_matrix(task.data["features"])
        if len(matrix) != 1:
            raise Problem(422, "invalid_shape", "A task has the features of one sample.")
        return Samples(features=matrix, keys=(key,))
    image = next((one for one in task.data.values() if isinstance(one, str) and one.startswith("data:")), None)
    if image is None:
        raise Problem(
            422,
            "no_image",
            "A task needs features, or an image as data:image/...;base64,...; nothing is fetched.",
        )
    try:
        content = base64.b64decode(image.partition(",")[2], validate=True)
    except (ValueError, binascii.Error) as error:
        raise Problem(422, "invalid_image", "The image of the task is not base64.") from error
    return Samples(images=[content], keys=(key,))


def _choices_names(label_config: str | None) -> dict[str, str]:
    """The names of the choices and of what they belong to, as the labelling interface calls them.

    >>> _choices_names('<View><Image name="photo" value="$image"/><Choices name="class" toName="photo"/></View>')
    {'from_name': 'class', 'to_name': 'photo'}
    """
    tag = re.search(r"<Choices\b[^<>]*>", label_config or "")
    found = dict(re.findall(r"\b(name|toName)\s*=\s*[\"']([^\"'<>]*)[\"']", tag[0])) if tag else {}
    return {"from_name": unescape(found.get("name", "choice")), "to_name": unescape(found.get("toName", "image"))}


def _chosen_label(annotation: dict[str, Any]) -> str | None:
    results = annotation.get("result")
    for one in results if isinstance(results, list) else ():
        value = one.get("value") if isinstance(one, dict) else None
        choices = value.get("choices") if isinstance(value, dict) else None
        if isinstance(choices, list) and choices and isinstance(choices[0], str):
            return choices[0]
    return None
