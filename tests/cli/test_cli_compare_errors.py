"""Errors of `zeroshift compare` before anything is run; and a killed comparison, which resumes."""

import json
import subprocess
import sys

import numpy as np
import pytest

from zeroshift import FeatureSet
from zeroshift.cli._inputs import load_datasets
from zeroshift.data import packs
from zeroshift.evaluate import runner as job_runner


def test_the_default_is_every_pack_without_views():
    plain = [pack.name for pack in packs.list() if pack.n_views == 0]
    for wanted in (None, "all"):
        datasets = load_datasets([], wanted, prompt=None, normalize=False)
        assert [dataset.name for dataset in datasets] == plain


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--methods", "adapt_onlin"], "no method is called 'adapt_onlin'. Did you mean 'adapt_online'?"),
        (["--methods", "transductiv"], "Did you mean 'transductive'?"),
        (["--methods", " ,"], "--methods names no method; got ' ,'. Fix: all, online"),
        (
            ["--methods", "zero_shot+support"],
            "--methods zero_shot+support: zero_shot takes no support. It takes features alone. "
            "Fix: --methods zero_shot.",
        ),
        (["--set", "ecalp+support.gamma=3"], "whatever its inputs. Fix: --set ecalp.gamma=3."),
        (["--set", "ecalp.support=x"], "--set support: this parameter holds arrays. Fix: --methods NAME+support."),
        (["--set", "timo.prompts=x"], "holds arrays. Fix: leave it out; a comparison takes it from the sets."),
        (["--packs", "cifar10", "fmnist"], "no file at fmnist; it is the name of a bundled pack. Fix: pack:fmnist, or"),
        (["--packs", "cifar10", "fmnist"], "or --packs cifar10,fmnist."),
        (
            ["--methods", "adapt_released_online"],
            "needs scale (a number greater than 0), which has no default. Fix: --set",
        ),
        (["--set", "bank_size=3"], "--set takes METHOD.NAME=VALUE, for example --set adapt_online.bank_size=8; got"),
        (["--set", "adapt_online.bank=3"], "Did you mean 'bank_size'?"),
        (["--set", "adapt_online.bank_size=x"], "--set bank_size must be an integer of at least 0; got 'x'"),
        (["--set", "adapt_onlin.alpha=0.5"], "Did you mean 'adapt_online'?"),
        (["-m", "zero_shot", "--set", "adapt_online.alpha=0.5"], "is not among the methods compared. Fix: add it"),
        (["--packs", "cifar11"], "Did you mean 'cifar10'?"),
        (["--packs", ","], "--packs names no pack. Fix: all, or some of"),
        (["--prompt", "ensmble"], "small: prompt must be one of the set's prompt modes"),
        (["--orders", "0"], "--orders must be an integer from 1 to 1000; got 0"),
        (["--shots", "0"], "--shots must be an integer from 1 to 10000; got 0"),
        (["--jobs", "0"], "--jobs must be an integer from 1 to 256; got 0"),
        (["nowhere.npz"], "no file at nowhere.npz"),
        (["--markdown", "no/such.md"], "the folder no does not exist"),
    ],
)
def test_errors(call, small_file, tmp_path, monkeypatch, options, message):
    monkeypatch.setattr(job_runner._JobRunner, "__call__", lambda *_: pytest.fail("run"))
    done = call("compare", small_file, "--out", tmp_path / "out", *options)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr.splitlines()[-1]
    assert not (tmp_path / "out" / "runs").exists() or not list((tmp_path / "out" / "runs").iterdir())


def test_every_named_method_that_cannot_run_is_listed_with_its_reason(call, small_file, tmp_path):
    done = call("compare", small_file, "--out", tmp_path / "out", "-m", "zero_shot,cosmic,mint,coop")
    assert (done.exit_code, done.stdout) == (2, "")
    for reason in (
        "coop cannot be compared: it needs the encoder the features come from, to tune its prompts. Fix: --encoder",
        "cosmic cannot be compared: it needs features of the same images from a second encoder. Fix: zeroshift extract",
        "mint cannot be compared: it needs the images themselves, not their features. Fix: leave it out; in Python",
    ):
        assert reason in done.stderr.splitlines()[-1]
    assert "zero_shot cannot" not in done.stderr


def test_a_set_without_labels(call, small, tmp_path):
    FeatureSet(small.features, prototypes=small.prototypes).save(tmp_path / "bare.safetensors")
    done = call("compare", tmp_path / "bare.safetensors", "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "bare has no labels, so there is no accuracy to compare" in done.stderr
    (tmp_path / "folder").mkdir()
    (tmp_path / "bare.safetensors").rename(tmp_path / "folder" / "bare.safetensors")
    done = call("compare", tmp_path / "folder", "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "there is no set to compare on" in done.stderr


def test_a_file_without_a_logit_scale_gets_a_warning(call, small, tmp_path):
    fields = {"features": small.features, "labels": small.labels, "prototypes": small.prototypes_for()}
    np.savez(tmp_path / "without.npz", **fields)
    np.savez(tmp_path / "with.npz", **fields, logit_scale=20.0)
    for name, warnings in (("without", 1), ("with", 0)):
        done = call("compare", tmp_path / f"{name}.npz", "-m", "zero_shot", "--orders", "1", "-o", tmp_path / name)
        assert done.stderr.count("the logit scale is assumed to be 100, because the file stores none") == warnings
        page = (tmp_path / name / "compare.html").read_text()
        assert page.count("the logit scale is assumed to be 100") == warnings


def test_a_folder_without_feature_files(call, tmp_path):
    (tmp_path / "empty").mkdir()
    done = call("compare", tmp_path / "empty", "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "no feature files (.npz, .safetensors) found in" in done.stderr


def test_features_alone_are_not_a_set(call, small, tmp_path):
    np.save(tmp_path / "features.npy", small.features)
    done = call("compare", tmp_path / "features.npy", "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "features.npy contains only features" in done.stderr
    assert "--prototypes" not in done.stderr


def test_files_that_are_not_ours_are_not_replaced(call, small_file, tmp_path):
    (tmp_path / "results.md").write_text("mine")
    done = call("compare", small_file, "--out", tmp_path / "out", "--markdown", tmp_path / "results.md")
    assert done.exit_code == 2
    assert "exists and has no lines <!-- compare -->" in done.stderr
    (tmp_path / "out").mkdir(exist_ok=True)
    (tmp_path / "out" / "compare.html").write_text("mine")
    done = call("compare", small_file, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "is not a report of zeroshift" in done.stderr
    assert (tmp_path / "results.md").read_text() == (tmp_path / "out" / "compare.html").read_text() == "mine"


@pytest.mark.slow  # tests/evaluate kills the runner, test_cli_compare resumes from records
def test_a_killed_comparison_resumes(environment, shell, small_file, tmp_path):
    # It kills itself, as hard as can be, once two runs are recorded.
    code = (
        "import os, signal, sys\n"
        "from zeroshift.cli import main\n"
        "from zeroshift.evaluate import Ledger\n"
        "write, written = Ledger.write, []\n"
        "def counted(self, trial, *found):\n"
        "    if len(written) == 2:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    written.append(trial)\n"
        "    return write(self, trial, *found)\n"
        "Ledger.write = counted\n"
        f"sys.argv = ['zeroshift', 'compare', {str(small_file)!r}, '--methods', 'zero_shot,adapt_online']\n"
        "main()\n"
    )
    killed = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True)
    assert killed.returncode == -9
    runs = tmp_path / "zeroshift-compare" / "runs"
    kept = {path.name: path.stat().st_mtime_ns for path in runs.iterdir()}
    assert len(kept) == 2
    done = shell("compare", small_file, "--methods", "zero_shot,adapt_online", "--json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["runs"]) == 6
    after = {path.name: path.stat().st_mtime_ns for path in runs.iterdir()}
    assert len(after) == 6
    assert {name: after[name] for name in kept} == kept
