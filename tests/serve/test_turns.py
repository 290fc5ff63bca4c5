"""Streams under load: turns, deadlines, the cost of a configuration, and answers of bounded size."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time

import numpy as np
import pytest

from serve.running import NAMES, PATIENCE, wait_until
from serve.test_hostile import connect
from zeroshift import methods
from zeroshift.methods import create
from zeroshift.serve import ServiceError, learners
from zeroshift.serve.errors import Problem
from zeroshift.serve.service import Limits
from zeroshift.serve.stream import make_method

SAMPLES = "/v1/streams/cam-1/samples"


def refusal(call) -> tuple[int, str, str]:
    with pytest.raises(ServiceError) as refused:
        call()
    return refused.value.status, refused.value.code, str(refused.value)


@pytest.fixture
def short_turns(monkeypatch) -> list[str]:
    """Every turn ends after one step; the names of the threads that had one."""
    turn, seen = learners.Learner._turn, list[str]()
    monkeypatch.setattr(learners, "TURN_SECONDS", 0.0)
    monkeypatch.setattr(
        learners.Learner, "_turn", lambda *given: (seen.append(threading.current_thread().name), turn(*given))[1]
    )
    return seen


def test_streams_compute_in_turns(short_turns):
    order = []

    def work(name, steps):
        for step in range(steps):
            order.append(f"{name}{step}")
            yield
        return name

    async def run():
        threads = learners.Learners(1)
        together = [
            threads.learner(name, health=True).run(work, name, steps) for name, steps in (("a", 4), ("b", 4), ("c", 1))
        ]
        try:
            return await asyncio.gather(*together)
        finally:
            threads.shutdown()

    assert asyncio.run(run()) == ["a", "b", "c"]
    assert order.index("c0") < order.index("a2")
    assert abs(order.index("a3") - order.index("b3")) == 1


def test_a_stream_with_long_steps_gets_threads_of_its_own():
    def compute() -> str:
        ends = time.thread_time() + 2 * learners.TURN_SECONDS
        while time.thread_time() < ends:
            pass
        return threading.current_thread().name

    async def run():
        threads = learners.Learners(1)
        stream, other = threads.learner("a"), threads.learner("b")
        try:
            return [await one.run(compute) for one in (stream, stream, other)]
        finally:
            threads.shutdown()

    assert [name[:-2] for name in asyncio.run(run())] == ["zeroshift-stream", "zeroshift-slow", "zeroshift-stream"]


@pytest.mark.parametrize("busy", ["long steps", "short steps"])
def test_streams_that_hold_their_threads_keep_nobody_waiting(run_service, problem, busy):
    """Two streams do not give their threads back. Readiness does not depend on them; nor do streams with short steps,
    if those of the two are long."""
    running, gate = run_service(threads=2), threading.Event()
    client = running.client()
    for name in ("big-1", "big-2", "small"):
        client.stream(name).create(NAMES, problem[1], logit_scale=20.0)
    for name in ("big-1", "big-2"):
        stream = running.service.streams[name]
        stream.learner.longest = 1.0 if busy == "long steps" else 0.0
        compute = stream._compute
        stream._compute = lambda ready, compute=compute: (gate.wait(PATIENCE), compute(ready))[1]
    sending = [
        threading.Thread(target=lambda name=name: running.client().stream(name).samples(problem[0][:8]))
        for name in ("big-1", "big-2")
    ]
    for one in sending:
        one.start()
    wait_until(lambda: all(running.service.streams[name].queued for name in ("big-1", "big-2")))
    try:
        assert client.ready()["status"] == "ready"
        if busy == "long steps":
            assert len(client.stream("small").samples(problem[0][:4])) == 4
    finally:
        gate.set()
        for one in sending:
            one.join(PATIENCE)
    assert client.stream("big-1").describe()["n_seen"] == 8


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("anchored_mixture_online", {}),
        ("adapt_online", {}),
        ("adapt_online", {"batch_size": 4}),
        ("adapt_online+filter", {}),
        ("t3a", {"batch_size": 8}),
        ("oga", {"batch_size": 8}),
        ("dota", {}),
    ],
)
@pytest.mark.parametrize("learn", [True, False])
def test_turns_do_not_change_answers(run_service, problem, short_turns, tmp_path, method, parameters, learn):
    """Neither those of the library for the same calls, nor the log and what is recovered from it."""
    features, prototypes = problem
    expected = create(method, prototypes, logit_scale=20.0, **parameters)
    first = run_service()
    stream = first.client().stream("cam-1")
    stream.create(NAMES, prototypes, logit_scale=20.0, method=method, parameters=parameters)
    for rows in (slice(0, 150), slice(150, 157), slice(157, 300)):
        wanted = np.sort(expected.adapt(features[rows]) if learn else expected.predict(features[rows]))[:, ::-1]
        results = stream.samples(features[rows], learn=learn)
        found = [[one["score"] for one in result["predictions"]] for result in results]
        assert np.array_equal(np.array(found, np.float32), wanted)
        if not learn:
            expected.adapt(features[rows])
            stream.samples(features[rows])
    assert len(short_turns) > 6
    first.stop()
    second = run_service()
    second.client().stream("cam-1").samples(features[300:310])
    recovery = second.service.streams["cam-1"].recovery
    assert (recovery["differing"], recovery["damaged_snapshots"]) == (0, [])


def test_a_replay_ends_between_two_samples_when_the_service_stops(running, stream, problem, monkeypatch):
    stream.samples(problem[0][:50])
    inner, dota, learned = running.service.streams["cam-1"], methods.get("dota").cls, []
    learn = dota.learn

    def learn_last(self, step):
        learned.append(step)
        inner._closing = True
        learn(self, step)

    monkeypatch.setattr(dota, "learn", learn_last)
    with pytest.raises(Problem, match="shutting down"):
        inner.replay("dota", {}, 100)
    assert len(learned) == 1
    inner._closing = False


def test_a_request_that_waits_too_long_is_not_begun(run_service, problem):
    running = run_service(limits=Limits(wait_seconds=60.0))
    stream = running.client().stream("cam-1")
    stream.create(NAMES, problem[1], logit_scale=20.0)
    assert stream.describe()["deadline_seconds"] == 60.0
    assert stream.describe()["sample_ms"] > 0
    inner = running.service.streams["cam-1"]
    inner.deadline = -1.0
    body = json.dumps({"features": problem[0][:3].tolist(), "keys": ["a", "b", "c"]}).encode()
    status, content, pause = stream.client._send("POST", SAMPLES, body, {"Content-Type": "application/json"})
    assert (status, content["error"]["code"], pause >= 1) == (503, "deadline_passed", True)
    assert stream.describe()["n_seen"] == 0
    inner.deadline = 60.0
    results = stream.samples(problem[0][:3], keys=["a", "b", "c"])
    assert [(one["seq"], one["replayed"]) for one in results] == [(1, False), (2, False), (3, False)]
    assert inner.queued == 0


@pytest.mark.parametrize(("seconds", "expected"), [(60.0, [1, 3]), (-1.0, [1, 1, 1, 1])])
def test_requests_that_take_long_are_not_computed_together(running, stream, problem, monkeypatch, seconds, expected):
    inner, gate, groups = running.service.streams["cam-1"], threading.Event(), []
    compute = inner._compute
    monkeypatch.setattr("zeroshift.serve.stream.GROUP_SECONDS", seconds)
    inner._compute = lambda ready: (gate.wait(PATIENCE), groups.append(len(ready)), compute(ready))[2]
    sending = [
        threading.Thread(target=lambda k=k: running.client().stream("cam-1").samples(problem[0][k : k + 1]))
        for k in range(4)
    ]
    for count, one in enumerate(sending, 1):
        one.start()
        wait_until(lambda count=count: inner.queued == count)
    gate.set()
    for one in sending:
        one.join(PATIENCE)
    assert groups == expected


def test_a_configuration_that_costs_too_much_is_refused(run_service, problem):
    running = run_service(limits=Limits(sample_seconds=0.0))
    create_stream = running.client().stream("cam-1").create
    status, code, message = refusal(lambda: create_stream(NAMES, problem[1], logit_scale=20.0))
    assert (status, code) == (422, "too_slow")
    assert "5 classes and d = 16" in message
    assert "Fix: features with fewer dimensions" in message
    assert running.client().streams() == []


@pytest.mark.parametrize(("method", "parameter"), [("ecalp", "rounds"), ("adapt_online", "iterations")])
def test_a_stream_with_steps_that_never_end_is_refused(running, problem, method, parameter):
    create = running.client().stream("cam-1").create
    for value in (10_001, 10**400):
        status, code, message = refusal(
            lambda value=value: create(NAMES, problem[1], method=method, parameters={parameter: value})
        )
        assert (status, code) == (422, "invalid_stream")
        assert f"{parameter} = 100" in message
        assert "10,000 are allowed" in message
    create(NAMES, problem[1], method=method, parameters={parameter: 2})


def test_answers_have_a_bounded_size(run_service, problem):
    features, prototypes = problem
    running = run_service(limits=Limits(predictions=20, scores=50))
    stream = running.client().stream("cam-1")
    stream.create(NAMES, prototypes, logit_scale=20.0)
    assert len(stream.samples(features[:10], top=2)) == 10
    status, code, message = refusal(lambda: stream.samples(features[:10], top=3))
    assert (status, code) == (422, "answer_too_large")
    assert message.endswith("Fix: at most 6 samples at a time, or a smaller top.")
    status, code, message = refusal(lambda: stream.samples(features[:11], top=1))
    assert (status, code) == (422, "answer_too_large")
    assert message.endswith("Fix: at most 10 samples at a time.")
    for count, wanted in ((4, 200), (5, 422)):
        tensor = {
            "name": "features",
            "shape": [count, 16],
            "datatype": "FP32",
            "data": features[:count].ravel().tolist(),
        }
        body = json.dumps({"inputs": [tensor]}).encode()
        kind = {"Content-Type": "application/json"}
        assert stream.client._send("POST", "/v2/models/cam-1/infer", body, kind)[0] == wanted
    assert stream.describe()["n_seen"] == 14


def test_the_log_keeps_few_predictions_of_samples_that_nobody_can_ask_for_again(running):
    prototypes = np.eye(30, 32, dtype=np.float32)
    client = running.client()
    stream = client.stream("cam-1")
    stream.create([f"c{k}" for k in range(30)], prototypes, logit_scale=5.0)
    body = json.dumps({"features": prototypes[:3].tolist(), "top": 30}).encode()
    answer = client.request("POST", SAMPLES, body, {"Content-Type": "application/json"})
    assert len(answer["results"][0]["predictions"]) == 30
    body = json.dumps({"features": prototypes[:3].tolist(), "top": 30, "keys": ["a", "b", "c"]}).encode()
    kept = [client.request("POST", SAMPLES, body, {"Content-Type": "application/json"}) for _ in range(2)]
    assert kept[1]["results"] == [{**one, "replayed": True} for one in kept[0]["results"]]
    record = running.service.streams["cam-1"].record
    assert [batch.answers.classes.shape[1] for batch in running.store.read_batches(record, 0)] == [10, 30]


def test_a_row_of_the_log_is_read_once_for_many_samples(running, stream, problem, monkeypatch):
    features, keys = problem[0], [f"k{row}" for row in range(60)]
    stream.samples(features[:40], keys=keys[:40])
    stream.samples(features[40:60], keys=keys[40:])
    find, found = running.store.find_batch, []
    monkeypatch.setattr(running.store, "find_batch", lambda record, seq: (found.append(seq), find(record, seq))[1])
    assert all(one["replayed"] for one in stream.samples(features[:60], keys=keys))
    assert found == [1, 41]
    found.clear()
    assert stream.label({seq: NAMES[seq % 5] for seq in range(60, 0, -1)}) == {"labels": 60}
    assert found == [1, 41]
    assert refusal(lambda: stream.label({3: "a", 61: "b"}))[:2] == (404, "no_such_sample")
    repeated = {"labels": [{"seq": 5, "label": "c"}, {"seq": 5, "label": "b"}]}
    stream._json("POST", "/labels", repeated)
    labels = running.store.labels(running.service.streams["cam-1"].record)
    assert [(seq, label) for seq, label, *_ in labels] == [(s, 1 if s == 5 else s % 5) for s in range(1, 61)]
    assert all(np.array_equal(row, features[seq - 1]) for seq, *_, row in labels)


def test_large_json_is_read_in_a_thread_and_has_a_smaller_limit(run_service, problem, monkeypatch):
    from zeroshift.serve import app

    parse, threads = app.from_json, []
    monkeypatch.setattr(
        app, "from_json", lambda body: (threads.append(threading.current_thread().name), parse(body))[1]
    )
    running = run_service(limits=Limits(body_bytes=2_000_000, json_bytes=1_000_000))
    client = running.client()
    content = {"classes": list(NAMES), "prototypes": problem[1].tolist(), "logit_scale": 20.0}
    kind = {"Content-Type": "application/json"}
    client.request("PUT", "/v1/streams/cam-1", json.dumps(content).encode() + b" " * 500_000, kind)
    assert threads[0].startswith("zeroshift-read")
    body = json.dumps({"features": problem[0][:2].tolist()}).encode() + b" " * 1_000_000
    status, code, message = refusal(lambda: client.request("POST", SAMPLES, body, kind))
    assert (status, code) == (413, "too_large")
    assert "send features as .npy" in message
    large = np.repeat(problem[0], 3, axis=0)[:1000]
    wide = np.zeros((1000, 300), np.float32)
    assert refusal(lambda: client.stream("cam-1").samples(wide))[:2] == (422, "invalid_shape")  # 1.2 MB are read
    assert len(client.stream("cam-1").samples(large)) == 1000


def test_readers_that_take_nothing_are_closed(run_service, problem):
    running = run_service(limits=Limits(write_seconds=0.2))
    stream = running.client().stream("cam-1")
    stream.create(NAMES, problem[1], logit_scale=20.0)
    stream.samples(problem[0][:400])
    stream.client.close()
    wait_until(lambda: not running.server.server_state.connections)
    slow = connect(running)
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    asked = b"GET /v1/streams/cam-1/samples?limit=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    slow.settimeout(0.5)

    def ask_on() -> None:
        while True:
            slow.sendall(asked * 50)

    with pytest.raises((ConnectionError, TimeoutError)):
        ask_on()
    wait_until(lambda: not running.server.server_state.connections)
    slow.close()


def test_a_stored_stream_may_have_parameters_of_earlier_versions():
    config = {"method": "anchored_mixture_online", "parameters": {"ordered_weight": 0.2, "balance": 0.5}}
    assert make_method(config, np.eye(3), stored=True).balance == 0.5
    with pytest.raises(TypeError, match="ordered_weight"):
        make_method(config, np.eye(3))
