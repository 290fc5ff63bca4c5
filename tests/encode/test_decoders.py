"""Worker processes: the same pictures in the same order with and without, and none left behind however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from encode.plain import PREPROCESSING, write_pictures
from zeroshift.data.images import ImageFiles
from zeroshift.encode.extraction import decoders as module
from zeroshift.encode.extraction.decode_worker import Decoder
from zeroshift.encode.extraction.decoders import Decoders, default_workers
from zeroshift.encode.extraction.store import digest_of
from zeroshift.encode.views import Views

HERE = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts processes by Linux's /proc")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    top = tmp_path_factory.mktemp("pictures")
    write_pictures(top, 40)
    (top / "bad.png").write_bytes(b"not a picture")
    return top


@pytest.fixture(scope="module")
def files(folder):
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.png"))
    return ImageFiles(folder, tuple(names))


@pytest.fixture(autouse=True)
def none_left_behind():
    before = children()
    yield
    assert children() == before


def children(pid: int | None = None) -> set[int]:
    """Processes started by this one (or another) that have not ended."""
    text = Path(f"/proc/{pid or os.getpid()}/task").glob("*/children")
    return {int(child) for path in text for child in path.read_text().split()}


def same(one, other) -> bool:
    return (one.index, one.digest, one.note, str(one.error)) == (
        other.index,
        other.digest,
        other.note,
        str(other.error),
    ) and (
        one.pixels is None
        if other.pixels is None
        else all(np.array_equal(a, b) for a, b in zip(one.pixels, other.pixels, strict=True))
    )


class Mirror:
    """A corruption that says whom it was called for."""

    def __call__(self, image, key):
        assert isinstance(key, bytes)
        return image.transpose(0)


class Fails:
    def __call__(self, image, key):
        raise KeyError("no such thing")


class Dies:
    def __call__(self, image, key):
        os.kill(os.getpid(), signal.SIGKILL)


class Prints:
    def __call__(self, image, key):
        print("a library that talks")
        return image


def decoded(decoder, workers, indices):
    with Decoders(decoder, workers) as decoders:
        return list(decoders.decode(indices))


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_order_and_content_are_the_same_whoever_decodes(files, workers):
    order = np.random.default_rng(0).permutation(len(files)).tolist()
    decoder = Decoder(files, PREPROCESSING)
    found = decoded(decoder, workers, order)
    assert [picture.index for picture in found] == order
    for picture in found:
        assert same(picture, decoder(picture.index))
    bad = found[order.index(files.names.index("bad.png"))]
    assert bad.pixels is None
    assert bad.error.name == "bad.png"
    assert bad.digest == digest_of(b"not a picture")


def test_a_picture_is_what_the_preprocessing_makes_of_it(files):
    found = Decoder(files, PREPROCESSING)(0)
    (pixels,) = PREPROCESSING(files.open(0).image)
    np.testing.assert_array_equal(found.pixels[0], pixels[None])
    assert found.digest == digest_of(files.read(0))


def test_views_and_corruptions_are_the_same_whoever_makes_them(files):
    decoder = Decoder(files, PREPROCESSING, Mirror(), Views(3))
    indices = [i for i in range(12) if files.names[i] != "bad.png"]
    for one, other in zip(decoded(decoder, 2, indices), decoded(decoder, 0, indices), strict=True):
        assert same(one, other)
        assert one.pixels[0].shape == (3, 3, 6, 6)


def test_several_calls_are_served_by_the_same_processes(files):
    with Decoders(Decoder(files, PREPROCESSING), 2) as decoders:
        assert children() == set()  # none before there is something to do
        assert list(decoders.decode([])) == []
        assert children() == set()
        assert [p.index for p in decoders.decode(range(5))] == list(range(5))
        started = children()
        assert len(started) == 2
        assert [p.index for p in decoders.decode(range(5, 30))] == list(range(5, 30))
        assert children() == started


def test_what_a_library_prints_does_not_get_between(files, capfd):
    indices = [i for i in range(10) if files.names[i] != "bad.png"]
    found = decoded(Decoder(files, PREPROCESSING, Prints()), 1, indices)
    assert [picture.index for picture in found] == indices


def test_an_error_in_a_worker_comes_through(files):
    with pytest.raises(RuntimeError, match=r"a process that decodes images failed: KeyError: 'no such thing'"):
        decoded(Decoder(files, PREPROCESSING, Fails()), 2, [0, 1])
    with pytest.raises(KeyError, match="no such thing"):
        decoded(Decoder(files, PREPROCESSING, Fails()), 0, [0, 1])


def test_a_worker_that_is_killed(files):
    message = r"ended unexpectedly \(exit code (-9|None); .*Fix: fewer workers \(--workers 1\), or 0 to decode in this"
    with pytest.raises(RuntimeError, match=message):
        decoded(Decoder(files, PREPROCESSING, Dies()), 2, range(20))


def test_an_answer_that_is_cut_off(files, monkeypatch):
    # What a worker killed while it answers leaves in the pipe: the beginning of a pickle.
    cut = "import sys, os; os.write(1, b'\\x80\\x05\\x95\\xff\\x00\\x00'); sys.stdin.buffer.read(1)"
    real = subprocess.Popen
    monkeypatch.setattr(module.subprocess, "Popen", lambda args, **how: real([sys.executable, "-c", cut], **how))
    with pytest.raises(RuntimeError, match=r"ended unexpectedly .*Fix: fewer workers"):
        decoded(Decoder(files, PREPROCESSING), 1, [0])


def test_the_consumer_may_give_up(files):
    def gives_up():
        with Decoders(Decoder(files, PREPROCESSING), 3) as decoders:
            for picture in decoders.decode(range(len(files))):
                if picture.index == 3:
                    raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gives_up()


def test_those_that_could_be_started_are_stopped_when_the_next_cannot(files, monkeypatch):
    real, started = subprocess.Popen, []

    def refuses(*args, **how):
        if started:
            raise BlockingIOError("Resource temporarily unavailable")
        started.append(real(*args, **how))
        return started[0]

    monkeypatch.setattr(module.subprocess, "Popen", refuses)
    with pytest.raises(BlockingIOError):
        decoded(Decoder(files, PREPROCESSING), 2, [0])
    assert started[0].returncode is not None


def test_what_lies_in_the_working_folder_is_not_imported(files, tmp_path, monkeypatch):
    for name in ("pickle", "signal", "zeroshift"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])  # no string: Python passes over it
    assert [picture.index for picture in decoded(Decoder(files, PREPROCESSING), 1, [2, 1])] == [2, 1]


ORPHANS = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from encode.plain import PREPROCESSING, image_set
from zeroshift.encode.extraction.decode_worker import Decoder
from zeroshift.encode.extraction.decoders import Decoders

files = image_set(Path({folder!r}), labelled=False).images
with Decoders(Decoder(files, PREPROCESSING), 3) as decoders:
    for picture in decoders.decode(list(range(len(files))) * 10_000):
        if picture.index == 20:
            print("at work", flush=True)
"""


def test_workers_end_with_a_parent_that_is_killed(folder):
    program = ORPHANS.format(tests=str(HERE), folder=str(folder))
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
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


@pytest.mark.parametrize(
    ("count", "cores", "workers"), [(48, 8, 0), (49, 8, 7), (49, 1, 1), (49, None, 1), (10**6, 99, 16)]
)
def test_how_many_there_are(monkeypatch, count, cores, workers):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert default_workers(count) == workers
