"""Who may do what: bad keys, other tenants' streams, scopes, pages of other sites, path tricks, rates."""

from __future__ import annotations

import base64
import http.client
import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest

from serve.running import NAMES, PATIENCE, wait_until
from zeroshift.serve import ServiceError
from zeroshift.serve.keys import add_key
from zeroshift.serve.service import Limits


def send(url, method, path, headers=None, body=None):
    """A request with exactly this address and these headers."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=20)
    try:
        connection.putrequest(method, path, skip_host="Host" in (headers or {}), skip_accept_encoding=True)
        for name, value in (headers or {}).items():
            connection.putheader(name, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        text = answer.read()
        is_json = answer.headers.get_content_type() == "application/json"
        return answer.status, json.loads(text) if is_json else text
    finally:
        connection.close()


@pytest.fixture
def guarded(run_service, problem):
    """A service with keys, and a stream of each of two tenants."""
    running = run_service(auth=True)
    running.keys = {scope: add_key(running.store, scope, "team-a/") for scope in ("read", "write", "admin")}
    running.keys["root"] = add_key(running.store, "admin")
    for name in ("team-a/cam", "team-b/cam"):
        running.client(running.keys["root"]).stream(name).create(NAMES, problem[1])
        running.client(running.keys["root"]).stream(name).samples(problem[0][:8])
    return running


def test_bad_keys_are_refused(guarded):
    good = guarded.keys["read"]
    number, secret = good.split("_", 2)[1:]
    bad = [
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Basic {good}",
        good,
        f"Bearer {good}x",
        f"Bearer {good[:-1]}",
        f"Bearer x{good}",
        f"Bearer zs_{number}_",
        f"Bearer zs__{secret}",
        f"Bearer zs_{number}",
        f"Bearer zs_{number}_{secret[::-1]}",
        f"Bearer zs_ffffffff_{secret}",
        "Bearer " + "a" * 8000,
        "Bearer zs_\xff\xfe_x",
        f"Bearer {good} {good}",
        "Bearer ' OR 1=1 --",
        "Bearer zs_%00_x",
        "Basic " + base64.b64encode(f"x:{good}".encode()).decode(),
    ]
    for path in (
        "/v1/streams",
        "/v1/streams/team-a/cam",
        "/metrics",
        "/v1/whoami",
        "/v1/events",
        "/v2/models/team-a/cam",
    ):
        for value in bad:
            headers = {} if value is None else {"Authorization": value}
            status, content = send(guarded.url, "GET", path, headers)
            assert status == 401, (path, value)
            assert secret not in str(content)
    assert send(guarded.url, "GET", "/v1/streams", {"Authorization": f"bearer  {good} "})[0] == 200
    for path in ("/health/live", "/health/ready", "/v2/health/live"):
        assert send(guarded.url, "GET", path)[0] == 200


def test_the_secret_is_not_on_the_disk(guarded):
    for key in guarded.keys.values():
        secret = key.split("_", 2)[2].encode()
        for path in Path(guarded.location).rglob("*"):
            assert not path.is_file() or secret not in path.read_bytes()
    assert (Path(guarded.location) / "keys.json").stat().st_mode & 0o077 == 0


STREAM_CALLS = [
    ("GET", "/v1/streams/{}", None, "read"),
    ("GET", "/v1/streams/{}/samples", None, "read"),
    ("GET", "/v1/streams/{}/statistics", None, "read"),
    ("GET", "/v1/streams/{}/disagreements", None, "read"),
    ("GET", "/v1/streams/{}/thumbnails/1", None, "read"),
    ("GET", "/v1/streams/{}/snapshots", None, "read"),
    ("GET", "/v1/streams/{}/events", None, "read"),
    ("POST", "/v1/streams/{}/replay", {"method": "tda"}, "read"),
    ("GET", "/v2/models/{}", None, "read"),
    ("GET", "/v2/models/{}/ready", None, "read"),
    ("GET", "/v2/models/{}/versions/0", None, "read"),
    ("GET", "/v2/models/{}/versions/0/ready", None, "read"),
    ("PUT", "/v1/streams/{}", {"classes": ["a"], "prototypes": [[1.0]]}, "write"),
    ("POST", "/v1/streams/{}/samples", {"features": [[1.0]]}, "write"),
    ("POST", "/v1/streams/{}/snapshots", None, "write"),
    ("POST", "/v1/streams/{}/labels", {"labels": [{"seq": 1, "label": "a"}]}, "write"),
    (
        "POST",
        "/v2/models/{}/infer",
        {"inputs": [{"name": "f", "shape": [1, 1], "datatype": "FP32", "data": [1]}]},
        "write",
    ),
    (
        "POST",
        "/v2/models/{}/versions/0/infer",
        {"inputs": [{"name": "f", "shape": [1, 1], "datatype": "FP32", "data": [1]}]},
        "write",
    ),
    ("POST", "/label-studio/{}/predict", {"tasks": []}, "write"),
    ("POST", "/label-studio/{}/setup", {}, "write"),
    ("POST", "/label-studio/{}/webhook", {"action": "x"}, "write"),
    ("POST", "/predict?stream={}", {"tasks": []}, "write"),
    ("POST", "/setup?stream={}", {}, "write"),
    ("POST", "/webhook?stream={}", {"action": "x"}, "write"),
    ("POST", "/v1/streams/{}/rollback", {"snapshot": 1}, "admin"),
    ("POST", "/v1/streams/{}/relearn", None, "admin"),
    ("POST", "/v1/streams/{}/drift/reset", None, "admin"),
    ("DELETE", "/v1/streams/{}", None, "admin"),
]


def test_every_route_of_a_stream_is_in_the_list(guarded):
    """So that a new one is tested for scopes and tenants, too."""
    paths = send(guarded.url, "GET", "/openapi.json")[1]["paths"]
    known = {(method, path.partition("?")[0].replace("{}", "{stream_id}")) for method, path, *_ in STREAM_CALLS}
    known = {
        (m, p.replace("/thumbnails/1", "/thumbnails/{seq}").replace("/versions/0", "/versions/{version}"))
        for m, p in known
    }
    found = {
        (method.upper(), path)
        for path, methods in paths.items()
        for method in methods
        if "{stream_id}" in path or path in ("/predict", "/setup", "/webhook")
    }
    assert found - known == {("GET", "/label-studio/{stream_id}/health")}  # says that the service runs
    assert known <= found


@pytest.mark.parametrize(("method", "path", "body", "scope"), STREAM_CALLS)
def test_scopes_and_tenants(guarded, method, path, body, scope):
    scopes = ("read", "write", "admin")
    content = None if body is None else json.dumps(body).encode()

    def ask(key, name):
        headers = {"Authorization": f"Bearer {guarded.keys[key]}", "Content-Type": "application/json"}
        return send(guarded.url, method, path.format(name), headers, content)

    for key in scopes[: scopes.index(scope)]:
        status, answer = ask(key, "team-a/cam")
        assert status == 403
        message = answer["error"] if path.startswith("/v2") else answer["error"]["message"]
        assert scope in message
    for name in ("team-b/cam", "team-b/none", "team-a", "team-ab/cam", "other"):
        there, absent = ask("admin", name), ask("admin", name + "-none")
        assert there[0] == absent[0] == 403  # existing or not: the same answer
        assert there == absent
    if not path.endswith("/events"):
        assert ask(scope, "team-a/cam")[0] not in (401, 403)


def test_lists_show_only_the_own_streams(guarded):
    client = guarded.client(guarded.keys["read"])
    assert [one["id"] for one in client.streams()] == ["team-a/cam"]
    with pytest.raises(ServiceError) as refused:
        client.request("GET", "/metrics")
    assert refused.value.status == 403
    parts = urlsplit(guarded.url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=20)
    connection.request("GET", "/v1/events", headers={"Authorization": f"Bearer {guarded.keys['read']}"})
    answer = connection.getresponse()
    lines = [answer.readline().decode() for _ in range(3)]
    connection.close()
    assert [one["id"] for one in json.loads(lines[2][6:])["streams"]] == ["team-a/cam"]


def test_a_removed_key_is_refused_after_two_seconds(guarded):
    from zeroshift.serve.keys import remove_key

    client = guarded.client(guarded.keys["read"])
    client.streams()
    remove_key(guarded.store, guarded.keys["read"].split("_")[1])
    guarded.service.keys._read_at = float("-inf")  # as if two seconds had passed
    with pytest.raises(ServiceError) as refused:
        client.streams()
    assert refused.value.status == 401


@pytest.mark.parametrize("path", ["/v1/events", "/v1/streams/team-a/cam/events"])
def test_an_event_stream_ends_when_its_key_is_removed(guarded, monkeypatch, path):
    from zeroshift.serve.keys import remove_key

    monkeypatch.setattr("zeroshift.serve.keys.REREAD_SECONDS", 0.05)
    monkeypatch.setattr("zeroshift.serve.app.HEARTBEAT_SECONDS", 0.05)
    connections = []
    for scope in ("read", "write"):
        parts = urlsplit(guarded.url)
        connections.append(http.client.HTTPConnection(parts.hostname, parts.port, timeout=PATIENCE))
        connections[-1].request("GET", path, headers={"Authorization": f"Bearer {guarded.keys[scope]}"})
    ended, other = (one.getresponse() for one in connections)
    assert ended.readline() == other.readline() == b"event: hello\n"
    remove_key(guarded.store, guarded.keys["read"].split("_")[1])
    wait_until(lambda: ended.readline() == b"", "the event stream goes on")
    line = other.readline()
    while not line.startswith(b": heartbeat"):
        line = other.readline()
    keys = Path(guarded.location) / "keys.json"
    keys.write_text("[{")  # nobody can tell who may listen
    wait_until(lambda: other.readline() == b"", "the event stream goes on")
    for one in connections:
        one.close()


def test_a_key_that_may_write_replaces_no_snapshot_of_the_operator(location, run_service, problem):
    running = run_service(location, auth=True)
    writer, admin = (running.client(add_key(running.store, scope)).stream("cam-1") for scope in ("write", "admin"))
    writer.create(NAMES, problem[1], keep_snapshots=3)
    writer.samples(problem[0][:8])
    target = writer.take_snapshot()
    admin.rollback(target["id"])
    taken = admin.take_snapshot()
    assert (target["kept"], taken["kept"]) == (False, True)
    for _ in range(10):
        writer.take_snapshot()
    left = {one["id"]: one["kept"] for one in writer.snapshots()}
    assert left[target["id"]]
    assert left[taken["id"]]
    assert sum(not kept for kept in left.values()) == 3
    assert admin.rollback(target["id"])["epoch"] == 2
    for _ in range(4):
        last = admin.take_snapshot()  # the operator replaces own ones
    left = [one["id"] for one in admin.snapshots() if one["kept"]]
    assert (len(left), left[0]) == (3, last["id"])


def test_a_control_character_is_no_part_of_an_id(guarded):
    headers = {"Authorization": f"Bearer {guarded.keys['admin']}", "Content-Type": "application/json"}
    for method, path in (
        ("DELETE", "/v1/streams/team-a/cam%0a"),
        ("GET", "/v1/streams/team-a/cam%0a"),
        ("POST", "/v1/streams/team-a/cam/snapshots%0a"),
        ("GET", "/v2/models/team-a/cam%0a"),
        ("GET", "/health/live%0a"),
    ):
        assert send(guarded.url, method, path, headers)[0] == 400, path
    assert send(guarded.url, "GET", "/v1/streams/team-a/cam", headers)[0] == 200


def test_names_of_keys_are_one_line(guarded):
    for wrong in ({"name": "a\nb"}, {"prefix": "a\x1b/"}):
        with pytest.raises(ValueError, match="must have printable characters"):
            add_key(guarded.store, "read", **wrong)
    guarded.store.change_access_keys(lambda keys: [{**key, "name": "x\nffffffff  admin"} for key in keys])  # an old one
    command = [sys.executable, "-m", "zeroshift", "serve", "keys", "list", "--store", guarded.location]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(lines) == len(guarded.keys)


@pytest.mark.parametrize("kind", [None, "application/x-www-form-urlencoded"])  # the second one is what curl sends
def test_a_missing_content_type_is_named(running, kind):
    headers = {} if kind is None else {"Content-Type": kind}
    body = b'{"classes": ["a", "b"], "prototypes": [[1, 0], [0, 1]]}'
    status, answer = send(running.url, "PUT", "/v1/streams/cam-1", headers, body)
    assert (status, answer["error"]["code"]) == (415, "unsupported_type")
    assert "Fix: Content-Type: application/json" in answer["error"]["message"]
    assert send(running.url, "PUT", "/v1/streams/cam-1", {"Content-Type": "application/json"}, body)[0] == 201
    status, answer = send(running.url, "POST", "/v1/streams/cam-1/samples", headers, b"\x93NUMPY")
    assert status in (415, 422)
    assert "application/x-npy" in answer["error"]["message"]


def test_label_studio_sends_the_key_as_a_password(guarded):
    password = base64.b64encode(f"label-studio:{guarded.keys['write']}".encode()).decode()
    headers = {"Authorization": f"Basic {password}", "Content-Type": "application/json"}
    assert send(guarded.url, "POST", "/label-studio/team-a/cam/setup", headers, b"{}")[0] == 200
    assert send(guarded.url, "POST", "/label-studio/team-b/cam/setup", headers, b"{}")[0] == 403
    assert send(guarded.url, "POST", "/v1/streams/team-a/cam/snapshots", headers)[0] == 401  # only there
    for wrong in ("Basic !!", "Basic " + base64.b64encode(b"\xff:\xff").decode(), "Basic "):
        headers["Authorization"] = wrong
        assert send(guarded.url, "POST", "/label-studio/team-a/cam/setup", headers, b"{}")[0] == 401


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1", "file://", "http://[", ""])
def test_pages_of_other_sites_are_refused(running, problem, origin):
    """What such a page can make a browser send without asking first: GET, and POST of a form or a text."""
    running.client().stream("cam-1").create(NAMES, problem[1])
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        for path in ("snapshots", "relearn", "drift/reset", "rollback", "samples"):
            headers = {"Origin": origin, "Content-Type": kind}
            status, answer = send(running.url, "POST", f"/v1/streams/cam-1/{path}", headers, b"")
            assert (status, answer["error"]["code"]) == (403, "other_origin")
    assert running.client().stream("cam-1").snapshots() == []
    own = {"Origin": running.url, "Content-Type": "application/json"}
    assert send(running.url, "POST", "/v1/streams/cam-1/snapshots", own)[0] == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "localhost.evil.example"]
)
def test_without_keys_only_this_machine_is_answered(running, host):
    """A name of another site that leads to this machine (DNS rebinding)."""
    status, _ = send(running.url, "GET", "/v1/streams", {"Host": host})
    assert status in (400, 403)
    for good in ("127.0.0.1", "localhost", "LOCALHOST:8000", "[::1]:1"):
        assert send(running.url, "GET", "/v1/streams", {"Host": good})[0] == 200


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "..%2f..%2fetc%2fpasswd",
        "%2e%2e/%2e%2e/store.sqlite",
        "a/../../b",
        "a/./b",
        "a//b",
        "/a",
        "a/",
        ".a",
        "-a",
        "a%00b",
        "a%0ab",
        "a%20b",
        "a;b",
        "a'b",
        "a\\b",
        "CON:",
        "a*b",
        "%ff%fe",
        "%F0%9F%92%A9",
        "a" * 65,
        "a/b/c/d/e",
        "_canary",
        "samples",
        "a/rollback",
        "a/events/b",
        "a" * 5000,
        "a?x",
        "%2Fa",
        "{stream_id}",
        "snapshots/store.sqlite",
        "%c0%ae%c0%ae/x",
        "a%2fsamples",
    ],
)
def test_ids_are_data_and_no_paths(running, problem, name):
    before = sorted(path.name for path in Path(running.location).rglob("*"))
    body = json.dumps({"classes": list(NAMES), "prototypes": problem[1].tolist()}).encode()
    status, answer = send(running.url, "PUT", f"/v1/streams/{name}", {"Content-Type": "application/json"}, body)
    if name == "a?x":
        assert status == 201  # what follows is no part of the id
        return
    assert status in (400, 404, 405, 422), answer
    for path in (f"/v1/streams/{name}", f"/v1/streams/{name}/samples", f"/dashboard/{name}", f"/v2/models/{name}"):
        status, answer = send(running.url, "GET", path)
        assert status in (400, 404, 405, 422), (path, answer)
        assert running.location not in str(answer)
    after = sorted(path.name for path in Path(running.location).rglob("*"))
    assert [one for one in after if not one.endswith((".safetensors", "-shm", "-wal"))] == [
        one for one in before if not one.endswith((".safetensors", "-shm", "-wal"))
    ]


def test_rate_per_key(run_service, monkeypatch):
    now = [1000.0]
    clock = SimpleNamespace(**{**vars(time), "monotonic": lambda: now[0]})
    monkeypatch.setattr("zeroshift.serve.service.time", clock)
    running = run_service(auth=True, limits=Limits(rate=5))
    first, second = (add_key(running.store, "admin") for _ in range(2))

    def statuses():
        return [send(running.url, "GET", "/v1/streams", {"Authorization": f"Bearer {first}"})[0] for _ in range(8)]

    assert statuses() == [200] * 5 + [429] * 3
    now[0] += 0.5
    assert statuses() == [200] * 2 + [429] * 6
    with pytest.raises(ServiceError) as refused:
        running.client(first).streams()
    assert refused.value.code == "rate_limited"
    assert send(running.url, "GET", "/v1/streams", {"Authorization": f"Bearer {second}"})[0] == 200
    clock.monotonic = lambda: 1000.5 + time.monotonic() - began
    began = time.monotonic()
    assert running.client(first, retry=PATIENCE).streams() == []  # the client waits and repeats


def test_limits_of_streams(run_service, problem):
    running = run_service(limits=Limits(streams=2, classes=5, dimension=16, samples=8, body_bytes=100_000))
    client, prototypes = running.client(), problem[1]
    client.stream("one").create(NAMES, prototypes)
    client.stream("two").create(NAMES, prototypes)
    cases = [
        (lambda: client.stream("three").create(NAMES, prototypes), 429, "too_many_streams"),
        (lambda: client.stream("x").create([*NAMES, "f"], prototypes), 422, "too_many_classes"),
        (lambda: client.stream("x").create(NAMES, [[1.0] + [0.0] * 16] * 5), 422, "invalid_prototypes"),
        (lambda: client.stream("one").samples(problem[0][:9]), 413, "too_many_samples"),
        (lambda: client.request("POST", "/v1/streams/one/samples", b"x" * 100_001), 413, "too_large"),
    ]
    for call, status, code in cases:
        with pytest.raises(ServiceError) as refused:
            call()
        assert (refused.value.status, refused.value.code) == (status, code)
    client.stream("two").delete()
    client.stream("three").create(NAMES, prototypes)
