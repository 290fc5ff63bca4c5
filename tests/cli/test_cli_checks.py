"""What a command needs at its end is checked before it reads or computes anything."""

import importlib.util
import os
import shutil
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest

from zeroshift.cli import _experiment_data, _inputs, _output_paths, leaderboard
from zeroshift.cli.app import COMMANDS, load_command
from zeroshift.installation import install_command

WRITERS = {
    "adapt": ["adapt", "pack:cifar10", "--out", "there.csv"],
    "classify": ["classify", "photos", "--classes", "a,b", "--out", "there.csv"],
    "extract": ["extract", "photos", "--classes", "a,b", "--out", "there.safetensors"],
    "compare": ["compare", "pack:cifar10", "--out", "folder"],
    "experiment": ["experiment", "ablation", "--packs", "cifar10", "--out", "folder"],
    "experiment --csv": ["experiment", "ablation", "--packs", "cifar10", "--csv", "files"],
    "leaderboard": ["leaderboard", "runs", "--out", "folder"],
    "leaderboard --figure": ["leaderboard", "runs", "--figure", "there.svg"],
    "results": ["results", "runs", "--csv", "there.csv"],
    "demo": ["demo", "--out", "folder"],
    "demo --figures": ["demo", "--figures", "files"],
    "bench": ["bench", "--quick", "--figures", "files"],
    "data corrupt": ["data", "corrupt", "photos", "--kind", "fog", "--out", "file"],
}
"""Commands that write, with an output that cannot be written: it exists."""


@pytest.fixture
def without(monkeypatch):
    """`without("pyarrow")`: as if it were not installed."""
    found = importlib.util.find_spec

    def without(missing):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == missing else found(name))

    return without


@pytest.fixture
def outputs(tmp_path, monkeypatch):
    """A folder with what the commands of `WRITERS` would replace, and nothing they could read."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZEROSHIFT_CACHE", str(tmp_path / "cache"))
    for folder in ("photos", "runs", "folder", "files"):
        (tmp_path / folder).mkdir()
    for name in ("there.csv", "there.safetensors", "there.svg", "file"):
        (tmp_path / name).write_text("kept")
    for name in ("compare.html", "leaderboard.html", "report.html"):
        (tmp_path / "folder" / name).write_text("not by zeroshift")
    for name in ("ablation-table.csv", "running_accuracy.svg", "growth.svg"):
        (tmp_path / "files" / name).write_text("kept")
    return tmp_path


@pytest.fixture
def nothing_is_read(monkeypatch):
    """Every way to data fails the test."""

    def read(*given, **options):
        pytest.fail("data were read before the outputs were checked")

    for module, name in [
        (_inputs.FeatureSet, "load"), (_inputs.bundled_packs, "load"), (_inputs, "open_images"),
        (_experiment_data.bundled_packs, "load"), (leaderboard, "collect"),
    ]:  # fmt: skip
        monkeypatch.setattr(module, name, read)
    monkeypatch.setattr("zeroshift.cli.results.collect", read)
    monkeypatch.setattr("zeroshift.cli.data.corrupt_files", read)
    monkeypatch.setattr("zeroshift.cli.bench.run_cases", read)


@pytest.mark.parametrize("name", WRITERS)
def test_an_output_that_cannot_be_written_is_refused_before_anything_is_read(name, call, outputs, nothing_is_read):
    kept = {path: path.read_text() for path in outputs.rglob("*.*") if path.is_file()}
    done = call(*WRITERS[name])
    assert done.exit_code == 2, (done.exception, done.stdout, done.stderr)
    assert "Fix: " in done.stderr.splitlines()[-1]
    assert {path: path.read_text() for path in kept} == kept
    assert sorted(path.name for path in outputs.iterdir() if path.is_dir()) == ["files", "folder", "photos", "runs"]


def test_every_command_that_writes_is_tested():
    writing = {
        name
        for name in COMMANDS
        if any(option in ("--out", "--csv") for one in getattr(load_command(name), "params", ()) for option in one.opts)
    }
    assert writing <= {arguments[0] for arguments in WRITERS.values()}


@pytest.fixture
def shards(tmp_path):
    folder = tmp_path / "shards"
    folder.mkdir()
    rows = np.eye(4, 8, dtype=np.float32)
    np.save(folder / "a.npy", rows)
    np.save(tmp_path / "prototypes.npy", rows)
    return ["adapt", folder, "--prototypes", tmp_path / "prototypes.npy", "--on", "local:2", "--out", tmp_path / "out"]


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_shards_need_pyarrow_before_they_are_read(options, call, shards, without, monkeypatch, tmp_path):
    without("pyarrow")
    monkeypatch.setattr("zeroshift.cli._shards.FeatureShards", None)
    done = call(*shards, *options)
    fix = install_command("parquet")
    assert (done.exit_code, done.stderr) == (2, f"error: pyarrow is needed and not installed. Fix: {fix}.\n")
    assert not (tmp_path / "out").exists()


def test_a_dry_run_checks_the_output_and_leaves_no_folder(call, shards, tmp_path):
    assert call(*shards, "--dry-run").exit_code == 0
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").write_text("a file")
    done = call(*shards, "--dry-run")
    assert (done.exit_code, "out is a file, not a folder" in done.stderr) == (2, True)


def test_images_in_shards_need_pyarrow_before_they_are_read(call, without, monkeypatch, tmp_path):
    without("pyarrow")
    monkeypatch.setattr("zeroshift.cli._image_shards.open_image_shards", None)
    done = call("extract", tmp_path, "--on", "local:1", "--out", tmp_path / "out")
    assert (done.exit_code, "pyarrow is needed and not installed" in done.stderr) == (2, True)


def test_a_cluster_needs_ray_before_anything_is_read(call, without, nothing_is_read, tmp_path):
    without("ray")
    done = call("compare", "pack:cifar10", "--on", "ray", "--out", tmp_path / "out")
    assert (done.exit_code, "ray is needed and not installed" in done.stderr) == (2, True)


def test_too_little_room_is_refused_before_anything_is_computed(call, small_file, shards, monkeypatch, tmp_path):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(10**9, 10**9, 10))
    done = call("adapt", small_file, "--out", tmp_path / "p.csv")
    assert done.exit_code == 2
    assert "p.csv needs about 7.7 kB, and its disk has 10 bytes left. Fix: make room" in done.stderr
    assert not (tmp_path / "p.csv").exists()
    assert "its disk has 10 bytes left" in call(*shards, "--dry-run").stderr


# Overwriting.


def test_pages_and_records_continue_and_other_files_need_force(call, small_file, tmp_path):
    out = tmp_path / "out"
    both = ["--orders", "1", "--out", out, "--quiet"]
    assert call("compare", small_file, "-m", "zero_shot,adapt_transductive", *both).exit_code == 0
    assert call("compare", small_file, "-m", "zero_shot,adapt_transductive,tda", *both).exit_code == 0
    page = (out / "compare.html").read_bytes()
    less = ["compare", small_file, "-m", "zero_shot", *both]
    done = call(*less)
    assert done.exit_code == 2
    assert "compare.html may show " in done.stderr
    assert "--out another folder; or pass --force" in done.stderr
    assert (out / "compare.html").read_bytes() == page
    assert call(*less, "--force").exit_code == 0
    assert (out / "compare.html").read_bytes() != page


def test_a_leaderboard_of_some_methods_does_not_replace_that_of_all(call, small_file, tmp_path):
    out = tmp_path / "out"
    call("compare", small_file, "-m", "zero_shot,adapt_transductive", "--orders", "1", "--out", out, "--quiet")
    assert call("leaderboard", out, "--figure", tmp_path / "f.svg").exit_code == 0
    page = (out / "leaderboard.html").read_bytes()
    done = call("leaderboard", out, "-m", "zero_shot")
    assert (done.exit_code, "leaderboard.html exists, and -m leaves out" in done.stderr) == (2, True)
    assert (out / "leaderboard.html").read_bytes() == page
    assert call("leaderboard", out).exit_code == 0
    assert "f.svg exists. Fix: pass --force" in call("leaderboard", out, "--figure", tmp_path / "f.svg").stderr
    assert call("leaderboard", out, "-m", "zero_shot", "--out", tmp_path / "some").exit_code == 0
    assert call("leaderboard", out, "-m", "zero_shot", "--figure", tmp_path / "f.svg", "--force").exit_code == 0


# Names of options.


def commands():
    """Every command and subcommand, as the words to type."""
    for name in COMMANDS:
        command = load_command(name)
        yield (name,), command
        for inner, one in getattr(command, "commands", {}).items():
            yield (name, inner), one


@pytest.mark.parametrize("words", [(), *(words for words, _ in commands())], ids=" ".join)
def test_h_shows_the_help(words, call):
    assert call(*words, "-h").stdout == call(*words, "--help").stdout
    assert call(*words, "-h").exit_code == 0


def test_short_options_mean_the_same_in_every_command():
    meanings: dict[str, set] = {}
    for _, command in commands():
        for parameter in command.params:
            for short in (option for option in parameter.opts if len(option) == 2):
                meanings.setdefault(short, set()).add(parameter.opts[0].removesuffix("s"))
    assert {short: names for short, names in meanings.items() if len(names) > 1} == {}


def test_compare_takes_the_names_of_arrays(call, small, tmp_path):
    path = tmp_path / "theirs.npz"
    np.savez(path, X=small.features, T=small.prototypes_for(), y=small.labels)
    keys = ["--features-key", "X", "--prototypes-key", "T", "--labels-key", "y"]
    done = call("compare", path, "-m", "zero_shot", "--orders", "1", "--out", tmp_path / "out", "--quiet", *keys)
    assert done.exit_code == 0, done.stderr
    assert os.listdir(Path(tmp_path, "out", "runs"))


def test_folders_of_checks_are_deleted_if_nothing_is_written(tmp_path):
    _output_paths.check_outputs(folders=[tmp_path / "a" / "b"], pages=[tmp_path / "c" / "report.html"])
    assert (tmp_path / "a" / "b").is_dir()
    _output_paths.release_claims()
    assert list(tmp_path.iterdir()) == []
