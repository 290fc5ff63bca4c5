"""Streams over HTTP: the exact shapes, answers equal to the library's, keys, order, snapshots, undo."""

from __future__ import annotations

import itertools
import json
import threading

import numpy as np
import pytest

from serve.running import NAMES, PATIENCE, wait_until
from serve.test_access import send
from serve.test_protocols import JSON, tensor
from zeroshift.methods import create
from zeroshift.serve import ServiceError
from zeroshift.serve.monitor import PageHinkley
from zeroshift.serve.records import Snapshot, superfluous


def post(client, path, body, headers=None, kind="application/json"):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return client._send("POST", path, content, {"Content-Type": kind, **(headers or {})})[:2]


def test_answers_are_those_of_the_library(stream, problem):
    features, prototypes = problem
    method = create("anchored_mixture_online", prototypes, logit_scale=20.0)
    for start in range(0, 128, 32):
        expected = method.adapt(features[start : start + 32])
        results = stream.samples(features[start : start + 32])
        for row, result in enumerate(results):
            best = result["predictions"]
            assert result["seq"] == start + row + 1
            assert [one["label"] for one in best] == [NAMES[k] for k in np.argsort(-expected[row], kind="stable")]
            assert [one["score"] for one in best] == np.sort(expected[row])[::-1].tolist()
            zero_shot = prototypes @ features[start + row]
            assert result["zero_shot"]["label"] == NAMES[int(zero_shot.argmax())]
            assert 0 <= result["reject"] <= 1


def test_shapes_of_a_stream(running, problem):
    features, prototypes = problem
    client = running.client()
    body = {"classes": list(NAMES), "prototypes": prototypes.tolist(), "logit_scale": 20.0, "snapshot_every": 256}
    path = "/v1/streams/cam-1"
    send = lambda: client._send("PUT", path, json.dumps(body).encode(), {"Content-Type": "application/json"})  # noqa: E731
    assert send()[0] == 201
    assert send()[0] == 200
    body["logit_scale"] = 30.0
    assert send()[0] == 409
    status, answer = post(
        client, f"{path}/samples", {"features": features[:2].tolist(), "keys": ["f-1", "f-2"], "learn": True}
    )
    assert status == 200
    assert set(answer["results"][0]) == {"seq", "epoch", "key", "predictions", "zero_shot", "reject", "replayed"}
    described = client.request("GET", path)
    assert {"id", "classes", "method", "parameters", "n_seen", "epoch", "snapshots", "health"} <= set(described)
    assert described["n_seen"] == 2
    logged = client.request("GET", f"{path}/samples?after=1&limit=5")["samples"]
    assert [row["key"] for row in logged] == ["f-2"]
    assert len(logged[0]["predictions"]) == 1
    assert {"seq", "epoch", "key", "predictions", "zero_shot", "time"} <= set(logged[0])


def test_a_bad_sample_fails_alone_and_a_bad_shape_names_its_row(stream, problem):
    features = problem[0][:4].tolist()
    features[2] = [float("nan")] * 16
    status, answer = post(stream.client, "/v1/streams/cam-1/samples", {"features": features})
    assert status == 200
    assert answer["results"][2]["error"]["code"] == "invalid_feature"
    assert answer["results"][2]["error"]["row"] == 2
    assert [one.get("seq") for one in answer["results"]] == [1, 2, None, 3]
    features[3] = features[3][:5]
    status, answer = post(stream.client, "/v1/streams/cam-1/samples", {"features": features})
    assert (status, answer["error"]["row"]) == (422, 3)
    assert stream.describe()["n_seen"] == 3


def test_a_row_of_zeros_is_called_that(stream):
    answer = post(stream.client, "/v1/streams/cam-1/samples", {"features": [[0] * 16]})[1]
    assert answer["results"][0]["error"]["message"] == "Row 0 is zero. Fix: leave it out, or compute it again."


def test_keys_replay_the_stored_answer(stream, problem):
    features = problem[0]
    first = stream.samples(features[:3], keys=["x", "y", "z"])
    again = stream.samples(features[[1, 3]], keys=["y", "w"])
    assert again[0] == {**first[1], "replayed": True}
    assert again[1]["seq"] == 4
    with pytest.raises(ServiceError) as refused:
        stream.samples(features[5:7], keys=["new", "x"])
    assert (refused.value.status, refused.value.content["error"]["row"]) == (422, 1)
    assert stream.describe()["n_seen"] == 4
    body = {"features": features[10:12].tolist()}
    sent = [post(stream.client, "/v1/streams/cam-1/samples", body, {"Idempotency-Key": "req"}) for _ in range(2)]
    assert [one["seq"] for one in sent[0][1]["results"]] == [5, 6]
    assert [{**one, "replayed": True} for one in sent[0][1]["results"]] == sent[1][1]["results"]
    body = {"features": features[11:13].tolist()}
    assert post(stream.client, "/v1/streams/cam-1/samples", body, {"Idempotency-Key": "req"})[0] == 422
    body = {"features": features[:2].tolist(), "keys": ["q", "q"]}
    assert post(stream.client, "/v1/streams/cam-1/samples", body)[0] == 422


def test_a_key_in_flight_and_a_full_queue(running, stream, problem):
    features, gate = problem[0], threading.Event()
    inner = running.service.streams["cam-1"]
    compute = inner._compute

    def held(ready):
        gate.wait(PATIENCE)
        return compute(ready)

    inner._compute = held
    answers = []
    workers = [
        threading.Thread(
            target=lambda k=k: answers.append(
                running.client().stream("cam-1").samples(features[k : k + 1], keys=[f"k{k}"])
            )
        )
        for k in range(2)
    ]
    for one in workers:
        one.start()
    wait_until(lambda: inner.queued == 2)
    with pytest.raises(ServiceError) as refused:
        stream.samples(features[:1], keys=["k0"])
    assert (refused.value.status, refused.value.code) == (409, "key_in_flight")
    inner.max_queued = 4
    with pytest.raises(ServiceError) as refused:
        stream.samples(features[:3])
    assert (refused.value.status, refused.value.code) == (429, "queue_full")
    gate.set()
    for one in workers:
        one.join(PATIENCE)
    assert sorted(answer[0]["seq"] for answer in answers) == [1, 2]


def test_predicting_changes_nothing(stream, problem):
    features = problem[0]
    stream.samples(features[:64])
    before = stream.samples(features[64:70], learn=False, top=2)
    assert stream.samples(features[64:70], learn=False, top=2) == before
    assert before[0]["seq"] is None
    assert len(before[0]["predictions"]) == 2
    assert stream.describe()["n_seen"] == 64


def test_predicting_uses_no_keys(running, stream, problem):
    features, _ = problem
    stored = stream.samples(features[:2], keys=["a", "b"])
    other = stream.samples(features[2:4], keys=["a", "b"], learn=False)  # a conflict, if they were learned
    assert [one["seq"] for one in other] == [None, None]
    again = stream.samples(features[:2], keys=["a", "b"], learn=False)
    assert [(one["seq"], one["key"], one["replayed"]) for one in again] == [(None, "a", False), (None, "b", False)]
    assert [one["replayed"] for one in stream.samples(features[:2], keys=["a", "b"])] == [True, True]

    def ask(row, learn):
        headers = {"Content-Type": "application/json", "Idempotency-Key": "request"}
        body = json.dumps({"features": features[row : row + 1].tolist(), "learn": learn}).encode()
        return stream.client.request("POST", "/v1/streams/cam-1/samples", body, headers)["results"][0]

    learned = ask(7, True)
    assert ask(8, False)["seq"] is None
    assert ask(7, True) == {**learned, "replayed": True}
    assert stream.describe()["n_seen"] == len(stored) + 1


def test_a_misspelt_query_parameter_learns_nothing(stream, problem):
    path, body = "/v1/streams/cam-1/samples", {"features": problem[0][:2].tolist()}
    status, answer = post(stream.client, f"{path}?lern=false", body)
    assert (status, answer["error"]["code"]) == (422, "invalid_query")
    assert "'lern'" in answer["error"]["message"]
    assert stream.describe()["n_seen"] == 0
    assert post(stream.client, f"{path}?learn=false&top=1", body)[0] == 200
    assert stream.describe()["n_seen"] == 0


@pytest.mark.parametrize("query", ["learn=maybe", "top=0", "top=x", "top=100001", "learn=", "top=1.5"])
def test_a_wrong_query_parameter_is_refused(stream, problem, query):
    body = {"features": problem[0][:2].tolist()}
    status, answer = post(stream.client, f"/v1/streams/cam-1/samples?{query}", body)
    assert (status, answer["error"]["code"]) == (422, "invalid_request")
    assert answer["error"]["message"].startswith(f"query.{query.partition('=')[0]}: ")
    assert stream.describe()["n_seen"] == 0


def test_the_test_for_drift_does_not_depend_on_the_size_of_requests():
    values = np.random.default_rng(0).normal(size=1000)
    values[700:] += 1.0
    one_by_one, together = PageHinkley(), PageHinkley()
    alarms = [one_by_one.update([value]) for value in values.tolist()]
    parts = [together.update(part.tolist()) for part in np.split(values, [1, 200, 300, 700, 990])]
    assert one_by_one == together
    assert [any(part.tolist()) for part in np.split(np.array(alarms), [1, 200, 300, 700, 990])] == parts
    assert parts == [False, False, False, False, True, True]


def test_formats_give_the_same_answers(running, problem):
    import io

    from safetensors.numpy import save

    features, prototypes = problem
    npy = io.BytesIO()
    np.save(npy, features[:8])
    bodies = {
        "json": (json.dumps({"features": features[:8].tolist()}).encode(), "application/json"),
        "npy": (npy.getvalue(), "application/x-npy"),
        "safetensors": (save({"features": features[:8]}), "application/x-safetensors"),
    }
    answers = []
    for name, (body, kind) in bodies.items():
        running.client().stream(name).create(NAMES, prototypes)
        status, answer = post(running.client(), f"/v1/streams/{name}/samples", body, kind=kind)
        assert status == 200
        answers.append([one["predictions"] for one in answer["results"]])
    assert answers[0] == answers[1] == answers[2]


def test_rollback_is_a_new_epoch_and_the_log_stays(stream, problem):
    features, prototypes = problem
    stream.samples(features[:64])
    chosen = stream.take_snapshot()
    assert chosen["seq"] == 64
    stream.samples(features[64:200])
    assert stream.rollback(chosen["id"])["epoch"] == 1
    answer = stream.samples(features[64:96])
    method = create("anchored_mixture_online", prototypes, logit_scale=20.0)
    method.adapt(features[:64])
    expected = method.adapt(features[64:96])
    assert [one["predictions"][0]["score"] for one in answer] == expected.max(axis=1).tolist()
    assert answer[0]["seq"] == 201
    assert answer[0]["epoch"] == 1
    assert len(list(stream.log())) == 232
    with pytest.raises(ServiceError) as refused:
        stream.rollback(10**6)
    assert refused.value.status == 404
    assert stream.samples(features[96:97])[0]["seq"] == 233


def test_replay_under_another_method(stream, problem):
    features, prototypes = problem
    stream.samples(features[:100])
    same = stream.replay("anchored_mixture_online")
    assert (same["samples"], same["changed"]) == (100, 0)
    other = stream.replay("zero_shot")
    answered = [one["predictions"][0]["label"] for one in stream.log()]
    zero_shot = [NAMES[k] for k in (features[:100] @ prototypes.T).argmax(axis=1)]
    assert other["changed"] == sum(a != z for a, z in zip(answered, zero_shot, strict=True))
    assert stream.describe()["n_seen"] == 100


def test_restart_continues_bit_for_bit(run_service, problem):
    features, prototypes = problem
    expected = create("anchored_mixture_online", prototypes, logit_scale=20.0)
    for part in range(3):
        running = run_service()
        stream = running.client().stream("cam-1")
        stream.create(NAMES, prototypes, logit_scale=20.0, snapshot_every=1000)
        for start in range(100 * part, 100 * (part + 1), 25):
            scores = expected.adapt(features[start : start + 25]).max(axis=1).tolist()
            results = stream.samples(features[start : start + 25])
            assert [one["predictions"][0]["score"] for one in results] == scores
        if part == 0:
            running.service.streams["cam-1"]._since_snapshot = 0  # as if it was killed: no snapshot at the end
        running.stop()
    assert running.service.streams["cam-1"].recovery["differing"] == 0


def test_labels_and_learning_again(stream, problem):
    features, _ = problem
    stream.samples(features[:80])
    with pytest.raises(ServiceError) as refused:
        stream.relearn()
    assert refused.value.code == "no_labels"
    assert stream.label({1: "a", 2: "b"}) == {"labels": 2}
    with pytest.raises(ServiceError):
        stream.label({3: "unknown"})
    with pytest.raises(ServiceError):
        stream.label({300: "a"})
    assert stream.relearn() == {
        "epoch": 1, "seq": 80, "reason": "learned again with 2 labels", "labels": 2, "samples": 80,
    }  # fmt: skip
    assert stream.statistics()["labelled"]["samples"] == 2
    assert stream.samples(features[80:81])[0]["epoch"] == 1


def test_learning_again_leaves_out_what_was_rolled_back(location, run_service, problem):
    features, prototypes = problem
    stream = run_service(location).client().stream("cam-1")
    stream.create(NAMES, prototypes, logit_scale=20.0)
    stream.samples(features[:8])
    early = stream.take_snapshot()["id"]
    stream.samples(features[8:20])
    late = stream.take_snapshot()["id"]
    stream.samples(features[20:50])  # rolled back
    stream.rollback(late)
    stream.label({1: "a"})
    assert stream.relearn()["samples"] == 20
    stream.samples(features[50:54])
    assert stream.relearn()["samples"] == 24
    stream.samples(features[54:60])
    stream.rollback(early)
    assert stream.relearn()["samples"] == 8
    support = (features[:1], np.array([NAMES.index("a")]))
    method = create("anchored_mixture_online", prototypes, logit_scale=20.0, support=support)
    method.adapt(features[:8])
    expected = method.adapt(features[60:64]).max(axis=1).tolist()
    assert [one["predictions"][0]["score"] for one in stream.samples(features[60:64])] == expected


def snapshot_at(number: int, seconds: float) -> Snapshot:
    return Snapshot(number, 0, number, seconds, 0, "", {}, {})


def test_older_snapshots_are_thinned_out_by_age():
    snapshots: list[Snapshot] = []
    for hour in range(500):
        snapshots.insert(0, snapshot_at(hour, 3600.0 * hour))
        gone = {one.number for one in superfluous(snapshots, (), 10)}
        snapshots = [one for one in snapshots if one.number not in gone]
        assert len(snapshots) == min(hour + 1, 10)
        assert [one.number for one in snapshots[:5]] == [*range(hour, max(-1, hour - 5), -1)]
    ages = [499 - one.number for one in snapshots]
    assert ages[-1] == 499
    assert all(older <= 8 * younger for younger, older in itertools.pairwise(ages[4:]))
    for number in range(500, 600):  # within a second
        snapshots.insert(0, snapshot_at(number, 3600.0 * 499 + number / 1000))
        gone = {one.number for one in superfluous(snapshots, (), 10)}
        snapshots = [one for one in snapshots if one.number not in gone]
    left = [499 - one.number for one in snapshots if one.number < 499]
    assert len(left) >= 4
    assert set(left) <= set(ages)
    assert max(left) == 499


def test_streams_with_slashes_and_path_tricks(running, problem):
    client = running.client()
    client.stream("team-a/cam.1").create(NAMES, problem[1])
    assert client.stream("team-a/cam.1").samples(problem[0][:1])[0]["seq"] == 1
    assert [one["id"] for one in client.streams()] == ["team-a/cam.1"]
    for name in ("../x", "a/../b", "a//b", ".hidden", "a/samples", "_canary", "a\\b", "a b", "%2e%2e", "a" * 65):
        with pytest.raises(ServiceError) as refused:
            client.stream(name).create(NAMES, problem[1])
        assert refused.value.status in (404, 405, 422), name


def test_every_online_method_runs_in_a_stream(running, problem):
    from zeroshift.methods import list_methods

    features, prototypes = problem
    usable = [
        one.name for one in list_methods("online") if one.needs == ("prototypes",) and not one.cls.model_parameters
    ]
    assert len(usable) > 5
    for name in [*usable[:3], "tda+filter", usable[-1]]:
        made = running.client().stream(name.replace("+", "-"))
        made.create(NAMES, prototypes, method=name, logit_scale=20.0, snapshot_every=10)
        assert len(made.samples(features[:12])) == 12
    with pytest.raises(ServiceError) as refused:
        running.client().stream("x").create(NAMES, prototypes, method="adapt_transductive")
    assert refused.value.code == "unknown_method"
    with pytest.raises(ServiceError) as refused:
        running.client().stream("x").create(NAMES, prototypes, parameters={"no_such": 1})
    assert refused.value.code == "invalid_stream"


def test_names_that_no_answer_can_contain_are_refused(running, stream, problem):
    """JSON can name half a character, which UTF-8 cannot encode."""
    half, row = "\ud800", problem[0][:1].tolist()
    ask = lambda method, path, body: send(running.url, method, path, JSON, json.dumps(body).encode())  # noqa: E731
    body = {"classes": ["a", "b", half, "d", "e"], "prototypes": problem[1].tolist()}
    status, answer = ask("PUT", "/v1/streams/half", body)
    assert (status, answer["error"]["code"]) == (422, "invalid_classes")
    assert r"classes has '\ud800', which UTF-8 cannot encode. Fix: names without" in answer["error"]["message"]
    task = {"id": 1, "data": {"features": row[0]}}
    config = f'<Choices name="{half}" toName="image"/>'
    requests = [
        ("PUT", "/v1/streams/half", {**body, "classes": list(NAMES), "parameters": {half: 1}}),
        ("PUT", "/v1/streams/half", {**body, "classes": list(NAMES), "parameters": {"cooling": half}}),
        ("PUT", "/v1/streams/half", {**body, "classes": list(NAMES), "method": half}),
        ("POST", "/v1/streams/cam-1/samples", {"features": row, "keys": [half]}),
        ("POST", "/v1/streams/cam-1/samples", {"features": row, half: 1}),
        ("POST", "/v1/streams/cam-1/replay", {"method": "tda", "parameters": {half: 1}}),
        ("POST", "/v1/streams/cam-1/labels", {"labels": [{"seq": 1, "label": half}]}),
        ("POST", "/v2/models/cam-1/infer", {"id": half, "inputs": [tensor(row)]}),
        ("POST", "/label-studio/cam-1/predict", {"tasks": [task], "label_config": config}),
    ]
    for method, path, content in requests:
        status, answer = ask(method, path, content)
        assert status == 422, (path, answer)
    assert stream.describe()["n_seen"] == 0
    assert [one["id"] for one in running.client().streams()] == ["cam-1"]
