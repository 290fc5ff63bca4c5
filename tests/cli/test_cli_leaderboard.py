"""`zeroshift leaderboard` and `zeroshift compare --protocol`."""

import json

import pytest

from zeroshift.cli import compare as compare_module
from zeroshift.evaluate import run_plan

CHOSEN = "zero_shot,tda,tda+filter,adapt_transductive"


@pytest.fixture
def compare(call, small_file, tmp_path, monkeypatch):
    """Compare in this process into the folder out."""
    monkeypatch.setattr(compare_module, "run_plan", lambda *given, jobs, **more: run_plan(*given, jobs=0, **more))

    def compare(*arguments, methods=CHOSEN):
        done = call("compare", small_file, "-m", methods, "--orders", 2, "--out", tmp_path / "out", *arguments)
        assert done.exit_code == 0, done.stderr
        return done

    return compare


def test_a_plain_comparison(compare, call, tmp_path):
    compare("-q")
    done = call("leaderboard", tmp_path / "out", "--json")
    assert done.exit_code == 0, done.stderr
    record = json.loads(done.stdout)
    found = {method["label"]: method for method in record["methods"]}
    assert list(found) == sorted(found, key=lambda label: (found[label]["group"], -found[label]["accuracy"]))
    assert found.keys() == set(CHOSEN.split(","))
    assert record["streams"] == ["random"]
    assert found["tda+filter"]["needs"] == ["order"]
    assert found["adapt_transductive"]["rank"] == [1, 1]
    assert (tmp_path / "out" / "leaderboard.html").read_text().startswith("<!doctype html>")


def test_differences_to_a_method(compare, call, tmp_path):
    done = compare("--json", "--baseline", "tda")
    found = {method["method"]: method for method in json.loads(done.stdout)["mean"]}
    assert found["tda"]["to_baseline"]["points"] == 0
    again = call("leaderboard", tmp_path / "out", "--baseline", "tda", "--json")
    for method in json.loads(again.stdout)["methods"]:
        assert method["to_baseline"] == pytest.approx(found[method["label"]]["to_baseline"])
    shown = call(
        "leaderboard", tmp_path / "out", "--baseline", "tda", "-m", "tda,zero_shot", "--force", env={"COLUMNS": "200"}
    )
    assert "over tda" in shown.stdout
    assert "Over tda" in (tmp_path / "out" / "leaderboard.html").read_text()
    wrong = call("leaderboard", tmp_path / "out", "--baseline", "tdb")
    assert (wrong.exit_code, "Did you mean 'tda'" in wrong.stderr) == (2, True)


def test_a_wrong_baseline_is_refused_before_anything_runs(call, small_file, tmp_path):
    done = call("compare", small_file, "-m", CHOSEN, "--out", tmp_path / "new", "--baseline", "dmn")
    assert done.exit_code == 2
    assert "--baseline: 'dmn' is not among the compared methods" in done.stderr
    assert not (tmp_path / "new").exists()


def test_a_protocol(compare, call, tmp_path):
    done = compare("--protocol", "ttabc", "--json")
    record = json.loads(done.stdout)
    assert record["streams"] == ["random", "dirichlet"]
    assert record["averaged"] == ["random"]
    assert any("concentration" in remark for remark in record["remarks"])
    assert not (tmp_path / "out" / "compare.html").exists()
    again = call("leaderboard", tmp_path / "out", "--protocol", "ttabc", "--json")
    assert json.loads(again.stdout) == record
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "runs").iterdir()}
    compare("--protocol", "ttabc", "-q")
    assert files == {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "runs").iterdir()}


def test_every_online_method_with_the_filter():
    labels = {spec.label for spec in compare_module.choose_methods("online+filter", [])}
    assert {"zero_shot+filter", "tda+filter", "adapt_online+filter"} <= labels
    assert all(label.endswith("+filter") for label in labels)
    assert "anchored_mixture_online+filter" not in labels


def test_the_files(compare, call, tmp_path):
    compare("-q")
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- leaderboard -->\nold\n<!-- /leaderboard -->\nafter\n")
    picture = tmp_path / "time.svg"
    done = call("leaderboard", tmp_path / "out", "--markdown", page, "--figure", picture)
    assert done.exit_code == 0, done.stderr
    text = page.read_text()
    assert text.startswith("before\n<!-- leaderboard -->\nzeroshift")
    assert text.endswith("<!-- /leaderboard -->\nafter\n")
    assert "| `tda` |" in text
    assert "old" not in text
    assert "tda" in picture.read_text()
    assert "rank" in done.stdout
    assert f"written: {picture}" in done.stdout


def test_filters(compare, call, tmp_path):
    compare("-q", "--protocol", "three-orders")
    given = ("--groups", "online", "--without", "order", "--streams", "bursts", "--sets", "small", "--json", "--force")
    record = json.loads(call("leaderboard", tmp_path / "out", *given).stdout)
    assert {method["label"] for method in record["methods"]} == {"zero_shot", "tda"}
    assert record["streams"] == ["bursts"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--protocol", "ttbac"), "Did you mean 'ttabc'"),
        (("--streams", "burst"), "--streams"),
        (("--figure", "time.pdf"), "must end with .svg or .png"),
        (("--figure", "missing/time.svg"), "the folder missing does not exist"),
        (("--draws", "0"), "draws"),
    ],
)
def test_wrong_options(compare, call, tmp_path, arguments, message):
    compare("-q", methods="zero_shot,tda")
    done = call("leaderboard", tmp_path / "out", *arguments)
    assert done.exit_code != 0
    assert message in done.stderr
    assert not (tmp_path / "out" / "leaderboard.html").exists()


def test_a_page_of_something_else_is_not_replaced(compare, call, tmp_path):
    compare("-q", methods="zero_shot")
    (tmp_path / "out" / "leaderboard.html").write_text("mine")
    done = call("leaderboard", tmp_path / "out")
    assert "is not a report of zeroshift" in done.stderr
    assert (tmp_path / "out" / "leaderboard.html").read_text() == "mine"


def test_no_folder(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "there is no folder zeroshift-compare here" in call("leaderboard").stderr


def test_tables_of_sets_are_those_of_plain_comparisons(call, small_file, tmp_path):
    done = call("compare", small_file, "--protocol", "ttabc", "--by-set", "--out", tmp_path / "out")
    assert "--by-set shows the tables of a plain comparison" in done.stderr
