"""`zeroshift experiment`: runs, files and output; resuming; and failures that do not stop the rest."""

import json
from dataclasses import replace

import pytest

from zeroshift.cli import experiment as experiment_module
from zeroshift.evaluate import Analysis
from zeroshift.evaluate import runner as job_runner
from zeroshift.experiments import Member, Suite, get, list_experiments

NAME = "input-order"


@pytest.fixture
def experiment(call, tmp_path, monkeypatch):
    """In this process, so that what a test puts in place is seen."""
    monkeypatch.setattr(experiment_module, "count_processes", lambda jobs: 0)

    def experiment(*arguments, env=None):
        return call("experiment", *arguments, "--out", tmp_path / "out", env=env)

    return experiment


def broken(features, *, prompt):
    raise ZeroDivisionError("a bug")


def offered(monkeypatch, *experiments):
    """Only these are known."""
    monkeypatch.setattr(experiment_module, "list_experiments", lambda: list(experiments))
    monkeypatch.setattr(experiment_module, "find", {one.name: [one] for one in experiments}.__getitem__)


def test_everything_is_written(experiment, small_file, tmp_path):
    files = [
        "--figures",
        tmp_path / "f",
        "--markdown",
        tmp_path / "r.md",
        "--latex",
        tmp_path / "t",
        "--csv",
        tmp_path / "c",
    ]
    done = experiment(f"gains,{NAME}", small_file, "--orders", "1", "--json", *files)
    assert done.exit_code == 0, done.stderr
    record = json.loads(done.stdout)
    assert [one["name"] for one in record["experiments"]] == ["gains", NAME]
    assert [one["name"] for one in record["sets"]] == ["small"]
    assert record["command"] == f"zeroshift experiment gains,{NAME} {small_file} --orders 1"
    assert (tmp_path / "out" / "report.html").read_text().startswith("<!doctype html>")
    assert all(path in record["written"] for path in map(str, [tmp_path / "r.md", tmp_path / "out" / "report.html"]))
    assert {path.suffix for path in (tmp_path / "f").iterdir()} == {".svg", ".png"}
    assert {path.suffix for path in (tmp_path / "t").iterdir()} == {".tex"}
    assert {path.suffix for path in (tmp_path / "c").iterdir()} == {".csv"}
    picture = next((tmp_path / "f").glob("*.svg")).name
    assert f"f/{picture}" in (tmp_path / "r.md").read_text()
    runs = sum(one["runs"] for one in record["experiments"])
    assert 0 < len(list((tmp_path / "out" / "runs").iterdir())) <= runs


def test_the_terminal_shows_the_tables_and_the_files(experiment, small_file, tmp_path):
    done = experiment(NAME, small_file, "--orders", "1", "--csv", tmp_path / "c", env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.stderr
    assert get(NAME).title in done.stdout
    assert f"report: {tmp_path / 'out' / 'report.html'}" in done.stdout.splitlines()
    assert "files in" in done.stdout
    assert max(map(len, (line for line in done.stdout.splitlines() if str(tmp_path) not in line))) <= 80
    quiet = experiment(NAME, small_file, "--orders", "1", "--quiet")
    assert (quiet.stdout, quiet.stderr) == (f"report: {tmp_path / 'out' / 'report.html'}\n", "")


def test_the_same_command_again_runs_nothing(experiment, small_file, monkeypatch, tmp_path):
    first = experiment(NAME, small_file, "--orders", "1", "--json", "--markdown", tmp_path / "r.md")
    assert "run 1 of" in first.stderr
    monkeypatch.setattr(job_runner._JobRunner, "__call__", lambda *_: pytest.fail("run again"))
    second = experiment(NAME, small_file, "--orders", "1", "--json", "--markdown", tmp_path / "r.md")
    assert json.loads(second.stdout) == json.loads(first.stdout)
    assert "read from records" in second.stderr


def test_failures_are_named_and_the_rest_is_reported(experiment, small_file, monkeypatch, tmp_path):
    def plan(suite, options):
        dataset = suite.members[0].dataset
        return [Analysis(dataset.name, dataset.digest, dataset.prompt, broken)]

    def fails(suite, options, *answers):
        raise KeyError("no answer")

    good = get(NAME)
    bad_run = replace(good, name="bad-run", plan=plan, find=lambda *_: [])
    bad_find = replace(good, name="bad-find", find=fails)
    bad_plan = replace(good, name="bad-plan", plan=fails)
    offered(monkeypatch, bad_run, bad_find, bad_plan, good)
    done = experiment("all", small_file, "--orders", "1", "--json")
    assert done.exit_code == 1
    assert "failed: broken on small, prompts ensemble: ZeroDivisionError: a bug" in done.stderr
    assert "failed: bad-find could not be evaluated: KeyError: 'no answer'" in done.stderr
    assert "failed: bad-plan could not be planned: KeyError: 'no answer'" in done.stderr
    chapters = {one["name"]: one for one in json.loads(done.stdout)["experiments"]}
    assert list(chapters) == ["bad-run", "bad-find", "bad-plan", NAME]
    assert chapters["bad-run"]["failed"] == ["broken on small, prompts ensemble: ZeroDivisionError: a bug"]
    assert chapters[NAME]["findings"]
    assert (tmp_path / "out" / "report.html").exists()


def test_labels_of_bundled_packs_are_not_questioned(experiment, tmp_path):
    """Zero-shot is below three times chance on this one; its labels are right."""
    done = experiment("table-9", "pack:cifar10c_gaussian_noise_3", "--orders", 1)
    assert done.exit_code == 0, done.stderr
    pages = [path.read_text(encoding="utf-8") for path in (tmp_path / "out").glob("*.html")]
    assert pages
    assert not any("label order" in text for text in (*pages, done.stdout, done.stderr))


def test_repeated_sources_are_warned_about(experiment, small_file):
    done = experiment(f"{NAME},{NAME}", small_file, small_file, "--orders", "1")
    assert done.exit_code == 0, done.stderr
    assert f"{NAME} is named 2 times; it counts once" in done.stderr
    assert f"{small_file} is named 2 times; it counts once" in done.stderr
    assert "drawing the report" in done.stderr


def test_without_figures_no_folder_is_left(experiment, small_file, monkeypatch, tmp_path):
    offered(monkeypatch, replace(get(NAME), plan=lambda *_: [], find=lambda *_: []))
    places = ["--figures", tmp_path / "f" / "deep", "--latex", tmp_path / "t", "--csv", tmp_path / "c"]
    done = experiment(NAME, small_file, *places)
    assert done.exit_code == 0, done.stderr
    assert f"there are no figures, so nothing is written to {tmp_path / 'f' / 'deep'}" in done.stderr
    assert not [name for name in ("f", "t", "c") if (tmp_path / name).exists()]
    assert "0 files" not in done.stdout
    assert (tmp_path / "out" / "report.html").exists()


@pytest.mark.parametrize("width", [30, 40, 60, 100])
def test_the_list_wraps_at_words(call, width):
    shown = call("experiment", "list", env={"COLUMNS": str(width)}).stdout
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= width
    whole = set(shown.replace("(", " ").replace(")", " ").split())
    for one in list_experiments():
        assert {one.name, *one.title.split()} <= whole


def test_a_damaged_record_is_named_and_its_run_repeated(experiment, small_file, tmp_path):
    experiment(NAME, small_file, "--orders", "1", "--quiet")
    path = next((tmp_path / "out" / "runs").iterdir())
    path.write_text("{")
    done = experiment(NAME, small_file, "--orders", "1")
    assert done.exit_code == 0
    assert f"{path} contained no readable record, or one that was changed; its run was repeated" in done.stderr


@pytest.mark.parametrize("arguments", [["list"], ["--list"]])
def test_the_list(call, arguments):
    listed = json.loads(call("experiment", *arguments, "--json").stdout)
    assert [one["name"] for one in listed] == [one.name for one in list_experiments()]
    assert all(one["question"].endswith("?") for one in listed)
    assert [one["paper_names"] for one in listed if one["name"] == "natural-shift"] == [["table-2", "table-14"]]
    shown = call("experiment", *arguments, env={"COLUMNS": "80"}).stdout
    assert all(one["name"] in shown for one in listed)
    assert "zeroshift experiment table-5, or figure-4" in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= 80


def test_sets_of_one_name_are_an_error(small):
    first = Member.of("pets", small)
    with pytest.raises(ValueError, match=r"every set needs a unique name; 2 are called 'pets'. Fix: give each"):
        Suite((first, Member.of("pets", small.subset(slice(0, 50)))))
    assert len(Suite((first, Member.of("more pets", small.subset(slice(0, 50)))))) == 2


def test_all_and_a_name_twice_are_each_experiment_once(capsys):
    known = [one.name for one in list_experiments()]
    assert [one.name for one in experiment_module.choose_experiments("all", [])] == known
    assert [one.name for one in experiment_module.choose_experiments(f"{NAME}, {NAME}", [])] == [NAME]
    capsys.readouterr()
    assert len(experiment_module.choose_experiments(f"{NAME},all", [])) == len(known)
    assert f"all includes {NAME}; it counts once" in capsys.readouterr().err


def test_processes_are_the_cores_and_no_more_than_four(monkeypatch):
    for cores, expected in ((1, 1), (2, 2), (64, 4), (None, 1)):
        monkeypatch.setattr(experiment_module.os, "cpu_count", lambda cores=cores: cores)
        assert experiment_module.count_processes(None) == expected
    assert experiment_module.count_processes(9) == 9


def test_on_an_executor(call, small_file, tmp_path):
    done = call("experiment", NAME, small_file, "--orders", 1, "--on", "local:2", "--out", tmp_path / "out", "--json")
    assert done.exit_code == 0, done.stderr
    assert [one["name"] for one in json.loads(done.stdout)["experiments"]] == [NAME]
    assert any((tmp_path / "out" / "runs").iterdir())
    refused = call("experiment", NAME, small_file, "--on", "spark", "--out", tmp_path / "out")
    assert refused.exit_code == 2
    assert "--on must be local, local:N, ray or ray://host:port; got 'spark'" in refused.stderr
