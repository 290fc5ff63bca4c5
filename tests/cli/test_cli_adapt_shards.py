"""`zeroshift adapt` on features in many files."""

from __future__ import annotations

import json

import numpy as np
import pytest

from zeroshift import TransductiveAnchoredMixture
from zeroshift.testing import make_problem


@pytest.fixture
def folder(tmp_path):
    features, prototypes, _ = make_problem(classes=5, dimension=16, samples=600)
    (tmp_path / "set" / "img_emb").mkdir(parents=True)
    for number in range(3):
        np.save(tmp_path / f"set/img_emb/img_emb_{number}.npy", features[200 * number : 200 * (number + 1)])
    np.save(tmp_path / "text.npy", prototypes)
    return tmp_path, features, prototypes


def command(folder, *options):
    texts = ("--prototypes", folder / "text.npy", "--logit-scale", 20)
    return ("adapt", folder / "set", *texts, "--on", "local:1", "--out", folder / "out", *options)


def test_predictions(call, folder):
    from pyarrow import parquet

    path, features, prototypes = folder
    done = call(*command(path, "--task-rows", 150, "--classes", "a,b,c,d,e"))
    assert done.exit_code == 0, done.stderr
    assert "600 rows in 3 shards" in done.stderr
    assert "pass 1: 600 of 600 rows" in done.stderr
    table = parquet.read_table(path / "out" / "predictions")
    expected = TransductiveAnchoredMixture(prototypes, logit_scale=20.0).adapt(features).argmax(1)
    assert table["prediction"].to_pylist() == ["abcde"[index] for index in expected]
    assert len(list((path / "out" / "predictions").iterdir())) == 4


def test_dry_run_and_json(call, folder):
    path = folder[0]
    done = call(*command(path, "--dry-run", "--json", "--fit-rows", 0.5))
    planned = json.loads(done.stdout)["plan"]
    assert (planned["rows"], planned["fit_rows"], planned["shards"]) == (600, 300, 3)
    # four rounds over all rows, six over 300, and the pass that answers
    assert planned["most_bytes_read"] == (4 * 600 + 6 * 300 + 600) * 16 * 8
    assert "at most 4 over all rows and 6 over samples of 300" in " ".join(
        call(*command(path, "--dry-run", "--fit-rows", 0.5)).stdout.split()
    )
    assert planned["seconds"] > 0
    assert not (path / "out").exists()
    result = json.loads(call(*command(path, "--json", "--fit-rows", 0.5)).stdout)["result"]
    assert (result["rows"], result["fit_rows"], result["answered"]) == (600, 300, 600)


def test_skipped_shard(call, folder):
    path = folder[0]
    shard = path / "set/img_emb/img_emb_1.npy"
    shard.write_bytes(shard.read_bytes()[:-8])
    refused = call(*command(path))
    assert refused.exit_code == 2
    assert "img_emb_1.npy cannot be used: it is truncated" in refused.stderr
    done = call(*command(path, "--on-bad-shard", "skip", "--json"))
    assert "img_emb_1.npy" in done.stderr
    assert json.loads(done.stdout)["result"]["answered"] == 400


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--method", "tda"), "tda cannot learn from shards"),
        (("--replicas", 2), "--replicas is not for anchored_mixture_transductive"),
        (("--online", "--exact"), "--exact is not for anchored_mixture_online"),
        (("--fit-rows", 0.1, "--exact"), "contradict each other"),
        (("--top-k", 3), "--top-k cannot be used with features in many files"),
        (("--on", "local:0"), "--on local:0 has no processes. Fix: local:1"),
        (("--fit-rows", 1.5), "a share up to 1 or a whole number of rows; got 1.5"),
        (("--fit-rows", 3, "--dry-run"), "is a sample of 3 rows, but there are 5 classes. Fix: at least 5 rows"),
        (("--classes", "a,b,c,d", "--dry-run"), "--classes a,b,c,d has 4 names, but"),
        (("--classes", "a,b,c,d", "--dry-run", "--online"), "text.npy has 5 prototypes"),
        (("--on", "spark"), "--on must be local, local:N, ray or ray://host:port; got 'spark'"),
    ],
)
def test_refused(call, folder, options, message):
    done = call(*command(folder[0], *options))
    assert done.exit_code == 2
    assert message in done.stderr


def test_prototypes_are_needed(call, folder):
    done = call("adapt", folder[0] / "set", "--out", folder[0] / "out")
    assert done.exit_code == 2
    assert "--prototypes FILE" in done.stderr


def test_online_in_replicas(call, folder):
    from pyarrow import parquet

    path = folder[0]
    done = call(*command(path, "--online", "--replicas", 2, "--exchange-every", 100, "--json"))
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["result"]["rows"] == 600
    table = parquet.read_table(path / "out" / "predictions")
    assert len(set(zip(table["shard"].to_pylist(), table["row"].to_pylist(), strict=True))) == 600
    assert len(list((path / "out" / "predictions").iterdir())) == 3  # one per shard


def test_output_at_a_url(call, folder, monkeypatch):
    from pyarrow import parquet

    path, features, prototypes = folder
    elsewhere = path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    done = call(*command(path, "--out", f"file://{path}/at/url", "--json"))
    assert json.loads(done.stdout)["result"]["out"] == f"file://{path}/at/url"
    table = parquet.read_table(path / "at" / "url" / "predictions")
    expected = TransductiveAnchoredMixture(prototypes, logit_scale=20.0).adapt(features).argmax(1)
    assert table["prediction"].to_pylist() == expected.tolist()
    done = call(*command(path, "--online", "--out", "simplecache::memory://cli-output-at-a-url/out", "--json"))
    assert json.loads(done.stdout)["result"]["out"] == "simplecache::memory://cli-output-at-a-url/out"
    import fsspec

    assert fsspec.filesystem("memory").exists("/cli-output-at-a-url/out/predictions/predictions_00000_0000.parquet")
    assert list(elsewhere.iterdir()) == []


def files_in(out):
    return {file.name: file.read_bytes() for file in (out / "predictions").iterdir()}


@pytest.mark.parametrize("first", [(), ("--online",)])
@pytest.mark.parametrize("second", [(), ("--online",), ("--online", "--logit-scale", 30)])
def test_results_are_replaced_only_with_force(call, folder, first, second):
    path = folder[0]
    assert call(*command(path, *first)).exit_code == 0
    before = files_in(path / "out")
    for options in ((), ("--dry-run",)):
        refused = call(*command(path, *second, *options))
        assert refused.exit_code == 2
        what = "this run, which is finished" if first == second else "another run"
        assert f"predictions has the predictions of {what} ({len(before)} file" in refused.stderr
        assert "Fix: --force" in refused.stderr
    assert files_in(path / "out") == before
    assert call(*command(path, *second, "--force")).exit_code == 0
    assert len(files_in(path / "out")) == (3 if second else 1)


@pytest.mark.parametrize("options", [(), ("--online",)])
def test_files_of_others_are_never_deleted(call, folder, options):
    path = folder[0]
    (path / "out" / "predictions").mkdir(parents=True)
    own = path / "out" / "predictions" / "predictions_mine.parquet"
    own.write_text("mine")
    refused = call(*command(path, *options))
    assert refused.exit_code == 2
    assert "files that zeroshift did not record as its own, such as predictions_mine.parquet" in refused.stderr
    for _ in range(2):
        assert call(*command(path, *options, "--force")).exit_code == 0
        assert own.read_text() == "mine"
    for name in ("predictions_00000.parquet", "predictions_00000_0000.parquet"):
        (path / "other" / "predictions").mkdir(parents=True, exist_ok=True)
        (path / "other" / "predictions" / name).write_text("mine")
    refused = call(*command(path, *options, "--force", "--out", path / "other"))
    assert refused.exit_code == 2
    assert "which no run recorded as its own and this one would replace" in refused.stderr
    assert set(files_in(path / "other").values()) == {b"mine"}


def test_unfinished_online_run_starts_again(folder):
    from zeroshift import OnlineAnchoredMixture
    from zeroshift.distributed import FeatureShards, follow_shards

    path, _, prototypes = folder
    arguments = {"replicas": 2, "every": 100, "on": "local:0", "out": path / "out"}

    def stop(what, rows, total):
        if rows >= 500:
            raise KeyboardInterrupt

    shards = FeatureShards.open(path / "set")
    with pytest.raises(KeyboardInterrupt):
        follow_shards(OnlineAnchoredMixture(prototypes), shards, progress=stop, **arguments)
    assert files_in(path / "out")
    follow_shards(OnlineAnchoredMixture(prototypes), shards, **arguments)
    assert len(files_in(path / "out")) == 3


@pytest.mark.parametrize(("scale", "text"), [((), "100 (assumed, because"), (("--logit-scale", 20), "20")])
@pytest.mark.parametrize("online", [(), ("--online",)])
def test_logit_scale_is_shown(call, folder, scale, text, online):
    path = folder[0]
    run = ("adapt", path / "set", "--prototypes", path / "text.npy", "--on", "local:1", "--out", path / "out")
    planned = call(*run, *scale, *online, "--dry-run")
    assert f"logit scale {text}" in " ".join(planned.stdout.split())
    found = json.loads(call(*run, *scale, *online, "--dry-run", "--json").stdout)
    assert (found["logit_scale"], found["logit_scale_assumed"]) == ((20, False) if scale else (100, True))
    done = call(*run, *scale, *online)
    assert f"logit scale {text}" in " ".join(done.stdout.split())


def test_replicas_without_shards_are_shown(call, folder):
    options = ("--online", "--replicas", 8, "--dry-run")
    assert "3 of 8 replicas have shards" in call(*command(folder[0], *options)).stdout
    planned = json.loads(call(*command(folder[0], *options, "--json")).stdout)["plan"]
    assert (planned["replicas"], planned["replicas_with_shards"]) == (8, 3)


@pytest.mark.parametrize("options", [(), ("--normalize",), ("--online", "--normalize"), ("--fit-rows", 0.9)])
@pytest.mark.parametrize("shard", [0, 2])
def test_row_with_nan(call, folder, options, shard):
    path = folder[0]
    file = path / f"set/img_emb/img_emb_{shard}.npy"
    rows = np.load(file)
    rows[100:120] = np.nan
    np.save(file, rows)
    refused = call(*command(path, "--quiet", *options))
    assert refused.exit_code == 2
    assert f"img_emb_{shard}.npy cannot be used: row 1" in refused.stderr
    assert "holds NaN" in refused.stderr
    if "--fit-rows" not in options:
        assert "row 100 holds" in refused.stderr
    done = call(*command(path, *options, "--on-bad-shard", "skip", "--json"))
    assert done.exit_code == 0, done.stderr
    assert [name.rsplit("/", 1)[-1] for name in json.loads(done.stdout)["result"]["skipped"]] == [file.name]


@pytest.mark.parametrize("source", ["text.npy", "pack:cifar10"])
def test_options_of_folders_with_a_file(call, folder, source):
    path = folder[0] / source if source.endswith("npy") else source
    refused = call("adapt", path, "--on", "local:2", "--dry-run", "--out", folder[0] / "out")
    assert refused.exit_code == 2
    assert f"--on and --dry-run need a folder or URL of features; got {path}" in refused.stderr


def test_estimate_of_the_time(folder, monkeypatch):
    """Divided by no more workers than there are tasks and cores."""
    from zeroshift.distributed import FeatureShards, adaptation, plan

    ticks = iter(range(100))
    monkeypatch.setattr(adaptation.time, "perf_counter", lambda: float(next(ticks)))
    monkeypatch.setattr(adaptation, "count_cores", lambda: 3)
    shards, method = FeatureShards.open(folder[0] / "set"), TransductiveAnchoredMixture(folder[2])

    def seconds(on, task_rows):
        return plan(method, shards, on=on, task_rows=task_rows, probe=True).seconds

    one = seconds("local:1", 100)
    assert seconds("local:8", 100) == one / 3
    assert seconds("local:8", 300) == one / 2


def test_output_that_is_a_file(call, folder):
    path = folder[0]
    (path / "out").write_text("mine")
    refused = call(*command(path))
    assert refused.exit_code == 2
    assert "is a file, not a folder" in refused.stderr
