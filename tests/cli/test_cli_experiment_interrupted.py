"""`zeroshift experiment` interrupted: what is recorded, what is printed, and the names of its runs."""

import os
import signal
import subprocess
import sys

import pytest

from zeroshift.cli import experiment as experiment_module
from zeroshift.cli._run_loop import unique_names
from zeroshift.evaluate import MethodSpec, StreamSpec, Trial
from zeroshift.evaluate import runner as job_runner
from zeroshift.experiments import Member

NAME = "input-order"


@pytest.fixture
def experiment(call, tmp_path, monkeypatch):
    """In this process, so that what a test puts in place is seen."""
    monkeypatch.setattr(experiment_module, "count_processes", lambda jobs: 0)

    def experiment(*arguments, env=None):
        return call("experiment", *arguments, "--out", tmp_path / "out", env=env)

    return experiment


def test_ctrl_c_keeps_finished_runs(experiment, small_file, monkeypatch, tmp_path):
    real, done = job_runner._JobRunner.__call__, []

    def interrupted(runner, job):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(job)
        return real(runner, job)

    monkeypatch.setattr(job_runner._JobRunner, "__call__", interrupted)
    stopped = experiment(NAME, small_file, "--orders", "1")
    assert stopped.exit_code == 130
    assert "2 of " in stopped.stderr
    assert "the same command resumes" in stopped.stderr
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 2
    assert not (tmp_path / "out" / "report.html").exists()
    monkeypatch.setattr(job_runner._JobRunner, "__call__", real)
    rest = experiment(NAME, small_file, "--orders", "1")
    assert rest.exit_code == 0
    assert "2 of " in rest.stderr.splitlines()[0]


def test_without_records_no_folder_is_named(experiment, small_file, monkeypatch, tmp_path):
    def interrupted(runner, job):
        raise KeyboardInterrupt

    monkeypatch.setattr(job_runner._JobRunner, "__call__", interrupted)
    stopped = experiment(NAME, small_file, "--orders", "1")
    assert "is recorded yet" in stopped.stderr
    assert str(tmp_path / "out") not in stopped.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), pytest.param("SIGHUP", 129, marks=pytest.mark.slow)])
def test_signals_stop_it_like_ctrl_c(environment, small_file, tmp_path, name, code):
    if os.name != "posix":
        pytest.skip("no such signals here")
    number = getattr(signal, name)
    command = [sys.executable, "-m", "zeroshift", "experiment", NAME, str(small_file), "--orders", "300", "--jobs", "2"]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "out")], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True, start_new_session=True, preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )  # fmt: skip
    assert "run 1 of" in process.stderr.readline()
    process.send_signal(number)
    *_, warning, last = process.communicate(timeout=100)[1].splitlines()
    assert process.returncode == code
    assert "are recorded in" in warning
    assert "the same command resumes" in warning
    assert last == f"error: stopped by {name}; no file is left half-written"
    assert list((tmp_path / "out" / "runs").glob("*.json"))
    assert not (tmp_path / "out" / "report.html").exists()
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)  # none of its processes is left


def test_no_two_runs_have_the_same_name(small, tmp_path):
    dataset = Member.of("small", small).dataset
    stream_specs = [StreamSpec("long_tail", {"imbalance": 5}), StreamSpec("long_tail"), None]
    trials = [
        Trial("small", dataset.digest, prompt, MethodSpec("zero_shot"), seed, shots, stream_spec, timed)
        for prompt in ("ensemble", "vanilla")
        for seed in (0, 1)
        for shots in (None, 4)
        for stream_spec in stream_specs
        for timed in (False, True)
    ]
    names = unique_names(trials)
    assert len(set(names.values())) == len(names) == len(trials)
    assert names[trials[0].key] == "zero_shot on small (long_tail imbalance=5.0), seed 0, prompt ensemble"
    assert unique_names(trials[:1])[trials[0].key] == "zero_shot on small (long_tail imbalance=5.0), seed 0"
