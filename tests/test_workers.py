"""Worker processes: the same results in the same order as without, and no process remains in any case."""

from __future__ import annotations

import gc
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
def _no_process_remains():
    before = children()
    yield
    assert children() == before


def children(pid: int | None = None) -> set[int]:
    """Processes started by this one (or another) that have not ended."""
    text = Path(f"/proc/{pid or os.getpid()}/task").glob("*/children")
    return {int(child) for path in text for child in path.read_text().split()}


def raises(item):
    raise KeyError("no such thing") if item > 2 else ValueError(f"{item} is too small")


class UnpicklableError(Exception):
    """An error that cannot be unpickled: it needs two arguments and stores one."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def raises_unpicklable(item):
    raise UnpicklableError(item, item)


def kills_itself(item):
    os.kill(os.getpid(), signal.SIGKILL)


def frozen_objects(item):
    return gc.get_freeze_count()


def prints(item):
    print("output of a library")
    return item


def mapped(function, count, items):
    with Workers(function, count, doing="tests") as workers:
        return list(workers.map(items))


@pytest.mark.parametrize(("count", "n_items"), [(0, 0), (0, 100), (1, 5), (3, 0), (3, 1), (3, 100)])
def test_results_are_in_order(count, n_items):
    items = [(7 * i) % 101 for i in range(n_items)]
    assert mapped(partial(add, 1), count, items) == [item + 1 for item in items]


def test_several_calls_use_the_same_processes():
    with Workers(abs, 2, doing="tests") as workers:
        assert children() == set()  # none before the first item
        assert list(workers.map([])) == []
        assert children() == set()
        assert list(workers.map(range(-5, 0))) == [5, 4, 3, 2, 1]
        started = children()
        assert len(started) == 2
        assert list(workers.map(range(-25, 0))) == list(range(25, 0, -1))
        assert children() == started


def test_printed_output_does_not_disturb_the_results(capfd):
    assert mapped(prints, 1, range(10)) == list(range(10))


@pytest.mark.parametrize("count", [0, 2])
def test_errors_keep_their_type_and_message(count):
    with pytest.raises(ValueError, match="1 is too small"):
        mapped(raises, count, [1, 5])
    with pytest.raises(KeyError, match="no such thing"):
        mapped(raises, count, [5, 1])


def test_errors_include_the_traceback_of_the_worker():
    with pytest.raises(ValueError, match="0 is too small") as caught:
        mapped(raises, 1, [0])
    assert "in a process that tests:" in str(caught.value.__cause__)
    assert "in raises" in str(caught.value.__cause__)


def test_an_error_that_cannot_be_pickled_is_reported():
    with pytest.raises(RuntimeError, match="UnpicklableError: 3 and 3"):
        mapped(raises_unpicklable, 1, [3])


def test_a_function_defined_in_the_script_is_rejected_with_the_fix(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from zeroshift.workers import Workers\n"
        "def function(item): return item\n"
        "with Workers(function, 1, doing='tests') as workers: list(workers.map([1]))\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(module.__file__).parents[1])}
    finished = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, check=False)
    assert finished.returncode == 1
    assert "the function cannot be sent to another process (AttributeError" in finished.stderr
    assert "Fix: define it in a module of its own" in finished.stderr


def test_a_killed_worker_is_reported():
    message = r"a process that tests ended unexpectedly \(exit code -9; .*Fix: fewer workers \(--workers 1\), or 0"
    with pytest.raises(OSError, match=message):
        mapped(kills_itself, 2, range(20))


def test_a_truncated_result_is_reported(monkeypatch):
    # A worker that is killed while it answers leaves the beginning of a pickle in the pipe.
    cut = "import sys, os; os.write(1, b'\\x80\\x05\\x95\\xff\\x00\\x00'); sys.stdin.buffer.read(1)"
    real = subprocess.Popen
    monkeypatch.setattr(
        module.subprocess, "Popen", lambda args, **options: real([sys.executable, "-c", cut], **options)
    )
    with pytest.raises(OSError, match=r"ended unexpectedly .*Fix: fewer workers"):
        mapped(abs, 1, [0])


def test_the_caller_can_stop_early():
    def stop_early():
        with Workers(abs, 3, doing="tests") as workers:
            for answer in workers.map(range(100)):
                if answer == 3:
                    raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop_early()


def test_started_workers_are_stopped_if_the_next_cannot_start(monkeypatch):
    real, started = subprocess.Popen, []

    def fail_after_the_first(*args, **options):
        if started:
            raise BlockingIOError("Resource temporarily unavailable")
        started.append(real(*args, **options))
        return started[0]

    monkeypatch.setattr(module.subprocess, "Popen", fail_after_the_first)
    with pytest.raises(BlockingIOError):
        mapped(abs, 2, range(20))
    assert started[0].returncode is not None


def test_modules_in_the_working_folder_are_not_imported(tmp_path, monkeypatch):
    for name in ("pickle", "signal", "zeroshift"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])  # not a string: Python ignores it
    assert mapped(abs, 1, [-2, -1]) == [2, 1]


def test_a_negative_number_of_workers_is_rejected():
    with pytest.raises(ValueError, match=r"workers must be at least 0; got -1\. Fix: 0 works in this process"):
        Workers(abs, -1, doing="tests")


# Without `if __name__ == "__main__"`: scripts can use workers directly.
ENDLESS_SCRIPT = """
from zeroshift.workers import Workers

with Workers(abs, 3, doing="tests") as workers:
    for item in workers.map(range(10**7)):
        if item == 20:
            print("at work", flush=True)
"""


def test_workers_end_when_their_parent_is_killed(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(ENDLESS_SCRIPT)
    environment = os.environ | {"PYTHONPATH": str(Path(module.__file__).parents[1])}
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout.readline() == b"at work\n"
        workers = children(parent.pid)
        assert len(workers) == 3
        parent.kill()
    deadline = time.monotonic() + 20
    while any(map(is_running, workers)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(is_running, workers))


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"  # ended, and waits for its new parent to collect it


def test_imported_modules_are_exempt_from_garbage_collection_in_a_worker():
    with Workers(frozen_objects, 1, doing="counts objects") as workers:
        (found,) = workers.map([1])
    assert found > 10_000
