"""The loop: each piece once, timed work alone and last, and what cannot be kept fails alone."""

import json

import pytest

from evaluate import looks
from zeroshift.evaluate import Analysis, Contestant, Entry, Ledger, Trial, run_jobs
from zeroshift.evaluate import runner as runner_module


@pytest.fixture
def entry(clusters):
    return Entry.of("clusters", clusters)


def trial(entry, method="zero_shot", seed=None, name="clusters", **more):
    return Trial(name, entry.digest, entry.prompt, Contestant(method), seed, None, **more)


def look(entry, function=looks.counts, **parameters):
    return Analysis(entry.name, entry.digest, entry.prompt, function, parameters)


def done(jobs, entry, folder, **how):
    return list(run_jobs(jobs, {entry.digest: entry.load}, Ledger(folder), **how))


def test_equal_jobs_are_done_once_and_answered_each_under_its_own_name(entry, tmp_path, monkeypatch):
    seen = []
    real = runner_module.run_all
    monkeypatch.setattr(runner_module, "run_all", lambda work, *a, **k: seen.extend(work) or real(work, *a, **k))
    jobs = [trial(entry), trial(entry, name="again"), trial(entry, seed=1)]
    outcomes = done(jobs, entry, tmp_path)
    assert len(seen) == 2
    assert [outcome.record["features"] for outcome in outcomes] == ["clusters", "again", "clusters"]
    assert len(list(tmp_path.iterdir())) == 2
    assert [outcome.recorded for outcome in done(jobs, entry, tmp_path)] == [True, True, True]


def test_timed_work_comes_last_and_alone(entry, tmp_path, monkeypatch):
    calls = []
    real = runner_module.run_all

    def watched(work, loaders, *, processes):
        calls.append(([job.timed for job in work], processes))
        return real(work, loaders, processes=0)

    monkeypatch.setattr(runner_module, "run_all", watched)
    jobs = [trial(entry, timed=True), trial(entry), trial(entry, seed=1, timed=True), look(entry)]
    outcomes = done(jobs, entry, tmp_path, processes=3)
    assert calls == [([False, False], 3), ([True, True], 1)]
    assert [outcome.job.timed for outcome in outcomes] == [False, False, True, True]
    assert [outcome.record["jobs"] for outcome in outcomes] == [3, 3, 1, 1]
    # A timed run is another piece of work than the same run among others.
    assert jobs[0].key != trial(entry).key


@pytest.mark.parametrize("processes", [0, 1])
def test_what_was_just_done_is_the_same_as_when_it_is_read(entry, tmp_path, processes):
    jobs = [look(entry), look(entry, times=2)]
    first = done(jobs, entry, tmp_path, processes=processes)
    assert [outcome.error for outcome in first] == [None, None]
    by_key = {outcome.job.key: outcome.record for outcome in done(jobs, entry, tmp_path)}
    assert {outcome.job.key: outcome.record for outcome in first} == by_key
    record = by_key[jobs[1].key]
    assert (record["rows"], record["mean"], record["pair"], record["of"]) == (300, 0.5, [1, 2], {"3": [0, 1]})


def test_an_answer_that_cannot_be_kept_fails_alone(entry, tmp_path):
    outcomes = done([look(entry, looks.nothing), look(entry, looks.breaks), look(entry)], entry, tmp_path)
    assert "what it found cannot be kept as JSON" in outcomes[0].error
    assert outcomes[1].error == "ZeroDivisionError: a bug"
    assert outcomes[2].error is None
    assert [path.name.split("-")[0] for path in tmp_path.iterdir()] == ["counts"]


def test_again_replaces_the_record(entry, tmp_path):
    job = look(entry)
    done([job], entry, tmp_path)
    path = Ledger(tmp_path).path(job)
    path.write_text(json.dumps({**json.loads(path.read_text()), "rows": 7}))
    assert done([job], entry, tmp_path)[0].record["rows"] == 7
    assert done([job], entry, tmp_path, again=True)[0].record["rows"] == 150
    assert json.loads(path.read_text())["rows"] == 150
