"""`zeroshift results`: records of several folders as one table, and what is refused."""

import csv
import json
import shutil

import numpy as np
import pytest

from zeroshift import FeatureSet, normalize
from zeroshift.evaluate import Contestant, Entry, Ledger, contest, plan


@pytest.fixture(scope="module")
def whole() -> FeatureSet:
    rng = np.random.default_rng(5)
    centres = normalize(rng.normal(size=(4, 8)))
    labels = rng.integers(0, 4, size=60)
    features = normalize(centres[labels] + 0.3 * rng.normal(size=(60, 8)))
    prototypes = normalize(centres + 0.35 * rng.normal(size=(4, 8)))
    return FeatureSet(features, prototypes=prototypes, labels=labels, logit_scale=20.0)


@pytest.fixture(scope="module")
def done_once(whole, tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    entries = [Entry.of("whole", whole), Entry.of("part", whole.subset(slice(0, 40)))]
    methods = [Contestant("zero_shot"), Contestant("adapt_online", {"alpha": 0.5})]
    list(contest(plan(entries[:1], methods, orders=2), Ledger(folder / "one" / "runs")))
    list(contest(plan(entries, methods[:1], orders=2), Ledger(folder / "two")))
    return folder


@pytest.fixture
def runs(done_once, tmp_path):
    """Two folders that share the runs of one method."""
    for name in ("one", "two"):
        shutil.copytree(done_once / name, tmp_path / name)
    return tmp_path / "one", tmp_path / "two"


def rows(done):
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_folders_are_merged_and_every_row_has_the_baseline(call, runs, whole):
    found = rows(call("results", *runs, "--json"))
    assert len(found) == 6
    assert {(row["features"], row["job"]) for row in found} == {
        ("part", "zero_shot"),
        ("whole", "zero_shot"),
        ("whole", "adapt_online alpha=0.5"),
    }
    for row in found:
        if row["features"] == "whole":
            assert row["zero_shot_accuracy"] == pytest.approx(whole.zero_shot_accuracy())
    narrow = rows(call("results", *runs, "--json", "--columns", "seed"))
    assert list(narrow[0]) == ["seed", "zero_shot_accuracy"]


def test_choosing_sorting_and_grouping(call, runs):
    chosen = rows(call("results", *runs, "--json", "-w", "method=adapt_online", "-w", "settings.alpha<0.6"))
    assert [row["seed"] for row in chosen] == [0, 1]
    assert rows(call("results", *runs, "--json", "--where", "features!=whole", "--where", "seed>=1"))[0]["seed"] == 1
    accuracies = [row["accuracy"] for row in rows(call("results", *runs, "--json", "--sort", "-accuracy"))]
    assert accuracies == sorted(accuracies, reverse=True)
    groups = rows(call("results", *runs, "--json", "--by", "features,contestant", "--sort", "runs"))
    assert [row["runs"] for row in groups] == [2, 2, 2]
    (adapt,) = [row for row in groups if row["contestant"].startswith("adapt")]
    values = [row["accuracy"] for row in chosen]
    assert adapt["accuracy"] == pytest.approx(sum(values) / 2)
    assert (adapt["accuracy_low"], adapt["accuracy_high"]) == (min(values), max(values))
    assert adapt["accuracy_worst"] == min(values)
    assert adapt["gain"] == pytest.approx(100 * (adapt["accuracy"] - adapt["zero_shot_accuracy"]))


@pytest.mark.parametrize("width", [48, 60, 80, 160])
@pytest.mark.parametrize("options", [[], ["--by", "features,contestant"]])
def test_the_table_fits_the_terminal_and_no_number_is_cut(call, runs, width, options):
    done = call("results", *runs, *options, env={"COLUMNS": str(width)})
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in done.stdout
    assert "zero-shot" in lines[1]
    assert "6 records" in lines[-1]


def test_files(call, runs, tmp_path):
    done = call("results", *runs, "--by", "features", "--csv", tmp_path / "t.csv", "--markdown", tmp_path / "t.md")
    assert done.exit_code == 0, done.stderr
    with open(tmp_path / "t.csv", newline="") as handle:
        table = list(csv.DictReader(handle))
    assert [row["features"] for row in table] == ["part", "whole"]
    assert float(table[0]["accuracy"]) <= 1
    assert (tmp_path / "t.md").read_text().startswith("| set | runs | acc | min |")
    again = call("results", *runs, "--csv", tmp_path / "t.csv")
    assert again.exit_code == 2
    assert "exists. Fix: pass --force" in again.stderr
    assert call("results", *runs, "--csv", tmp_path / "t.csv", "--force").exit_code == 0


def test_damaged_files_are_named_and_the_rest_shown(call, runs):
    path = next((runs[0] / "runs").iterdir())
    path.write_text(path.read_text()[:40])
    (runs[0] / "runs" / "notes.json").write_text("mine")
    done = call("results", runs[0], "--json")
    assert len(rows(done)) == 3
    assert f"left out: {path} holds no record that can be read" in done.stderr
    assert "notes.json" not in done.stderr


def test_a_condition_that_nothing_meets_says_what_there_is(call, runs):
    done = call("results", *runs, "--where", "features=hole", "--json")
    assert rows(done) == []
    assert "no record has features=hole. Did you mean 'whole'? features is part, whole." in done.stderr
    assert "0 of 6 records" in call("results", *runs, "--where", "features=hole").stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--where", "featurs=whole"], "no record has 'featurs'. Did you mean 'features'?"),
        (["--where", "whole"], "--where takes NAME=VALUE"),
        (["--where", "accuracy>80"], "accuracy is a fraction of one; got 80. Fix: accuracy>0.8"),
        (["--where", "accuracy>x"], "> compares with a number"),
        (["--by", "contestent"], "Did you mean 'contestant'?"),
        (["--by", " ,"], "--by names no field"),
        (["--by", "features", "--columns", "seed"], "--by has columns of its own"),
        (["--by", "features", "--sort", "sed"], "--sort: no column is called 'sed'"),
        (["--columns", "acuracy"], "Did you mean 'accuracy'?"),
        (["--columns", ","], "--columns names no field"),
        (["--sort", "acuracy"], "Did you mean 'accuracy'?"),
        (["--csv", "no/such.csv"], "the folder no does not exist"),
        (["--csv", "."], "is a folder; the name of a file is needed"),
        (["--csv", "same", "--markdown", "same"], "is to be written twice"),
        (["nowhere"], "nowhere is not there. Fix: name a folder"),
    ],
)
def test_refusals(call, runs, options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = call("results", *runs, *options)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr.splitlines()[-1]


def test_folders_without_records(call, tmp_path, small_file):
    done = call("results", tmp_path)
    assert done.exit_code == 2
    assert "no records of runs in" in done.stderr
    assert "is a file; records lie in folders" in call("results", small_file).stderr
