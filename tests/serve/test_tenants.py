"""Tenants: what the keys of a prefix may use together, and that none keeps the threads of the service to itself."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import subprocess
import sys
import threading
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest

from serve.running import NAMES, PATIENCE, wait_until
from zeroshift.serve import ServiceError
from zeroshift.serve.app import LARGE_BODY, from_json
from zeroshift.serve.keys import ASKING, add_key
from zeroshift.serve.service import Service
from zeroshift.serve.tenants import SharedThreads, parse_quota


def refusal(call) -> dict:
    with pytest.raises(ServiceError) as refused:
        call()
    assert refused.value.status == 429, refused.value
    return refused.value.content["error"]


@pytest.fixture
def tenants(location, run_service):
    """Makes a client with a new key."""
    running = run_service(location, auth=True)

    def client(prefix: str, scope: str = "admin", retry: float = 0.0, **quota: int):
        key = add_key(running.store, scope, prefix, quota=quota)
        running.service.keys._read_at = float("-inf")  # as if two seconds had passed
        return running.client(key, retry=retry)

    return SimpleNamespace(running=running, client=client)


def test_streams_are_counted_by_prefix(tenants, problem):
    one, two = tenants.client("a/", streams=2, retry=PATIENCE), tenants.client("b/")
    for number in range(2):
        one.stream(f"a/{number}").create(NAMES, problem[1])
    one.stream("a/0").create(NAMES, problem[1])  # it exists
    error = refusal(lambda: one.stream("a/2").create(NAMES, problem[1]))  # at once: time does not help
    assert (error["quota"], error["used"], error["allowed"]) == ("streams", 2, 2)
    assert "'a/'" in error["message"]
    two.stream("b/0").create(NAMES, problem[1])
    one.stream("a/0").delete()
    one.stream("a/2").create(NAMES, problem[1])


def test_bytes_of_log_and_snapshots_are_counted(tenants, problem):
    features, prototypes = problem
    client = tenants.client("a/", bytes=60_000)
    stream = client.stream("a/0")
    stream.create(NAMES, prototypes, keep_snapshots=2, retain=8)

    def used() -> int:
        known = tenants.running.service.streams["a/0"]
        assert known.stored is not None
        assert known.stored + known.grown == tenants.running.store.stored_bytes(known.record)
        return known.stored + known.grown

    for _ in range(2):
        stream.samples(features[:8])
    assert used() > 16 * 64 + prototypes.nbytes
    for _ in range(3):
        stream.take_snapshot()
    stream.samples(features[:8])
    before = used()
    stream.samples(features[:200])
    error = refusal(lambda: [stream.samples(features[:100]) for _ in range(5)])
    assert (error["quota"], error["used"]) == ("bytes", used())
    assert used() > before
    refusal(stream.take_snapshot)
    refusal(lambda: client.stream("a/1").create(NAMES, prototypes))
    assert len(stream.samples(features[:100], learn=False)) == 100  # stores nothing
    tenants.client("b/").stream("b/0").create(NAMES, prototypes)
    stream.delete()
    client.stream("a/1").create(NAMES, prototypes)


def test_keys_and_labels_are_counted_as_they_are_stored(tenants, problem):
    features, prototypes = problem
    client = tenants.client("a/", bytes=500_000)
    stream = client.stream("a/0")
    stream.create(NAMES, prototypes, keep_snapshots=2, retain=8)

    def used() -> int:
        known = tenants.running.service.streams["a/0"]
        assert known.stored is not None
        assert known.stored + known.grown == tenants.running.store.stored_bytes(known.record)
        return known.stored + known.grown

    for _ in range(2):  # before the first, nothing is measured
        stream.samples(features[:20], keys=[f"{'k' * 150}{row}" for row in range(20)])
    assert used() > 20 * (2 * 150 + 64)
    before = used()
    stream.label({1: "a", 2: "b"})
    assert used() == before + 2 * features[0].nbytes
    for _ in range(3):
        stream.take_snapshot()
        stream.samples(features[:20])
    assert used() < before + 60 * 150 + 40_000

    wrong = json.dumps({"features": [[0.0] * 16] * 1000}).encode()  # nothing is learned, and the answers are kept
    headers = {"Content-Type": "application/json"}

    def send() -> None:
        for number in range(20):
            client.request("POST", "/v1/streams/a/0/samples", wrong, {**headers, "Idempotency-Key": f"r{number}"})

    assert refusal(send)["used"] == used() > 500_000


def test_large_bodies_are_parsed_in_the_threads_of_their_tenant(tenants, monkeypatch):
    asked, read = [], Service.read

    async def noted(self, function, *arguments):
        if function is from_json:
            asked.append(ASKING.get().prefix)
        return await read(self, function, *arguments)

    monkeypatch.setattr(Service, "read", noted)
    body = b" " * LARGE_BODY + b"{}"
    kind = {"Content-Type": "application/json"}
    assert tenants.client("a/")._send("PUT", "/v1/streams/a/0", body, kind)[0] == 422
    assert asked == ["a/"]


def test_rows_per_second_are_shared_by_the_keys_of_a_prefix(tenants, problem, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("zeroshift.serve.tenants.time", SimpleNamespace(monotonic=lambda: now[0]))
    one, again, other = (tenants.client(prefix, rows=10).stream(f"{prefix}0") for prefix in ("a/", "a/", "b/"))
    one.create(NAMES, problem[1])
    other.create(NAMES, problem[1])
    assert len(one.samples(problem[0][:30])) == 30  # more than a second's: later ones wait for it
    assert refusal(lambda: again.samples(problem[0][:1]))["quota"] == "rows"
    assert len(other.samples(problem[0][:1])) == 1
    now[0] += 2.1
    assert len(again.samples(problem[0][:1])) == 1
    status, _, pause = again.client._send("POST", "/v1/streams/a/0/samples", None, {})
    assert (status, pause) == (422, 0)
    again.samples(problem[0][:20])
    body = json.dumps({"features": problem[0][:1].tolist()}).encode()
    status, _, pause = again.client._send("POST", "/v1/streams/a/0/samples", body, {"Content-Type": "application/json"})
    assert (status, pause) == (429, 2.0)


def test_listeners_and_replays_are_counted_by_prefix(tenants, problem, monkeypatch):
    client = tenants.client("a/", listeners=2, replays=1)
    client.stream("a/0").create(NAMES, problem[1])
    parts = urlsplit(tenants.running.url)
    headers = {"Authorization": f"Bearer {client._key}"}
    listening, answers = [], []
    for path in ("/v1/events", "/v1/streams/a/0/events"):
        listening.append(http.client.HTTPConnection(parts.hostname, parts.port, timeout=PATIENCE))
        listening[-1].request("GET", path, headers=headers)
        answers.append(listening[-1].getresponse())
        assert answers[-1].status == 200
    for path in ("/v1/events", "/v1/streams/a/0/events"):
        assert refusal(lambda path=path: client.request("GET", path))["quota"] == "listeners"
    for one in (*answers, *listening):
        one.close()
    usage = tenants.running.service.usage
    wait_until(lambda: not usage._open["a/", "listeners"], "those who left are still counted")

    entered, proceed = threading.Event(), threading.Event()

    def replay(*_):
        entered.set()
        assert proceed.wait(PATIENCE)
        return {}

    monkeypatch.setattr("zeroshift.serve.stream.Stream.replay", replay)
    thread = threading.Thread(target=tenants.running.client(client._key).stream("a/0").replay, args=("tda",))
    thread.start()
    assert entered.wait(PATIENCE)
    try:
        assert refusal(lambda: client.stream("a/0").replay("tda"))["quota"] == "replays"
    finally:
        proceed.set()
        thread.join()
    assert client.stream("a/0").replay("tda") == {}


def test_no_tenant_keeps_the_reading_threads_to_itself():
    async def run() -> list[str]:
        readers, order = SharedThreads(4, "test"), list[str]()
        proceed = threading.Event()

        def read(name: str) -> None:
            order.append(name)
            assert proceed.wait(PATIENCE)

        many = [asyncio.ensure_future(readers.run("a/", read, f"a{number}")) for number in range(20)]
        await asyncio.sleep(0)
        other = [asyncio.ensure_future(readers.run("b/", read, f"b{number}")) for number in range(3)]
        left = asyncio.ensure_future(readers.run("b/", read, "left"))
        while len(order) < 4:
            await asyncio.sleep(0.001)
        left.cancel()
        proceed.set()
        await asyncio.gather(*many, *other)
        assert readers._free == 4
        assert not readers._busy
        readers.shutdown()
        return order

    order = asyncio.run(run())
    assert sorted(order[:4]) == ["a0", "a1", "b0", "b1"]
    assert "b2" in order[:7]
    assert (len(order), "left" in order) == (23, False)


def test_a_quota_is_given_to_a_key(tmp_path):
    store = str(tmp_path / "store")

    def keys(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "zeroshift", "serve", "keys", *arguments, "--store", store]
        return subprocess.run(command, capture_output=True, text=True)

    assert keys("add", "--scope", "write", "--prefix", "a/", "--quota", "streams=3,bytes=1.5GB").returncode == 0
    assert "streams=3,bytes=1500000000" in keys("list").stdout
    wrong = keys("add", "--scope", "write", "--quota", "disk=3")
    assert (wrong.returncode, "--quota has 'disk=3'" in wrong.stderr) == (2, True)


@pytest.mark.parametrize(
    "text", ["streams", "streams=", "streams=1.5", "streams=-1", "streams=1GB", "bytes=1kb", "x=1"]
)
def test_a_wrong_quota_is_refused(text):
    with pytest.raises(ValueError, match=re.escape(f"--quota has {text!r}")):
        parse_quota(text)


def test_who_asks_sees_the_quota(tenants):
    quota = tenants.client("a/", rows=7).request("GET", "/v1/whoami")["quota"]
    assert quota == {"streams": 100, "bytes": 10**10, "rows": 7, "listeners": 20, "replays": 1}
    assert set(tenants.client("").request("GET", "/v1/whoami")["quota"].values()) == {None}
