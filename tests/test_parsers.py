"""JSON, text and NumPy files are read within limits, and every refusal names the file."""

from __future__ import annotations

import io
import json
import os
import random
import sys
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from zeroshift import parsers
from zeroshift.files import FileFormatError
from zeroshift.parsers import parse_json, read_bytes, read_json, read_npy, read_npz, read_text


@pytest.mark.parametrize(
    "value", [None, 0, -1, 1.5, "[[[", 'a"b\\', {"a": [1, {"b": []}]}, [[]] * 500, ["{" * 200], 10**300]
)
def test_what_python_writes_is_read(value):
    assert parse_json(json.dumps(value), "it") == value
    assert parse_json(json.dumps(value).encode(), "it") == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 65 + "]" * 65, "nested more than 64 deep"),
        ('{"a":' * 100_000, "nested more than 64 deep"),
        ('"\\"' + '\\"' * 100_000 + "[" * 65, "Unterminated string"),
        ("1" * 401, "an integer has 401 characters, more than 400"),
        ("1" * 10_000, "an integer has 10,000 characters"),
        ("1e400", "1e400 is not a finite number"),
        ("[NaN]", "NaN is not a finite number"),
        ("-Infinity", "-Infinity is not a finite number"),
        ('{"a": 1, "b": 2, "a": 3}', "the key 'a' occurs twice"),
        ("", "Expecting value"),
        (b"\xff", "can't decode byte"),
    ],
)
def test_what_is_not_read_names_the_source(text, message):
    with pytest.raises(FileFormatError, match=rf"^here cannot be read as JSON \(.*{message}.*\)\. Fix: "):
        parse_json(text, "here")


def test_64_levels_are_read_however_deep_python_is():
    text = "[" * 64 + "]" * 64
    assert json.dumps(parse_json(text, "it")) == text


def test_text_is_bounded_and_special_files_are_refused(tmp_path):
    path = tmp_path / "names.txt"
    path.write_bytes(b"\xef\xbb\xbfcat\n")
    assert read_text(path) == "cat\n"
    with pytest.raises(FileFormatError, match=r"names\.txt has more than 6 bytes, too many for text"):
        read_bytes(path, limit=6)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(FileFormatError, match=r"names\.txt is not UTF-8 text"):
        read_json(path)
    with pytest.raises(FileNotFoundError, match=r"no file at .*absent"):
        read_text(tmp_path / "absent")
    with pytest.raises(FileNotFoundError, match="no file at"):
        read_text("a\0b")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        read_text(tmp_path)
    if sys.platform != "win32":
        os.mkfifo(tmp_path / "pipe")
        for special in ("/dev/zero", tmp_path / "pipe"):
            with pytest.raises(FileFormatError, match=rf"{special} is a device, pipe or socket"):
                read_text(special)


@pytest.mark.skipif(sys.platform == "win32", reason="no named pipes")
def test_pipes_are_read_where_they_are_allowed(tmp_path):
    with pytest.raises(FileFormatError, match="/dev/zero is a device or socket"):
        read_text("/dev/zero", pipes=True)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileFormatError, match="pipe that nothing was written to"):
        read_text(tmp_path / "pipe", pipes=True)  # it does not wait for a writer
    reading, writing = os.pipe()
    writer = threading.Timer(0.1, lambda: (os.write(writing, b"cat\n"), os.write(writing, b"dog\n"), os.close(writing)))
    writer.start()
    assert read_text(f"/dev/fd/{reading}", pipes=True) == "cat\ndog\n"
    writer.join()
    os.close(reading)


@pytest.mark.skipif(sys.platform == "win32", reason="no /dev/fd")
def test_a_pipe_that_does_not_end_is_refused():
    reading, writing = os.pipe()
    os.write(writing, b"x" * 100)
    with pytest.raises(FileFormatError, match="has more than 50 bytes"):
        read_text(f"/dev/fd/{reading}", limit=50, pipes=True)
    os.close(reading)
    os.close(writing)


def npy(array=None, *, header=None, version=b"\x01\x00", data=b""):
    if array is not None:
        handle = io.BytesIO()
        np.save(handle, array, allow_pickle=True)
        return handle.getvalue()
    text = header.encode("latin-1")
    return b"\x93NUMPY" + version + len(text).to_bytes(2 if version[0] == 1 else 4, "little") + text + data


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.arange(6, dtype=np.int8).reshape(2, 3)),
        np.array(3.5),
        np.zeros((0, 4)),
        np.array(["a", "ä", "longer"]),
        np.arange(4, dtype=">f4"),
        np.array([True, False]),
    ],
)
def test_arrays_are_read_as_numpy_reads_them(tmp_path, array):
    np.save(tmp_path / "x.npy", array)
    np.savez(tmp_path / "x.npz", x=array, other=array)
    np.savez_compressed(tmp_path / "c.npz", x=array)
    found = [read_npy(tmp_path / "x.npy", mapped=mapped) for mapped in (False, True)]
    keys, arrays = read_npz(tmp_path / "x.npz", lambda name: name == "x")
    assert (keys, list(arrays)) == (["x", "other"], ["x"])
    found += [arrays["x"], read_npz(tmp_path / "c.npz", lambda _: True)[1]["x"]]
    for one in found:
        assert (one.dtype, one.shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(one, array)


HUGE = "{'descr': '<f8', 'fortran_order': False, 'shape': (%s,)}\n"

HOSTILE = {
    "huge": (npy(header=HUGE % 2**40), r"takes 8,796,093,022,208 bytes, and 0 follow"),
    "overflow": (npy(header=HUGE % (2**62)), r"takes .* bytes, and 0 follow"),
    "product": (npy(header=HUGE % "2**40"), "header is damaged"),
    "above 64 bits": (npy(header=HUGE % 2**70), "header is damaged"),
    "digits": (npy(header=HUGE % ("9" * 5000)), "header is damaged"),
    "negative": (npy(header=HUGE % -1), "header is damaged"),
    "true": (npy(header=HUGE % True, data=b"12345678"), "header is damaged"),
    "deep": (npy(header="(" * 3000), "header is damaged"),
    "not a dictionary": (npy(header="[1]"), "header is damaged"),
    "no shape": (npy(header="{'descr': '<f8', 'fortran_order': False}"), "header is damaged"),
    "unknown field": (npy(header=HUGE.replace("}", ", 'x': 1}") % 0), "header is damaged"),
    "unknown type": (npy(header=HUGE.replace("<f8", "<f999999") % 0), "header is damaged"),
    "number as type": (npy(header=HUGE.replace("'<f8'", "8") % 0), "header is damaged"),
    "empty type": (npy(header=HUGE.replace("<f8", "<U0") % 10**12), "header is damaged"),
    "fields": (npy(np.zeros(3, dtype=[("a", "f8")])), "is a structured array with the fields 'a'"),
    "objects": (npy(np.array([{}], dtype=object)), "is an object array"),
    "long header": (npy(header=" " * 20_000, version=b"\x02\x00"), "too long"),
    "header of 4 GiB": (b"\x93NUMPY\x02\x00\xff\xff\xff\xff{", "too long"),
    "version": (npy(header=HUGE % 0, version=b"\x09\x00"), "header is damaged"),
    "cut header": (npy(np.zeros(3))[:40], "ends within its header"),
    "cut data": (npy(np.zeros(3))[:-1], "takes 24 bytes, and 23 follow"),
    "more data": (npy(np.zeros(3)) + b"x", "takes 24 bytes, and 25 follow"),
    "text": (b"hello", "is not an .npy file"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers_are_refused_before_memory_is_allocated(tmp_path, name):
    content, message = HOSTILE[name]
    (tmp_path / "x.npy").write_bytes(content)
    for mapped in (False, True):
        with pytest.raises(FileFormatError, match=rf"x\.npy.*{message}"):
            read_npy(tmp_path / "x.npy", mapped=mapped)
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("features.npy", content)
    with pytest.raises(FileFormatError, match=rf"x\.npz: features.*{message}"):
        read_npz(tmp_path / "x.npz", lambda _: True)


def test_the_inflated_size_is_bounded_and_the_bound_can_be_changed(tmp_path, monkeypatch):
    path, array = tmp_path / "bomb.npz", np.zeros(40_000_000)
    np.savez_compressed(path, features=array)
    with pytest.raises(
        FileFormatError, match=r"would take 320,000,128 in memory; 268,435,456 are allowed.*Fix: .*=320"
    ):
        read_npz(path, lambda _: True)
    assert read_npz(path, lambda _: False) == (["features"], {})
    monkeypatch.setenv(parsers.MAX_INFLATED_VARIABLE, "320000128")
    assert read_npz(path, lambda _: True)[1]["features"].shape == array.shape
    monkeypatch.setenv(parsers.MAX_INFLATED_VARIABLE, "1000")
    with pytest.raises(FileFormatError, match=r"1,000 are allowed"):
        read_npz(path, lambda _: True)
    monkeypatch.setenv(parsers.MAX_INFLATED_VARIABLE, "much")
    with pytest.raises(ValueError, match=r"ZEROSHIFT_MAX_INFLATED_BYTES must be a number of bytes; it is 'much'"):
        read_npz(path, lambda _: True)


def test_a_member_that_inflates_to_more_than_it_declares_is_refused(tmp_path):
    """The declared size bounds what is inflated, so it must not be too small."""
    path, content = tmp_path / "x.npz", npy(np.zeros(1000))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", content)
    whole, size = path.read_bytes(), len(content).to_bytes(4, "little")
    path.write_bytes(whole.replace(size, (len(content) - 8).to_bytes(4, "little")))
    with pytest.raises(FileFormatError, match=r"x\.npz"):
        read_npz(path, lambda _: True)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_arrays_of_one_name_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", npy(np.zeros(1)))
        archive.writestr("x.npy", npy(np.ones(1)))
    with pytest.raises(FileFormatError, match="two arrays of the same name"):
        read_npz(tmp_path / "x.npz", lambda _: True)


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_damaged_archives_are_refused_or_give_the_same_arrays(tmp_path, write):
    path, arrays = tmp_path / "x.npz", {"features": np.arange(40.0), "labels": np.arange(5), "more": np.ones(3)}
    write(path, **arrays)
    whole, chance = path.read_bytes(), random.Random(5)
    for _ in range(1500):
        damaged = bytearray(whole)
        damaged[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged if chance.random() < 0.8 else whole[: chance.randrange(len(whole))])
        try:
            keys, found = read_npz(path, lambda name: name in ("features", "labels"))
        except FileFormatError:
            continue
        assert sorted(keys) == sorted(arrays)
        assert all(np.array_equal(found[name], arrays[name]) for name in ("features", "labels"))


@pytest.mark.parametrize("shape", [(), (3,), (3, 4), (0, 5), (2, 3, 4)])
@pytest.mark.parametrize("dtype", ["<f2", ">f4", "<f8", "|u1", "<i8", "|b1", "<U7", "|S3"])
def test_headers_that_numpy_writes_are_read_without_syntax_trees(tmp_path, monkeypatch, shape, dtype):
    """Python 3.11 cannot parse syntax trees in several threads."""
    np.save(tmp_path / "a.npy", np.zeros(shape, dtype))
    monkeypatch.setattr(parsers.ast, "literal_eval", None)
    with open(tmp_path / "a.npy", "rb") as handle:
        header = parsers.read_array_header(handle, "a.npy")
        assert (header.shape, header.fortran, header.dtype) == (shape, False, np.dtype(dtype))
        assert len(handle.read()) == np.zeros(shape, dtype).nbytes


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("{'shape': (3, 4), 'descr': '<f4', 'fortran_order': True}", ((3, 4), True)),
        ('{"descr": "<f4", "fortran_order": False, "shape": (3,)}', ((3,), False)),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (3,4)}", ((3, 4), False)),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (3)}", None),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (03, 4)}", None),
        ("{'descr': '<f4', 'fortran_order': 0, 'shape': (3, 4)}", None),
    ],
)
def test_headers_of_other_programs(text, fields):
    content = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()
    if fields is None:
        with pytest.raises(FileFormatError, match="it cannot be read: its header is damaged"):
            parsers.read_array_header(io.BytesIO(content), "it")
    else:
        assert parsers.read_array_header(io.BytesIO(content), "it")[:2] == fields


def test_syntax_trees_are_parsed_one_at_a_time(monkeypatch):
    text = b"{'shape': (3, 4), 'descr': '<f4', 'fortran_order': False}"
    content = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
    real, inside, together = parsers.ast.literal_eval, [], []

    def watched(text):
        inside.append(1)
        time.sleep(0.001)
        together.append(len(inside))
        found = real(text)
        inside.pop()
        return found

    monkeypatch.setattr(parsers.ast, "literal_eval", watched)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: parsers.read_array_header(io.BytesIO(content), "it"), range(40)))
    assert together == [1] * 40
