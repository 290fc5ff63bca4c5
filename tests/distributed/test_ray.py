"""The Ray executor, on a cluster that is started here."""

from __future__ import annotations

import json
import os
import signal
import sys

import numpy as np
import pytest

from worker_functions import kill_once
from zeroshift import TransductiveAnchoredMixture
from zeroshift.distributed import FeatureShards, RayExecutor, adapt
from zeroshift.testing import make_problem


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_same_bits_as_local(tmp_path):
    pytest.importorskip("ray")
    features, prototypes, _ = make_problem(classes=7, dimension=24, samples=900)
    np.save(tmp_path / "0.npy", features[:500])
    np.save(tmp_path / "1.npy", features[500:])
    shards = FeatureShards.open(tmp_path)
    answers, handler = [], signal.getsignal(signal.SIGTERM)
    for on in ("local:1", "ray"):
        made = TransductiveAnchoredMixture(prototypes, logit_scale=20.0)
        adapt(made, shards, on=on, task_rows=100)
        answers.append(made.predict(features))
    assert np.array_equal(*answers)
    assert signal.getsignal(signal.SIGTERM) is handler  # Ray's own would end commands with another exit code


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_killed_worker(tmp_path, monkeypatch):
    """A worker that ends takes only its task with it, which runs again."""
    pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))  # Ray's workers import the function
    marker = str(tmp_path / "marker")
    with RayExecutor() as executor:
        assert list(executor.map(kill_once, [(number, marker) for number in range(8)])) == list(range(8))
        assert (tmp_path / "marker").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_jobs_of_a_comparison(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    from typer.testing import CliRunner

    from zeroshift.cli import app

    monkeypatch.chdir(tmp_path)
    command = [
        "compare",
        "--packs",
        "fmnist",
        "-m",
        "zero_shot,anchored_mixture_transductive",
        "--orders",
        "1",
        "--json",
    ]
    accuracies = []
    for on in ("local:1", "ray"):
        done = CliRunner().invoke(app, [*command, "--on", on, "--out", on.replace(":", "")])
        assert done.exit_code == 0, done.output
        accuracies.append([one["accuracy"] for one in json.loads(done.stdout)["sets"][0]["methods"]])
    assert accuracies[0] == accuracies[1]
