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
        (("--raw-csv",), "--raw-csv cannot be used with features in many files"),
        (("--top-k", 6), "top_k (--top-k) must be at most 5"),
        (("--reject-above", 2), "--reject-above must be a number from 0 to 1"),
        (("--metadata", "image_path"), "img_emb_0.npy cannot be used: its metadata, "),
        (("--metadata", "row"), "metadata (--metadata) row is a column of the predictions too"),
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
        if first == second:
            assert refused.exit_code == 0
            assert "has the predictions of this run, which is finished" in " ".join(refused.stdout.split())
            assert json.loads(call(*command(path, *second, "--json")).stdout)["result"]["finished"]
            continue
        assert refused.exit_code == 2
        assert f"predictions has the predictions of another run ({len(before)} file" in refused.stderr
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
    result = json.loads(done.stdout)["result"]
    assert (result["skipped"], result["skipped_rows"], result["answered"]) == ([], {str(file): 20}, 580)
    warned = " ".join(done.stderr.split())
    assert f"skipped: 20 rows of {file}: row 100 holds NaN" in warned


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


def write_metadata(path, columns):
    from pyarrow import Table, parquet

    (path / "set/metadata").mkdir(exist_ok=True)
    for number in range(3):
        rows = {name: values[200 * number : 200 * (number + 1)] for name, values in columns.items()}
        parquet.write_table(
            Table.from_pydict(rows), path / f"set/metadata/metadata_{number}.parquet", row_group_size=64
        )


@pytest.mark.parametrize("online", [False, True])
def test_the_same_columns_as_for_one_file(call, folder, online):
    """Rejects, the most probable classes, every class and accuracies, and the paths of the images."""
    from pyarrow import parquet

    path, features, _ = folder
    np.save(path / "labels.npy", np.arange(600) % 5)
    np.save(path / "whole.npy", features)
    names = [f"{number}.jpg" for number in range(600)]
    write_metadata(path, {"image_path": names, "unused": names})
    shared = ("--classes", "a,b,c,d,e", "--labels", path / "labels.npy", "--reject-above", 0.3)
    columns = ("--top-k", 2, "--per-class")
    how = ("--online", "--replicas", 1) if online else ("--task-rows", 150)
    done = call(*command(path, *shared, *columns, *how, "--metadata", "image_path", "--json"))
    assert done.exit_code == 0, done.stderr
    found = parquet.read_table(path / "out" / "predictions")
    one = ("adapt", path / "whole.npy", "--prototypes", path / "text.npy", "--logit-scale", 20, *shared, *columns)
    expected_record = call(*one, *how[: 1 if online else 0], "--out", path / "one.parquet", "--json")
    expected = parquet.read_table(path / "one.parquet")
    assert found["image_path"].to_pylist() == names
    assert "unused" not in found.column_names
    for name in set(expected.column_names) - {"row", "zero_shot_probability"}:
        mine, theirs = found[name].to_pylist(), expected[name].to_pylist()
        if isinstance(theirs[0], float) or name == "probability":
            assert [value is None for value in mine] == [value is None for value in theirs]
            assert np.nanmax(np.abs(np.array(mine, float) - np.array(theirs, float))) < 1e-5
        else:
            assert mine == theirs, name
    result, record = json.loads(done.stdout)["result"], json.loads(expected_record.stdout)
    assert 0 < result["rejected"] == record["rejected"]
    for name in ("accuracy", "zero_shot_accuracy"):
        assert result[name] == pytest.approx(record[name])


def test_labels_belong_to_rows_of_the_files(call, folder):
    """Rows that are left out, and files that were answered by an earlier driver, are counted."""
    path, _, prototypes = folder
    file = path / "set/img_emb/img_emb_0.npy"
    rows = np.load(file)
    labels = (rows @ prototypes.T).argmax(axis=1)
    rows[5] = np.nan
    np.save(file, rows)
    rest = [(np.load(path / f"set/img_emb/img_emb_{n}.npy") @ prototypes.T).argmax(axis=1) for n in (1, 2)]
    np.save(path / "labels.npy", np.concatenate([labels, *rest]))
    options = ("--labels", path / "labels.npy", "--on-bad-shard", "skip", "--json")
    assert json.loads(call(*command(path, *options)).stdout)["result"]["zero_shot_accuracy"] == 1
    done = call(*command(path, "--force", "--online", *options))
    assert json.loads(done.stdout)["result"]["zero_shot_accuracy"] == 1
    np.save(path / "labels.npy", labels)
    assert "one entry per row, shape (600,)" in call(*command(path, "--force", *options)).stderr


@pytest.mark.parametrize("options", [("--on", "local:1"), ("--dry-run",), ()])
def test_a_typing_error_in_the_folder(call, folder, options):
    path = folder[0]
    refused = call("adapt", path / "sett", "--prototypes", path / "text.npy", "--out", path / "out", *options)
    assert refused.exit_code == 2
    message = " ".join(refused.stderr.split())
    assert f"no file at {path / 'sett'}. Did you mean 'set'?" in message


def test_a_run_that_is_continued_says_so(call, folder, monkeypatch):
    from zeroshift.distributed.answers import Predictions

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Predictions, "finish", die)
        assert call(*command(folder[0])).exit_code != 0
    done = call(*command(folder[0]))
    assert done.exit_code == 0
    assert "this run continues one that was interrupted, with 1 of 1 files of predictions written" in done.stderr
    assert "rows/s" not in done.stdout  # it read few of the rows
