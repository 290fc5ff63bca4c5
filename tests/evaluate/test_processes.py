"""Runs in worker processes: the same results, and no process remains in any case."""

import os
from pathlib import Path

import pytest

from evaluate import fake_methods
from zeroshift.evaluate import DatasetRef, Ledger, MethodSpec, plan_comparison, run_plan, runner

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts processes by Linux's /proc")

SURE = ("accuracy", "zero_shot_accuracy", "calibration_error", "scored")


def children() -> set[int]:
    text = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {int(child) for path in text for child in path.read_text().split()}


@pytest.fixture(autouse=True)
def none_left_behind():
    before = children()
    yield
    assert children() == before


def runner_with_stand_ins(trial):
    """Runs in a process in which the fake methods are registered."""
    with pytest.MonkeyPatch.context() as patch:
        fake_methods.register(patch)
        return trial.run(smallest_pack())


def smallest_pack():
    from zeroshift.data import packs

    return packs.load("views_cifar10c_fog_5")


def test_other_processes_give_the_same_results(clusters, tmp_path):
    specs = [MethodSpec("adapt_online"), MethodSpec.named("adapt_transductive+support")]
    planned = plan_comparison(
        [DatasetRef.of("a", clusters), DatasetRef.of("b", clusters.subset(slice(0, 90)))], specs, orders=2
    )
    here = {o.job.key: o.record for o in run_plan(planned, Ledger(tmp_path / "here"))}
    there = {o.job.key: o.record for o in run_plan(planned, Ledger(tmp_path / "there"), jobs=2)}
    assert len(here) == 8
    assert {key: [r[name] for name in SURE] for key, r in here.items()} == {
        key: [r[name] for name in SURE] for key, r in there.items()
    }
    assert all(record["jobs"] == 2 for record in there.values())


def test_stopping_early_stops_the_processes(clusters, tmp_path):
    planned = plan_comparison([DatasetRef.of("a", clusters)], [MethodSpec("adapt_online")], orders=20)
    runs = run_plan(planned, Ledger(tmp_path), jobs=2)
    next(runs)
    assert children()
    runs.close()
    assert 1 <= len(list(tmp_path.iterdir())) < 20


def test_a_process_that_dies_loses_only_its_own_run(tmp_path, monkeypatch):
    fake_methods.register(monkeypatch)
    dataset = DatasetRef.of("pack", smallest_pack(), load=smallest_pack)
    specs = [MethodSpec("stream"), MethodSpec("dies"), MethodSpec("pool")]
    planned = plan_comparison([dataset], specs, orders=1)
    monkeypatch.setattr(runner, "_JobRunner", lambda loaders: runner_with_stand_ins)
    outcomes = {o.job.spec.label: o for o in run_plan(planned, Ledger(tmp_path), jobs=1)}
    assert outcomes["stream"].error is None
    assert outcomes["pool"].error is None
    assert "exit code -9" in outcomes["dies"].error
    assert "--jobs" in outcomes["dies"].error
    assert sorted(path.name.split("-")[0] for path in tmp_path.iterdir()) == ["pool", "stream"]
