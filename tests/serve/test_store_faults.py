"""Damages of the store: each is noticed and reported, and never used silently."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from serve.running import NAMES, wait_until
from zeroshift.methods import create
from zeroshift.serve import ServiceError
from zeroshift.serve.store import open_store


@pytest.fixture
def stored(location, run_service, problem):
    """A store with 120 samples, snapshots after 50, 100 and 120, keys, a request key and a label."""
    features, prototypes = problem
    running = run_service(location)
    stream = running.client().stream("cam-1")
    stream.create(NAMES, prototypes, logit_scale=20.0, snapshot_every=50)
    for start in range(0, 120, 10):
        stream.samples(features[start : start + 10], keys=[f"k{start + row}" for row in range(10)])
    stream.label({3: "a"})
    other = running.client().stream("cam-2")
    other.create(NAMES, prototypes, logit_scale=20.0)
    other.samples(features[:8])
    running.stop()
    return Stored(location)


class Stored:
    def __init__(self, location: str) -> None:
        self.location = location
        self.is_folder = "://" not in location

    def execute(self, statement: str, *values) -> list:
        """Run a statement in the database of the store; `?` is a value."""
        if self.is_folder:
            connection = sqlite3.connect(Path(self.location) / "store.sqlite")
        else:
            import psycopg

            connection, statement = psycopg.connect(self.location), statement.replace("?", "%s")
        try:
            found = connection.execute(statement, values)
            rows = found.fetchall() if found.description else []
            connection.commit()
            return rows
        finally:
            connection.close()

    @property
    def number(self) -> int:
        return self.execute("SELECT number FROM streams WHERE id = 'cam-1'")[0][0]

    def damage_blob(self, table: str, column: str, condition: str, *values) -> None:
        """Change one bit in the middle of a value."""
        (content,) = self.execute(f"SELECT {column} FROM {table} WHERE {condition}", *values)[0]
        changed = bytearray(content)
        changed[len(changed) // 2] ^= 4
        self.execute(f"UPDATE {table} SET {column} = ? WHERE {condition}", bytes(changed), *values)

    def snapshot_content(self, place: int, content: bytes | None) -> None:
        """Replace the content of a snapshot of cam-1, the newest first, or delete it; None deletes it."""
        rows = self.execute("SELECT number, file FROM snapshots WHERE stream = ? ORDER BY number DESC", self.number)
        number, file = rows[place]
        if self.is_folder:
            path = Path(self.location) / "snapshots" / file
            path.unlink() if content is None else path.write_bytes(content)
        elif content is None:
            self.execute("DELETE FROM snapshot_contents WHERE number = ?", number)
        else:
            self.execute("UPDATE snapshot_contents SET content = ? WHERE number = ?", content, number)

    def read_snapshot(self, place: int) -> bytes:
        store = open_store(self.location, read_only=True)
        stream = store.find_stream("cam-1")
        content = store.read_snapshot(store.snapshots(stream)[place])
        store.close()
        return content

    def problems(self) -> list[str]:
        """What `zeroshift serve --check` says."""
        command = [sys.executable, "-m", "zeroshift", "serve", "--check", self.location, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = json.loads(done.stdout)["problems"]
        assert done.returncode == (1 if found else 0), done.stderr
        return found

    def check(self) -> list[str]:
        store = open_store(self.location, read_only=True)
        found = list(store.check())
        store.close()
        return found


def answers_after(problem, start: int, end: int) -> list[float]:
    """What the library answers to samples 120 to 130 after those of the store."""
    features, prototypes = problem
    method = create("anchored_mixture_online", prototypes, logit_scale=20.0)
    for at in range(0, 120, 10):
        method.adapt(features[at : at + 10])
    return method.adapt(features[start:end]).max(axis=1).tolist()


def answered(stream, problem) -> list[float]:
    return [one["predictions"][0]["score"] for one in stream.samples(problem[0][120:130])]


def test_an_intact_store_has_no_problem(stored):
    assert stored.problems() == []


@pytest.mark.parametrize("fault", ["torn", "bit", "missing"])
def test_a_damaged_snapshot_is_passed_over(stored, run_service, problem, fault):
    content = stored.read_snapshot(0)
    changed = bytearray(content)
    changed[-100] ^= 1
    stored.snapshot_content(0, {"torn": content[: len(content) // 2], "bit": bytes(changed), "missing": None}[fault])
    (found,) = stored.check()
    assert found.startswith("stream cam-1: ")
    assert "snapshot" in found
    running = run_service(stored.location)
    stream = running.client().stream("cam-1")
    assert answered(stream, problem) == answers_after(problem, 120, 130)
    recovery = stream.describe()["health"]["recovery"]
    assert len(recovery["damaged_snapshots"]) == 1
    assert (recovery["replayed"], recovery["differing"]) == (20, 0)
    with pytest.raises(ServiceError) as refused:
        stream.rollback(recovery["damaged_snapshots"][0])
    assert (refused.value.status, refused.value.code) == (409, "snapshot_damaged")


def test_without_any_snapshot_the_whole_log_is_learned_again(stored, run_service, problem):
    for place in range(3):
        stored.snapshot_content(place, None)
    running = run_service(stored.location)
    stream = running.client().stream("cam-1")
    assert answered(stream, problem) == answers_after(problem, 120, 130)
    assert stream.describe()["health"]["recovery"]["replayed"] == 120


@pytest.mark.parametrize(
    ("table", "column", "condition"),
    [
        ("batches", "features", "stream = ? AND first = 111"),
        ("batches", "answers", "stream = ? AND first = 111"),
        ("streams", "prototypes", "number = ?"),
    ],
)
def test_a_changed_bit_stops_the_stream_and_no_other(stored, run_service, problem, table, column, condition):
    stored.damage_blob(table, column, condition, stored.number)
    for place in range(3):  # so that the log is needed
        stored.snapshot_content(place, None)
    assert any("checksum" in one and one.startswith("stream cam-1: ") for one in stored.check())
    running = run_service(stored.location)
    stream = running.client().stream("cam-1")
    for _ in range(2):
        with pytest.raises(ServiceError) as refused:
            stream.samples(problem[0][120:130])
        assert (refused.value.status, refused.value.code) == (503, "stream_damaged")
    assert running.client().stream("cam-2").samples(problem[0][8:9])[0]["seq"] == 9
    assert running.client().ready()["status"] == "ready"


def test_damages_are_known_after_the_start(stored, run_service, problem):
    stored.execute("DELETE FROM batches WHERE stream = ? AND first = 111", stored.number)
    stored.snapshot_content(0, None)
    running = run_service(stored.location)
    if running.store.exclusive:  # otherwise it may belong to another process, until it is used
        wait_until(lambda: running.client().stream("cam-1").describe()["health"]["status"] == "damaged")
    with pytest.raises(ServiceError):
        running.client().stream("cam-1").samples(problem[0][:1])
    assert running.client().stream("cam-1").describe()["health"]["status"] == "damaged"
    metrics = running.client().request("GET", "/metrics").decode()
    assert 'zeroshift_damaged{stream="cam-1"} 1.0' in metrics
    # An administrator can go back to a snapshot that is intact.
    kept = running.client().stream("cam-1").snapshots()
    assert running.client().stream("cam-1").rollback(kept[1]["id"])["epoch"] == 1
    assert running.client().stream("cam-1").samples(problem[0][:1])[0]["seq"] == 121


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("DELETE FROM batches WHERE stream = ? AND first = 61", "the log has no samples 61 to 70"),
        ("DELETE FROM batches WHERE stream = ? AND first = 111", "the log ends at sample 110, but 120 were answered"),
        ("UPDATE batches SET count = 9 WHERE stream = ? AND first = 61", "checksum"),
        ("UPDATE batches SET keys = '' WHERE stream = ? AND first = 61", "checksum"),
        ("UPDATE streams SET seq = 110 WHERE number = ?", "the log ends at sample 120, but 110 were answered"),
        ("UPDATE streams SET epoch = 5 WHERE number = ?", "epoch 5"),
        ("UPDATE streams SET config = 'no JSON' WHERE number = ?", "settings or prototypes"),
        ("UPDATE snapshots SET seq = 20 WHERE stream = ? AND seq = 100", "snapshot"),
        ("UPDATE snapshots SET monitor = 'no JSON' WHERE stream = ? AND seq = 100", "snapshot"),
        ("DELETE FROM sample_keys WHERE stream = ? AND name = 'k7'", "1 keys are missing or wrong"),
        ("UPDATE sample_keys SET seq = 9 WHERE stream = ? AND name = 'k7'", "1 keys are missing or wrong"),
        ("UPDATE labels SET label = 2 WHERE stream = ?", "confirmed label of sample 3"),
        ("DELETE FROM epochs WHERE stream = ?", "epoch 0"),
    ],
)
def test_check_finds_what_is_wrong(stored, statement, says):
    stored.execute(statement, stored.number)
    found = stored.check()
    assert found
    assert all(one.startswith("stream cam-1: ") for one in found)
    assert any(says in one for one in found), found


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE streams SET seq = 110 WHERE number = ?",
        "UPDATE streams SET epoch = 5 WHERE number = ?",
        "UPDATE streams SET config = 'no JSON' WHERE number = ?",
        "UPDATE snapshots SET monitor = 'no JSON', environment = '[' WHERE stream = ?",
        "DELETE FROM epochs WHERE stream = ?",
        "UPDATE requests SET results = '[1, 1, 1, 1, 1, 1, 1, 1, 1, 1]' WHERE stream = ?",
        "UPDATE labels SET label = 2 WHERE stream = ?",
        "UPDATE sample_keys SET seq = 9 WHERE stream = ? AND name = 'k7'",
    ],
)
def test_no_damage_is_an_unexpected_error_or_a_wrong_answer(stored, run_service, problem, statement):
    stored.execute(statement, stored.number)
    running = run_service(stored.location)
    client = running.client()
    features = problem[0]
    stream = client.stream("cam-1")
    calls = (
        lambda: client.streams(),
        stream.describe, stream.statistics, stream.snapshots, stream.relearn, lambda: list(stream.log()),
        lambda: stream.replay("tda"),
        lambda: stream.samples(features[7:8], keys=["k7"]),
    )  # fmt: skip
    refused = []
    for call in calls:
        try:
            result = call()
        except ServiceError as error:
            refused.append(error.status)
            continue
        if call is calls[-1]:
            expected = create("anchored_mixture_online", problem[1], logit_scale=20.0).adapt(features[:10]).max(axis=1)
            assert (result[0]["seq"], result[0]["predictions"][0]["score"]) == (8, float(np.float32(expected[7])))
    assert set(refused) <= {404, 409, 503}


@pytest.mark.parametrize(("schema", "says"), [("1", "development version before the first release"), ("9", "schema 9")])
def test_a_store_of_another_schema_is_refused_and_left_as_it_is(stored, schema, says):
    stored.execute("UPDATE meta SET value = ? WHERE name = 'schema'", schema)
    stored.execute("DROP TABLE thumbnails")
    for read_only in (False, True):
        with pytest.raises(ValueError, match=says) as refused:
            open_store(stored.location, read_only=read_only)
        assert "Fix: " in str(refused.value)
    with pytest.raises(Exception, match="thumbnails"):
        stored.execute("SELECT seq FROM thumbnails")  # it was not created again


# The files of a store in a folder


@pytest.fixture
def folder(tmp_path, run_service, problem) -> Path:
    running = run_service(str(tmp_path / "files"))
    stream = running.client().stream("cam-1")
    stream.create(NAMES, problem[1], logit_scale=20.0)
    stream.samples(problem[0][:20], keys=[f"k{i}" for i in range(20)])
    stream.take_snapshot()
    stream.samples(problem[0][20:30])
    killed = tmp_path / "killed"
    shutil.copytree(tmp_path / "files", killed)  # as if it was killed now
    running.stop()
    return killed


def test_a_store_that_was_killed_is_recovered(folder, run_service):
    assert Stored(str(folder)).check() == []  # also leaves the write-ahead log as it is
    assert (folder / "store.sqlite-wal").stat().st_size > 0
    running = run_service(str(folder))
    assert running.client().stream("cam-1").describe()["n_seen"] == 30


@pytest.mark.parametrize("name", ["store.sqlite", "store.sqlite-wal"])
def test_a_missing_database_or_log_is_refused(folder, name):
    (folder / name).unlink()
    kept = sorted(path.name for path in (folder / "snapshots").iterdir())
    command = [sys.executable, "-m", "zeroshift", "serve", "--no-auth", "--port", "0", "--store", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert f"{name} is missing" in " ".join(done.stderr.split())
    assert sorted(path.name for path in (folder / "snapshots").iterdir()) == kept
    checked = subprocess.run(
        [sys.executable, "-m", "zeroshift", "serve", "--check", str(folder)], capture_output=True, text=True
    )
    assert checked.returncode == 2
    assert f"no {name}" in checked.stderr or f"{name} is missing" in " ".join(checked.stderr.split())
    if name == "store.sqlite-wal":
        (folder / "lock").unlink()  # what the message says
        open_store(str(folder)).close()


def test_a_log_that_another_program_moved_into_the_database_is_not_missing(folder, run_service, problem):
    rows = Stored(str(folder)).execute(
        "SELECT seq FROM streams WHERE id = 'cam-1'"
    )  # a connection of the sqlite3 module
    assert rows == [(30,)]
    assert not (folder / "store.sqlite-wal").exists()
    assert (folder / "lock").read_text().startswith("open")
    assert Stored(str(folder)).problems() == []
    stream = run_service(str(folder)).client().stream("cam-1")
    assert [one["seq"] for one in stream.samples(problem[0][30:31])] == [31]


def test_a_log_that_is_missing_after_an_earlier_checkpoint_is_noticed(folder):
    store = open_store(str(folder))
    number = store.find_stream("cam-1").number
    with closing(sqlite3.connect(folder / "store.sqlite")) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = store._commits
    for _ in range(2):
        store.claim(number)  # these are in the log only
    killed = folder.parent / "killed-again"
    shutil.copytree(folder, killed, ignore=shutil.ignore_patterns("*-wal", "*-shm"))
    store.close()
    with pytest.raises(ValueError, match=f"database has transaction {before} and the service noted {before + 2}"):
        open_store(str(killed))


def test_check_reports_a_missing_write_ahead_log(folder):
    open_store(str(folder)).close()  # everything is in the database
    assert Stored(str(folder)).check() == []
    (folder / "store.sqlite-wal").unlink(missing_ok=True)
    (folder / "lock").write_text("open")
    assert ["store.sqlite-wal is missing" in one for one in Stored(str(folder)).problems()] == [True]


def test_a_database_that_is_none_is_refused(folder):
    open_store(str(folder)).close()  # everything moves from the write-ahead log into the database
    (folder / "store.sqlite").write_bytes(b"no database" * 1000)
    done = subprocess.run(
        [sys.executable, "-m", "zeroshift", "serve", "--check", str(folder)], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "not a database" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_torn_page_of_the_database_is_found(folder):
    with (folder / "store.sqlite").open("r+b") as file:
        size = file.seek(0, 2)
        assert size > 0
    open_store(str(folder)).close()  # everything moves from the write-ahead log into the database
    with (folder / "store.sqlite").open("r+b") as file:
        file.seek(file.seek(0, 2) - 6000)
        file.write(b"\xff" * 3000)
    store = Stored(str(folder))
    try:
        assert store.check()
    except Exception as error:
        assert "cannot be read" in str(error)  # noqa: PT017


def test_damaged_keys_let_nobody_in(run_service, tmp_path):
    from zeroshift.serve.keys import add_key

    running = run_service(auth=True)
    key = add_key(running.store, "admin")
    assert running.client(key).request("GET", "/v1/whoami")["scope"] == "admin"
    (Path(running.location) / "keys.json").write_text("[{")
    running.service.keys._read_at = float("-inf")  # as if two seconds had passed
    with pytest.raises(ServiceError) as refused:
        running.client(key).request("GET", "/v1/whoami")
    assert (refused.value.status, refused.value.code) == (503, "store_unavailable")
    assert "keys.json" not in str(refused.value)
