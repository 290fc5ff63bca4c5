"""Folders at URLs: whole files, and what a write that fails leaves behind."""

from __future__ import annotations

import pytest

from zeroshift.distributed.folders import Folder

fsspec = pytest.importorskip("fsspec")


@pytest.fixture(params=["", "file://", "memory://folders", "simplecache::memory://cached"])
def folder(request, tmp_path):
    return Folder(f"{request.param}{tmp_path}") / "out"


def test_write_read_and_remove(folder):
    assert folder.names() == []
    assert folder.read("a.txt") is None
    folder.write("a.txt", b"1")
    folder.write("a.txt", b"22")
    (folder / "inner").write("b.txt", b"3")
    assert folder.read("a.txt") == b"22"
    assert folder.names() == ["a.txt", "inner"]
    folder.remove("a.txt")
    assert folder.names() == ["inner"]
    assert folder.read("a.txt") is None
    folder.remove_all()
    folder.remove_all()
    assert (folder / "inner").names() == []


@pytest.mark.parametrize("before", [False, True])
def test_a_write_that_fails_leaves_no_part(tmp_path, monkeypatch, before):
    """As on a disk that is full: some bytes are written, then an error."""
    folder = Folder(f"file://{tmp_path}/out")
    if before:
        folder.write("a.txt", b"1")

    def write_a_part(system, path, value, **_):
        with system.open(path, "wb") as handle:
            handle.write(value[:2])
        raise OSError("no space left")

    monkeypatch.setattr(type(fsspec.filesystem("file")), "pipe_file", write_a_part)
    with pytest.raises(OSError, match="no space left"):
        folder.write("a.txt", b"2345")
    assert folder.names() == (["a.txt"] if before else [])
    assert folder.read("a.txt") == (b"1" if before else None)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"the folder .*file/out cannot be made \(.+\)\. Fix: another output folder"):
        Folder(f"{tmp_path}/file/out").write("a.txt", b"1")
