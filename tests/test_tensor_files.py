"""Tensor files: the same bytes for the same content, and every damage is detected."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from zeroshift.files import FileFormatError
from zeroshift.tensor_files import MAX_HEADER_BYTES, read_header, read_tensors, write_tensors

ARRAYS = {"b": np.arange(6.0).reshape(2, 3), "a": np.array([1, 2]), "none": np.zeros((0, 3), np.float16)}
HEADER = {"kind": "thing", "schema": 2, "note": "ä"}


def test_equal_contents_give_equal_bytes_and_can_be_read_back(tmp_path):
    write_tensors(tmp_path / "one", ARRAYS, HEADER)
    write_tensors(tmp_path / "two", dict(reversed(ARRAYS.items())), dict(reversed(HEADER.items())))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    arrays, header = read_tensors(tmp_path / "one", kind="thing", schema=2)
    assert {name: header[name] for name in HEADER} == HEADER
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(arrays[name], array)


def test_transposed_arrays_keep_their_values(tmp_path):
    """Safetensors writes the memory of an array as it is; a transposed array must keep its values."""
    array = np.arange(6.0).reshape(2, 3).T
    write_tensors(tmp_path / "file", {"x": array}, HEADER)
    np.testing.assert_array_equal(read_tensors(tmp_path / "file", kind="thing", schema=2)[0]["x"], array)


def test_errors_for_unreadable_files(tmp_path):
    path = tmp_path / "file"
    with pytest.raises(FileNotFoundError, match="no file at"):
        read_tensors(path, kind="thing", schema=2)
    path.write_bytes(b"not safetensors at all")
    with pytest.raises(FileFormatError, match="not a readable safetensors file"):
        read_tensors(path, kind="thing", schema=2)
    save_file(ARRAYS, path)
    with pytest.raises(FileFormatError, match="no zeroshift header"):
        read_tensors(path, kind="thing", schema=2)
    save_file(ARRAYS, path, metadata={"zeroshift": "{"})
    with pytest.raises(FileFormatError, match=r"the header of .*file cannot be read as JSON"):
        read_tensors(path, kind="thing", schema=2)
    save_file(ARRAYS, path, metadata={"zeroshift": json.dumps({"kind": "other", "schema": 1})})
    with pytest.raises(FileFormatError, match="is a other file of zeroshift; a thing file is needed here"):
        read_tensors(path, kind="thing", schema=2)
    for damaged in (["a list"], {"kind": "thing"}, {"kind": "thing", "schema": "one"}):
        save_file(ARRAYS, path, metadata={"zeroshift": json.dumps(damaged)})
        with pytest.raises(FileFormatError, match="damaged header"):
            read_tensors(path, kind="thing", schema=2)
    save_file(ARRAYS, path, metadata={"zeroshift": json.dumps({"kind": "thing", "schema": 9})})
    with pytest.raises(FileFormatError, match=r"schema version 9; this zeroshift reads up to 2.*upgrade"):
        read_tensors(path, kind="thing", schema=2)


def test_every_truncation_is_detected(tmp_path):
    path = tmp_path / "file"
    write_tensors(path, ARRAYS, HEADER)
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(FileFormatError):
            read_tensors(path, kind="thing", schema=2)


def test_every_bit_flip_is_detected(tmp_path):
    """Except those that change no content, in the padding of the header for example."""
    path = tmp_path / "file"
    write_tensors(path, ARRAYS, HEADER)
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            arrays, header = read_tensors(path, kind="thing", schema=2)
        except FileFormatError:
            continue
        assert {name: header[name] for name in HEADER} == HEADER
        assert all(np.array_equal(arrays[name], ARRAYS[name]) for name in ARRAYS | arrays)


def test_only_the_arrays_that_are_read_are_compared_with_their_checksums(tmp_path):
    path = tmp_path / "file"
    write_tensors(path, ARRAYS, HEADER)
    damaged = bytearray(path.read_bytes())
    at = bytes(damaged).index(np.float64(5.0).tobytes())
    damaged[at] ^= 1
    path.write_bytes(damaged)
    assert read_header(path, kind="thing", schema=2)["note"] == "ä"
    assert read_tensors(path, kind="thing", schema=2, names=["a"])[0]["a"].tolist() == [1, 2]
    with pytest.raises(FileFormatError, match=r"the array 'b' does not have the checksum it was written with.*Fix: "):
        read_tensors(path, kind="thing", schema=2)


def test_checksums_are_required_from_schema_2_on(tmp_path):
    path = tmp_path / "file"
    save_file(ARRAYS, path, metadata={"zeroshift": json.dumps(HEADER)})
    with pytest.raises(FileFormatError, match=r"its header does not have the checksum it was written with"):
        read_tensors(path, kind="thing", schema=2)
    save_file(ARRAYS, path, metadata={"zeroshift": json.dumps({**HEADER, "schema": 1})})
    assert "checksum" not in read_tensors(path, kind="thing", schema=2)[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "nested more than 64 deep"),
        ('{"kind": "thing", "schema": ' + "9" * 10_000 + "}", "an integer has 10,000 characters"),
        ('{"kind": "thing", "schema": 1e999}', "not a finite number"),
        ('{"kind": "thing", "kind": "thing"}', "the key 'kind' occurs twice"),
    ],
)
def test_hostile_headers_are_refused(tmp_path, text, message):
    path = tmp_path / "file"
    save_file(ARRAYS, path, metadata={"zeroshift": text})
    with pytest.raises(FileFormatError, match=rf"{path}.*{message}"):
        read_header(path, kind="thing", schema=2)


def test_a_file_that_declares_more_than_it_contains_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_bytes((MAX_HEADER_BYTES + 1).to_bytes(8, "little") + b"{}")
    with pytest.raises(FileFormatError, match=r"its header would have 33,554,433 bytes"):
        read_header(path, kind="thing", schema=2)
    huge = {"x": {"dtype": "F64", "shape": [2**36], "data_offsets": [0, 2**39]}}
    text = json.dumps(huge).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"12345678")
    with pytest.raises(FileFormatError, match="not a readable safetensors file"):
        read_tensors(path, kind="thing", schema=2)


@pytest.mark.parametrize("dtype", ["BF16", "F8_E4M3"])
def test_types_without_a_numpy_type_are_refused(tmp_path, dtype):
    path, size = tmp_path / "file", 2 if dtype == "BF16" else 1
    header = {"__metadata__": {"zeroshift": json.dumps({**HEADER, "schema": 1})}}
    text = json.dumps({**header, "x": {"dtype": dtype, "shape": [1], "data_offsets": [0, size]}}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * size)
    with pytest.raises(FileFormatError, match="the array 'x' has a type that is not read"):
        read_tensors(path, kind="thing", schema=2)


def test_a_header_that_could_not_be_read_back_is_not_written(tmp_path):
    deep: list = []
    for _ in range(80):
        deep = [deep]
    with pytest.raises(ValueError, match="nested more than 64 deep"):
        write_tensors(tmp_path / "file", ARRAYS, {**HEADER, "deep": deep})
    assert not list(tmp_path.iterdir())
