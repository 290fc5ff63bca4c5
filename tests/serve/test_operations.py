"""Operation: the orderly end, backups, retention, logs, metrics, events, a full disk, clocks, two services."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import zeroshift.serve.records
from serve.running import NAMES, PATIENCE, wait_until
from zeroshift import methods
from zeroshift.methods import create
from zeroshift.serve import ServiceError
from zeroshift.serve.store import open_store
from zeroshift.serve.stream import Stream


def scores(results):
    return [one["predictions"][0]["score"] for one in results]


def rows(problem, start, size=8):
    return problem[0][np.arange(start, start + size) % len(problem[0])]


def expected_scores(problem, count, size=8):
    """The library's; the samples come again when all of them were sent."""
    method = create("anchored_mixture_online", problem[1], logit_scale=20.0)
    parts = [method.adapt(rows(problem, at, size)).max(axis=1) for at in range(0, count, size)]
    return np.concatenate(parts).tolist()


def checked(location) -> list[str]:
    store = open_store(str(location), read_only=True)
    try:
        return list(store.check())
    finally:
        store.close()


def test_sigterm_under_load_answers_what_waits_and_stores_snapshots(start_process, tmp_path, problem):
    features, prototypes = problem
    process = start_process("--store", str(tmp_path / "store"))
    stream = process.client(retry=0.0).stream("cam-1")
    stream.create(NAMES, prototypes, logit_scale=20.0)
    answers = []

    def feed() -> None:
        try:
            for start in range(0, 400, 8):
                answers.extend(stream.samples(features[start : start + 8]))
        except (ServiceError, ConnectionError):
            return

    feeder = threading.Thread(target=feed)
    feeder.start()
    wait_until(lambda: len(answers) >= 40)
    assert process.end() == 0
    feeder.join(PATIENCE)
    store = open_store(str(tmp_path / "store"), read_only=True)
    record = store.find_stream("cam-1")
    assert record.seq == len(answers)  # every request was answered, or was not accepted
    assert store.snapshots(record)[0].seq == record.seq
    assert list(store.check()) == []
    store.close()
    assert scores(answers) == expected_scores(problem, len(answers))
    assert [line["message"] for line in process.log][-1] == "stopped"


def test_products_use_one_thread(start_process, tmp_path, problem):
    process = start_process("--store", str(tmp_path / "store"), environment={"OPENBLAS_NUM_THREADS": "2"})
    stream = process.client().stream("cam-1")
    stream.create(NAMES, problem[1], logit_scale=20.0)
    assert stream.take_snapshot()["environment"]["threads"] == 1


def test_the_log_has_no_payload(start_process, tmp_path, problem):
    features, prototypes = problem
    process = start_process("--store", str(tmp_path / "store"))
    stream = process.client().stream("cam-1")
    stream.create([f"secret-name-{k}" for k in range(5)], prototypes, logit_scale=20.0)
    stream.samples(features[:3], keys=["secret-key-1", "secret-key-2", "secret-key-3"])
    with pytest.raises(ServiceError):
        stream.samples(features[:1, :3], keys=["secret-key-4"])
    assert process.end() == 0
    lines = [json.loads(line) for line in process.lines if line.startswith("{")]
    posted = [line for line in lines if line.get("route") == "/v1/streams/{stream_id:path}/samples"]
    assert [line["status"] for line in posted] == [200, 422]
    assert {"method", "route", "status", "ms", "stream", "key", "samples"} <= set(posted[0])
    assert "secret" not in process.text
    assert f"{float(features[0, 0]):.4f}" not in process.text


def test_metrics_count_what_happened(running, problem):
    features, prototypes = problem
    client = running.client()
    stream = client.stream("cam-1")
    stream.create(NAMES, prototypes, logit_scale=20.0)
    for start in range(0, 96, 32):
        stream.samples(features[start : start + 32], keys=[f"k{start + row}" for row in range(32)])
    stream.samples(features[:32], keys=[f"k{row}" for row in range(32)])  # learned before: counted once
    stream.samples(features[:5], learn=False)
    with pytest.raises(ServiceError):
        stream.samples(features[:1, :3])
    client.ready()  # the canary is not counted
    text = client.request("GET", "/metrics").decode()
    found = {
        (one.name, tuple(sorted(one.labels.items()))): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }
    cam = (("stream", "cam-1"),)
    route = "/v1/streams/{stream_id:path}/samples"
    assert found["zeroshift_samples_total", cam] == 96
    assert found["zeroshift_requests_total", (("route", route), ("status", "200"))] == 5
    assert found["zeroshift_requests_total", (("route", route), ("status", "422"))] == 1
    assert found["zeroshift_request_seconds_count", (("route", route),)] == 6
    assert found["zeroshift_epoch", cam] == 0
    assert found["zeroshift_queue_samples", cam] == 0
    assert found["zeroshift_damaged", cam] == found["zeroshift_differing_answers", cam] == 0
    health = stream.describe()["health"]
    assert found["zeroshift_agreement", cam] == pytest.approx(health["recent"]["agreement"])
    assert not any("_canary" in str(labels) for _, labels in found)
    stream.delete()
    assert 'stream="cam-1"' not in client.request("GET", "/metrics").decode()


def test_events_of_a_stream(running, problem):
    features, prototypes = problem
    stream = running.client().stream("cam-1")
    stream.create(NAMES, prototypes, logit_scale=20.0)
    with urllib.request.urlopen(f"{running.url}/v1/streams/cam-1/events") as events:
        assert events.headers["Content-Type"].startswith("text/event-stream")

        def next_event() -> tuple[str, str, dict]:
            fields = {}
            while "event" not in fields:  # one without it says that the service is still there
                while line := events.readline().decode().rstrip("\n"):
                    name, _, value = line.partition(": ")
                    fields[name] = value
            return fields["event"], fields["id"], json.loads(fields["data"])

        assert next_event() == ("hello", "0", {"seq": 0, "epoch": 0})
        stream.samples(features[:8])
        name, number, content = next_event()
        assert (name, number, content["first"], content["last"]) == ("samples", "8", 1, 8)
        assert content["health"]["n"] == 8
        chosen = stream.take_snapshot()
        assert next_event()[0] == "snapshot"
        stream.rollback(chosen["id"])
        name, _, content = next_event()
        assert (name, content["epoch"]) == ("epoch", 1)
        stream.delete()
        assert next_event()[0] == "deleted"
        assert events.read() == b""


def test_an_event_is_written_once_for_all_who_listen(running, problem, monkeypatch):
    features, prototypes = problem
    stream = running.client().stream("cam-1")
    stream.create(NAMES, prototypes, logit_scale=20.0)
    service, asked = running.service, []
    health = service.health
    monkeypatch.setattr(service, "health", lambda one: (asked.append(one), health(one))[1])
    address = f"{running.url}/v1/streams/cam-1/events"
    listening = [urllib.request.urlopen(address) for _ in range(5)]
    for events in listening:
        assert events.readline() == b"event: hello\n"
    stream.samples(features[:8])

    def sent(events) -> bytes:
        while (line := events.readline()) != b"event: samples\n":
            assert line
        return events.readline() + events.readline()

    assert len({sent(events) for events in listening}) == 1
    assert len(asked) == 1
    for events in listening:
        events.close()


def test_the_log_is_read_in_parts_of_bounded_size(location, run_service, problem, monkeypatch):
    """From every sample on, although a batch has the largest size or one sample."""
    features, prototypes = problem
    running = run_service(location)
    stream = running.client().stream("cam-1")
    stream.create(NAMES, prototypes, logit_scale=20.0)
    sizes = [1, 1, 7, 1, 90, 1]
    for start, size in zip(np.cumsum([0, *sizes]), sizes, strict=False):
        stream.samples(features[start : start + size])
    store, record = running.store, running.service.streams["cam-1"].record
    ends = np.cumsum(sizes).tolist()
    for after in range(101):
        found = [batch.last for batch in store.read_batches(record, after)]
        assert found == [end for end in ends if end > after]
        assert [row["seq"] for row in stream.log(after)] == list(range(after + 1, 102))
    assert len(store._batch_rows(record, 0)) == 6
    monkeypatch.setattr("zeroshift.serve.store.READ_BYTES", 90 * 16 * 4)  # the features of the largest one
    assert [sum(row[1] for row in store._batch_rows(record, after)) for after in (0, 10, 100)] == [10, 90, 1]
    assert [batch.last for batch in store.read_batches(record, 3)] == [9, 10, 100, 101]


def test_a_backup_while_it_runs(run_service, running, problem, tmp_path):
    prototypes = problem[1]
    stream = running.client().stream("cam-1")
    settings = {"logit_scale": 20.0, "snapshot_every": 16, "keep_snapshots": 2, "retain": 32}
    stream.create(NAMES, prototypes, **settings)
    ending, answers = threading.Event(), []

    def feed() -> None:
        while not ending.wait(0.02):
            start = len(answers)
            answers.extend(stream.samples(rows(problem, start), keys=[f"k{start + row}" for row in range(8)]))

    feeder = threading.Thread(target=feed)
    feeder.start()
    wait_until(lambda: answers)
    for number in range(3):
        target = tmp_path / f"backup-{number}"
        command = [sys.executable, "-m", "zeroshift", "serve", "backup", "--store", running.location, "-o", str(target)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("1 streams and ")
        assert checked(target) == []
    ending.set()
    feeder.join(PATIENCE)
    copy = run_service(str(tmp_path / "backup-2"))
    again = copy.client().stream("cam-1")
    seen = again.describe()["n_seen"]
    assert 0 < seen <= len(answers)
    assert seen % 8 == 0
    rest = [scores(again.samples(rows(problem, at))) for at in range(seen, seen + 16, 8)]
    assert rest[0] + rest[1] == expected_scores(problem, seen + 16)[seen:]
    assert copy.service.streams["cam-1"].recovery["differing"] == 0


def test_retention_keeps_what_recovery_needs(location, run_service, problem):
    features, prototypes = problem
    running = run_service(location)
    stream = running.client().stream("cam-1")
    stream.create(NAMES, prototypes, logit_scale=20.0, snapshot_every=16, keep_snapshots=2, retain=24)
    for start in range(0, 400, 8):
        stream.samples(features[start : start + 8], keys=[f"k{start + row}" for row in range(8)])
    stream.samples(features[:1], learn=False)  # waits for the last snapshot, and until older ones are deleted
    rows = list(stream.log())
    assert rows[-1]["seq"] == 400
    assert 24 <= len(rows) <= 24 + 32
    assert len(stream.snapshots()) == 2
    assert stream.samples(features[399:400], keys=["k399"])[0]["replayed"]
    assert not stream.samples(features[:1], keys=["k0"])[0]["replayed"]  # its key was forgotten
    running.service.streams["cam-1"]._since_snapshot = 0  # as if it was killed: no snapshot at the end
    running.stop()
    assert checked(location) == []
    again = run_service(location).client().stream("cam-1")
    method = create("anchored_mixture_online", prototypes, logit_scale=20.0)
    for start in range(0, 400, 8):
        method.adapt(features[start : start + 8])
    method.adapt(features[:1])
    assert scores(again.samples(features[:8])) == method.adapt(features[:8]).max(axis=1).tolist()


def test_a_repeated_request_with_a_sample_that_was_deleted(location, run_service, problem):
    features, prototypes = problem
    running = run_service(location)
    stream = running.client().stream("cam-1")
    stream.create(NAMES, prototypes, logit_scale=20.0, snapshot_every=4, keep_snapshots=2, retain=4)

    def ask(request_key, rows, keys):
        body = json.dumps({"features": features[rows].tolist(), "keys": keys}).encode()
        headers = {"Content-Type": "application/json", "Idempotency-Key": request_key}
        return stream.client.request("POST", "/v1/streams/cam-1/samples", body, headers)["results"]

    stream.samples(features[:1], keys=["k0"])
    stream.samples(features[1:4])
    first = ask("req", [0, 4], ["k0", None])
    assert [one["seq"] for one in first] == [1, 5]
    for row in range(5, 9):
        stream.samples(features[row : row + 1])
    assert next(iter(stream.log()))["seq"] == 5  # the request is kept, its older sample is not
    seen = stream.describe()["n_seen"]
    again = ask("req", [0, 4], ["k0", None])
    assert again[1] == {**first[1], "replayed": True}
    assert (again[0]["key"], again[0]["error"]["code"], again[0]["error"]["row"]) == ("k0", "key_expired", 0)
    described = stream.describe()
    assert (described["n_seen"], described["health"]["status"]) == (seen, "ok")
    assert stream.samples(features[:1], keys=["k0"])[0]["seq"] == seen + 1  # what the message says


def test_keys_are_forgotten_when_the_whole_log_is_deleted(running, problem):
    stream = running.client().stream("cam-1")
    stream.create(NAMES, problem[1], retain=0)
    assert stream.samples(problem[0][:1], keys=["k0"])[0]["seq"] == 1
    for _ in range(2):
        stream.take_snapshot()
    assert list(stream.log()) == []
    assert stream.samples(problem[0][:1], keys=["k0"])[0]["seq"] == 2


def test_samples_do_not_wait_long_for_a_snapshot(running, problem):
    stream = running.client().stream("cam-1")
    stream.create(NAMES, problem[1], snapshot_seconds=1)
    stream.samples(problem[0][:5])
    (snapshot,) = wait_until(stream.snapshots)
    assert snapshot["time"] - next(stream.log())["time"] > 0.9  # not at once
    time.sleep(1.2)
    assert [one["seq"] for one in stream.snapshots()] == [5]  # nothing new, no new snapshot


def test_streams_are_recovered_before_anyone_asks(run_service, problem):
    running = run_service()
    stream = running.client().stream("cam-1")
    stream.create(NAMES, problem[1])
    stream.samples(problem[0][:50])
    running.stop()
    running = run_service()
    client = running.client()
    wait_until(lambda: client.streams()[0]["health"]["n"] == 50)


def test_a_snapshot_without_memory_does_not_end_the_stream(running, problem, monkeypatch, caplog):
    features, prototypes = problem
    stream = running.client(timeout=20).stream("cam-1")
    stream.create(NAMES, prototypes, logit_scale=20.0, snapshot_every=8)
    with monkeypatch.context() as patch:

        def content(self):
            raise MemoryError

        patch.setattr(Stream, "_content", content)
        first = stream.samples(features[:8])
        wait_until(lambda: "snapshot failed" in caplog.text)
    again = stream.samples(features[8:16])
    assert scores(first + again) == expected_scores(problem, 16)
    assert stream.describe()["health"]["status"] == "ok"
    assert running.service.streams["cam-1"].recovery["replayed"] == 8


def test_a_stream_without_its_task_refuses_requests(running, problem):
    stream = running.client(timeout=20).stream("cam-1")
    stream.create(NAMES, problem[1])
    inner = running.service.streams["cam-1"]
    inner._snapshot_left = lambda: 1 / 0  # its task cannot wait for requests
    stream.samples(problem[0][:1])
    wait_until(lambda: not inner.alive)
    for refused in (lambda: stream.samples(problem[0][1:2]), stream.take_snapshot):
        with pytest.raises(ServiceError) as error:
            refused()
        assert (error.value.status, error.value.code) == (503, "stream_ended")
    health = stream.describe()["health"]
    assert health["status"] == "failed"
    assert "has ended. Fix: restart the service" in health["failure"]


@pytest.fixture
def two_streams(location, run_service, problem):
    """A store that has samples of cam-1, whose method is tda, and of cam-2."""
    running = run_service(location)
    for name, method in (("cam-1", "tda"), ("cam-2", None)):
        stream = running.client().stream(name)
        stream.create(NAMES, problem[1], logit_scale=20.0, method=method, snapshot_every=8, retain=8, keep_snapshots=2)
        for start in range(0, 40, 8):
            stream.samples(problem[0][start : start + 8])
    running.stop()
    return location


def test_a_stream_without_its_method_stops_no_other(two_streams, run_service, problem, monkeypatch):
    get = methods.get

    def without_tda(name):
        if name == "tda":
            raise ValueError("there is no method 'tda'. Fix: install its plug-in.")
        return get(name)

    monkeypatch.setattr(methods, "get", without_tda)
    running = run_service(two_streams)
    client = running.client()
    if running.store.exclusive:  # its streams are recovered at once
        wait_until(lambda: [one["health"]["n"] for one in client.streams()] == [0, 40])
    stream = client.stream("cam-1")
    with pytest.raises(ServiceError) as refused:
        stream.samples(problem[0][40:41])
    assert (refused.value.status, refused.value.code) == (503, "stream_failed")
    health = stream.describe()["health"]
    assert health["status"] == "failed"
    assert "there is no method 'tda'. Fix: install its plug-in. Its stored data is not damaged." in health["failure"]
    assert client.stream("cam-2").samples(problem[0][40:41])[0]["seq"] == 41
    monkeypatch.undo()
    assert stream.samples(problem[0][40:41])[0]["seq"] == 41
    assert stream.describe()["health"]["status"] == "ok"


def test_an_intact_snapshot_that_cannot_be_loaded_is_not_called_damaged(two_streams, run_service, problem, monkeypatch):
    def load(path):
        raise ValueError("a state of another version")

    monkeypatch.setattr(methods, "load", load)
    stream = run_service(two_streams).client().stream("cam-1")
    with pytest.raises(ServiceError) as refused:  # the log does not go back to its start
        stream.samples(problem[0][40:41])
    assert (refused.value.status, refused.value.code) == (503, "stream_failed")
    kept = [one["id"] for one in stream.snapshots()]
    with pytest.raises(ServiceError) as refused:
        stream.rollback(kept[0])
    assert (refused.value.status, refused.value.code) == (409, "snapshot_unusable")
    recovery = stream.describe()["health"]["recovery"]
    assert (recovery["unusable_snapshots"], recovery["damaged_snapshots"]) == (kept, [])
    monkeypatch.undo()
    assert stream.samples(problem[0][40:41])[0]["seq"] == 41


def test_the_second_service_is_refused_or_stands_by(start_process, tmp_path, problem):
    features, prototypes = problem
    store = str(tmp_path / "store")
    first = start_process("--store", store)
    stream = first.client().stream("cam-1")
    stream.create(NAMES, prototypes, logit_scale=20.0)
    keys = [f"k{i}" for i in range(16)]
    answers = stream.samples(features[:8], keys=keys[:8])
    second = start_process("--store", store)
    assert second.wait() == 2
    assert "another service uses the store" in " ".join(second.text.split())
    standby = start_process("--store", store, "--standby")
    time.sleep(0.5)
    assert standby.process.poll() is None
    assert "at http" not in standby.text
    first.process.send_signal(signal.SIGKILL)
    other = standby.client().stream("cam-1")
    results = other.samples(features[:16], keys=keys)
    assert [one["replayed"] for one in results] == [True] * 8 + [False] * 8
    assert scores(results)[:8] == scores(answers)
    assert standby.end() == 0


@pytest.fixture
def small_disk(tmp_path):
    """A folder with room for 3 MB, if this process may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)


def test_a_full_disk_refuses_and_continues_when_there_is_room(small_disk, start_process, problem):
    features, prototypes = problem
    process = start_process("--store", str(small_disk / "store"))
    client = process.client(retry=0.0)
    stream = client.stream("cam-1")
    stream.create(NAMES, prototypes, logit_scale=20.0, snapshot_every=40)
    filler = small_disk / "filler"
    answers = []
    fill_until_full(filler)
    refused = []
    for start in range(0, 400, 8):
        keys = [f"k{start + row}" for row in range(8)]
        try:
            results = stream.samples(features[start : start + 8], keys=keys)
        except ServiceError as error:
            refused.append((error.status, error.code))
            if len(refused) == 1:
                for call in (stream.take_snapshot, client.ready):
                    with pytest.raises(ServiceError) as also:
                        call()
                    assert also.value.status == 503
                assert client.request("GET", "/health/live")["status"] == "live"
                assert stream.describe()["n_seen"] == len(answers)
            filler.unlink(missing_ok=True)
            results = process.client().stream("cam-1").samples(features[start : start + 8], keys=keys)
        answers += results
    assert set(refused) == {(503, "store_unavailable")}
    assert scores(answers) == expected_scores(problem, 400)
    assert [one["seq"] for one in answers] == list(range(1, 401))
    assert process.end() == 0
    assert checked(small_disk / "store") == []


def fill_until_full(path: Path) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        while os.write(handle, b"x" * 4096):
            pass
    except OSError:
        return
    finally:
        os.close(handle)


@pytest.mark.skipif(sys.platform == "win32", reason="limits of processes are of POSIX")
def test_files_that_may_not_grow(start_process, tmp_path, problem):
    """The same without root: no file of the service may be longer than 200 kB."""
    features, prototypes = problem

    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    store = str(tmp_path / "store")
    process = start_process("--store", store, before=limited)
    stream = process.client(retry=0.0).stream("cam-1")
    stream.create(NAMES, prototypes, logit_scale=20.0)
    answers = []

    def send(start: int) -> None:
        answers.extend(stream.samples(features[start : start + 8], keys=[f"k{start + row}" for row in range(8)]))

    with pytest.raises(ServiceError) as refused:
        list(map(send, range(0, 400, 8)))
    assert (refused.value.status, refused.value.code) == (503, "store_unavailable")
    assert process.end() == 0
    process = start_process("--store", store)
    stream = process.client().stream("cam-1")
    begin = len(answers)
    for start in range(begin, 400, 8):
        answers += stream.samples(features[start : start + 8], keys=[f"k{start + row}" for row in range(8)])
    assert scores(answers) == expected_scores(problem, 400)
    assert process.end() == 0
    assert checked(store) == []


def test_a_read_only_store(small_disk, start_process, run_service, problem):
    features, prototypes = problem
    location = small_disk / "store"
    running = run_service(str(location))
    stream = running.client().stream("cam-1")
    stream.create(NAMES, prototypes, logit_scale=20.0)
    stream.samples(features[:8])
    running.stop()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert checked(location) == []
    process = start_process("--store", str(location))
    assert process.wait() == 2
    assert "Read-only file system" in process.text
    assert "Traceback" not in process.text


def test_a_full_disk_and_a_kill(small_disk, start_process, problem):
    """What is stored can be read, nothing more is acknowledged, and after a kill in that state nothing is lost."""
    features, prototypes = problem
    process = start_process("--store", str(small_disk / "store"))
    client = process.client(retry=0.0)
    stream = client.stream("cam-1")
    stream.create(NAMES, prototypes, logit_scale=20.0)
    answers = stream.samples(features[:8])
    fill_until_full(small_disk / "filler")
    with pytest.raises(ServiceError) as refused:
        [answers.extend(stream.samples(features[start : start + 8])) for start in range(8, 400, 8)]
    assert refused.value.status == 503
    count = len(answers)
    assert len(client.request("GET", "/v1/streams/cam-1/samples?limit=1000")["samples"]) == count
    assert stream.statistics()["n_seen"] == count
    process.process.send_signal(signal.SIGKILL)
    process.wait()
    (small_disk / "filler").unlink()
    process = start_process("--store", str(small_disk / "store"))
    stream = process.client().stream("cam-1")
    assert scores(list(stream.log())) == scores(answers) == expected_scores(problem, count)
    answers += stream.samples(features[count : count + 8])
    assert scores(answers) == expected_scores(problem, count + 8)


def test_too_few_file_descriptors_are_one_line_in_the_log(start_process, tmp_path):
    process = start_process(
        "--store", str(tmp_path / "store"), before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    )
    host, _, port = process.url.removeprefix("http://").partition(":")
    connections = [socket.create_connection((host, int(port)), timeout=PATIENCE) for _ in range(80)]
    wait_until(lambda: "file descriptors" in process.text)
    for one in connections:
        one.close()
    assert process.client(retry=PATIENCE).request("GET", "/health/live")["status"] == "live"
    assert process.end() == 0
    assert ["descriptors" in one["message"] for one in process.log if one["level"] == "error"] == [True], process.text


@pytest.mark.parametrize("jump", [-1e8, 1e8, 4e9])
def test_jumps_of_the_clock_change_no_answer(run_service, problem, monkeypatch, jump):
    features, prototypes = problem
    shift, real = [0.0], time.time
    for module in ("store", "stream", "keys", "service", "server", "sqlite"):
        fake = SimpleNamespace(**{**vars(time), "time": lambda: real() + shift[0]})
        monkeypatch.setattr(f"zeroshift.serve.{module}.time", fake)
    running = run_service()
    stream = running.client().stream("cam-1")
    stream.create(NAMES, prototypes, logit_scale=20.0, snapshot_every=16, keep_snapshots=2, retain=24)
    answers = []
    for start in range(0, 128, 8):
        shift[0] = jump if start // 32 % 2 else 0.0  # there and back
        answers += stream.samples(features[start : start + 8], keys=[f"k{start + row}" for row in range(8)])
    assert scores(answers) == expected_scores(problem, 128)
    assert [row["seq"] for row in stream.log()][-1] == 128
    # It is stored after the last answer; the newest comes first, although an older one has a later time.
    wait_until(lambda: stream.snapshots()[0]["seq"] == 128)
    assert stream.statistics()["curve"]
    running.client().ready()
    running.stop()
    again = run_service()
    stream = again.client().stream("cam-1")
    assert scores(stream.samples(features[128:136])) == expected_scores(problem, 136)[128:]
    assert again.service.streams["cam-1"].recovery["differing"] == 0
    again.stop()
    assert checked(running.location) == []


def test_answers_that_differ_after_a_restart_are_reported(run_service, problem):
    """As after a change of the BLAS: the log was answered in another way."""
    features, prototypes = problem
    running = run_service()
    stream = running.client().stream("cam-1")
    stream.create(NAMES, prototypes, logit_scale=20.0, snapshot_every=1000)
    stream.samples(features[:10])
    running.service.streams["cam-1"]._since_snapshot = 0  # as if it was killed: no snapshot at the end
    running.stop()
    store = open_store(running.location)
    record = store.find_stream("cam-1")
    batch = store.find_batch(record, 1)
    changed = zeroshift.serve.records.Answers(
        **{**vars(batch.answers), "scores": (batch.answers.scores * np.float32(1.0000002)).astype(np.float32)}
    )
    row = zeroshift.serve.records.Batch(**{**vars(batch), "answers": changed}).to_row()
    store._do("UPDATE batches SET answers = ?, checksum = ? WHERE stream = ?", (row[7], row[8], record.number))
    store.close()
    running = run_service()
    running.client().stream("cam-1").samples(features[10:11])
    text = running.client().request("GET", "/metrics").decode()
    count = float(re.search(r'zeroshift_differing_answers\{stream="cam-1"\} (\S+)', text)[1])
    assert count >= 1
    assert running.client().stream("cam-1").describe()["health"]["recovery"]["differing"] == count
