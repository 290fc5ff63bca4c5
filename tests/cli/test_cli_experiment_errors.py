"""Errors of `zeroshift experiment` before anything is run."""

import numpy as np
import pytest

from zeroshift import FeatureSet
from zeroshift.evaluate import runner as job_runner
from zeroshift.experiments import Suite


@pytest.fixture
def error_message(call, tmp_path, monkeypatch):
    """The error message of a command that ran nothing."""
    monkeypatch.setattr(job_runner._JobRunner, "__call__", lambda *_: pytest.fail("run"))
    monkeypatch.chdir(tmp_path)

    def error_message(*arguments):
        before = (tmp_path / "out").exists()
        done = call("experiment", *arguments, "--out", tmp_path / "out")
        assert (done.exit_code, done.stdout) == (2, "")
        assert not list((tmp_path / "out" / "runs").glob("*"))
        if not before:
            assert not (tmp_path / "out").exists()
        return done.stderr.splitlines()[-1]

    return error_message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "no experiment is named. Fix: zeroshift experiment all"),
        ([" ,"], "no experiment is named. Fix"),
        (["ablatoin"], "no experiment is called 'ablatoin'. Did you mean 'ablation'?"),
        (["bank_size"], "Did you mean 'bank-size'?"),
        (["table-1"], "no experiment repeats Table 1 of the paper, because it compares properties of methods"),
        (["table-17"], "no experiment repeats Table 17 of the paper, because it prints Table 5 again. Fix: table-5."),
        (["figure-7"], "the paper has no Figure 7. Fix: figure-1 to figure-6."),
        (["ablation", "table-9"], "it is the name of an experiment. Fix: a list with commas, ablation,table-9."),
        (["ablation,alpa"], "Did you mean 'alpha'?"),
        (
            ["ablation", "alpha"],
            "no file at alpha; it is the name of an experiment. Fix: a list with commas, ablation,alpha.",
        ),
        (["pack:cifar10"], "pack:cifar10 is a pack, not an experiment; the experiment comes first. Fix: zeroshift"),
        (["small.safetensors"], "is a file or folder, not an experiment"),
        (["ablation", "cifar10"], "no file at cifar10; it is the name of a bundled pack. Fix: pack:cifar10"),
        (["ablation", "--packs", "cifar11"], "Did you mean 'cifar10'?"),
        (["ablation", "--packs", ","], "--packs names no pack"),
        (["ablation", "nowhere.npz"], "no such file or folder: nowhere.npz"),
        (["ablation", "empty"], "no feature files"),
        (["ablation", "--orders", "0"], "--orders must be an integer from 1 to 1000; got 0"),
        (["ablation", "--jobs", "0"], "--jobs must be an integer from 1 to 256; got 0"),
        (["ablation", "--markdown", "no/such.md"], "the folder no does not exist"),
        (["ablation", "--markdown", "mine.md"], "exists and was not written by `zeroshift experiment`"),
        (["ablation", "--markdown", "empty"], "is a folder; the name of a file is needed"),
        (["ablation", "--figures", "mine.md"], "mine.md is a file, not a folder"),
        (["ablation", "--latex", "mine.md"], "mine.md is a file, not a folder"),
        (["ablation", "--csv", "mine.md/deep"], "cannot be created"),
        (["ablation", "--encoder", "composed"], "--encoder is for data sets on the disk. Fix: add --data ROOT"),
        (["ablation", "--data-sets", "dtd"], "--data-sets is for data sets on the disk"),
        (["ablation", "--severities", "5"], "--severities is for data sets on the disk"),
        (["ablation", "--prompts", "vanilla"], "--prompts is for data sets on the disk"),
        (["ablation", "--descriptions", "mine.md"], "--descriptions is for data sets on the disk"),
        (["ablation", "--device", "cpu"], "--device is for data sets on the disk"),
        (["ablation", "--dtype", "float16"], "--dtype is for data sets on the disk"),
        (["ablation", "--batch-size", "8"], "--batch-size is for data sets on the disk"),
        (["ablation", "--workers", "0"], "--workers is for data sets on the disk"),
        (["ablation", "--cache", "empty"], "--cache is for data sets on the disk"),
        (["ablation", "--no-cache"], "--no-cache is for data sets on the disk"),
        (["ablation", "--data", "nowhere"], "--data: no folder at nowhere"),
        (["ablation", "--data", "empty"], "none of the data sets of the catalogue is in empty"),
        (["ablation", "--data", "empty", "--data-sets", "dtt"], "Did you mean 'dtd'?"),
        (["ablation", "--data", "empty", "--data-sets", "dtd"], "--data-sets: dtd is not in empty"),
        (["ablation", "--data", "empty", "--data-sets", ","], "--data-sets names no data set"),
        (["ablation", "--data", "empty", "--severities", "6"], "--severities must be from 1 to 5"),
        (["ablation", "--data", "empty", "--severities", "1-5"], "--severities must be from 1 to 5"),
        (
            ["ablation", "--data", "empty", "--descriptions", "none.json"],
            "--descriptions: no such file or folder: none.json",
        ),
        (["ablation", "--data", "empty", "--prompts", "vanila"], "--prompts vanila: the prompt modes are"),
        (["ablation", "--data", "empty", "--prompts", "vanilla,vanilla"], "--prompts names a mode twice"),
        (["ablation", "--data", "empty", "--prompts", "descriptions"], "--prompts descriptions needs --descriptions"),
        (
            ["ablation", "--data", "empty", "--prompts", "vanilla", "--descriptions", "mine.md"],
            "--descriptions is not used by --prompts vanilla",
        ),
        (["ablation", "--orders", "1001"], "--orders must be an integer from 1 to 1000; got 1001"),
        (["ablation", "nofeat"], "no such file or folder: nofeat. Fix: check the path"),
        (["ablation", "--packs", "cifar"], "--packs: no pack is called 'cifar'. Did you mean 'cifar10"),
        (["list", "foo"], "list shows all experiments and takes nothing else; got 'foo'. Fix"),
        (["--list", "ablation", "foo"], "takes nothing else; got 'foo'. Fix"),
    ],
)
def test_errors(error_message, small_file, tmp_path, options, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "mine.md").write_text("mine")
    assert message in error_message(*options)
    assert (tmp_path / "mine.md").read_text() == "mine"
    assert list((tmp_path / "empty").iterdir()) == []


def test_an_error_leaves_no_folders_behind(error_message, tmp_path):
    folders = ["--figures", "f/deep", "--latex", "t", "--csv", "c"]
    assert "no such file or folder" in error_message("ablation", "nofeat", *folders)
    assert not [name for name in ("f", "t", "c", "out") if (tmp_path / name).exists()]


def test_empty_suites_are_errors():
    with pytest.raises(ValueError, match=r"sets is empty; there is nothing to do experiments on. Fix"):
        Suite.of({})


def test_files_that_are_not_ours_are_not_replaced(error_message, small_file, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "report.html").write_text("mine")
    assert "is not a report of zeroshift. Fix: --out another folder" in error_message("ablation", small_file)
    assert (tmp_path / "out" / "report.html").read_text() == "mine"


def test_an_out_that_is_a_file(call, small_file):
    done = call("experiment", "ablation", small_file, "--out", small_file)
    assert done.exit_code == 2
    assert "is a file, not a folder" in done.stderr


def test_a_file_in_place_of_the_records_folder(error_message, small_file, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "runs").write_text("mine")
    assert "runs is a file, not a folder" in error_message("ablation", small_file)


def test_sets_that_cannot_be_used(error_message, small, tmp_path):
    FeatureSet(small.features, prototypes=small.prototypes).save(tmp_path / "bare.safetensors")
    assert "bare has no labels" in error_message("ablation", tmp_path / "bare.safetensors")
    np.save(tmp_path / "rows.npy", small.features)
    assert "rows.npy contains only features" in error_message("ablation", tmp_path / "rows.npy")
    (tmp_path / "torn.safetensors").write_bytes(b"torn")
    assert "torn.safetensors is not a readable safetensors file" in error_message(
        "ablation", tmp_path / "torn.safetensors"
    )
