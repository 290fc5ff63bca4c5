"""Images, bodies and connections that are meant to do harm: refused, and the service answers others meanwhile."""

from __future__ import annotations

import base64
import io
import json
import pickle
import socket
import struct
import time
import urllib.request
import zipfile
import zlib
from types import SimpleNamespace
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

from serve.running import NAMES, PATIENCE, wait_until
from serve.test_access import send
from zeroshift.serve import ServiceError
from zeroshift.serve.service import Limits


@pytest.fixture
def encoder(problem):
    """The first pixel selects one of the features."""
    return SimpleNamespace(
        dimension=16,
        logit_scale=5.0,
        preprocessing=lambda image: (np.array(image.convert("RGB").getpixel((0, 0))[0]),),
        encode_pixels=lambda pixels: problem[0][pixels[0]],
    )


@pytest.fixture
def seeing(run_service, encoder, problem):
    running = run_service(encoder=encoder, limits=Limits(pixels=1_000_000, body_bytes=2_000_000))
    running.client().stream("cam-1").create(
        NAMES, problem[1], logit_scale=5.0, thumbnails={"count": 5, "bytes": 10_000}
    )
    return running


def picture(kind: str = "PNG", size=(8, 8), value=7) -> bytes:
    written = io.BytesIO()
    Image.new("RGB", size, (value, 20, 30)).save(written, kind)
    return written.getvalue()


def png_of(width: int, height: int, content: bytes) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", content) + chunk(b"IEND", b"")


def zipped(content: bytes) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as file:
        file.writestr("x", content)
    return written.getvalue()


HOSTILE_IMAGES = {
    "empty": b"",
    "text": b"hello",
    "truncated png": picture()[:40],
    "truncated jpeg": picture("JPEG", (64, 64))[:300],
    "bomb: a header with 60,000 x 60,000 pixels": png_of(60_000, 60_000, zlib.compress(b"\0" * 1000)),
    "bomb: more pixels than allowed": png_of(1500, 1500, zlib.compress(b"\0" * 1500 * 4501, 9)),
    "bomb: 10,000 x 10,000 that compress well": png_of(10_000, 10_000, zlib.compress(b"\0" * 10_000_000, 9)),
    "no pixels": png_of(0, 5, zlib.compress(b"")),
    "text chunk that becomes large": picture()[:33] + struct.pack(">I", 8) + b"zTXt" + b"a\0\0" + b"12345" + b"\0" * 4,
    "svg": b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>",
    "eps, which runs a program": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    "pickle": pickle.dumps({"a": 1}),
    "zip": zipped(b"x" * 1000),
    "gif without frames": b"GIF89a\x01\x00\x01\x00\x00\x00\x00;",
    "tiff with a wrong offset": b"II*\0\xff\xff\xff\x7f",
    "bmp with a negative size": b"BM" + b"\0" * 12 + struct.pack("<IiiHHIIiiII", 40, -5, -5, 1, 24, 0, 0, 0, 0, 0, 0),
    "webp header only": b"RIFF\x04\x00\x00\x00WEBP",
    "noise": np.random.default_rng(0).bytes(5000),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", list(HOSTILE_IMAGES))
def test_a_hostile_image_fails_alone(seeing, name):
    stream = seeing.client().stream("cam-1")
    results = stream.samples([picture(), HOSTILE_IMAGES[name], picture(value=9)])
    assert [one.get("seq") for one in results] == [1, None, 2]
    assert results[1]["error"]["code"] == "invalid_image"
    assert results[1]["error"]["row"] == 1
    assert len(results[1]["error"]["message"]) < 500
    encoded = [base64.b64encode(one).decode() for one in (HOSTILE_IMAGES[name], picture())]
    body = json.dumps({"images": encoded}).encode()
    status, answer = send(seeing.url, "POST", "/v1/streams/cam-1/samples", {"Content-Type": "application/json"}, body)
    assert status == 200
    assert ["error" in one for one in answer["results"]] == [True, False]


@pytest.mark.parametrize("what", ["features", "images"])
def test_many_long_keys_are_sent_in_the_body(seeing, problem, what, monkeypatch):
    """A header of 20,000 characters is refused unless it arrives in one piece."""
    client = seeing.client()
    stream, sent = client.stream("cam-1"), []
    real = client._send
    monkeypatch.setattr(client, "_send", lambda *given: (sent.append(given[3]), real(*given))[1])
    samples = problem[0][:100] if what == "features" else [picture(value=value) for value in range(100)]
    keys = [f"{'x' * 190}é{number:03}" for number in range(100)]
    results = stream.samples(samples, keys=keys)
    assert [one["key"] for one in results] == keys
    assert sum(len(value) for value in sent[0].values()) < 8000
    few = stream.samples(samples[:3], keys=keys[:3])
    assert few == [{**one, "replayed": True} for one in results[:3]]


def test_a_polyglot_is_only_an_image(seeing):
    """Files that are also something else are decoded as images, and come back as new JPEGs only."""
    html = b"<script>alert(1)</script>"
    stream = seeing.client().stream("cam-1")
    files = [picture("GIF") + html, picture("JPEG") + zipped(html), picture(value=9) + html]
    for one in files:
        (result,) = stream.samples([one])
        assert result["seq"]
    for row in stream.log():
        status, content = send(seeing.url, "GET", f"/v1/streams/cam-1/thumbnails/{row['seq']}")
        assert status in (200, 404)
        assert b"script" not in (content if isinstance(content, bytes) else b"")


def test_base64_that_is_none_and_wrong_types(seeing):
    for images in ("x", {"a": 1}, [1], [None], ["%%%"], ["data:image/png;base64,%%%"], [["x"]], ["a" * 3]):
        body = json.dumps({"images": images}).encode()
        status, answer = send(
            seeing.url, "POST", "/v1/streams/cam-1/samples", {"Content-Type": "application/json"}, body
        )
        assert status == 422 or all("error" in one for one in answer["results"])


HOSTILE_BODIES = [
    (b"", "application/json"),
    (b"{", "application/json"),
    (b"[" * 100_000, "application/json"),
    (b'{"features": ' + b"[" * 5000 + b"]" * 5000 + b"}", "application/json"),
    (b'{"features": [[' + b"9" * 5000 + b"]]}", "application/json"),
    (b'{"features": [[1e999, NaN, -Infinity]]}', "application/json"),
    (b'{"features": [["\\ud800"]]}', "application/json"),
    (b'{"features": [[1.0]], "keys": ["\\ud800"]}', "application/json"),
    (b'{"features": [[true]]}', "application/json"),
    (b'{"features": {}, "__proto__": 1}', "application/json"),
    (b"\xff\xfe{}", "application/json"),
    (b"null", "application/json"),
    (b'"x"', "application/json"),
    (b"\x93NUMPY", "application/x-npy"),
    (b"\x93NUMPY\x01\x00\xff\xff{", "application/x-npy"),
    (
        b"\x93NUMPY\x01\x00\x46\x00{'descr': '|O', 'fortran_order': False, 'shape': (1, 1)}".ljust(80)
        + b"\n"
        + b"x" * 8,
        "application/x-npy",
    ),
    (
        b"\x93NUMPY\x01\x00\x56\x00{'descr': '<f4', 'fortran_order': False, 'shape': (99999999, 99999999)}".ljust(96)
        + b"\n",
        "application/x-npy",
    ),
    (pickle.dumps([1.0]), "application/x-npy"),
    (pickle.dumps([1.0]), "application/octet-stream"),
    (struct.pack("<Q", 2**63) + b"{}", "application/x-safetensors"),
    (b"\0" * 7, "application/x-safetensors"),
    (
        struct.pack("<Q", 60) + b'{"features":{"dtype":"F32","shape":[9,9],"data_offsets":[0,9]}}',
        "application/x-safetensors",
    ),
    (b"--x", "multipart/form-data; boundary=x"),
    (b"", "multipart/form-data"),
    (b"x", "multipart/form-data; boundary="),
    (
        b'--x\r\nContent-Disposition: form-data; name="../../x"; filename="/etc/passwd"\r\n\r\n\r\n--x--\r\n',
        "multipart/form-data; boundary=x",
    ),
    (b"--x\r\n" * 20_000, "multipart/form-data; boundary=x"),
    (b"x", "application/x-python-pickle"),
    (b"x", "a" * 5000),
    (b"x", "image/svg+xml"),
    (b"<a/>", "text/xml"),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", range(len(HOSTILE_BODIES)))
def test_hostile_bodies_are_refused(seeing, number):
    body, kind = HOSTILE_BODIES[number]
    for path in (
        "/v1/streams/cam-1/samples",
        "/v2/models/cam-1/infer",
        "/label-studio/cam-1/predict",
        "/v1/streams/cam-1/labels",
        "/v1/streams/cam-1/replay",
    ):
        status, answer = send(seeing.url, "POST", path, {"Content-Type": kind}, body)
        if status == 200:  # an image that cannot be read is an answer
            assert all("error" in one for one in answer["results"])
        assert status in (200, 400, 413, 415, 422), (path, answer)
        assert "Traceback" not in str(answer)
        assert seeing.location not in str(answer)
    assert seeing.client().stream("cam-1").describe()["n_seen"] == 0


@pytest.mark.parametrize(
    "headers",
    [
        {"Idempotency-Key": ""},
        {"Idempotency-Key": "a" * 201},
        {"Idempotency-Key": "a\x7fb"},
        {"Idempotency-Key": "\xff"},
        {"Sample-Keys": "["},
        {"Sample-Keys": "[1]"},
        {"Sample-Keys": "a,b,c"},
        {"Sample-Keys": "{}"},
        {"Sample-Keys": "[" * 10_000},
        {"Sample-Keys": '["\\ud800"]'},
        {"Content-Encoding": "gzip"},
        {"Expect": "100-continue"},
        {"X": "a" * 30_000},
        {"Content-Type": "application/x-npy; a=" + "b" * 10_000},
    ],
)
def test_hostile_headers(seeing, problem, headers):
    written = io.BytesIO()
    np.save(written, problem[0][:1])
    given = {"Content-Type": "application/x-npy", **headers}
    status, answer = send(seeing.url, "POST", "/v1/streams/cam-1/samples", given, written.getvalue())
    assert status in (200, 400, 422, 431), answer
    if status == 200 and "Idempotency-Key" in headers:
        assert headers["Idempotency-Key"] == "\xff"  # a letter of Latin-1


# Connections


def connect(running) -> socket.socket:
    parts = urlsplit(running.url)
    return socket.create_connection((parts.hostname, parts.port), timeout=PATIENCE)


def said_at_the_end(connection: socket.socket) -> bytes:
    """What the service says before it ends the connection; TimeoutError if it does not end it."""
    received = b""
    try:
        while part := connection.recv(4096):
            received += part
    except ConnectionResetError:
        pass
    return received


@pytest.fixture
def strict(run_service, problem):
    running = run_service(limits=Limits(header_seconds=0.5, body_seconds=0.7, connections=40))
    patient(running).create(NAMES, problem[1])
    return running


def patient(running):
    """The stream for a client that repeats what a strict service did not get in time on a busy machine."""
    return running.client(retry=PATIENCE).stream("cam-1")


POST = b"POST /v1/streams/cam-1/samples HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def test_slow_and_half_sent_requests_end(strict, problem):
    cases = {
        "nothing": b"",
        "half a line": b"GET /v1",
        "half of the headers": POST + b"X-A: b\r\n",
        "half a body": POST + b"Content-Length: 100\r\n\r\n{",
        "no body": POST + b"Content-Length: 100\r\n\r\n",
        "half a chunk": POST + b"Transfer-Encoding: chunked\r\n\r\n50\r\nabc",
    }
    opened = {name: connect(strict) for name in cases}
    for name, connection in opened.items():
        connection.sendall(cases[name])
    assert patient(strict).samples(problem[0][:4])[0]["seq"] == 1  # others are answered
    for name, connection in opened.items():
        received = said_at_the_end(connection)
        connection.close()
        if "bod" in name or "chunk" in name:
            assert received.startswith(b"HTTP/1.1 408"), (name, received)
    assert patient(strict).describe()["n_seen"] == 4


def test_slow_loris(strict, problem):
    """One header byte at a time does not keep a connection open; others are answered meanwhile."""
    connection = connect(strict)

    def send_slowly() -> None:
        for byte in POST + b"X-Slow: " + b"a" * 10_000:  # its end would come after minutes
            connection.sendall(bytes([byte]))
            time.sleep(0.02)

    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        send_slowly()
    connection.close()
    assert patient(strict).samples(problem[0][:1])[0]["seq"] == 1


def test_a_client_that_leaves_changes_nothing_for_others(strict, problem):
    body = json.dumps({"features": problem[0][:8].tolist(), "keys": [f"k{i}" for i in range(8)]}).encode()
    for _ in range(5):
        connection = connect(strict)
        connection.sendall(POST + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        connection.close()  # without reading the answer
    stream = patient(strict)
    results = stream.samples(problem[0][:8], keys=[f"k{i}" for i in range(8)])
    assert [one["seq"] for one in results] == list(range(1, 9))
    assert stream.describe()["n_seen"] == 8


@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET  /\r\n\r\n",
        b"\r\n" * 10_000,
        POST + b"Content-Length: -1\r\n\r\n",
        POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHo st: a\r\n\r\n",
        b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET http://evil.example/v1/streams HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_malformed_requests(strict, raw):
    connection = connect(strict)
    try:
        connection.sendall(raw)
        connection.shutdown(socket.SHUT_WR)
        received = said_at_the_end(connection)
    except (BrokenPipeError, ConnectionResetError):
        received = b""
    connection.close()
    status = received.split(b" ")[1] if received else b"none"
    assert not status.startswith(b"5"), received
    assert strict.client(retry=PATIENCE).request("GET", "/health/live")["status"] == "live"


@pytest.mark.parametrize(
    "path", ["/v1/streams/cam-1/samples", "/v1/streams/cam-1/labels", "/v2/models/cam-1/infer", "/x"]
)
def test_nothing_is_read_from_somebody_unknown(run_service, path):
    """The answer does not wait for the body."""
    running = run_service(auth=True, limits=Limits(body_seconds=PATIENCE))
    connection = connect(running)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n"
    connection.sendall(head.encode())
    received = said_at_the_end(connection)
    connection.close()
    assert received.startswith(b"HTTP/1.1 401")
    error = json.loads(received.partition(b"\r\n\r\n")[2])["error"]
    assert isinstance(error, str if path.startswith("/v2") else dict)


def test_thumbnails_are_bounded_without_snapshots(seeing, problem):
    stream = seeing.client().stream("cam-2")
    stream.create(NAMES, problem[1], logit_scale=5.0, thumbnails={"count": 2, "bytes": 100_000})
    for start in range(0, 240, 40):
        stream.samples([picture(value=value) for value in range(start, start + 40)])
    store, record = seeing.store, seeing.service.streams["cam-2"].record
    assert stream.snapshots() == []
    shown = [one["seq"] for one in stream.statistics()["disagreements"]]
    assert len(shown) > 2
    assert [seq for seq, _ in store.thumbnails(record)] == shown[:2]


def test_a_stream_that_is_made_again_has_its_own_thumbnails(seeing, problem):
    """A browser keeps them by address."""
    stream, addresses = seeing.client().stream("cam-2"), []
    for _ in range(2):
        stream.create(NAMES, problem[1], logit_scale=5.0, thumbnails={"count": 5, "bytes": 100_000})
        for start in range(0, 240, 40):
            stream.samples([picture(value=value) for value in range(start, start + 40)])
        addresses.append([one["thumbnail"] for one in stream.statistics()["disagreements"] if one["thumbnail"]])
        for address, kept in ((addresses[-1][0], True), (addresses[0][0], len(addresses) == 1)):
            with urllib.request.urlopen(seeing.url + address) as answer:
                assert ("max-age" in answer.headers["Cache-Control"]) is kept
        stream.delete()
    assert not set(addresses[0]) & set(addresses[1])


def test_a_body_without_end_is_cut(run_service, problem):
    """Chunks without a length are counted while they arrive."""
    running = run_service(limits=Limits(body_bytes=100_000))
    running.client().stream("cam-1").create(NAMES, problem[1])
    connection = connect(running)
    connection.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n")
    received = b""
    try:
        for _ in range(1000):
            connection.sendall(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
    except (BrokenPipeError, ConnectionResetError):
        pass
    else:
        pytest.fail("16 MB were taken")
    try:
        received = connection.recv(4096)
    except ConnectionResetError:
        received = b""
    connection.close()
    assert not received or received.startswith(b"HTTP/1.1 413")


def test_all_bodies_together_are_limited(run_service, problem):
    running = run_service(limits=Limits(received_bytes=8 * 150_000, body_seconds=PATIENCE))
    running.client().stream("cam-1").create(NAMES, problem[1])
    first = connect(running)
    first.sendall(POST + b"Content-Length: 120000\r\n\r\n" + b" " * 110_000)
    wait_until(lambda: running.service.receiving >= 8 * 110_000)  # a byte of JSON counts eight times
    body = json.dumps({"features": problem[0][:200].tolist()}).encode()
    with pytest.raises(ServiceError) as refused:
        running.client().request("POST", "/v1/streams/cam-1/samples", body, {"Content-Type": "application/json"})
    assert (refused.value.status, refused.value.code) == (429, "busy")
    first.close()
    client, kind = running.client(retry=PATIENCE), {"Content-Type": "application/json"}
    assert client.request("POST", "/v1/streams/cam-1/samples", body, kind)["results"]
    wait_until(lambda: not running.service.receiving)


def test_too_many_connections_are_refused(run_service, problem):
    running = run_service(limits=Limits(header_seconds=PATIENCE, body_seconds=0.7, connections=40))
    patient(running).create(NAMES, problem[1])
    opened = [connect(running) for _ in range(60)]
    for one in opened:
        one.sendall(POST + b"Content-Length: 10\r\n\r\n")
    assert any(said_at_the_end(one).startswith(b"HTTP/1.1 503") for one in opened)
    for one in opened:
        one.close()
    assert running.client(retry=PATIENCE).request("GET", "/health/live")["status"] == "live"


def test_images_that_wait_are_limited(run_service, encoder, problem):
    import threading

    gate = threading.Event()
    slow = SimpleNamespace(
        **{**vars(encoder), "preprocessing": lambda image: (gate.wait(PATIENCE), encoder.preprocessing(image))[1]}
    )
    running = run_service(encoder=slow, limits=Limits(queued_images=4))
    running.client().stream("cam-1").create(NAMES, problem[1], logit_scale=5.0)
    results = []
    first = threading.Thread(target=lambda: results.extend(running.client().stream("cam-1").samples([picture()] * 3)))
    first.start()
    wait_until(lambda: running.service.encoder.queued == 3)
    with pytest.raises(ServiceError) as refused:
        running.client().stream("cam-1").samples([picture()] * 2)
    assert (refused.value.status, refused.value.code) == (429, "encoder_busy")
    gate.set()
    first.join(PATIENCE)
    assert [one["seq"] for one in results] == [1, 2, 3]


def test_an_image_that_cannot_be_prepared_fails_alone(run_service, encoder, problem):
    def prepare(image):
        if image.size == (9, 9):
            raise KeyError("unexpected")
        return encoder.preprocessing(image)

    running = run_service(encoder=SimpleNamespace(**{**vars(encoder), "preprocessing": prepare}))
    stream = running.client().stream("cam-1")
    stream.create(NAMES, problem[1], logit_scale=5.0)
    results = stream.samples([picture(), picture(size=(9, 9)), picture()])
    assert [one.get("seq") for one in results] == [1, None, 2]
    assert results[1]["error"]["code"] == "invalid_image"


def test_replays_are_limited(run_service, problem):
    running = run_service(limits=Limits(replays=0))
    stream = running.client().stream("cam-1")
    stream.create(NAMES, problem[1])
    with pytest.raises(ServiceError) as refused:
        stream.replay("tda")
    assert (refused.value.status, refused.value.code) == (429, "busy")
