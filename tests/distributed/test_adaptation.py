"""Methods on shards: the single-machine answer, the same bits for any number of workers, and what breaks."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

import numpy as np
import pytest

from worker_functions import kill_once, slow_once
from zeroshift import OnlineAnchoredMixture, TransductiveADAPT, TransductiveAnchoredMixture
from zeroshift.distributed import (
    FeatureShards,
    FinishedRunError,
    LocalExecutor,
    ShardError,
    adapt,
    follow_shards,
    plan,
)
from zeroshift.distributed.adaptation import make_tasks, sample_numbers
from zeroshift.distributed.answers import Predictions
from zeroshift.distributed.folders import Folder
from zeroshift.distributed.shards import ShardChangedError
from zeroshift.files import FileFormatError
from zeroshift.mixture.transductive import _changed
from zeroshift.testing import make_problem

METHODS = [TransductiveAnchoredMixture, TransductiveADAPT]


def write_shards(folder: Path, features: np.ndarray, sizes: list[int]) -> Path:
    (folder / "img_emb").mkdir(parents=True)
    start = 0
    for number, size in enumerate(sizes):
        np.save(folder / "img_emb" / f"img_emb_{number}.npy", features[start : start + size])
        start += size
    assert start == len(features)
    return folder


@pytest.fixture
def problem(tmp_path):
    features, prototypes, _ = make_problem(classes=7, dimension=24, samples=900)
    shards = write_shards(tmp_path / "set", features, [100, 350, 1, 49, *[20] * 20])
    return features, prototypes, shards


def read_predictions(out: Path):
    from pyarrow import parquet

    return parquet.read_table(out / "predictions")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("task_rows", [64, 100_000])
def test_equal_to_one_machine(problem, tmp_path, method, task_rows):
    features, prototypes, shards = problem
    expected = method(prototypes, logit_scale=20.0)
    answer = expected.adapt(features)
    made = method(prototypes, logit_scale=20.0)
    result = adapt(
        made, FeatureShards.open(shards), on="local:0", out=tmp_path / "out", exact=True, task_rows=task_rows
    )
    assert np.abs(made.predict(features) - expected.predict(features)).max() < 1e-9
    assert made.n_seen == expected.n_seen == 900
    table = read_predictions(tmp_path / "out")
    assert table.column_names == ["shard", "row", "prediction", "probability", "zero_shot"]
    assert np.array_equal(table["prediction"].to_numpy(), answer.argmax(axis=1))
    assert np.abs(table["probability"].to_numpy() - answer.max(axis=1)).max() < 1e-6
    assert result.answered == 900
    assert table["shard"].to_pylist()[100] == "img_emb_1.npy"
    assert table["row"].to_pylist()[100:102] == [0, 1]


@pytest.mark.parametrize("method", METHODS)
def test_same_bits_for_any_number_of_workers(problem, method):
    features, prototypes, shards = problem
    answers = []
    for on in ("local:0", "local:1", "local:2"):
        made = method(prototypes, logit_scale=20.0)
        adapt(made, FeatureShards.open(shards), on=on, task_rows=100)
        answers.append(made.predict(features))
    assert np.array_equal(answers[0], answers[1])
    assert np.array_equal(answers[0], answers[2])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("fit_rows", [None, 0.4])
def test_torch_device(problem, method, fit_rows):
    features, prototypes, shards = problem
    pytest.importorskip("torch")
    plain, made = method(prototypes, logit_scale=20.0), method(prototypes, logit_scale=20.0)
    adapt(plain, FeatureShards.open(shards), on="local:0", task_rows=300, fit_rows=fit_rows)
    adapt(made, FeatureShards.open(shards), on="local:0", task_rows=300, fit_rows=fit_rows, device="cpu")
    assert np.abs(plain.predict(features) - made.predict(features)).max() < 1e-9


def test_sample(problem):
    features, prototypes, shards = problem
    exact, made = (TransductiveAnchoredMixture(prototypes, logit_scale=20.0) for _ in range(2))
    exact.adapt(features)
    result = adapt(made, FeatureShards.open(shards), on="local:0", fit_rows=0.5, task_rows=100)
    assert result.fit_rows == 450
    assert made.n_seen == 900  # the last round is over all rows
    assert made.diagnostics.rounds == result.passes == 10
    assert (made.predict(features).argmax(1) == exact.predict(features).argmax(1)).mean() > 0.99


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_samples_that_are_all_rows_are_exact(problem, dtype):
    """The changes of the labels of all rows, added to the round that they are changes of, are the exact round."""
    features, prototypes, _ = problem
    features = features.astype(dtype)
    exact, made = (TransductiveAnchoredMixture(prototypes, logit_scale=20.0) for _ in range(2))
    exact.adapt(features)
    steps, total, samples = made.learn_in_passes(features[:256], sampled=True), None, []
    while True:
        try:
            work = steps.send(total)
        except StopIteration:
            break
        samples.append(work.sample)
        total = work.add({}, work.part(features[:400], 0, None))
        total = work.add(total, work.part(features[400:], 400, None))
    assert samples == [None, None, None, 0, 1, 2, 3, 4, 5, None]
    assert np.abs(made.predict(features) - exact.predict(features)).max() < (1e-9 if dtype == np.float64 else 1e-6)


def test_changes_that_may_be_chance(problem):
    """Random labels of few rows move no mean, those of all rows do; and no class has less than nothing."""
    features, prototypes, _ = problem
    made = TransductiveAnchoredMixture(prototypes, logit_scale=20.0)
    made.adapt(features)
    before = made._sums.weighted / made._sums.counts[:, None]

    def changed(labels):
        columns = np.column_stack([features[: len(labels)], np.ones(len(labels))])
        distances = ((features[: len(labels), None] - before) ** 2).sum(axis=2)
        total = {"changes": labels.T @ columns, "squares": (labels**2).sum(axis=0), "counts": np.full(7, 1.0)}
        total["moments"] = (labels**2 * distances).sum(axis=0)
        found = _changed(made._sums, {**total, "rows": np.array(len(labels))}, np.zeros(24))
        assert abs(found.counts.sum() - 900) < 1e-9
        assert found.counts.min() > 0
        return np.abs(found.weighted / found.counts[:, None] - before).max()

    rng = np.random.default_rng(0)

    def random_labels(rows):
        return rng.dirichlet(np.full(7, 0.1), rows) - rng.dirichlet(np.full(7, 0.1), rows)

    moved = np.array([changed(random_labels(30)) for _ in range(40)])
    assert np.median(moved) < 0.05
    kept = np.zeros((900, 7))
    kept[np.arange(900), made.predict(features).argmin(axis=1)] = 0.1  # not by chance: all rows say it
    assert changed(kept - kept.mean(axis=1, keepdims=True)) > 0.0
    changed(np.tile([1.0, 0, 0, -1.0, 0, 0, 0], (300, 1)))  # more than are in the class


def test_samples_have_different_rows(problem):
    shards = FeatureShards.open(problem[2])
    for task in make_tasks(shards, 160):
        parts = [sample_numbers(task, 0.25, sample) for sample in range(5)]
        assert np.array_equal(np.sort(np.concatenate(parts[:4])), np.arange(task.rows))
        assert np.array_equal(parts[4], parts[0])


def test_sampled_run_is_resumed(problem, tmp_path, monkeypatch):
    """A driver that ends in the middle of a round over a sample, and other numbers of workers: the same bits."""
    features, prototypes, shards = problem
    monkeypatch.setattr("zeroshift.distributed.adaptation.SAVE_SECONDS", 0.0)
    opened = FeatureShards.open(shards)
    arguments = {"task_rows": 100, "fit_rows": 0.2}
    whole, made = (TransductiveAnchoredMixture(prototypes, logit_scale=20.0) for _ in range(2))
    adapt(whole, opened, on="local:2", **arguments)
    arguments |= {"on": "local:0", "out": tmp_path / "out"}
    interrupted = TransductiveAnchoredMixture(prototypes, logit_scale=20.0)
    run_until("pass 4 (sample)", 5, interrupted, opened, **arguments)
    seen = []
    adapt(made, opened, progress=lambda *step: seen.append(step), **arguments)
    assert seen[0][0] == "pass 4 (sample)"
    assert seen[0][1] > 40
    assert np.array_equal(made.predict(features), whole.predict(features))


@pytest.mark.parametrize("task_rows", [64, 1000])
def test_rows_that_cannot_be_used(problem, tmp_path, task_rows):
    """Only they are left out; the answers have the numbers of the others in their files."""
    features, prototypes, shards = problem
    path = shards / "img_emb" / "img_emb_1.npy"
    rows = np.load(path)
    rows[[7, 200]], rows[349] = np.nan, 0
    np.save(path, rows)
    made = TransductiveAnchoredMixture(prototypes, logit_scale=20.0)
    with pytest.raises(ShardError, match=r"img_emb_1\.npy.*row 7 holds NaN"):
        adapt(made, FeatureShards.open(shards), on="local:0", task_rows=task_rows)
    arguments = {"on": "local:0", "task_rows": task_rows, "on_bad_shard": "skip", "out": tmp_path / "out"}
    result = adapt(made, FeatureShards.open(shards), **arguments)
    assert (result.skipped, result.skipped_rows, result.answered) == ([], {str(path): 3}, 897)
    assert result.reasons[str(path)].startswith("row 7 holds NaN")
    expected = TransductiveAnchoredMixture(prototypes, logit_scale=20.0)
    answer = expected.adapt(np.delete(features, [107, 300, 449], axis=0))
    assert np.abs(made.predict(features) - expected.predict(features)).max() < 1e-9
    table = read_predictions(tmp_path / "out")
    own = np.array(table["shard"].to_pylist()) == "img_emb_1.npy"
    assert np.array_equal(table["row"].to_numpy()[own], np.delete(np.arange(350), [7, 200, 349]))
    assert np.array_equal(table["prediction"].to_numpy(), answer.argmax(axis=1))


def test_bad_shard(problem, tmp_path):
    features, prototypes, shards = problem
    path = shards / "img_emb" / "img_emb_1.npy"
    np.save(path, np.full((350, 24), np.nan))
    made = TransductiveAnchoredMixture(prototypes, logit_scale=20.0)
    with pytest.raises(ShardError, match=r"img_emb_1\.npy.*row 0 holds NaN"):
        adapt(made, FeatureShards.open(shards), on="local:0", task_rows=1000)
    result = adapt(
        made, FeatureShards.open(shards), on="local:0", task_rows=64, on_bad_shard="skip", out=tmp_path / "out"
    )
    assert result.skipped_rows == {str(path): 350}
    assert result.answered == 550
    expected = TransductiveAnchoredMixture(prototypes, logit_scale=20.0)
    expected.adapt(np.concatenate([features[:100], features[450:]]))
    assert np.abs(made.predict(features) - expected.predict(features)).max() < 1e-9


def test_resume_within_a_pass(problem, tmp_path, monkeypatch):
    """A driver that ends in the middle of a round continues there, with the same bits."""
    features, prototypes, shards = problem
    monkeypatch.setattr("zeroshift.distributed.adaptation.SAVE_SECONDS", 0.0)
    whole = TransductiveAnchoredMixture(prototypes, logit_scale=20.0)
    adapt(whole, FeatureShards.open(shards), on="local:0", task_rows=100)
    calls = []

    def stop(what, rows, total):
        calls.append((what, rows))
        if len(calls) == 14:
            raise KeyboardInterrupt

    made = TransductiveAnchoredMixture(prototypes, logit_scale=20.0)
    arguments = {"on": "local:0", "task_rows": 100, "out": tmp_path / "out"}
    with pytest.raises(KeyboardInterrupt):
        adapt(made, FeatureShards.open(shards), progress=stop, **arguments)
    stopped = calls[-1]
    calls.clear()
    again = TransductiveAnchoredMixture(prototypes, logit_scale=20.0)
    adapt(again, FeatureShards.open(shards), progress=lambda *step: calls.append(step[:2]), **arguments)
    assert calls[0][0] == stopped[0]
    assert calls[0][1] > 100  # not from the first task
    assert np.array_equal(again.predict(features), whole.predict(features))
    assert not (tmp_path / "out" / ".progress").exists()


def test_killed_worker(tmp_path):
    marker = tmp_path / "marker"
    with LocalExecutor(2) as executor:
        assert list(executor.map(kill_once, [(number, str(marker)) for number in range(30)])) == list(range(30))
    assert marker.exists()


def test_slow_task_is_started_again(tmp_path):
    marker = tmp_path / "marker"
    with LocalExecutor(2) as executor:
        assert list(executor.map(slow_once, [(number, str(marker)) for number in range(8)])) == list(range(8))
    assert Path(f"{marker}-again").exists()


def test_errors(problem, tmp_path):
    _, prototypes, shards = problem
    made = TransductiveAnchoredMixture(prototypes)
    opened = FeatureShards.open(shards)
    with pytest.raises(ValueError, match="on must be local"):
        adapt(made, opened, on="spark")
    with pytest.raises(ValueError, match="exclude each other"):
        adapt(made, opened, fit_rows=0.1, exact=True)
    with pytest.raises(ValueError, match="same encoder"):
        adapt(TransductiveAnchoredMixture(np.eye(3)), opened)
    with pytest.raises(FileNotFoundError, match="no shards"):
        FeatureShards.open(tmp_path / "nothing")


@pytest.mark.parametrize("function", [adapt, plan])
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"task_rows": 0}, ValueError, "task_rows must be an integer of at least 1; got 0"),
        ({"task_rows": 1.5}, ValueError, "task_rows must be an integer of at least 1; got 1.5"),
        ({"task_rows": "many"}, TypeError, "task_rows must be an integer of at least 1; got 'many'"),
        ({"fit_rows": 0}, ValueError, "fit_rows must be a number greater than 0; got 0"),
        ({"fit_rows": float("nan")}, ValueError, "fit_rows must be a number greater than 0; got nan"),
        ({"fit_rows": "a tenth"}, TypeError, "fit_rows must be a number greater than 0; got 'a tenth'"),
        ({"fit_rows": 1.5}, ValueError, "a share up to 1 or a whole number of rows; got 1.5"),
    ],
)
def test_wrong_numbers_of_rows_are_refused(problem, function, arguments, error, message):
    made = TransductiveAnchoredMixture(problem[1])
    with pytest.raises(error, match=re.escape(message)):
        function(made, FeatureShards.open(problem[2]), on="local:0", **arguments)
    assert made.n_seen == 0


def test_plan(problem):
    _, prototypes, shards = problem
    found = plan(TransductiveAnchoredMixture(prototypes), FeatureShards.open(shards), on="local:0", task_rows=100)
    assert (found.shards, found.rows, found.tasks, found.fit_rows) == (24, 900, 9, 900)


def test_output_at_a_url(problem):
    """The ledger and the predictions of a run that is interrupted and continued, in a folder that is no folder."""
    import fsspec
    from pyarrow import parquet

    features, prototypes, shards = problem
    out = "memory://test-output-at-a-url"
    arguments = {"on": "local:0", "task_rows": 300, "out": out}

    def stop(what, rows, total):
        if what == "pass 2":
            raise KeyboardInterrupt

    interrupted = TransductiveAnchoredMixture(prototypes, logit_scale=20.0)
    with pytest.raises(KeyboardInterrupt):
        adapt(interrupted, FeatureShards.open(shards), progress=stop, **arguments)
    seen = []
    made = TransductiveAnchoredMixture(prototypes, logit_scale=20.0)
    adapt(made, FeatureShards.open(shards), progress=lambda what, *_: seen.append(what), **arguments)
    assert seen[0] == "pass 2"
    system = fsspec.filesystem("memory")
    names = sorted(system.ls("/test-output-at-a-url/predictions", detail=False))
    tables = [parquet.read_table(system.open(name)) for name in names]
    assert np.array_equal(np.concatenate([t["prediction"] for t in tables]), made.predict(features).argmax(1))
    assert not system.exists("/test-output-at-a-url/.progress")


def run_until(what, number, made, shards, **arguments):
    """Adapt, and end with an error at the `number`-th report of this kind."""
    calls = []

    def stop(doing, rows, total):
        calls.append(doing)
        if calls.count(what) == number:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        adapt(made, shards, progress=stop, **arguments)


def test_answers_of_another_run_are_not_kept(problem, tmp_path):
    """A run that is interrupted among its answers, another into the same folder, and the first one again."""
    _, prototypes, shards = problem
    opened = FeatureShards.open(shards)
    arguments = {"on": "local:0", "task_rows": 100, "out": tmp_path / "out"}

    def make(scale=20.0):
        return TransductiveAnchoredMixture(prototypes, logit_scale=scale)

    adapt(make(), opened, **{**arguments, "out": tmp_path / "expected"})
    run_until("answers", 1, make(), opened, **arguments)
    with pytest.warns(UserWarning, match="other shards"):
        run_until("answers", 3, make(2.0), opened, force=True, **arguments)
    assert adapt(make(), opened, force=True, **arguments).answered == 900
    assert read_predictions(tmp_path / "out").equals(read_predictions(tmp_path / "expected"))


def test_answers_of_an_online_run_are_not_kept(problem, tmp_path):
    _, prototypes, shards = problem
    opened = FeatureShards.open(shards)
    arguments = {"on": "local:0", "task_rows": 100, "out": tmp_path / "out"}
    run_until("answers", 2, TransductiveAnchoredMixture(prototypes), opened, **arguments)
    online = OnlineAnchoredMixture(prototypes, order="none")
    follow_shards(online, opened, replicas=2, every=200, on="local:0", out=tmp_path / "out", force=True)
    assert not (tmp_path / "out" / ".progress").exists()
    adapt(TransductiveAnchoredMixture(prototypes), opened, force=True, **arguments)
    assert read_predictions(tmp_path / "out").num_rows == 900


@pytest.mark.parametrize("names", [None, list("ABCDEFG")])
def test_answers_with_other_names_are_not_kept(problem, tmp_path, names):
    """The passes are not repeated, but all answers are."""
    _, prototypes, shards = problem
    opened = FeatureShards.open(shards)
    arguments = {"on": "local:0", "task_rows": 100, "out": tmp_path / "out"}
    first, second = (TransductiveAnchoredMixture(prototypes) for _ in range(2))
    run_until("answers", 2, first, opened, class_names=names, **arguments)
    calls = []
    arguments |= {"force": True, "progress": lambda what, *_: calls.append(what)}
    adapt(second, opened, class_names=list("abcdefg"), **arguments)
    assert calls == 9 * ["answers"]
    assert set(read_predictions(tmp_path / "out")["prediction"].to_pylist()) <= set("abcdefg")


@pytest.mark.parametrize("url", ["", "file://", "memory://"])
def test_sums_of_other_content_are_not_used(problem, tmp_path, url):
    """Features that were extracted again in place, with the same shapes."""
    features, prototypes, shards = problem
    source = f"{url}{shards}"
    if url == "memory://":
        import fsspec

        fsspec.filesystem("memory").put(f"{shards}/img_emb/", f"{shards}/img_emb/", recursive=True)
    arguments = {"on": "local:0", "task_rows": 300, "out": tmp_path / "out"}
    run_until("pass 2", 1, TransductiveAnchoredMixture(prototypes), FeatureShards.open(source), **arguments)
    other = features[::-1].copy()
    start = 0
    for shard in FeatureShards.open(source).shards:
        content = io.BytesIO()
        np.save(content, other[start : start + shard.rows])
        with open_to_write(shard.path) as handle:
            handle.write(content.getvalue())
        start += shard.rows
    made = TransductiveAnchoredMixture(prototypes)
    with pytest.warns(UserWarning, match="written again since"):
        adapt(made, FeatureShards.open(source), **arguments)
    expected = TransductiveAnchoredMixture(prototypes)
    adapt(expected, FeatureShards.open(source), on="local:0", task_rows=300)
    assert np.array_equal(made.predict(other), expected.predict(other))


def open_to_write(path):
    if "://" not in path:
        return open(path, "wb")
    import fsspec

    return fsspec.open(path, "wb").open()


@pytest.mark.parametrize("keeps_time", [False, True])
@pytest.mark.parametrize(("what", "fit_rows"), [("pass 2", 1.0), ("answers", 1.0), ("answers", 0.5)])
def test_a_shard_that_is_replaced_during_a_run_is_an_error(problem, tmp_path, what, fit_rows, keeps_time):
    """The time of the last change tells, and where a program keeps it, the content does."""
    features, prototypes, shards = problem
    path = shards / "img_emb" / "img_emb_1.npy"
    times = path.stat()

    def replace(doing, rows, total):
        if doing == what:
            np.save(path, features[:350] if keeps_time else features[100:450])
            if keeps_time:
                os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    made = TransductiveAnchoredMixture(prototypes, logit_scale=20.0)
    arguments = {"task_rows": 64, "fit_rows": fit_rows, "on_bad_shard": "skip", "out": tmp_path / "out"}
    with pytest.raises(ShardChangedError, match=r"img_emb_1\.npy was replaced or written again during the run"):
        adapt(made, FeatureShards.open(shards), on="local:0", progress=replace, **arguments)


def test_a_replaced_shard_with_unusable_rows_is_an_error_too(problem, tmp_path):
    """Its rows are not left out: others of them were learned."""
    features, prototypes, shards = problem
    path = shards / "img_emb" / "img_emb_1.npy"
    times = path.stat()

    def replace(doing, rows, total):
        if doing == "answers":
            np.save(path, features[:350] * (np.arange(350) % 2)[:, None])  # zeros in every task
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    made = TransductiveAnchoredMixture(prototypes, logit_scale=20.0)
    arguments = {"task_rows": 64, "normalize": True, "on_bad_shard": "skip", "out": tmp_path / "out"}
    with pytest.raises(ShardChangedError, match=r"img_emb_1\.npy"):
        adapt(made, FeatureShards.open(shards), on="local:0", progress=replace, **arguments)


def test_a_shard_that_is_replaced_between_two_drivers_is_an_error(problem, tmp_path):
    features, prototypes, shards = problem
    path = shards / "img_emb" / "img_emb_1.npy"
    arguments = {"on": "local:0", "task_rows": 64, "out": tmp_path / "out"}
    run_until("answers", 2, TransductiveAnchoredMixture(prototypes), FeatureShards.open(shards), **arguments)
    times = path.stat()
    np.save(path, features[:350])
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(ShardChangedError, match=r"img_emb_1\.npy"):
        adapt(TransductiveAnchoredMixture(prototypes), FeatureShards.open(shards), **arguments)


def test_every_damaged_byte_of_what_a_run_continues_from_is_the_same_error(problem, tmp_path):
    _, prototypes, shards = problem
    opened = FeatureShards.open(shards)
    out = tmp_path / "out"
    arguments = {"on": "local:0", "task_rows": 300, "out": out}
    run_until("answers", 1, TransductiveAnchoredMixture(prototypes), opened, **arguments)
    rng = np.random.default_rng(0)
    for path in (*(out / ".progress").glob("*/pass-002.sums"), out / ".predictions.json"):
        content = path.read_bytes()
        for at in (0, len(content) - 1, *rng.integers(0, len(content), 30)):
            damaged = bytearray(content)
            damaged[at] ^= 1 << int(rng.integers(8))
            path.write_bytes(bytes(damaged))
            with pytest.raises(FileFormatError, match=f"{path} is damaged: its checksum does not match"):
                adapt(TransductiveAnchoredMixture(prototypes), opened, **arguments)
        path.write_bytes(content)
    assert adapt(TransductiveAnchoredMixture(prototypes), opened, **arguments).answered == 900


@pytest.mark.parametrize("recorded", [False, True])
def test_a_driver_that_was_killed_after_its_last_file(problem, tmp_path, monkeypatch, recorded):
    """Before it recorded that it is finished, and before it removed its sums."""
    _, prototypes, shards = problem
    opened = FeatureShards.open(shards)
    arguments = {"on": "local:0", "task_rows": 300, "out": tmp_path / "out"}

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Folder if recorded else Predictions, "remove_all" if recorded else "finish", die)
        with pytest.raises(KeyboardInterrupt):
            adapt(TransductiveAnchoredMixture(prototypes), opened, **arguments)
    notes = []
    if recorded:
        with pytest.raises(FinishedRunError, match="the predictions of this run, which is finished"):
            adapt(TransductiveAnchoredMixture(prototypes), opened, **arguments)
    else:
        made = TransductiveAnchoredMixture(prototypes)
        assert adapt(made, opened, note=notes.append, **arguments).answered == 900
        assert notes == ["this run continues one that was interrupted, with 3 of 3 files of predictions written"]
    assert not (tmp_path / "out" / ".progress").exists()


def test_a_run_says_that_it_continues(problem, tmp_path, monkeypatch):
    _, prototypes, shards = problem
    monkeypatch.setattr("zeroshift.distributed.adaptation.SAVE_SECONDS", 0.0)
    opened = FeatureShards.open(shards)
    arguments = {"on": "local:0", "task_rows": 300, "out": tmp_path / "out"}
    run_until("pass 2", 2, TransductiveAnchoredMixture(prototypes), opened, **arguments)
    notes = []
    adapt(TransductiveAnchoredMixture(prototypes), opened, note=notes.append, **arguments)
    assert notes == ["this run continues one that was interrupted, in pass 2, after 300 of 900 rows"]
