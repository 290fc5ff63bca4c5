"""Plans of many runs: each runs once, and a failure does not stop the others."""

import json
from contextlib import closing

import numpy as np
import pytest

from evaluate import fake_methods
from zeroshift import FeatureSet
from zeroshift.evaluate import DatasetRef, Ledger, MethodSpec, list_method_specs, plan_comparison, run_plan
from zeroshift.evaluate import runner as job_runner
from zeroshift.evaluate.results import collect
from zeroshift.files import FileFormatError


@pytest.fixture
def dataset(clusters) -> DatasetRef:
    return DatasetRef.of("clusters", clusters)


@pytest.fixture
def ledger(tmp_path) -> Ledger:
    return Ledger(tmp_path / "out" / "runs")


def of(dataset, *names, **how):
    return plan_comparison([dataset], [MethodSpec.named(name) for name in names], **how)


def never(*_):
    raise AssertionError("run again")


def test_the_plan(dataset, monkeypatch):
    fake_methods.register(monkeypatch)
    planned = plan_comparison([dataset], list_method_specs(), orders=2, shots=3)
    seeds: dict[str, list] = {}
    for trial in planned.trials:
        seeds.setdefault(trial.spec.label, []).append((trial.seed, trial.shots))
    assert seeds["stream"] == [(0, None), (1, None)]
    assert seeds["whole"] == [(None, None)]
    assert seeds["shots"] == [(0, 3), (1, 3)]
    assert seeds["pool"] == [(0, None), (1, None)]
    assert seeds["either"] == [(None, None)]
    assert seeds["either+support"] == [(0, 3), (1, 3)]
    assert {left.spec.label for left in planned.skipped} == {"tuned", "tokens"}
    assert not {"tuned", "tokens"} & {spec.label for spec in planned.specs}


def test_a_set_with_one_sample_per_class_has_no_support(monkeypatch):
    fake_methods.register(monkeypatch)
    single = DatasetRef.of("single", FeatureSet(np.eye(3), prototypes=np.eye(3), labels=[0, 1, 2]))
    lonely = DatasetRef.of("lonely", FeatureSet(np.eye(1, 3), prototypes=np.eye(3), labels=[0]))
    planned = plan_comparison([single, lonely], [MethodSpec("shots"), MethodSpec("pool")])
    assert [str(left) for left in planned.skipped] == [
        "shots on single: no class has two samples, one to learn from and one to score",
        "shots on lonely: no class has two samples, one to learn from and one to score",
        "pool on lonely: a single sample cannot be split into halves",
    ]
    assert [spec.label for spec in planned.specs] == ["pool"]


@pytest.mark.parametrize("name", ["orders", "shots"])
def test_counts_are_checked(dataset, name):
    with pytest.raises(ValueError, match=f"{name} must be an integer of at least 1; got 0"):
        of(dataset, "zero_shot", **{name: 0})


def test_recorded_runs_are_not_repeated(dataset, ledger, monkeypatch):
    planned = of(dataset, "zero_shot", "adapt_transductive")
    first = list(run_plan(planned, ledger, notes={"machine": "abacus"}))
    assert [outcome.recorded for outcome in first] == [False] * 4
    assert all(outcome.record["machine"] == "abacus" for outcome in first)
    monkeypatch.setattr(job_runner._JobRunner, "__call__", never)
    second = list(run_plan(planned, ledger))
    assert [outcome.recorded for outcome in second] == [True] * 4
    assert [outcome.record for outcome in second] == [outcome.record for outcome in first]
    again = list(run_plan(planned, ledger, again=True))
    assert all("run again" in outcome.error for outcome in again)


def test_more_orders_or_methods_keep_existing_runs(dataset, ledger):
    list(run_plan(of(dataset, "zero_shot", orders=1), ledger))
    outcomes = list(run_plan(of(dataset, "zero_shot", "adapt_transductive", orders=2), ledger))
    assert sorted((o.job.spec.label, o.job.seed or 0, o.recorded) for o in outcomes) == [
        ("adapt_transductive", 0, False),
        ("zero_shot", 0, True),
        ("zero_shot", 1, False),
    ]


def test_stopping_early_keeps_finished_runs(dataset, ledger):
    planned = of(dataset, "zero_shot", orders=4)
    with closing(run_plan(planned, ledger)) as runs:
        next(runs)
        next(runs)
    assert len(list(ledger.folder.iterdir())) == 2
    assert sum(outcome.recorded for outcome in run_plan(planned, ledger)) == 2


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[1, 2]",
        lambda text: json.dumps({**json.loads(text), "accuracy": "high"}),
        lambda text: json.dumps({**json.loads(text), "key": "another"}),
        lambda text: json.dumps({"someone": "else's"}),
    ],
)
def test_a_damaged_record_is_named_and_its_run_done_again(dataset, ledger, spoil):
    planned = of(dataset, "zero_shot", orders=2)
    before = [outcome.record for outcome in run_plan(planned, ledger)]
    path = ledger.path(planned.trials[1])
    path.write_text(spoil(path.read_text()))
    outcomes = list(run_plan(planned, ledger))
    assert [outcome.recorded for outcome in outcomes] == [True, False]
    assert ledger.damaged == [path]
    assert outcomes[1].record["accuracy"] == before[1]["accuracy"]
    assert json.loads(path.read_text())["key"] == planned.trials[1].key


def test_a_binary_file_is_a_damaged_record(dataset, ledger):
    planned = of(dataset, "zero_shot", orders=1)
    list(run_plan(planned, ledger))
    ledger.path(planned.trials[0]).write_bytes(b"\xff\xfe\x00")
    assert [outcome.recorded for outcome in run_plan(planned, ledger)] == [False]


def test_a_record_of_a_newer_zeroshift_is_rejected_by_name(dataset, ledger):
    planned = of(dataset, "zero_shot", orders=1)
    list(run_plan(planned, ledger))
    path = ledger.path(planned.trials[0])
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 3}))
    with pytest.raises(FileFormatError, match=f"{path.name} has schema version 3; this zeroshift reads up to 2"):
        list(run_plan(planned, ledger))


def test_a_record_that_was_edited_is_not_used(dataset, ledger):
    planned = of(dataset, "zero_shot", orders=1)
    (first,) = run_plan(planned, ledger)
    path = ledger.path(planned.trials[0])
    path.write_text(json.dumps({**json.loads(path.read_text()), "accuracy": 0.999}))
    assert collect([ledger.folder]).damaged == (path,)
    (again,) = run_plan(planned, ledger)
    assert (again.recorded, again.record["accuracy"]) == (False, first.record["accuracy"])
    assert ledger.damaged == [path]


def test_a_record_of_an_earlier_version_without_a_checksum_is_shown_but_not_used(dataset, ledger):
    planned = of(dataset, "zero_shot", orders=1)
    list(run_plan(planned, ledger))
    path = ledger.path(planned.trials[0])
    old = {**json.loads(path.read_text()), "schema": 1}
    del old["checksum"]
    path.write_text(json.dumps(old))
    found = collect([ledger.folder])
    assert (len(found.rows), found.damaged, found.unverified) == (1, (), 1)
    assert [outcome.recorded for outcome in run_plan(planned, ledger)] == [False]
    assert ledger.damaged == []
    assert collect([ledger.folder]).unverified == 0


def test_other_files_in_the_folder_are_left_alone(dataset, ledger):
    ledger.folder.mkdir(parents=True)
    (ledger.folder / "notes.json").write_text("mine")
    list(run_plan(of(dataset, "zero_shot", orders=1), ledger))
    assert (ledger.folder / "notes.json").read_text() == "mine"


def test_a_method_that_fails_does_not_stop_the_others_and_is_not_recorded(dataset, ledger, monkeypatch):
    fake_methods.register(monkeypatch)
    planned = of(dataset, "fails", "stream", orders=1)
    outcomes = list(run_plan(planned, ledger))
    assert [outcome.error for outcome in outcomes] == ["ZeroDivisionError: a bug", None]
    assert [path.name.split("-")[0] for path in ledger.folder.iterdir()] == ["stream"]
    assert [outcome.recorded for outcome in run_plan(planned, ledger)] == [True, False]


def test_a_set_that_changes_under_way_is_rejected(clusters, ledger):
    dataset = DatasetRef.of("clusters", clusters, load=lambda: clusters.subset(slice(0, 100)))
    outcomes = list(run_plan(of(dataset, "zero_shot", orders=1), ledger))
    assert "clusters has changed since this call began" in outcomes[0].error


def test_jobs_and_the_folder_of_records_are_checked(dataset, ledger, tmp_path):
    with pytest.raises(ValueError, match="jobs must be an integer of at least 0; got -1"):
        next(run_plan(plan_comparison([dataset], [MethodSpec("zero_shot")]), ledger, jobs=-1))
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match=r"file is a file; records are kept in a folder\. Fix"):
        Ledger(tmp_path / "file")
