"""Worker processes: the same answers in the same order with and without, and none left behind however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from operator import add
from pathlib import Path

import pytest

from zeroshift import workers as module
from zeroshift.workers import Workers

HERE = Path(__file__).parent

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts processes by Linux's /proc")


@pytest.fixture(autouse=True)
def none_left_behind():
    before = children()
    yield
    assert children() == before


def children(pid: int | None = None) -> set[int]:
    """Processes started by this one (or another) that have not ended."""
    text = Path(f"/proc/{pid or os.getpid()}/task").glob("*/children")
    return {int(child) for path in text for child in path.read_text().split()}


def fails(item):
    raise KeyError("no such thing") if item > 2 else ValueError(f"{item} is too small")


class StubbornError(Exception):
    """An error that cannot be sent: made with two arguments, and remembered with one."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def fails_stubbornly(item):
    raise StubbornError(item, item)


def dies(item):
    os.kill(os.getpid(), signal.SIGKILL)


def prints(item):
    print("a library that talks")
    return item


def mapped(function, count, items):
    with Workers(function, count, doing="tests") as workers:
        return list(workers.map(items))


@pytest.mark.parametrize(("count", "n_items"), [(0, 0), (0, 100), (1, 5), (3, 0), (3, 1), (3, 100)])
def test_answers_come_in_order_whoever_gives_them(count, n_items):
    items = [(7 * i) % 101 for i in range(n_items)]
    assert mapped(partial(add, 1), count, items) == [item + 1 for item in items]


def test_several_calls_are_served_by_the_same_processes():
    with Workers(abs, 2, doing="tests") as workers:
        assert children() == set()  # none before there is something to do
        assert list(workers.map([])) == []
        assert children() == set()
        assert list(workers.map(range(-5, 0))) == [5, 4, 3, 2, 1]
        started = children()
        assert len(started) == 2
        assert list(workers.map(range(-25, 0))) == list(range(25, 0, -1))
        assert children() == started


def test_what_a_library_prints_does_not_get_between(capfd):
    assert mapped(prints, 1, range(10)) == list(range(10))


@pytest.mark.parametrize("count", [0, 2])
def test_an_error_comes_through_as_it_is(count):
    with pytest.raises(ValueError, match="1 is too small"):
        mapped(fails, count, [1, 5])
    with pytest.raises(KeyError, match="no such thing"):
        mapped(fails, count, [5, 1])


def test_an_error_says_where_it_was_raised():
    with pytest.raises(ValueError, match="0 is too small") as caught:
        mapped(fails, 1, [0])
    assert "in a process that tests:" in str(caught.value.__cause__)
    assert "in fails" in str(caught.value.__cause__)


def test_an_error_that_cannot_be_sent_is_reported():
    with pytest.raises(RuntimeError, match="StubbornError: 3 and 3"):
        mapped(fails_stubbornly, 1, [3])


def test_a_function_of_the_script_itself_is_rejected_with_the_fix(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from zeroshift.workers import Workers\n"
        "def mine(item): return item\n"
        "with Workers(mine, 1, doing='tests') as workers: list(workers.map([1]))\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(module.__file__).parents[1])}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1
    assert "the function cannot be sent to another process (AttributeError" in done.stderr
    assert "Fix: define it in a module of its own" in done.stderr


def test_a_worker_that_is_killed():
    message = r"a process that tests ended unexpectedly \(exit code -9; .*Fix: fewer workers \(--workers 1\), or 0"
    with pytest.raises(OSError, match=message):
        mapped(dies, 2, range(20))


def test_an_answer_that_is_cut_off(monkeypatch):
    # What a worker killed while it answers leaves in the pipe: the beginning of a pickle.
    cut = "import sys, os; os.write(1, b'\\x80\\x05\\x95\\xff\\x00\\x00'); sys.stdin.buffer.read(1)"
    real = subprocess.Popen
    monkeypatch.setattr(module.subprocess, "Popen", lambda args, **how: real([sys.executable, "-c", cut], **how))
    with pytest.raises(OSError, match=r"ended unexpectedly .*Fix: fewer workers"):
        mapped(abs, 1, [0])


def test_whoever_takes_the_predictionss_may_give_up():
    def gives_up():
        with Workers(abs, 3, doing="tests") as workers:
            for answer in workers.map(range(100)):
                if answer == 3:
                    raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gives_up()


def test_those_that_could_be_started_are_stopped_when_the_next_cannot(monkeypatch):
    real, started = subprocess.Popen, []

    def refuses(*args, **how):
        if started:
            raise BlockingIOError("Resource temporarily unavailable")
        started.append(real(*args, **how))
        return started[0]

    monkeypatch.setattr(module.subprocess, "Popen", refuses)
    with pytest.raises(BlockingIOError):
        mapped(abs, 2, range(20))
    assert started[0].returncode is not None


def test_what_lies_in_the_working_folder_is_not_imported(tmp_path, monkeypatch):
    for name in ("pickle", "signal", "zeroshift"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])  # no string: Python passes over it
    assert mapped(abs, 1, [-2, -1]) == [2, 1]


def test_fewer_than_none_are_rejected():
    with pytest.raises(ValueError, match=r"workers must be at least 0; got -1\. Fix: 0 works in this process"):
        Workers(abs, -1, doing="tests")


# No `if __name__ == "__main__"`: a script may use workers as it stands.
ORPHANS = """
from zeroshift.workers import Workers

with Workers(abs, 3, doing="tests") as workers:
    for item in workers.map(range(10**7)):
        if item == 20:
            print("at work", flush=True)
"""


def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(ORPHANS)
    environment = os.environ | {"PYTHONPATH": str(Path(module.__file__).parents[1])}
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout.readline() == b"at work\n"
        workers = children(parent.pid)
        assert len(workers) == 3
        parent.kill()
    deadline = time.monotonic() + 20
    while any(map(running, workers)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(running, workers))


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"  # ended, and waits for whoever inherited it to take note
