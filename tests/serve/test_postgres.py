"""The store in PostgreSQL: the same answers, several processes, and a server that ends under the service."""

from __future__ import annotations

import signal
import threading
import time

import numpy as np
import pytest

from serve.running import NAMES, PATIENCE
from zeroshift.methods import create
from zeroshift.serve import ServiceError
from zeroshift.serve.keys import add_key, list_keys, remove_key
from zeroshift.serve.records import Append, OwnedElsewhereError, StoreError
from zeroshift.serve.store import open_store


@pytest.fixture
def database(postgres) -> str:
    return postgres.new_database()


def scores(results):
    return [one["predictions"][0]["score"] for one in results]


def test_answers_snapshots_rollback_and_restart(run_service, database, problem):
    features, prototypes = problem
    method = create("anchored_mixture_online", prototypes, logit_scale=20.0)
    running = run_service(database)
    stream = running.client().stream("team/cam-1")
    stream.create(NAMES, prototypes, logit_scale=20.0, snapshot_every=50)
    for start in range(0, 128, 32):
        expected = method.adapt(features[start : start + 32]).max(axis=1).tolist()
        keys = [f"k{start + row}" for row in range(32)]
        assert scores(stream.samples(features[start : start + 32], keys=keys)) == expected
    assert stream.samples(features[:1], keys=["k0"])[0]["replayed"]
    chosen = stream.take_snapshot()
    running.stop()
    running = run_service(database)
    stream = running.client().stream("team/cam-1")
    expected = method.adapt(features[128:160]).max(axis=1).tolist()
    assert scores(stream.samples(features[128:160])) == expected
    assert running.service.streams["team/cam-1"].recovery["differing"] == 0
    assert stream.rollback(chosen["id"])["epoch"] == 1
    assert scores(stream.samples(features[128:160])) == expected
    assert stream.label({1: "a", 2: "b"}) == {"labels": 2}
    assert stream.relearn()["epoch"] == 2
    running.stop()
    store = open_store(database, read_only=True)
    assert list(store.check()) == []
    store.close()


def test_keys_are_kept_as_hashes(database):
    store = open_store(database)
    key = add_key(store, "write", "team-a/", "camera")
    (entry,) = list_keys(store)
    assert entry["prefix"] == "team-a/"
    assert key.split("_", 2)[2] not in str(store.access_keys())  # the secret part may contain "_"
    remove_key(store, entry["id"])
    assert list_keys(store) == []
    store.close()


def test_several_processes_share_the_streams(run_service, database, problem):
    features, prototypes = problem
    first, second = run_service(database), run_service(database)
    assert first.client().ready()["status"] == second.client().ready()["status"] == "ready"
    one = first.client().stream("cam-1")
    one.create(NAMES, prototypes, logit_scale=20.0)
    one.samples(features[:32])
    other = second.client().stream("cam-1")
    with pytest.raises(ServiceError) as refused:
        other.samples(features[:1])
    assert (refused.value.status, refused.value.code) == (503, "owned_elsewhere")
    assert [row["seq"] for row in other.log()] == list(range(1, 33))
    second.client().stream("cam-2").create(NAMES, prototypes)
    second.client().stream("cam-2").samples(features[:4])
    assert [one["id"] for one in second.client().streams()] == ["cam-1", "cam-2"]
    first.stop()  # the other one takes over where it stopped
    method = create("anchored_mixture_online", prototypes, logit_scale=20.0)
    method.adapt(features[:32])
    patient = second.client(retry=PATIENCE).stream("cam-1")
    assert scores(patient.samples(features[32:64])) == method.adapt(features[32:64]).max(axis=1).tolist()
    second.client().stream("cam-2").delete()
    third = run_service(database)
    with pytest.raises(ServiceError) as refused:
        third.client().stream("cam-2").samples(features[:1])
    assert refused.value.status == 404


def test_a_stream_that_another_process_deleted_is_gone(run_service, database, problem):
    features, prototypes = problem
    first, second = run_service(database), run_service(database)
    stream = first.client().stream("cam-1")
    stream.create(NAMES, prototypes)
    stream.samples(features[:4])
    second.client().stream("cam-1").delete()
    for status in (503, 404):  # the first attempt finds that its row is gone
        with pytest.raises(ServiceError) as refused:
            stream.samples(features[:4])
        assert refused.value.status in (status, 404)
    stream.create(NAMES, prototypes)
    assert stream.samples(features[:4])[0]["seq"] == 1


def test_a_process_that_lost_its_stream_cannot_write(database, problem):
    """Its connection ended without its knowledge; what it still wants to append is refused."""
    import psycopg

    prototypes = problem[1]

    first, second = open_store(database), open_store(database)
    made = first.create_stream("cam-1", {"classes": list(NAMES), "method": "zero_shot", "parameters": {}}, prototypes)
    record = first.claim(made.number)
    with pytest.raises(OwnedElsewhereError):
        second.claim(made.number)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND pid <> pg_backend_pid()"
        )
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            second.claim(made.number)
            break
        except OwnedElsewhereError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    late = Append(record, requests=[("key", "digest", "[]", 0)])
    for _ in range(2):  # with the lost connection, and with a new one
        with pytest.raises(StoreError):
            first.append([late])
    with pytest.raises(OwnedElsewhereError):
        first.claim(made.number)
    assert second.find_requests(record, ["key"]) == {}
    first.close()
    second.close()


def test_the_server_is_restarted_under_the_service(run_service, postgres, problem):
    """Nothing acknowledged is lost and nothing is learned twice, while the database ends twice."""
    features, prototypes = problem
    database = postgres.new_database()
    running = run_service(database)
    stream = running.client(retry=PATIENCE).stream("cam-1")
    stream.create(NAMES, prototypes, logit_scale=20.0, snapshot_every=40)
    answered, ending = [], threading.Event()

    def feed() -> None:
        for start in range(0, 400, 8):
            keys = [f"k{start + row}" for row in range(8)]
            answered.extend(stream.samples(features[start : start + 8], keys=keys))
            if ending.wait(0.02):
                return

    feeder = threading.Thread(target=feed, daemon=True)
    feeder.start()
    for mode in ("immediate", "fast"):
        time.sleep(0.2)
        postgres.stop(mode)
        with pytest.raises(ServiceError) as refused:
            running.client().request("GET", "/v1/streams/cam-1/samples")
        assert refused.value.status == 503
        with pytest.raises(ServiceError) as refused:
            running.client().ready()
        assert refused.value.status == 503
        assert "127.0.0.1" not in str(refused.value)
        postgres.start()
    feeder.join(PATIENCE)
    assert not feeder.is_alive()
    ending.set()
    running.client(retry=PATIENCE).ready()
    logged = list(running.client(retry=PATIENCE).stream("cam-1").log())
    assert [row["key"] for row in logged] == [f"k{i}" for i in range(400)]
    method = create("anchored_mixture_online", prototypes, logit_scale=20.0)
    expected = np.concatenate([method.adapt(features[at : at + 8]).max(axis=1) for at in range(0, 400, 8)])
    assert scores(answered) == scores(logged) == expected.tolist()


@pytest.mark.slow
def test_a_standby_takes_over_after_a_kill(start_process, database, problem):
    features, prototypes = problem
    first = start_process("--store", database)
    stream = first.client().stream("cam-1")
    stream.create(NAMES, prototypes, logit_scale=20.0)
    stream.samples(features[:32], keys=[f"k{i}" for i in range(32)])
    second = start_process("--store", database)
    second.client().ready()
    first.process.send_signal(signal.SIGKILL)
    other = second.client().stream("cam-1")
    results = other.samples(features[16:48], keys=[f"k{i}" for i in range(16, 48)])
    assert [one["replayed"] for one in results] == [True] * 16 + [False] * 16
    assert [one["seq"] for one in results] == list(range(17, 49))
    assert second.end() == 0
