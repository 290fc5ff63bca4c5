"""Special files, empty and endless values, full disks and two writers: refused with one line, and nothing is left."""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from zeroshift.cli._output_paths import claim, release_claims

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX files and signals")

LARGE = "100000000000000000000"


@pytest.fixture
def refused(call, tmp_path, monkeypatch):
    """Run a command that must be refused with one line and leave the folder as it was; returns the line."""
    monkeypatch.chdir(tmp_path)

    def refused(*arguments):
        before = sorted(tmp_path.rglob("*"))
        done = call(*arguments)
        assert done.exit_code == 2, (done.stdout, done.stderr, done.exception)
        assert sorted(tmp_path.rglob("*")) == before
        return done.stderr

    return refused


@pytest.fixture
def pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


FILE_OUTPUTS = [
    ("adapt", "pack:cifar10", "--out", "{}.csv"),
    ("adapt", "pack:cifar10", "--out", "p.csv", "--save-state", "{}"),
    ("extract", "images", "--classes", "cat,dog", "--out", "{}.safetensors"),
    ("classify", "images", "--classes", "cat,dog", "--out", "{}.csv"),
    ("classify", "images", "--classes", "cat,dog", "--sheet", "{}.html"),
    ("compare", "pack:cifar10", "-m", "zero_shot", "--markdown", "{}.md"),
    ("experiment", "alpha", "--markdown", "{}.md"),
    ("bench", "--quick", "--out", "{}.json"),
    ("results", ".", "--csv", "{}.csv"),
    ("results", ".", "--markdown", "{}.md"),
]


@pytest.mark.parametrize("command", FILE_OUTPUTS, ids=" ".join)
@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "link to a device"])
def test_outputs_that_are_no_files_are_refused(refused, tmp_path, command, kind):
    (tmp_path / "images").mkdir()
    name = next(part for part in command if "{}" in part).format("special")
    if kind == "pipe":
        os.mkfifo(tmp_path / name)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(os.path.relpath(tmp_path / name))
    else:
        (tmp_path / name).symlink_to("/dev/null" if kind == "device" else "/dev/zero")
    message = refused(*(part.format("special") for part in command))
    assert f"{name} is a device, pipe or socket" in message


@pytest.mark.parametrize(
    "command",
    [
        ("adapt", "{}.npy", "--out", "p.csv"),
        ("adapt", "{}.npz", "--out", "p.csv"),
        ("adapt", "{}.safetensors", "--out", "p.csv"),
        ("adapt", "x.npy", "--prototypes", "{}", "--out", "p.csv"),
        ("adapt", "x.npy", "--prototypes", "x.npy", "--labels", "{}", "--out", "p.csv"),
        ("adapt", "x.npy", "--prototypes", "x.npy", "--class-names", "{}", "--out", "p.csv"),
        ("adapt", "pack:cifar10", "--state-in", "{}", "--out", "p.csv"),
        ("compare", "{}.npz", "--out", "out"),
        ("experiment", "alpha", "{}.npz", "--out", "out"),
        ("extract", "{}.csv", "--classes", "cat,dog", "--out", "f.safetensors"),
        ("extract", "{}.npy", "--classes", "cat,dog", "--out", "f.safetensors"),
        ("extract", "pixels.npy", "--labels", "{}", "--classes", "cat,dog", "--out", "f.safetensors"),
        ("classify", "images", "--classes", "./{}"),
        ("classify", "images", "--classes", "cat,dog", "--templates", "{}"),
        ("prompts", "ensemble", "--classes", "./{}"),
        ("prompts", "descriptions_ensemble", "--classes", "cat,dog", "--descriptions", "{}"),
        ("data", "corrupt", "{}", "--kind", "fog", "--out", "out"),
        ("data", "check", "{}"),
        ("results", "{}"),
    ],
    ids=" ".join,
)
def test_inputs_that_are_no_files_are_refused(refused, tmp_path, command):
    (tmp_path / "images").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "images" / "a.png")
    np.save(tmp_path / "x.npy", np.eye(4))
    np.save(tmp_path / "pixels.npy", np.zeros((2, 8, 8), np.uint8))
    name = Path(next(part for part in command if "{}" in part).format("special")).name
    os.mkfifo(tmp_path / name)  # opening it would wait for a writer, for ever
    assert name in refused(*(part.format("special") for part in command))


def test_an_endless_list_of_classes_is_refused(refused):
    assert "/dev/zero is a device or socket" in refused("prompts", "ensemble", "--classes", "/dev/zero")


def test_a_list_of_classes_that_is_too_large_is_refused(refused, tmp_path):
    with open(tmp_path / "names.txt", "wb") as handle:
        handle.truncate(200 * 2**20)
    assert "names.txt has more than" in refused("prompts", "ensemble", "--classes", "names.txt")


def test_a_pipe_among_the_images_is_skipped(call, tmp_path, pipe):
    (tmp_path / "list.csv").write_text("path\npipe\nfine.png\n")
    Image.new("RGB", (64, 64), "red").save(tmp_path / "fine.png")
    from zeroshift.data.readers import open_images

    images = open_images(tmp_path / "list.csv").images
    with pytest.raises(ValueError, match="pipe: is a device, pipe or socket"):
        images.open(0)
    assert images.open(1).image.size == (64, 64)


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (("adapt", "pack:cifar10", "--out", ""), "--out"),
        (("adapt", "pack:cifar10", "--out="), "--out"),
        (("adapt", "pack:cifar10", "-o", ""), "-o"),
        (("adapt", "", "--out", "p.csv"), "an argument"),
        (("compare", "--out", ""), "--out"),
        (("demo", "--out", ""), "--out"),
        (("experiment", "alpha", "--out", ""), "--out"),
        (("data", "corrupt", ".", "--kind", "fog", "--out", ""), "--out"),
        (("data", "check", ""), "an argument"),
        (("results", ""), "an argument"),
        (("extract", ".", "--classes", "", "--out", "f.safetensors"), "--classes"),
        (("bench", "--out", ""), "--out"),
    ],
    ids=str,
)
def test_empty_values_are_refused(refused, command, option):
    assert refused(*command) == f"error: {option} is empty. Fix: give it a value, or leave it out.\n"


@pytest.mark.parametrize("command", [("adapt", "pack:cifar10", "--out", "."), ("extract", ".", "--out", "..")], ids=str)
def test_a_folder_as_a_file_is_refused(refused, command):
    assert "Fix: " in refused(*command)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("compare", "pack:cifar10", "--orders", LARGE), "--orders must be an integer from 1 to 1000"),
        (("compare", "pack:cifar10", "--shots", LARGE), "--shots must be an integer from 1 to 10000"),
        (("compare", "pack:cifar10", "--jobs", LARGE), "--jobs must be an integer from 1 to 256"),
        (("experiment", "alpha", "--orders", LARGE), "--orders must be an integer from 1 to 1000"),
        (("experiment", "alpha", "--jobs", LARGE), "--jobs must be an integer from 1 to 256"),
        (("experiment", "alpha", "--workers", LARGE), "--workers"),
        (("bench", "--classes", LARGE), "classes must be an integer from 2 to 1e+06"),
        (("bench", "--dimensions", LARGE), "dimensions must be an integer from 8 to 100000"),
        (("bench", "--samples", LARGE), "samples must be an integer from 10 to 1e+08"),
        (("bench", "--steps", LARGE), "--steps must be an integer from 1 to 10000"),
        (("bench", "--repeats", LARGE), "--repeats must be an integer from 1 to 10000"),
        (("bench", "--threads", LARGE), "--threads must be an integer from 1 to 1024"),
        (("extract", ".", "--out", "f.safetensors", "--batch-size", LARGE), "--batch-size"),
        (("extract", ".", "--out", "f.safetensors", "--views", LARGE), "--views"),
        (("extract", ".", "--out", "f.safetensors", "--workers", LARGE), "--workers"),
        (("extract", ".", "--out", "f.safetensors", "--seed", LARGE), "--seed"),
        (("data", "corrupt", ".", "--kind", "fog", "--out", "out", "--seed", LARGE), "--seed"),
        (("data", "corrupt", ".", "--kind", "fog", "--out", "out", "--workers", LARGE), "--workers"),
        (("data", "corrupt", ".", "--kind", "fog", "--out", "out", "--severity", LARGE), "--severity"),
        (("data", "corrupt", ".", "--kind", "fog", "--out", "out", "--made-for", LARGE), "made_for"),
    ],
    ids=lambda part: " ".join(part[-2:]) if isinstance(part, tuple) else None,
)
def test_endless_numbers_are_refused(refused, command, message):
    assert message in refused(*command)


def test_a_file_that_may_not_be_read_says_so(refused, small_file, monkeypatch):
    def refuse(path, *_):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    # Not by chmod: the super-user may read everything.
    monkeypatch.setattr("zeroshift.tensor_files.open", refuse, raising=False)
    message = refused("adapt", small_file, "--out", "p.csv")
    assert message == f"error: {small_file}: Permission denied. Fix: check the path and its permissions.\n"


class TestFullDisk:
    def test_the_file_is_named_and_the_old_one_kept(self, call, small_file, tmp_path):
        """Files of this process may have 4 kB: a write beyond fails as on a full disk."""
        out = tmp_path / "p.csv"
        out.write_text("old")
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        try:
            done = call("adapt", small_file, "--out", out, "--force")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, handler)
        assert done.exit_code == 2, done.stderr
        assert f"{out} cannot be written (File too large); the file that was there is kept. Fix: " in done.stderr
        assert out.read_text() == "old"
        assert sorted(tmp_path.glob(".*")) == []

    @pytest.mark.parametrize("suffix", [".csv", ".npz", ".parquet"])
    def test_every_format(self, call, small_file, tmp_path, monkeypatch, suffix):
        def full(*_, **__):
            raise OSError(errno.ENOSPC, "No space left on device")

        if suffix == ".parquet":
            pytest.importorskip("pyarrow")
        monkeypatch.setattr("os.fsync", full)
        done = call("adapt", small_file, "--out", tmp_path / f"p{suffix}", "--save-state", tmp_path / "s")
        assert done.exit_code == 2
        assert "cannot be written (No space left on device). Fix: check the space left" in done.stderr
        assert sorted(path.name for path in tmp_path.iterdir()) == ["small.safetensors"]


class TestTwoWriters:
    def test_the_second_is_refused_and_the_first_is_not_disturbed(self, environment, tmp_path):
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "zeroshift", "adapt", "pack:cifar10", "--out", "p.csv", "-q"],
                cwd=tmp_path,
                env=environment,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(3)
        ]
        errors = [process.communicate(timeout=120)[1] for process in processes]
        codes = sorted(process.returncode for process in processes)
        assert codes == [0, 2, 2], errors
        for process, error in zip(processes, errors, strict=True):
            if process.returncode:
                assert "p.csv is being written by another zeroshift command" in error or "p.csv exists" in error
        assert [path.name for path in tmp_path.iterdir()] == ["p.csv"]

    @pytest.mark.parametrize(
        "command",
        [
            ("adapt", "pack:cifar10", "--out", "out.csv", "--force"),
            ("compare", "pack:cifar10", "-m", "zero_shot", "--out", "out"),
            ("experiment", "alpha", "--out", "out"),
            ("demo", "--out", "out"),
            ("bench", "--quick", "--out", "out.json"),
        ],
        ids=lambda command: command[0],
    )
    def test_a_file_claimed_by_another_process_is_refused_before_anything_is_computed(
        self, call, tmp_path, monkeypatch, command
    ):
        monkeypatch.chdir(tmp_path)
        name = {"compare": "out/compare.html", "experiment": "out/report.html", "demo": "out/report.html"}.get(
            command[0], command[command.index("--out") + 1]
        )
        code = (
            "import sys; from pathlib import Path; from zeroshift.cli._output_paths import claim\n"
            f"claim(Path({name!r})); print('ready', flush=True); sys.stdin.read()"
        )
        environment = {**os.environ, "PYTHONPATH": str(Path(claim.__code__.co_filename).parents[2])}
        with subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as other:
            assert other.stdout.readline() == "ready\n"
            done = call(*command)
            other.stdin.close()
        assert done.exit_code == 2
        assert f"{name} is being written by another zeroshift command. Fix: wait for it" in done.stderr

    def test_a_killed_process_claims_nothing(self, tmp_path, environment):
        out = tmp_path / "p.csv"
        code = (
            "import os, sys; from pathlib import Path; from zeroshift.cli._output_paths import claim\n"
            f"claim(Path({str(out)!r})); os.kill(os.getpid(), 9)"
        )
        subprocess.run([sys.executable, "-c", code], env=environment, check=False)
        assert [path.name for path in tmp_path.iterdir()] == [".p.csv.lock"]
        try:
            claim(out)
        finally:
            release_claims()
        assert list(tmp_path.iterdir()) == []

    def test_long_names_are_claimed_one_by_one(self, tmp_path):
        """Names that began with the same 80 characters had one lock, and of 250 bytes none: it was too long."""
        names = ["x" * 90 + "1.csv", "x" * 90 + "2.csv", "\N{CAT}" * 62 + ".csv"]
        try:
            for name in names:
                claim(tmp_path / name)
            assert len(list(tmp_path.iterdir())) == 3
        finally:
            release_claims()
        assert list(tmp_path.iterdir()) == []

    def test_claims_leave_no_folder_behind(self, tmp_path):
        claim(tmp_path / "a" / "b" / "report.html")
        claim(tmp_path / "a" / "b" / "report.html")
        release_claims()
        assert list(tmp_path.iterdir()) == []


SLOW_WRITER = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
import zeroshift.files, zeroshift.report.page, zeroshift.report.predictions
from contextlib import contextmanager
from zeroshift.cli import main

@contextmanager
def slow(path, write=zeroshift.files.atomic_path):
    with write(path) as temporary:
        print("writing", file=sys.stderr, flush=True)
        time.sleep(60)
        yield temporary

zeroshift.files.atomic_path = slow
for name, module in list(sys.modules.items()):
    if name.startswith("zeroshift") and hasattr(module, "atomic_path"):
        module.atomic_path = slow
sys.argv = ["zeroshift", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.parametrize(
    "command",
    [
        ("adapt", "pack:cifar10", "--out", "p.csv", "-q"),
        ("adapt", "pack:cifar10", "--out", "p.csv", "--save-state", "s.safetensors", "-q"),
        ("results", "records", "--csv", "r.csv"),
        ("data", "corrupt", "images", "--kind", "fog", "--out", "out", "-q"),
    ],
    ids=lambda command: " ".join(command[:1]),
)
@pytest.mark.sampled(5)
def test_a_signal_in_the_middle_of_a_file_leaves_nothing(environment, tmp_path, command, number):
    (tmp_path / "images").mkdir()
    Image.new("RGB", (64, 64)).save(tmp_path / "images" / "a.png")
    if command[0] == "results":
        subprocess.run(
            [sys.executable, "-m", "zeroshift", "compare", "pack:cifar10", "-m", "zero_shot", "--out", "records", "-q"],
            cwd=tmp_path, env=environment, check=True,
        )  # fmt: skip
    before = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_WRITER, *command], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    )
    for line in process.stderr:
        if line == "writing\n":
            break
    else:
        pytest.fail("nothing was written")
    assert list(tmp_path.rglob(".*.tmp"))
    process.send_signal(number)
    stderr = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + number, stderr
    assert "Traceback" not in stderr
    assert "no file is left half-written" in stderr
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == before


def test_a_second_signal_does_not_interrupt_the_cleaning(environment, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_WRITER, "adapt", "pack:cifar10", "--out", "p.csv", "-q"],
        cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert "writing\n" in iter(process.stderr.readline, "")
    for _ in range(5):
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGHUP)
    process.communicate(timeout=60)
    # A signal after the cleaning ends the process at once, with the same exit code for a shell.
    assert process.returncode % 128 in (signal.SIGTERM, signal.SIGHUP, 128 - signal.SIGTERM, 128 - signal.SIGHUP)
    assert list(tmp_path.iterdir()) == []


def test_signals_end_worker_processes_and_their_files(environment, tmp_path):
    (tmp_path / "images").mkdir()
    rng = np.random.default_rng(0)
    for i in range(40):
        Image.fromarray(rng.integers(0, 255, (700, 700, 3), np.uint8)).save(tmp_path / "images" / f"{i}.png")
    process = subprocess.Popen(
        [sys.executable, "-m", "zeroshift", "data", "corrupt", "images", "--kind", "pixelate", "--out", "out",
         "--workers", "2", "-q"],
        cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("out/*/*/*.png")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert list(tmp_path.rglob(".*")) == []


def test_names_that_are_too_long_are_skipped_and_reported(call, tmp_path):
    """The copy of one image cannot be written; the others are."""
    (tmp_path / "images").mkdir()
    Image.new("RGB", (64, 64)).save(tmp_path / "images" / "fine.png")
    Image.new("RGB", (64, 64)).save(tmp_path / "images" / f"{'x' * 251}.png")  # as long as a name may be
    done = call("data", "corrupt", tmp_path / "images", "--kind", "fog", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.stderr
    assert len(list((tmp_path / "out" / "fog" / "5").glob("*.png"))) == 2
    deep = tmp_path
    while (room := 4096 - 150 - len(str(deep))) > 1:  # a path may have 4096 bytes
        deep /= "d" * min(250, room - 1)
    done = call("data", "corrupt", tmp_path / "images", "--kind", "fog", "--out", deep)
    assert "File name too long" in done.stderr
    assert list(deep.glob("fog/5/fine.png"))
