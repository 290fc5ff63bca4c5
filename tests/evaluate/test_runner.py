"""The runner: equal jobs run once, timed jobs alone and last, and a job that cannot be recorded fails alone."""

import json

import pytest

from evaluate import analyses
from zeroshift.evaluate import Analysis, DatasetRef, Ledger, MethodSpec, StreamSpec, Trial, run_jobs
from zeroshift.evaluate import runner as runner_module
from zeroshift.evaluate.results import collect
from zeroshift.files import with_checksum


@pytest.fixture
def dataset(clusters):
    return DatasetRef.of("clusters", clusters)


def trial(dataset, method="zero_shot", seed=None, name="clusters", **more):
    return Trial(name, dataset.digest, dataset.prompt, MethodSpec(method), seed, None, **more)


def look(dataset, function=analyses.counts, **parameters):
    return Analysis(dataset.name, dataset.digest, dataset.prompt, function, parameters)


def done(jobs, dataset, folder, **how):
    return list(run_jobs(jobs, {dataset.digest: dataset.load}, Ledger(folder), **how))


def test_equal_jobs_are_done_once_and_recorded_each_under_its_own_name(dataset, tmp_path, monkeypatch):
    seen = []
    real = runner_module.execute_jobs
    monkeypatch.setattr(runner_module, "execute_jobs", lambda work, *a, **k: seen.extend(work) or real(work, *a, **k))
    jobs = [trial(dataset), trial(dataset, name="again"), trial(dataset, seed=1)]
    outcomes = done(jobs, dataset, tmp_path)
    assert len(seen) == 2
    assert [outcome.record["features"] for outcome in outcomes] == ["clusters", "again", "clusters"]
    assert len(list(tmp_path.iterdir())) == 2
    assert [outcome.recorded for outcome in done(jobs, dataset, tmp_path)] == [True, True, True]


def test_timed_work_comes_last_and_alone(dataset, tmp_path, monkeypatch):
    calls = []
    real = runner_module.execute_jobs

    def watched(work, loaders, *, processes):
        calls.append(([job.timed for job in work], processes))
        return real(work, loaders, processes=0)

    monkeypatch.setattr(runner_module, "execute_jobs", watched)
    jobs = [trial(dataset, timed=True), trial(dataset), trial(dataset, seed=1, timed=True), look(dataset)]
    outcomes = done(jobs, dataset, tmp_path, processes=3)
    assert calls == [([False, False], 3), ([True, True], 1)]
    assert [outcome.job.timed for outcome in outcomes] == [False, False, True, True]
    assert [outcome.record["jobs"] for outcome in outcomes] == [3, 3, 1, 1]
    # A timed run is another piece of work than the same run among others.
    assert jobs[0].key != trial(dataset).key


@pytest.mark.parametrize("processes", [0, 1])
def test_new_and_recorded_results_are_equal(dataset, tmp_path, processes):
    jobs = [look(dataset), look(dataset, times=2)]
    first = done(jobs, dataset, tmp_path, processes=processes)
    assert [outcome.error for outcome in first] == [None, None]
    by_key = {outcome.job.key: outcome.record for outcome in done(jobs, dataset, tmp_path)}
    assert {outcome.job.key: outcome.record for outcome in first} == by_key
    record = by_key[jobs[1].key]
    assert (record["rows"], record["mean"], record["pair"], record["of"]) == (300, 0.5, [1, 2], {"3": [0, 1]})


def test_a_result_that_cannot_be_recorded_fails_alone(dataset, tmp_path):
    outcomes = done([look(dataset, analyses.nothing), look(dataset, analyses.breaks), look(dataset)], dataset, tmp_path)
    assert "the result cannot be written as JSON" in outcomes[0].error
    assert outcomes[1].error == "ZeroDivisionError: a bug"
    assert outcomes[2].error is None
    assert [path.name.split("-")[0] for path in tmp_path.iterdir()] == ["counts"]


@pytest.mark.parametrize("function", [analyses.unnamed, analyses.endless], ids=["keys", "depth"])
def test_values_that_json_cannot_represent_fail_alone(dataset, tmp_path, function):
    outcomes = done([look(dataset, function), look(dataset)], dataset, tmp_path)
    assert "the result cannot be written as JSON" in outcomes[0].error
    assert outcomes[1].error is None


@pytest.mark.parametrize("name", ["jobs", "machine", "digest", "key"])
def test_result_fields_must_not_use_names_of_the_record(dataset, tmp_path, name):
    outcomes = done(
        [look(dataset, analyses.says, name=name), look(dataset)], dataset, tmp_path, notes={"machine": "mine"}
    )
    assert outcomes[0].error == f"the result uses field names of the record: {name}"
    assert (outcomes[1].record["machine"], outcomes[1].record["jobs"]) == ("mine", 0)


def test_notes_must_not_use_names_of_the_record(dataset, tmp_path):
    with pytest.raises(ValueError, match="notes must not hold 'jobs', a field of every record"):
        done([look(dataset)], dataset, tmp_path, notes={"jobs": 2})
    with pytest.raises(ValueError, match="notes must not hold 'digest', a field of every record"):
        done([look(dataset)], dataset, tmp_path, notes={"digest": "mine"})
    with pytest.raises(ValueError, match=r"notes must not hold 'accuracy', a field of every record. Fix: use another"):
        done([trial(dataset)], dataset, tmp_path, notes={"accuracy": 1.0})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [object(), {1, 2}, float("nan"), b"x"], ids=["object", "set", "nan", "bytes"])
def test_notes_are_json(dataset, tmp_path, value):
    with pytest.raises(
        (TypeError, ValueError), match=r"notes must hold JSON values .* for 'mine'. Fix: convert it with str"
    ):
        done([look(dataset)], dataset, tmp_path, notes={"mine": value})
    with pytest.raises(TypeError, match=r"notes must have text as keys; got 3. Fix"):
        done([look(dataset)], dataset, tmp_path, notes={3: "mine"})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_record_with_an_invalid_number_is_repeated(dataset, tmp_path, number):
    job = trial(dataset)
    done([job], dataset, tmp_path)
    ledger = Ledger(tmp_path)
    record = {**json.loads(ledger.path(job).read_text()), "nll": "here"}
    ledger.path(job).write_text(json.dumps(record).replace('"here"', number))
    assert collect([tmp_path]).damaged == (ledger.path(job),)
    assert collect([tmp_path]).rows == ()
    (outcome,) = run_jobs([job], {dataset.digest: dataset.load}, ledger)
    assert (outcome.recorded, ledger.damaged) == (False, [ledger.path(job)])
    assert collect([tmp_path]).damaged == ()


@pytest.mark.parametrize("together", [True, False], ids=["at once", "read"])
def test_a_record_has_the_name_of_the_requesting_job(dataset, tmp_path, together):
    """Equal work under other names: a number written differently, domains with other names."""
    first, second = (
        Trial(
            name, dataset.digest, dataset.prompt, MethodSpec("zero_shot", {"logit_scale": scale}), 0, None, stream_spec
        )
        for name, scale, stream_spec in (
            ("clusters", 20, StreamSpec("mixed", {"domains": [100, 50], "names": ("a", "b")})),
            ("again", 20.0, StreamSpec("mixed", {"domains": [100, 50], "names": ("c", "d")})),
        )
    )
    assert first.key == second.key
    batches = [[first, second]] if together else [[first], [second]]
    records = [outcome.record for batch in batches for outcome in done(batch, dataset, tmp_path)]
    assert [record["features"] for record in records] == ["clusters", "again"]
    assert [record["contestant"] for record in records] == ["zero_shot logit_scale=20", "zero_shot logit_scale=20.0"]
    assert [record["stream"]["names"] for record in records] == [["a", "b"], ["c", "d"]]
    assert [list(record["groups"]) for record in records] == [["a", "b"], ["c", "d"]]


def test_again_replaces_the_record(dataset, tmp_path):
    job = look(dataset)
    done([job], dataset, tmp_path)
    path = Ledger(tmp_path).path(job)
    path.write_text(json.dumps(with_checksum({**json.loads(path.read_text()), "rows": 7})))
    assert done([job], dataset, tmp_path)[0].record["rows"] == 7
    assert done([job], dataset, tmp_path, again=True)[0].record["rows"] == 150
    assert json.loads(path.read_text())["rows"] == 150


@pytest.mark.parametrize("on", ["local:0", "local:2"])
def test_jobs_on_an_executor(dataset, tmp_path, on):
    """The same records as in this process, and a job that fails does not end the others."""
    jobs = [trial(dataset), trial(dataset, seed=1), look(dataset, analyses.breaks), trial(dataset, timed=True)]
    here = {outcome.job.key: outcome.record for outcome in done(jobs, dataset, tmp_path / "here")}
    outcomes = done(jobs, dataset, tmp_path / "there", on=on)
    errors = {outcome.job.key: outcome.error for outcome in outcomes}
    assert errors == {**dict.fromkeys(errors), jobs[2].key: "ZeroDivisionError: a bug"}
    for outcome in outcomes:
        if outcome.record is not None:
            assert outcome.record["accuracy"] == here[outcome.job.key]["accuracy"]
    assert outcomes[-1].record["jobs"] == 1  # timed, so alone
    assert len(list((tmp_path / "there").iterdir())) == 3


def test_job_whose_process_is_killed_runs_again(dataset, tmp_path):
    jobs = [look(dataset, analyses.killed_once, marker=str(tmp_path / "marker")), look(dataset)]
    outcomes = done(jobs, dataset, tmp_path / "runs", on="local:2")
    assert [outcome.error for outcome in outcomes] == [None, None]
