"""Atomic writing, and tensor files with a header."""

from __future__ import annotations

import json

import numpy as np
import pytest

from zeroshift.files import FileFormatError, atomic_path, read_tensors, write_tensors

ARRAYS = {"b": np.arange(6.0).reshape(2, 3), "a": np.array([1, 2])}
HEADER = {"kind": "thing", "schema": 1, "note": "ä"}


def test_equal_contents_give_equal_bytes_and_can_be_read_back(tmp_path):
    write_tensors(tmp_path / "one", ARRAYS, HEADER)
    write_tensors(tmp_path / "two", dict(reversed(ARRAYS.items())), dict(reversed(HEADER.items())))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    arrays, header = read_tensors(tmp_path / "one", kind="thing", schema=1)
    assert header == HEADER
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(arrays[name], array)


def test_transposed_arrays_keep_their_values(tmp_path):
    """Safetensors writes the memory of an array as it is; a transposed array must keep its values."""
    array = np.arange(6.0).reshape(2, 3).T
    write_tensors(tmp_path / "file", {"x": array}, HEADER)
    np.testing.assert_array_equal(read_tensors(tmp_path / "file", kind="thing", schema=1)[0]["x"], array)


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
    with pytest.raises(OSError, match=r"file could not be written .*No space left.* Fix: check the space"):
        write_tensors(tmp_path / "file", ARRAYS, HEADER)
    assert not list(tmp_path.iterdir())


def test_a_folder_in_place_of_a_file_is_rejected(tmp_path):
    with pytest.raises(IsADirectoryError, match="is a folder; a file name is needed"):
        write_tensors(tmp_path, ARRAYS, HEADER)


def test_a_missing_folder_is_reported_with_the_fix(tmp_path):
    with pytest.raises(FileNotFoundError, match="Fix: create it first"):
        write_tensors(tmp_path / "no" / "file", ARRAYS, HEADER)


def test_errors_for_unreadable_files(tmp_path):
    path = tmp_path / "file"
    with pytest.raises(FileNotFoundError, match="no file at"):
        read_tensors(path, kind="thing", schema=1)
    path.write_bytes(b"not safetensors at all")
    with pytest.raises(FileFormatError, match="not a readable safetensors file"):
        read_tensors(path, kind="thing", schema=1)
    from safetensors.numpy import save_file

    save_file(ARRAYS, path)
    with pytest.raises(FileFormatError, match="no zeroshift header"):
        read_tensors(path, kind="thing", schema=1)
    save_file(ARRAYS, path, metadata={"zeroshift": "{"})
    with pytest.raises(FileFormatError, match="no zeroshift header"):
        read_tensors(path, kind="thing", schema=1)
    save_file(ARRAYS, path, metadata={"zeroshift": json.dumps({"kind": "other", "schema": 1})})
    with pytest.raises(FileFormatError, match="is a other file of zeroshift; a thing file is needed here"):
        read_tensors(path, kind="thing", schema=1)
    for damaged in (["a list"], {"kind": "thing"}, {"kind": "thing", "schema": "one"}):
        save_file(ARRAYS, path, metadata={"zeroshift": json.dumps(damaged)})
        with pytest.raises(FileFormatError, match="damaged header"):
            read_tensors(path, kind="thing", schema=1)
    save_file(ARRAYS, path, metadata={"zeroshift": json.dumps({"kind": "thing", "schema": 9})})
    with pytest.raises(FileFormatError, match=r"schema version 9; this zeroshift reads up to 1.*upgrade"):
        read_tensors(path, kind="thing", schema=1)


def test_every_truncation_is_detected(tmp_path):
    path = tmp_path / "file"
    write_tensors(path, ARRAYS, HEADER)
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(FileFormatError):
            read_tensors(path, kind="thing", schema=1)
