"""Atomic writing."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from zeroshift import FeatureSet, ZeroShot, files, methods
from zeroshift.encode.prompts.user_text import read_text
from zeroshift.files import TemporaryFolder, atomic_path, check_writable
from zeroshift.tensor_files import read_header, read_tensors, write_tensors

ARRAYS = {"b": np.arange(6.0).reshape(2, 3), "a": np.array([1, 2])}
HEADER = {"kind": "thing", "schema": 1, "note": "ä"}


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    target = tmp_path / "file"
    target.write_text("old")

    def write_half() -> None:
        with atomic_path(target) as temporary:
            temporary.write_text("new")
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        write_half()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_complete_write_replaces_the_old_file(tmp_path):
    target = tmp_path / "file"
    target.write_text("old")
    with atomic_path(target) as temporary:
        temporary.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


def test_nobody_else_may_read_the_temporary_file_of_a_private_one(tmp_path):
    target = tmp_path / "file"
    with atomic_path(target, mode=0o640) as temporary:
        assert temporary.stat().st_mode & 0o777 == 0o600
    assert target.stat().st_mode & 0o777 == 0o640
    target.chmod(0o600)
    with atomic_path(target) as temporary:
        assert temporary.stat().st_mode & 0o777 == 0o600
    assert target.stat().st_mode & 0o777 == 0o600


def test_written_files_follow_the_umask(tmp_path):
    write_tensors(tmp_path / "file", ARRAYS, HEADER)
    (tmp_path / "plain").write_text("")
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_file_that_is_replaced_keeps_its_permissions_and_its_link(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    real.chmod(0o600)
    link.symlink_to(real)
    write_tensors(link, ARRAYS, HEADER)
    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o600
    read_tensors(real, kind="thing", schema=1)


def test_a_full_disk_is_an_oserror_that_names_the_file(tmp_path, monkeypatch):
    import safetensors
    import safetensors.numpy

    def full(*_, **__):
        raise safetensors.SafetensorError("No space left on device")

    monkeypatch.setattr(safetensors.numpy, "save_file", full)
    with pytest.raises(OSError, match=r"file cannot be written .*No space left.* Fix: check the space"):
        write_tensors(tmp_path / "file", ARRAYS, HEADER)
    assert not list(tmp_path.iterdir())


def test_a_temporary_file_that_cannot_be_deleted_does_not_hide_the_error(tmp_path, monkeypatch):
    """In a folder that may not be entered, the error was about the temporary file."""

    def refuse(path, missing_ok=False):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(OSError, match=r"new\.txt cannot be written \(No space left"), atomic_path(tmp_path / "new.txt"):
        raise OSError(28, "No space left on device")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_does_not_delete_what_its_parent_is_writing(tmp_path):
    with atomic_path(tmp_path / "new.txt") as temporary:
        child = os.fork()
        if child == 0:
            files._delete_temporary_files()  # as at its exit
            os._exit(0)
        os.waitpid(child, 0)
        assert temporary.exists()
        temporary.write_text("new")
    assert (tmp_path / "new.txt").read_text() == "new"


def test_a_read_only_file_is_refused_before_anything_is_computed(tmp_path, monkeypatch):
    """It was refused after the computation, with advice about the disk and the folder."""
    path = tmp_path / "old.txt"
    path.write_text("old")
    path.chmod(0o444)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write to it
    for call in (check_writable, lambda path: atomic_path(path).__enter__()):
        with pytest.raises(PermissionError, match=r"old\.txt is read-only\. Fix: make it writable"):
            call(path)
    assert [one.name for one in tmp_path.iterdir()] == ["old.txt"]


def test_a_file_in_a_folder_that_may_not_be_entered_is_not_missing(tmp_path, monkeypatch):
    def refuse(path, **options):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "stat", refuse)
    for read in (lambda path: read_header(path, kind="state", schema=2), lambda path: read_text(path, "names")):
        with pytest.raises(PermissionError, match=r"Permission denied.*x\.safetensors"):
            read(str(tmp_path / "x.safetensors"))


def test_a_folder_in_place_of_a_file_is_rejected(tmp_path):
    with pytest.raises(IsADirectoryError, match="is a folder; a file name is needed"):
        write_tensors(tmp_path, ARRAYS, HEADER)


def test_a_missing_folder_is_reported_with_the_fix(tmp_path):
    with pytest.raises(FileNotFoundError, match="Fix: create it first"):
        write_tensors(tmp_path / "no" / "file", ARRAYS, HEADER)


@pytest.mark.parametrize(
    "call",
    [
        FeatureSet.load,
        FeatureSet(np.eye(3), prototypes=np.eye(3)).save,
        ZeroShot.load,
        methods.load,
        ZeroShot(np.eye(3)).save,
    ],
    ids=["load a set", "save a set", "load a state", "load any state", "save a state"],
)
@pytest.mark.parametrize("path", [5, None, b"x.safetensors", "", "a\0b.safetensors", 2.5, ["x"]], ids=repr)
def test_what_is_no_path_is_refused_by_name(call, path):
    with pytest.raises((TypeError, ValueError), match=r"^path must be "):
        call(path)


HOLDER = """
import sys
from zeroshift.distributed import LocalExecutor
executor = LocalExecutor(1)
list(executor.map(abs, [-1]))
print(executor._folder.name, flush=True)
sys.stdin.read()
"""


def test_temporary_folders_of_killed_processes_are_deleted_by_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    killed, living = (subprocess.Popen([sys.executable, "-c", HOLDER], env=environment, **pipes) for _ in range(2))
    left, held = (Path(process.stdout.readline().strip()) for process in (killed, living))
    killed.kill()
    killed.communicate()
    others = tmp_path / "others"
    (others / "zeroshift-linked").mkdir(parents=True)
    (others / "zeroshift-linked" / ".lock").touch()
    (tmp_path / "zeroshift-link").symlink_to(others / "zeroshift-linked")
    (tmp_path / "zeroshift-without-lock").mkdir()
    (tmp_path / "zeroshift-linked-lock").mkdir()
    (tmp_path / "zeroshift-linked-lock" / ".lock").symlink_to(others / "zeroshift-linked" / ".lock")
    assert left.exists()
    with TemporaryFolder() as folder:
        assert not left.exists()
        names = {entry.name for entry in tmp_path.iterdir()}
    kept = {"others", "zeroshift-link", "zeroshift-without-lock", "zeroshift-linked-lock", held.name}
    assert names == {*kept, Path(folder).name}
    assert (others / "zeroshift-linked" / ".lock").exists()
    assert not Path(folder).exists()
    living.communicate("")
    assert not held.exists()
