"""Formats of shards: the same rows from each, and errors that name the file."""

from __future__ import annotations

import numpy as np
import pytest

from zeroshift import FeatureSet
from zeroshift.distributed import FeatureShards, ShardError
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


def test_truncated_file(tmp_path):
    np.save(tmp_path / "a.npy", np.eye(4))
    np.save(tmp_path / "b.npy", np.eye(4))
    (tmp_path / "b.npy").write_bytes((tmp_path / "b.npy").read_bytes()[:-8])
    with pytest.raises(ShardError, match=r"b\.npy cannot be used: it is truncated"):
        FeatureShards.open(tmp_path)
    found = FeatureShards.open(tmp_path, on_error="skip")
    assert found.rows == 4
    assert [error.path for error in found.skipped] == [str(tmp_path / "b.npy")]
