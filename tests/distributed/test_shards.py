"""Formats of shards: the same rows from each, and errors that name the file."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from zeroshift import FeatureSet
from zeroshift.distributed import FeatureShards, ShardError
from zeroshift.distributed.folders import Folder
from zeroshift.distributed.shards import ShardChangedError
from zeroshift.files import FileFormatError
from zeroshift.testing import make_problem


def write(kind, folder, features, prototypes):
    import pyarrow
    from pyarrow import parquet

    if kind == "npy":
        np.save(folder / "part_10.npy", features[50:])
        np.save(folder / "part_9.npy", features[:50])
    elif kind == "safetensors":
        for number, part in enumerate((features[:50], features[50:])):
            FeatureSet(part, prototypes=prototypes, logit_scale=20.0).save(folder / f"{number}.safetensors")
    else:
        for number, part in enumerate((features[:50], features[50:])):
            values = pyarrow.array(part.reshape(-1))
            rows = (
                pyarrow.FixedSizeListArray.from_arrays(values, features.shape[1])
                if kind == "fixed"
                else pyarrow.array(list(part))
            )
            table = pyarrow.table({"id": np.arange(len(part)), "embedding": rows})
            parquet.write_table(table, folder / f"{number}.parquet", row_group_size=16)


@pytest.mark.parametrize("kind", ["npy", "safetensors", "fixed", "list"])
@pytest.mark.parametrize("url", ["", "file://", "memory://"])
def test_formats(tmp_path, kind, url):
    features, prototypes, _ = make_problem(classes=3, dimension=8, samples=120)
    features = features.astype(np.float32)
    write(kind, tmp_path, features, prototypes)
    source = str(tmp_path)
    if url:
        fsspec = pytest.importorskip("fsspec")
        source = f"{url}{tmp_path}" if url == "file://" else f"memory://{kind}{tmp_path.name}"
        if url == "memory://":
            for file in tmp_path.iterdir():
                with fsspec.open(f"{source}/{file.name}", "wb") as handle:
                    handle.write(file.read_bytes())
    shards = FeatureShards.open(source)
    assert (shards.rows, shards.dimension, len(shards.shards)) == (120, 8, 2)
    rows = np.concatenate([shard.read(0, shard.rows) for shard in shards.shards])
    assert np.array_equal(rows, features)
    assert np.array_equal(shards.shards[1].read(17, 40), features[67:90])


@pytest.mark.parametrize("kind", ["fixed", "list", "large"])
def test_null_rows_and_lists_of_other_lengths(tmp_path, kind):
    """No row may be left out without a word: those after it would get the answers of others."""
    import pyarrow
    from pyarrow import parquet

    rows = [row.tolist() for row in np.eye(8)]
    types = {
        "fixed": pyarrow.list_(pyarrow.float32(), 8),
        "list": pyarrow.list_(pyarrow.float32()),
        "large": pyarrow.large_list(pyarrow.float32()),
    }

    def open_rows(given):
        parquet.write_table(
            pyarrow.table({"embedding": pyarrow.array(given, types[kind])}), tmp_path / "0.parquet", row_group_size=3
        )
        return FeatureShards.open(tmp_path).shards[0]

    assert np.array_equal(open_rows(rows).read(2, 7), np.eye(8)[2:7])
    missing = open_rows([None, *rows[1:5], None, *rows[6:]])
    assert np.array_equal(missing.read(1, 5), np.eye(8)[1:5])
    with pytest.raises(ShardError, match=r"0\.parquet cannot be used: row 0 is null\. Fix"):
        missing.read(0, 3)
    with pytest.raises(ShardError, match="row 5 is null"):
        missing.read(4, 8)
    if kind != "fixed":
        other = open_rows([*rows[:4], rows[4][:7], [*rows[5], 0.0], *rows[6:]])  # as many numbers in all
        with pytest.raises(ShardError, match="row 4 has 7 numbers, not 8"):
            other.read(2, 8)
        with pytest.raises(ShardError, match="all rows of column 'embedding' are null or empty"):
            open_rows([None, None])


def test_truncated_file(tmp_path):
    np.save(tmp_path / "a.npy", np.eye(4))
    np.save(tmp_path / "b.npy", np.eye(4))
    (tmp_path / "b.npy").write_bytes((tmp_path / "b.npy").read_bytes()[:-8])
    with pytest.raises(ShardError, match=r"b\.npy cannot be used: it is truncated"):
        FeatureShards.open(tmp_path)
    found = FeatureShards.open(tmp_path, on_error="skip")
    assert found.rows == 4
    assert [error.path for error in found.skipped] == [str(tmp_path / "b.npy")]


@pytest.mark.parametrize("suffix", [".npy", ".parquet", ".safetensors"])
def test_what_is_no_file_is_not_opened(tmp_path, suffix):
    """To open a pipe without a writer waits for one, and no signal ends that in a thread."""
    np.save(tmp_path / "a.npy", np.eye(4))
    os.mkfifo(tmp_path / f"b{suffix}")
    with pytest.raises(ShardError, match=f"b{suffix} is a device, pipe or socket"):
        FeatureShards.open(tmp_path)
    found = FeatureShards.open(tmp_path, on_error="skip")
    assert (found.rows, len(found.skipped)) == (4, 1)
    (tmp_path / "a.npy").unlink()
    os.mkfifo(tmp_path / "a.npy")
    with pytest.raises(ShardChangedError, match=r"a\.npy was replaced"):
        found.shards[0].read(0, 2)
    with pytest.raises(FileFormatError, match="device, pipe or socket"):
        Folder.of(tmp_path).read("a.npy")


def test_size_and_header_disagree(tmp_path):
    np.save(tmp_path / "a.npy", np.eye(4))
    with open(tmp_path / "a.npy", "ab") as handle:
        handle.write(bytes(8))
    with pytest.raises(ShardError, match=r"a\.npy cannot be used: it has 264 bytes, but its header declares 4 rows"):
        FeatureShards.open(tmp_path)
    header = json.dumps({"features": {"dtype": "F32", "shape": [2, 4], "data_offsets": [0, 64]}}).encode()
    (tmp_path / "a.npy").unlink()
    (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(64))
    with pytest.raises(ShardError, match="its header declares 64 bytes for float32 of shape"):
        FeatureShards.open(tmp_path)


@pytest.mark.parametrize("address", ["reference://", "unknown://bucket/set", "zip://set"])
def test_addresses_that_cannot_be_opened(address):
    pytest.importorskip("fsspec")
    with pytest.raises(ValueError, match=r"is no address that can be opened.*Allowed: .*s3://bucket/folder"):
        FeatureShards.open(address)
