"""Rows that a worker keeps on a GPU between passes. Torch's CPU stands for the GPU."""

from __future__ import annotations

import numpy as np
import pytest

from zeroshift import TransductiveADAPT, TransductiveAnchoredMixture
from zeroshift.distributed import FeatureShards, ShardError, adapt, adaptation, device_rows, shards
from zeroshift.distributed.device_rows import DeviceRows, kept_rows
from zeroshift.testing import make_problem

torch = pytest.importorskip("torch", reason="torch is not installed")

METHODS = [TransductiveAnchoredMixture, TransductiveADAPT]


@pytest.fixture
def problem(tmp_path, monkeypatch):
    features, prototypes, _ = make_problem(classes=7, dimension=24, samples=900)
    for number, rows in enumerate(np.array_split(features.astype(np.float16), 3)):
        np.save(tmp_path / f"{number}.npy", rows)
    monkeypatch.setattr(adaptation, "is_gpu", lambda device: device == "cpu")
    monkeypatch.setattr(device_rows, "_free_share", lambda device: 1.0)
    return features, prototypes, tmp_path


def run(method, problem, monkeypatch, **arguments):
    """The answers, and how often rows were read from a file."""
    features, prototypes, folder = problem
    reads = []
    read = shards.Shard.read
    with monkeypatch.context() as patched:
        patched.setattr(shards.Shard, "read", lambda shard, *rows: reads.append(rows) or read(shard, *rows))
        made = method(prototypes, logit_scale=20.0)
        adapt(made, FeatureShards.open(folder), on="local:0", device="cpu", task_rows=250, **arguments)
    assert not kept_rows()._kept
    return made.predict(features), len(reads)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_kept_or_not_the_bits_are_the_same(problem, method, normalize, monkeypatch):
    kept, reads = run(method, problem, monkeypatch, normalize=normalize)
    monkeypatch.setattr(device_rows, "_free_share", lambda device: 0.0)
    not_kept, more = run(method, problem, monkeypatch, normalize=normalize)
    np.testing.assert_array_equal(kept, not_kept)
    if method is TransductiveAnchoredMixture:
        assert reads == 7  # the first rows, and those of four tasks in six pieces
        assert more > 2 * reads


def test_samples_are_taken_from_kept_rows(problem, monkeypatch):
    kept, reads = run(TransductiveAnchoredMixture, problem, monkeypatch, fit_rows=0.5)
    assert reads == 7
    monkeypatch.setattr(device_rows, "_free_share", lambda device: 0.0)
    np.testing.assert_array_equal(kept, run(TransductiveAnchoredMixture, problem, monkeypatch, fit_rows=0.5)[0])


def test_a_bad_row_is_named(problem, monkeypatch):
    path = problem[2] / "1.npy"
    rows = np.load(path)
    rows[7] = np.nan
    np.save(path, rows)
    with pytest.raises(ShardError, match=r"1\.npy.*row 7 holds NaN"):
        run(TransductiveAnchoredMixture, problem, monkeypatch)
    assert not kept_rows()._kept
    answers, _ = run(TransductiveAnchoredMixture, problem, monkeypatch, on_bad_shard="skip")
    expected = TransductiveAnchoredMixture(problem[1], logit_scale=20.0)
    expected.adapt(np.delete(problem[0], 307, axis=0).astype(np.float16))
    assert np.abs(answers - expected.predict(problem[0])).max() < 1e-4


@pytest.mark.parametrize("dtype", ["<f2", ">f2", "<f4", ">f8", np.longdouble])
def test_moved_rows_have_the_precision_of_the_file(dtype):
    rows = np.random.default_rng(0).normal(size=(20, 3)).astype(dtype)
    moved = DeviceRows().move(rows, "cpu")
    assert moved.element_size() == min(8, rows.dtype.itemsize)
    np.testing.assert_array_equal(moved.numpy(), rows.astype(moved.numpy().dtype))


def test_rows_of_another_run_are_neither_found_nor_kept(monkeypatch):
    monkeypatch.setattr(device_rows, "_free_share", lambda device: 1.0)
    rows, kept = torch.zeros(2, 3), DeviceRows()
    assert kept.find("first", "cpu", 0) is None
    kept.keep("first", "cpu", 0, rows)
    assert kept.find("first", "cpu", 0) is rows
    assert kept.find("second", "cpu", 0) is None
    kept.keep("first", "cpu", 0, rows)
    assert kept.find("second", "cpu", 0) is None
    assert kept.find("first", "cpu", 0) is None
