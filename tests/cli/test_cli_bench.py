"""`zeroshift bench`: a small run from end to end, resumed, and errors."""

import json

import pytest

SMALL = ("--classes", "3,4", "--dimensions", "16", "--samples", "40", "--steps", "1", "--repeats", "1")


def test_a_small_run_as_json(call, tmp_path):
    out = tmp_path / "bench.json"
    done = call("bench", *SMALL, "--no-memory", "--out", out, "--figures", tmp_path / "drawn", "--json")
    assert done.exit_code == 0, done.stderr
    record = json.loads(done.stdout)
    assert [cell["settings"]["classes"] for cell in record["cells"].values()] == [3, 4]
    for cell in record["cells"].values():
        assert {"direct", "transductive"} <= set(cell["engines"])
    assert record["growth"]["classes"][0]["title"] == "d=16 N=40"
    assert json.loads(out.read_text())["cells"] == record["cells"]
    assert sorted(path.name for path in (tmp_path / "drawn").iterdir()) == ["growth.png", "growth.svg"]


def test_resuming_measures_only_what_is_missing(call, tmp_path, monkeypatch):
    out = tmp_path / "bench.json"
    assert call("bench", *SMALL, "--no-memory", "--out", out, "--quiet").exit_code == 0
    before = json.loads(out.read_text())

    def measured(*_):
        raise AssertionError("measured again")

    monkeypatch.setattr("zeroshift.benchmarks.bench.measure_case", measured)
    done = call("bench", *SMALL, "--no-memory", "--out", out, "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["cells"] == before["cells"]
    assert isinstance(call("bench", *SMALL, "--no-memory", "--out", out, "--again").exception, AssertionError)


def test_the_table(call):
    done = call("bench", "--classes", "3", "--dimensions", "16", "--samples", "40", "--no-memory", "--threads", "1")
    assert done.exit_code == 0, done.stderr
    assert "K=3 d=16 N=40, threads 1" in done.stdout
    assert "floor" in done.stdout
    assert "f64" in done.stdout
    assert "transductive" in done.stdout


def test_geometries_and_a_busy_machine(call):
    done = call(
        "bench", "--classes", "3", "--dimensions", "16", "--samples", "40", "--steps", "1", "--repeats", "1",
        "--geometry", "clip_like,clustered", "--busy", "1", "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    cells = list(json.loads(done.stdout)["cells"].values())
    assert [cell["settings"]["source"] for cell in cells] == ["clip_like", "clustered"]
    for cell in cells:
        assert cell["settings"]["competitors"] == 1
        assert all("memory" not in record for record in cell["engines"].values())


def test_real_features(call, small_file):
    done = call("bench", "--on", small_file, "--samples", "50", "--steps", "1", "--no-memory", "--json")
    assert done.exit_code == 0, done.stderr
    (cell,) = json.loads(done.stdout)["cells"].values()
    assert cell["settings"]["source"] == str(small_file)
    assert (cell["settings"]["classes"], cell["settings"]["samples"]) == (6, 50)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--quick", "--full"], "--quick and --full each choose the sizes. Fix: give one"),
        (["--quick", "--classes", "3"], "--quick and --classes each choose the sizes"),
        (
            ["--classes", "many"],
            "--classes takes integers separated by commas, for example --classes 1000; got 'many'",
        ),
        (["--classes", "1"], "classes must be an integer from 2 to 1e+06; got 1"),
        (["--dimensions", "4"], "dimensions must be an integer from 8 to 100000; got 4"),
        (["--samples", ","], "--samples takes integers"),
        (["--engines", "direkt"], "got 'direkt'. Did you mean 'direct'?"),
        (["--engines", ","], "--engines names no engine"),
        (["--steps", "0"], "--steps must be an integer from 1 to 10000; got 0"),
        (["--geometry", "round"], "--geometry must be one of 'clip_like', 'clustered'; got 'round'"),
        (["--geometry", "clustered", "--on", "pack:cifar10"], "--on uses features as they are; leave out --geometry"),
        (["--busy", "-1"], "--busy must be an integer from 0 to 1024; got -1"),
        (["--repeats", "0"], "--repeats must be an integer from 1 to 10000; got 0"),
        (["--threads", "0"], "--threads must be an integer from 1 to 1024; got 0"),
        (["--library", "jax"], "--library must be one of 'numpy', 'torch'; got 'jax'"),
        (["--device", "cuda"], "--device must be one that numpy can use here; got 'cuda'"),
        (["--on", "pack:cifar1"], "Did you mean 'cifar10'?"),
        (["--on", "pack:cifar10", "--classes", "3"], "--on uses features as they are; leave out --classes"),
        (["--on", "nowhere.npz"], "no file at nowhere.npz"),
        (["--out", "no/bench.json"], "the folder no does not exist"),
    ],
)
def test_errors(call, monkeypatch, options, message):
    def measured(*_):
        raise AssertionError("measured before everything was checked")

    monkeypatch.setattr("zeroshift.benchmarks.bench.measure_case", measured)
    done = call("bench", *options)
    assert done.exit_code == 2, (done.stdout, done.stderr, done.exception)
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


def test_files_that_are_not_ours_are_not_touched(call, tmp_path):
    out = tmp_path / "notes.json"
    out.write_text("[1, 2]")
    done = call("bench", *SMALL, "--out", out)
    assert done.exit_code == 2
    assert "is not a file of `zeroshift bench`" in done.stderr
    assert out.read_text() == "[1, 2]"
    (tmp_path / "growth.svg").write_text("mine")
    done = call("bench", *SMALL, "--figures", tmp_path)
    assert done.exit_code == 2
    assert "pass --force to replace it" in done.stderr
