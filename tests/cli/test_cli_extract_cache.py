"""`zeroshift extract` a second time: nothing is computed twice, also after an interrupted run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers")

from encode.numpy_encoder import noise
from pet_images import CLASSES, PER_CLASS, load, record, write_pets

TESTS = Path(__file__).parents[1]
COUNT = len(CLASSES) * PER_CLASS


@pytest.fixture
def extract(call, model, tmp_path):
    def extract(source, *options):
        out = tmp_path / "features.safetensors"
        done = call("extract", source, "--encoder", model, "--out", out, "--force", "--json", *options)
        return record(done), load(out)

    return extract


@pytest.fixture
def requested(monkeypatch):
    """What encoders are requested to compute from now on: ("pictures", how many) and prompts."""
    from zeroshift.encode.encoder import Encoder

    seen: list[object] = []
    pixels, texts = Encoder.encode_pixels, Encoder.encode_texts

    def encode_pixels(self, batch):
        seen.append(("pictures", len(batch[0])))
        return pixels(self, batch)

    def encode_texts(self, prompts, **options):
        seen.extend(prompt for prompt in prompts if prompt != "a")  # encoded to find the dimension of a model
        return texts(self, prompts, **options)

    monkeypatch.setattr(Encoder, "encode_pixels", encode_pixels)
    monkeypatch.setattr(Encoder, "encode_texts", encode_texts)
    return seen


def test_a_second_run_computes_nothing(extract, pets, requested):
    first, features = extract(pets)
    assert first["computed"] == COUNT
    assert len(requested) == 1 + 3 * 7  # one batch, and seven templates for each of three classes
    requested.clear()
    second, again = extract(pets)
    assert requested == []
    assert second["computed"] == 0
    assert {**second, "computed": COUNT} == first
    np.testing.assert_array_equal(again.features, features.features)
    np.testing.assert_array_equal(again.prototypes["ensemble"], features.prototypes["ensemble"])


def test_other_classes_and_prompts_encode_only_text(extract, pets, requested):
    _, before = extract(pets)
    requested.clear()
    summary, features = extract(pets, "--unlabelled", "--classes", "frog,pet", "--prompts", "vanilla,ensemble")
    assert summary["computed"] == 0
    assert features.class_names == ("frog", "pet")
    assert len(requested) == 2 * (1 + 7)
    assert all(isinstance(prompt, str) and ("frog" in prompt or "pet" in prompt) for prompt in requested)
    np.testing.assert_array_equal(features.features, before.features)


def test_a_new_image_is_the_only_one_encoded(extract, pets):
    extract(pets)
    noise(77, 20, 20).save(pets / "cat" / "new.png")
    summary, features = extract(pets)
    assert (summary["computed"], features.n_samples) == (1, COUNT + 1)


def test_the_table_counts_newly_encoded_images(call, extract, pets, model, tmp_path):
    extract(pets)
    noise(77, 20, 20).save(pets / "cat" / "new.png")
    done = call("extract", pets, "--encoder", model, "--out", tmp_path / "f.safetensors", env={"COLUMNS": "160"})
    assert f"images     {COUNT + 1}, of which 1 had to be encoded" in done.stdout


def test_without_a_cache_nothing_is_kept(extract, pets, tmp_path):
    first, _ = extract(pets, "--no-cache")
    second, _ = extract(pets, "--no-cache")
    assert first["computed"] == second["computed"] == COUNT
    assert not (tmp_path / "cache").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"pets", "features.safetensors"}


def test_a_cache_in_another_folder(extract, pets, tmp_path):
    extract(pets, "--cache", tmp_path / "elsewhere")
    assert (tmp_path / "elsewhere").is_dir()
    assert not (tmp_path / "cache").exists()
    assert extract(pets, "--cache", tmp_path / "elsewhere")[0]["computed"] == 0
    assert extract(pets)[0]["computed"] == COUNT


def test_seeds_severities_and_views_are_cached_separately(extract, pets):
    extract(pets)
    for options in (["--corruption", "fog"], ["--corruption", "fog", "--severity", "1"], ["--views", "2"]):
        assert extract(pets, *options)[0]["computed"] == COUNT
        assert extract(pets, *options, "--seed", "1")[0]["computed"] == COUNT
        assert extract(pets, *options)[0]["computed"] == 0


# Ctrl-C.

PROGRAM = """
import signal, sys, time
# A test run started in the background hands on an ignored Ctrl-C; a terminal does not.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, {tests!r})
from encode.numpy_encoder import NumpyEncoder
from zeroshift.cli import _encoder_options, main

_encoder_options.load_when_needed = lambda *_, **__: NumpyEncoder(batch_size=2, pause={pause})
options = ["--out", "f.safetensors", "--workers", "2", "--cache", {cache!r}, "--json"]
sys.argv = ["zeroshift", "extract", {folder!r}, *options]
main()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Ctrl-C is sent as a POSIX signal, children are looked up in /proc")
def test_ctrl_c_leaves_no_file_and_no_child_and_the_next_run_resumes(environment, tmp_path):
    pictures = tmp_path / "pets"
    write_pets(pictures, per_class=40)
    work, cache = tmp_path / "work", tmp_path / "cache"
    work.mkdir()

    def run(pause):
        code = PROGRAM.format(tests=str(TESTS), folder=str(pictures), cache=str(cache), pause=pause)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([sys.executable, "-c", code], cwd=work, env=environment, text=True, **pipes)

    with run(pause=0.1) as process:
        # Two pictures a batch and sixteen batches a part: the signal comes between the first part and the last.
        while not list(cache.glob("images/*/part-*")):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.01)
        children = children_of(process.pid)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in stderr
    assert stderr == "error: interrupted; no file is left half-written\n"
    assert len(children) == 2
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    assert list(work.iterdir()) == []
    assert not list(cache.rglob("*.tmp"))

    with run(pause=0) as process:
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    summary = json.loads(stdout)
    assert 0 < summary["computed"] < 120
    assert load(work / "f.safetensors").n_samples == 120


def children_of(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:  # it has ended meanwhile
            continue
        if int(fields[1]) == pid:
            found.append(int(stat.parent.name))
    return found
