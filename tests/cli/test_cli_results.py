"""`zeroshift results`: records of several folders as one table, and errors."""

import csv
import json
import shutil

import numpy as np
import pytest

from zeroshift import FeatureSet, normalize
from zeroshift.evaluate import DatasetRef, Ledger, MethodSpec, plan_comparison, run_plan
from zeroshift.files import with_checksum


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
    datasets = [DatasetRef.of("whole", whole), DatasetRef.of("part", whole.subset(slice(0, 40)))]
    methods = [MethodSpec("zero_shot"), MethodSpec("adapt_online", {"alpha": 0.5})]
    list(run_plan(plan_comparison(datasets[:1], methods, orders=2), Ledger(folder / "one" / "runs")))
    list(run_plan(plan_comparison(datasets, methods[:1], orders=2), Ledger(folder / "two")))
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
    assert list(narrow[0]) == ["seed"]


def test_filtering_sorting_and_grouping(call, runs):
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


def change(path, **more):
    """A copy of a record of other work, or of other code; its number is the place of a later file."""
    record = {**json.loads(path.read_text()), **more}
    path.with_name(f"{path.name.split('-')[0]}-{record['key']}.json").write_text(json.dumps(with_checksum(record)))


def test_fields_in_which_runs_differ_get_a_column(call, runs):
    path = next((runs[0] / "runs").glob("adapt_online-*"))
    change(path, key="0" * 20, timed=True, stream={"kind": "dirichlet", "concentration": 1.0})
    found = rows(call("results", runs[0], "--json"))
    assert list(found[0])[:5] == ["features", "job", "timed", "stream.kind", "seed"]
    assert sorted((row["timed"], row["stream.kind"]) for row in found)[-1] == (True, "dirichlet")
    assert "stream.kind" not in rows(call("results", runs[0], "--json", "--columns", "seed"))[0]
    wide = call("results", runs[0], env={"COLUMNS": "120"}).stdout
    assert "dirichlet" in wide
    assert "No room" not in wide
    narrow = call("results", runs[0], env={"COLUMNS": "60"}).stdout
    assert "No room for stream.kind, seed, ECE: widen the terminal." in " ".join(narrow.split())
    assert max(map(len, narrow.splitlines())) <= 60


def test_groups_of_mixed_runs_are_warned_about(call, runs):
    by = ["--by", "features,contestant"]
    assert "rows mix" not in call("results", *runs, *by).stderr
    path = next((runs[0] / "runs").glob("adapt_online-*"))
    change(path, key="0" * 20, prompt="other", shots=4)
    done = call("results", *runs, *by)
    assert "rows mix runs that differ in prompt, shots; add it to --by" in " ".join(done.stderr.split())
    assert "rows mix" not in call("results", *runs, "--by", "features,contestant,prompt").stderr
    assert "differ in contestant, prompt, shots" in " ".join(call("results", *runs, "--by", "features").stderr.split())
    assert "rows mix" not in call("results", *runs, "--where", "method=zero_shot", "--by", "contestant").stderr


def test_records_of_older_code_are_counted_and_skipped(call, runs):
    path = next((runs[0] / "runs").glob("adapt_online-*"))
    change(path, key="0" * 20, code="another", accuracy=0.125)
    done = call("results", *runs, "--json")
    assert len(rows(done)) == 6
    assert "skipped: 1 record of the same runs by older code" in " ".join(done.stderr.split())
    assert 0.125 in [row["accuracy"] for row in rows(done)]  # it is the newer file


def test_an_analysis_with_a_text_as_accuracy_is_no_problem(call, runs):
    path = next((runs[0] / "runs").glob("adapt_online-*"))
    change(path, key="0" * 20, accuracy={"head": 0.5}, spec=None, analysis="tails", seed="drawn")
    for options in ([], ["--by", "features"], ["--sort", "-accuracy"], ["--where", "accuracy>0.1"]):
        done = call("results", *runs, *options)
        assert done.exit_code == 0, done.stderr
        assert "holds no record" not in done.stderr


def test_damaged_files_are_named_and_the_rest_is_shown(call, runs):
    path = next((runs[0] / "runs").iterdir())
    path.write_text(path.read_text()[:40])
    (runs[0] / "runs" / "notes.json").write_text("mine")
    done = call("results", runs[0], "--json")
    assert len(rows(done)) == 3
    assert f"skipped: {path} contains no readable record" in done.stderr
    assert "notes.json" not in done.stderr


def test_a_condition_without_matches_lists_the_values(call, runs):
    done = call("results", *runs, "--where", "features=hole", "--json")
    assert rows(done) == []
    assert "no record has features=hole. Did you mean 'whole'? features is part, whole." in done.stderr
    assert "0 of 6 records" in call("results", *runs, "--where", "features=hole").stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--where", "featurs=whole"], "no record has 'featurs'. Did you mean 'features'?"),
        (["--where", "whole"], "--where takes NAME=VALUE"),
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
        (["--csv", "same", "--markdown", "same"], "is named for two outputs"),
        (["nowhere"], "nowhere does not exist. Fix: name a folder"),
    ],
)
def test_errors(call, runs, options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = call("results", *runs, *options)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr.splitlines()[-1]


def test_folders_without_records(call, tmp_path, small_file):
    done = call("results", tmp_path)
    assert done.exit_code == 2
    assert "no records of runs in" in done.stderr
    assert "is a file, not a folder" in call("results", small_file).stderr


def warnings_of(done) -> str:
    return " ".join(done.stderr.split())


def test_groups_over_different_sets_or_streams_are_warned_about(call, runs):
    done = call("results", *runs, "--by", "contestant")
    assert "rows cover different sets, so their means do not compare; choose with --where" in warnings_of(done)
    assert "rows cover" not in call("results", *runs, "--by", "contestant", "-w", "features=whole").stderr
    assert "rows cover" not in call("results", *runs, "--by", "features,contestant").stderr
    path = next((runs[0] / "runs").glob("adapt_online-*"))
    change(path, key="0" * 20, stream={"kind": "dirichlet", "concentration": 1.0})
    done = call("results", *runs, "--by", "contestant", "-w", "features=whole")
    assert "rows cover different streams" in warnings_of(done)
    assert "cover different streams" not in warnings_of(call("results", *runs, "--by", "contestant,stream.kind"))


@pytest.mark.parametrize("width", range(24, 130, 3))
def test_dropped_columns_are_named(call, runs, width):
    shown = call("results", *runs, "--by", "features,contestant", env={"COLUMNS": str(width)}).stdout
    if "contestant: " in shown:  # stacked: nothing is dropped, and no word broken
        assert "gain max: " in shown
        assert "contestant: adapt_online" in shown
        return
    header, caption = shown.splitlines()[1], " ".join(shown.split("No room for")[1:])
    assert (" min " in header) == (" max " in header)
    assert ("gain min" in header) == ("gain max" in header)
    for title in ("worst 10%", "ECE", "gain min", "gain max", "runs"):
        assert (title in header) != (title in " ".join(caption.split("Accuracies")[0].split()))
    assert "adapt_online" in shown


def test_narrow_terminals_get_one_line_per_value(call, runs):
    shown = call("results", *runs, env={"COLUMNS": "30"}).stdout
    assert "set: whole\nwhat: adapt_online alpha=0.5\n" in shown
    assert max(map(len, shown.splitlines())) <= 30


def test_the_legend_explains_the_columns_shown(call, runs):
    assert "percent" not in call("results", *runs, "--columns", "features,seed").stdout
    shown = call("results", *runs, "--columns", "features,gain").stdout
    assert "Gain over zero-shot on the same rows in points." in shown
    assert "percent" not in shown
    assert "ECE" not in call("results", *runs, "--columns", "accuracy").stdout


def test_a_group_without_a_name_is_called_none(call, runs):
    path = next((runs[0] / "runs").glob("adapt_online-*"))
    change(path, key="0" * 20, shots=4)
    shown = call("results", runs[0], "--by", "shots").stdout
    assert any(line.split()[:1] == ["none"] for line in shown.splitlines())


def test_records_that_are_not_summarized_are_not_counted(call, runs):
    path = next((runs[0] / "runs").glob("adapt_online-*"))
    change(path, key="0" * 20, accuracy=None, spec=None, analysis="tails")
    assert call("results", runs[0], "--by", "features").stdout.splitlines()[-1] == "4 of 5 records"
    assert call("results", runs[0]).stdout.splitlines()[-1] == "5 records"


def test_unknown_fields_point_to_the_list_of_fields(call, runs):
    listed = call("results", *runs, "--fields").stdout.splitlines()
    line = call("results", *runs, "--columns", "colour").stderr.splitlines()[-1]
    assert line.endswith(f"Fix: one of the {len(listed)} fields that --fields lists.")
    assert rows(call("results", *runs, "--fields", "--json")) == listed


def test_a_few_counts_are_a_column(call, runs):
    for row in rows(call("results", *runs, "--columns", "paired", "--json")):
        assert len(row["paired"]) == 4
    assert call("results", *runs, "--columns", "paired,features").exit_code == 0


def test_without_rows_nothing_is_written(call, runs, tmp_path):
    files = ["--csv", tmp_path / "t.csv", "--markdown", tmp_path / "t.md"]
    done = call("results", *runs, "-w", "seed=0", "-w", "seed=1", *files)
    assert done.exit_code == 0
    assert "no record has seed=1. seed is 0." in done.stderr
    assert "no run is left, so no file is written" in done.stderr
    assert "written" not in done.stdout
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("t.")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--markdown", "."], "is a folder; the name of a file is needed. Fix: results.md"),
        (["--csv", "."], "is a folder; the name of a file is needed. Fix: results.csv"),
    ],
)
def test_more_errors(call, runs, options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = call("results", *runs, *options)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr.splitlines()[-1]


def test_edited_records_are_left_out_and_old_ones_are_marked(call, runs):
    edited, old, *_ = sorted((runs[0] / "runs").glob("*.json"))
    edited.write_text(json.dumps({**json.loads(edited.read_text()), "accuracy": 0.99}))
    record = {**json.loads(old.read_text()), "schema": 1}
    del record["checksum"]
    old.write_text(json.dumps(record))
    done = call("results", runs[0], "--json")
    assert len(rows(done)) == 3
    message = " ".join(done.stderr.split())
    assert f"{edited.name} contains no readable record, or one that was changed after it was written" in message
    assert "not verified: 1 record of an earlier version, without a checksum" in message
