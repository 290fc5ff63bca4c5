"""The files of a store in a folder: private, only those of the store, and deleted when nobody needs them."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from serve.running import NAMES
from serve.test_operations import fill_until_full, small_disk  # noqa: F401
from zeroshift.serve import ServiceError
from zeroshift.serve.keys import add_key
from zeroshift.serve.store import open_store


def modes(folder: Path) -> dict[str, int]:
    found = {path.name: stat.S_IMODE(path.lstat().st_mode) for path in (folder, *folder.rglob("*"))}
    return {name: mode for name, mode in found.items() if not name.endswith(".tmp")}


def execute(folder: Path, statement: str, *values) -> list:
    with closing(sqlite3.connect(folder / "store.sqlite")) as connection:
        rows = connection.execute(statement, values).fetchall()
        connection.commit()
        return rows


@pytest.fixture
def used(running, problem):
    """The folder of a service with a key, samples and a snapshot."""
    stream = running.client().stream("cam-1")
    stream.create(NAMES, problem[1])
    stream.samples(problem[0][:8])
    stream.take_snapshot()
    add_key(running.store, "read")
    return running, Path(running.location)


def test_everything_is_private(used, tmp_path):
    running, folder = used
    running.store.backup(tmp_path / "copy")
    for one in (folder, tmp_path / "copy"):
        found = modes(one)
        assert {mode for mode in found.values() if mode & 0o077} == set(), found
    assert {"store.sqlite-wal", "store.sqlite-shm", "keys.json", "lock"} <= modes(folder).keys()


def test_a_store_of_an_earlier_version_becomes_private(used, caplog):
    running, folder = used
    running.stop()
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    (folder / "keys.json").chmod(0o600)
    store = open_store(str(folder))
    store.close()
    assert {name for name, mode in modes(folder).items() if mode & 0o077} == {folder.name, "lock", "keys.json.lock"}
    assert f"Others may look into the folder {folder}" in caplog.text


@pytest.mark.parametrize("how", ["climbs", "absolute", "link"])
def test_only_files_of_the_store_are_read_or_deleted(used, run_service, tmp_path, how):
    running, folder = used
    running.stop()
    ((name,),) = execute(folder, "SELECT file FROM snapshots WHERE stream = (SELECT number FROM streams LIMIT 1)")
    outside = (folder / "snapshots" / name).rename(tmp_path / "outside.safetensors")
    if how == "link":
        (folder / "snapshots" / name).symlink_to(outside)
    else:
        wrong = str(outside) if how == "absolute" else f"../../{outside.name}"
        execute(folder, "UPDATE snapshots SET file = ?", wrong)
    (problem,) = open_store(str(folder), read_only=True).check()
    assert "which is none of this store" in problem
    running = run_service()
    stream = running.client().stream("cam-1")
    (snapshot,) = stream.snapshots()
    with pytest.raises(ServiceError) as refused:
        stream.rollback(snapshot["id"])
    assert refused.value.code == "snapshot_damaged"
    running.store.backup(tmp_path / "copy")
    assert list((tmp_path / "copy" / "snapshots").iterdir()) == []
    stream.delete()
    assert outside.is_file()


def test_a_linked_folder_of_snapshots_is_refused(used, tmp_path):
    running, folder = used
    running.stop()
    (folder / "snapshots").rename(tmp_path / "elsewhere")
    (folder / "snapshots").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="is a link to another folder"):
        open_store(str(folder))
    assert len(list((tmp_path / "elsewhere").iterdir())) == 1


def test_unfinished_snapshots_are_in_the_store_and_deleted_at_the_next_start(used, run_service, monkeypatch):
    running, folder = used
    stream = running.client().stream("cam-1")
    made = []

    def save(method, path):
        made.append(Path(path))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("zeroshift.method.Method.save", save)
    with pytest.raises(ServiceError):
        stream.take_snapshot()
    monkeypatch.undo()
    assert made[0].parent.parent == folder / "snapshots"
    assert not made[0].parent.exists()
    made[0].parent.mkdir()  # as if the service was killed
    made[0].write_bytes(b"half")
    (folder / "snapshots" / "notes.txt").write_text("not of the store")
    running.stop()
    open_store(str(folder)).close()
    left = sorted(path.name for path in (folder / "snapshots").iterdir() if path.suffix != ".safetensors")
    assert left == ["notes.txt"]


@pytest.mark.parametrize("command", [["--no-auth", "--port", "0"], ["keys", "add", "--scope", "read"]])
def test_a_full_disk_at_the_start_is_one_line(small_disk, command):  # noqa: F811
    fill_until_full(small_disk / "filler")
    at = 2 if command[0] == "keys" else 0
    arguments = [*command[:at], "--store", str(small_disk / "store"), *command[at:]]
    environment = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-m", "zeroshift", "serve", *arguments],
        capture_output=True, text=True, timeout=120, env=environment,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "space left on" in done.stderr


def test_a_full_disk_when_a_key_is_added_is_one_line(small_disk):  # noqa: F811
    open_store(str(small_disk / "store")).close()
    fill_until_full(small_disk / "filler")
    arguments = ["keys", "add", "--store", str(small_disk / "store"), "--scope", "read"]
    done = subprocess.run([sys.executable, "-m", "zeroshift", "serve", *arguments], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "space left on" in done.stderr.replace("\n", " ")
