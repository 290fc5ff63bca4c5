"""`zeroshift data list` and `zeroshift data check`."""

import json

import pytest

pytest.importorskip("PIL")
from data import miniatures
from zeroshift.data import catalogue


@pytest.fixture
def run(call):
    """A sub-command of `zeroshift data` in a terminal of 80 columns."""
    return lambda *arguments: call("data", *arguments, env={"COLUMNS": "80"})


def test_the_catalogue_is_listed_within_80_columns(run):
    shown = run("list").stdout
    for info in catalogue.list():
        assert f"{info.id} " in shown
        assert f"{info.counts['test']:,}" in shown
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_the_catalogue_as_json(run):
    listed = json.loads(run("list", "--json").stdout)
    assert [entry["id"] for entry in listed] == [info.id for info in catalogue.list()]
    dtd = next(entry for entry in listed if entry["id"] == "dtd")
    assert (dtd["n_classes"], dtd["counts"]["test"], dtd["template"]) == (47, 1692, "{} texture.")


def test_found_and_missing_data_sets(run, tmp_path):
    miniatures.build(tmp_path, "dtd")
    done = run("check", tmp_path)
    assert done.exit_code == 0
    table, notes = done.stdout.split("imagenet: ", 1)
    rows = {line.split()[0]: line.split()[1:] for line in table.splitlines() if line.strip()}
    assert rows["dtd"] == ["differs", "3", "1,692", "test", "images"]
    assert rows["imagenet"] == ["missing", "0", "50,000", "test", "images"]
    assert rows["imagenet_c"] == ["missing", "0", "15", "corruptions"]
    assert max(map(len, table.splitlines())) <= 80
    assert notes.startswith("not in domain_shift_datastes/imagenet/images/val, imagenet/images/val, ImageNet/val\n")
    assert "\ndtd: fine-grained/dtd/images\n  3 test images, 1,692 were published\n" in notes
    assert notes.endswith(f"0 of 16 complete in {tmp_path}\n")


def test_only_some_as_json(run, tmp_path):
    miniatures.build(tmp_path, "imagenet_a")
    statuses = json.loads(run("check", tmp_path, "--only", "imagenet-a, pets", "--json").stdout)
    assert [(status["id"], status["state"], status["found"]) for status in statuses] == [
        ("imagenet_a", "incomplete", 6),
        ("oxford_pets", "missing", 0),
    ]
    assert statuses[1]["looked_in"][0] == "fine-grained/oxford_pets/images"


def test_a_missing_root_is_an_error(run, tmp_path):
    done = run("check", tmp_path / "nowhere")
    assert done.exit_code == 2
    assert "no folder at" in done.stderr
    assert run("check", tmp_path, "--only", "dtdd").exit_code == 2
    done = run("check", tmp_path, "--only", " , ")
    assert done.exit_code == 2
    assert "--only" in done.stderr
