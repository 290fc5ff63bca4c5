"""The Open Inference Protocol v2 and Label Studio's ML backend, with the requests that their documentation shows."""

from __future__ import annotations

import base64
import io
import json
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from serve.running import NAMES
from serve.test_access import send
from zeroshift.methods import create
from zeroshift.serve import ServiceError

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def ask(running):
    def post(path, body=None, method=None, headers=None):
        content = None if body is None else json.dumps(body).encode()
        method = method or ("GET" if body is None else "POST")
        return send(running.url, method, path, {**JSON, **(headers or {})}, content)

    return post


# Open Inference Protocol: https://github.com/kserve/open-inference-protocol


def tensor(features, **changes):
    values = np.asarray(features)
    return {
        "name": "features",
        "shape": list(values.shape),
        "datatype": "FP32",
        "data": values.reshape(-1).tolist(),
        **changes,
    }


def test_health_and_metadata(ask, stream):
    assert ask("/v2/health/live")[0] == ask("/v2/health/ready")[0] == 200
    status, server = ask("/v2")
    assert status == 200
    assert set(server) >= {"name", "version", "extensions"}
    for path in ("/v2/models/cam-1/ready", "/v2/models/cam-1/versions/0/ready"):
        assert ask(path) == (200, {"name": "cam-1", "ready": True})
    for path in ("/v2/models/cam-1", "/v2/models/cam-1/versions/0"):
        status, model = ask(path)
        assert status == 200
        assert (model["name"], model["versions"]) == ("cam-1", ["0"])
        assert model["platform"]
        for one in [*model["inputs"], *model["outputs"]]:
            assert set(one) == {"name", "datatype", "shape"}
        assert model["inputs"][0]["shape"] == [-1, 16]
        assert {one["name"]: one["shape"] for one in model["outputs"]} == {
            "probabilities": [-1, 5],
            "label": [-1],
            "reject": [-1],
        }


def test_infer(ask, stream, problem):
    features, prototypes = problem
    expected = create("anchored_mixture_online", prototypes, logit_scale=20.0).adapt(features[:3])
    body = {"id": "42", "inputs": [tensor(features[:3], parameters={"a": 1})], "parameters": {"learn": True}}
    status, answer = ask("/v2/models/cam-1/infer", body)
    assert status == 200
    assert (answer["model_name"], answer["model_version"], answer["id"]) == ("cam-1", "0", "42")
    outputs = {one["name"]: one for one in answer["outputs"]}
    for one in outputs.values():
        assert set(one) == {"name", "shape", "datatype", "data"}
        assert len(one["data"]) == np.prod(one["shape"])
    assert outputs["probabilities"]["data"] == expected.reshape(-1).tolist()
    assert outputs["label"]["data"] == [NAMES[k] for k in expected.argmax(axis=1)]
    assert ask("/v2/models/cam-1/infer", body) == (200, answer)  # its id is its key: learned once
    assert stream.describe()["n_seen"] == 3
    nested = {"inputs": [{**tensor(features[3:4]), "data": features[3:4].tolist()}], "outputs": [{"name": "label"}]}
    status, answer = ask("/v2/models/cam-1/versions/0/infer", nested)
    assert (status, [one["name"] for one in answer["outputs"]], "id" in answer) == (200, ["label"], False)
    predicted = {"inputs": [tensor(features[:2], datatype="FP64")], "parameters": {"learn": False}}
    assert ask("/v2/models/cam-1/infer", predicted)[0] == 200
    assert stream.describe()["n_seen"] == 4


def test_errors_are_texts(ask, stream, problem):
    features = problem[0]
    wrong = [
        ("/v2/models/none/infer", {"inputs": [tensor(features[:1])]}, 404),
        ("/v2/models/cam-1/versions/7/infer", {"inputs": [tensor(features[:1])]}, 404),
        ("/v2/models/cam-1/infer", {"inputs": []}, 422),
        ("/v2/models/cam-1/infer", {"inputs": [tensor(features[:1], datatype="BYTES")]}, 422),
        ("/v2/models/cam-1/infer", {"inputs": [tensor(features[:1], shape=[2, 16])]}, 422),
        ("/v2/models/cam-1/infer", {"inputs": [tensor(features[:1], shape=[1, 2**31])]}, 422),
        ("/v2/models/cam-1/infer", {"inputs": [tensor(2 * features[:1])]}, 422),
        ("/v2/models/cam-1/infer", {"inputs": [tensor(features[:1])], "outputs": [{"name": "x"}]}, 422),
        ("/v2/models/cam-1/infer", {"inputs": [tensor(features[:1])], "parameters": {"learn": 1}}, 422),
    ]
    for path, body, expected in wrong:
        status, answer = ask(path, body)
        assert status == expected, answer
        assert isinstance(answer["error"], str)
    assert stream.describe()["n_seen"] == 0


def test_a_refused_request_learns_nothing(ask, stream, problem):
    features = problem[0][:3]
    wrong = features.copy()
    wrong[2] *= 5
    status, answer = ask("/v2/models/cam-1/infer", {"id": "r1", "inputs": [tensor(wrong)]})
    assert (status, answer["error"]) == (422, "Row 2 has length 5, not 1. Fix: divide it by its length.")
    assert stream.describe()["n_seen"] == 0
    status, answer = ask("/v2/models/cam-1/infer", {"id": "r1", "inputs": [tensor(features)]})  # its key is free
    assert (status, answer["parameters"]) == (200, {"first_seq": 1})
    assert stream.describe()["n_seen"] == 3


# Label Studio: https://labelstud.io/guide/ml_create, and the requests of its api_connector

CONFIG = """<View><Image name="photo" value="$image"/>
  <Choices name="animal" toName="photo"><Choice value="a"/></Choices></View>"""


def ls_task(number, data):
    return {
        "id": number,
        "data": data,
        "meta": {},
        "created_at": "2026-01-01T00:00:00Z",
        "updated_at": "2026-01-01T00:00:00Z",
        "is_labeled": False,
        "overlap": 1,
        "inner_id": number,
        "total_annotations": 0,
        "cancelled_annotations": 0,
        "total_predictions": 0,
        "project": 3,
        "updated_by": None,
        "file_upload": None,
        "comment_authors": [],
        "annotations": [],
        "predictions": [],
    }


def ls_predict(tasks):
    return {
        "tasks": tasks,
        "model_version": None,
        "project": "3.1700000000",
        "label_config": CONFIG,
        "params": {"login": None, "password": None, "context": None},
    }


def ls_webhook(action, number, label, **annotation):
    result = [
        {
            "id": "x",
            "from_name": "animal",
            "to_name": "photo",
            "type": "choices",
            "origin": "manual",
            "value": {"choices": [label]},
        }
    ]
    return {
        "action": action,
        "project": {"id": 3, "title": "animals"},
        "task": ls_task(number, {"image": "x"}),
        "annotation": {
            "id": 7,
            "result": result,
            "task": number,
            "was_cancelled": False,
            "ground_truth": False,
            **annotation,
        },
    }


def test_label_studio_connects_predicts_and_confirms(ask, stream, problem):
    features = problem[0]
    assert ask("/label-studio/cam-1/health") == (200, {"status": "UP", "model_class": "zeroshift"})
    setup = {
        "project": "3.1700000000",
        "schema": CONFIG,
        "hostname": "http://localhost:8080",
        "access_token": "x",
        "extra_params": None,
    }
    status, answer = ask("/label-studio/cam-1/setup", setup)
    assert (status, answer) == (200, {"model_version": "0"})
    tasks = [ls_task(i + 1, {"features": features[i].tolist()}) for i in range(4)]
    status, answer = ask("/label-studio/cam-1/predict", ls_predict(tasks))
    assert status == 200
    assert answer["model_version"] == "0"
    assert len(answer["results"]) == 4
    for one in answer["results"]:
        (choice,) = one["result"]
        assert (choice["from_name"], choice["to_name"], choice["type"]) == ("animal", "photo", "choices")
        assert choice["value"]["choices"][0] in NAMES
        assert 0 < one["score"] <= 1
    assert ask("/label-studio/cam-1/predict", ls_predict(tasks)) == (200, answer)  # opened again: learned once
    assert ask("/predict?stream=cam-1", ls_predict(tasks)) == (200, answer)
    assert stream.describe()["n_seen"] == 4
    status, answer = ask("/label-studio/cam-1/webhook", ls_webhook("ANNOTATION_CREATED", 2, "b"))
    assert (status, answer) == (200, {"status": "stored", "labels": 1})
    assert ask("/label-studio/cam-1/webhook", ls_webhook("ANNOTATION_UPDATED", 2, "c"))[1]["labels"] == 1
    assert ask("/label-studio/cam-1/webhook", ls_webhook("ANNOTATION_CREATED", 99, "c"))[1]["status"] == "ignored"
    assert (
        ask("/label-studio/cam-1/webhook", {"action": "PROJECT_UPDATED", "project": {"id": 3}})[1]["status"]
        == "ignored"
    )
    assert stream.statistics()["labelled"]["samples"] == 1
    status, answer = ask("/label-studio/cam-1/webhook", {"action": "START_TRAINING", "project": {"id": 3}})
    assert (status, answer["status"], answer["epoch"], answer["labels"]) == (200, "learned again", 1, 1)
    assert ask("/label-studio/cam-1/setup", setup)[1]["model_version"] == "1"


def test_label_studio_images(run_service, problem):
    encoder = SimpleNamespace(
        dimension=16,
        logit_scale=5.0,
        preprocessing=lambda image: (np.array(image.getpixel((0, 0))[0]),),
        encode_pixels=lambda pixels: problem[0][pixels[0]],
    )
    running = run_service(encoder=encoder)
    running.client().stream("cam-1").create(NAMES, problem[1], logit_scale=5.0)
    written = io.BytesIO()
    Image.new("RGB", (8, 8), (3, 0, 0)).save(written, "PNG")
    address = "data:image/png;base64," + base64.b64encode(written.getvalue()).decode()
    body = json.dumps(ls_predict([ls_task(1, {"image": address}), ls_task(2, {"image": "data:image/png;base64,AAAA"})]))
    status, answer = send(running.url, "POST", "/label-studio/cam-1/predict", JSON, body.encode())
    assert status == 200
    assert [len(one["result"]) for one in answer["results"]] == [1, 0]
    for image in ("http://127.0.0.1:1/x.png", "/data/local-files/?d=etc/passwd", "file:///etc/passwd", "s3://bucket/x"):
        body = json.dumps(ls_predict([ls_task(3, {"image": image})])).encode()
        status, answer = send(running.url, "POST", "/label-studio/cam-1/predict", JSON, body)
        assert (status, answer["results"][0]["result"]) == (200, [])
        assert answer["results"][0]["error"]["code"] == "no_image"  # nothing is fetched


def test_label_studio_tasks_without_ids_are_samples_of_their_own(ask, stream, problem):
    tasks = [{"data": {"features": row.tolist()}} for row in problem[0][:3]]
    for seen in (3, 6):  # without an id, nothing says that a task was sent before
        status, answer = ask("/label-studio/cam-1/predict", ls_predict(tasks))
        assert (status, [len(one["result"]) for one in answer["results"]]) == (200, [1, 1, 1])
        assert stream.describe()["n_seen"] == seen
    body = {"action": "ANNOTATION_CREATED", "task": tasks[0], "annotation": {"result": []}}
    assert ask("/label-studio/cam-1/webhook", body)[1]["status"] == "ignored"


def test_label_studio_answers_the_other_tasks_of_a_wrong_one(ask, stream, problem):
    rows = problem[0][:4].tolist()
    data = [{"features": rows[0]}, {"features": rows[1][:5]}, {"text": "no sample"}, {"features": rows[2]}]
    tasks = [ls_task(number, one) for number, one in enumerate(data)]
    tasks.append(ls_task(0, {"features": rows[3]}))  # the id of another sample
    status, answer = ask("/label-studio/cam-1/predict", ls_predict(tasks))
    assert (status, [len(one["result"]) for one in answer["results"]]) == (200, [1, 0, 0, 1, 0])
    codes = [one["error"]["code"] for one in answer["results"] if "error" in one]
    assert codes == ["invalid_shape", "no_image", "key_conflict"]
    assert stream.describe()["n_seen"] == 2
    tasks = [ls_task(9, {"image": "data:image/png;base64,AAAA"})]
    status, answer = ask("/label-studio/cam-1/predict", ls_predict(tasks))
    assert (status, answer["error"]["code"]) == (422, "no_encoder")  # this is not about one task


def test_training_needs_the_scope_admin(run_service, problem):
    from zeroshift.serve.keys import add_key

    running = run_service(auth=True)
    keys = {scope: add_key(running.store, scope) for scope in ("write", "admin")}
    running.client(keys["admin"]).stream("cam-1").create(NAMES, problem[1])
    path, body = "/label-studio/cam-1/webhook", json.dumps({"action": "START_TRAINING"}).encode()
    with pytest.raises(ServiceError) as refused:
        running.client(keys["write"]).request("POST", path, body, JSON)
    assert refused.value.status == 403
    with pytest.raises(ServiceError) as refused:
        running.client(keys["admin"]).request("POST", path, body, JSON)
    assert refused.value.code == "no_labels"
