"""The programs in examples/ run, with a tiny model in place of CLIP."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from clips import write_clip
from encode import tiny
from encode.numpy_encoder import NumpyEncoder, noise
from zeroshift import pipeline

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = sorted(EXAMPLES.glob("*.py"))
NAMES = ["cat", "dog", "frog"]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return tiny.clip(tmp_path_factory.mktemp("model") / "clip")


@pytest.fixture
def photos(tmp_path) -> Path:
    folder = tmp_path / "my photos"
    folder.mkdir()
    for i in range(30):
        noise(i, 20 + i, 24).save(folder / f"{i:02d}.png")
    return folder


def load(name: str):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(monkeypatch, capsys, name: str, *arguments: object) -> str:
    """The output of a program, run in this process."""
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments)])
    load(name).main()
    return capsys.readouterr().out


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_examples_are_short_and_listed(program):
    assert len(program.read_text().splitlines()) < 80
    assert f"[{program.name}]({program.name})" in (EXAMPLES / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["video_loop", "label_studio"])
def test_an_example_is_a_program(name):
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--classes" in done.stdout


def test_video_loop_prints_changes_and_continues(model, photos, tmp_path, monkeypatch, capsys):
    given = [photos, "--classes", ",".join(NAMES), "--encoder", model, "--state", tmp_path / "camera.safetensors"]
    printed = run(monkeypatch, capsys, "video_loop", *given).splitlines()
    assert printed[-1] == "30 frames learned"
    shown = [line.split("  ") for line in printed[:-1]]
    assert shown[0][0] == "00.png"
    labels = [label for _, label, _ in shown]
    assert set(labels) <= {*NAMES, "none of these"}
    assert all(one != other for one, other in pairwise(labels))
    assert run(monkeypatch, capsys, "video_loop", *given).splitlines()[-1] == "60 frames learned"
    with pytest.raises(SystemExit):
        run(monkeypatch, capsys, "video_loop", *given, "--classes", "cat,dog")
    assert "was saved with other classes: cat, dog, frog" in capsys.readouterr().err


def test_video_loop_reads_a_video(model, tmp_path, monkeypatch, capsys):
    pytest.importorskip("av", reason="the extra `video` brings it")
    clip = write_clip(tmp_path / "clip.mp4", [np.asarray(noise(i, 64, 48)) for i in range(20)])
    printed = run(monkeypatch, capsys, "video_loop", clip, "--classes", "cat,dog", "--encoder", model, "--fps", 5)
    assert printed.splitlines()[-1] == "10 frames learned"
    assert printed.startswith("     0.0 s  ")


CLASSES = ["cat", "dog", '"a"&b']


@pytest.fixture
def label_studio(model, photos, tmp_path, monkeypatch, capsys):
    """The labelling interface and the tasks that the program makes of `photos`."""
    out = tmp_path / "tasks.json"
    given = [photos, "--classes", ",".join(CLASSES), "--encoder", model, "--out", out]
    printed = run(monkeypatch, capsys, "label_studio", *given)
    return printed.partition("interface:\n")[2], json.loads(out.read_text())


def test_label_studio_tasks(label_studio, photos, tmp_path):
    interface, tasks = label_studio
    view = ElementTree.fromstring(interface)
    choices = [one.get("value") for one in view.iter("Choice")]
    assert choices == [*CLASSES, "none of these"]
    places = {unquote(task["data"]["image"]).removeprefix("/data/local-files/?d=") for task in tasks}
    assert places == {path.relative_to(tmp_path).as_posix() for path in photos.iterdir()}
    scores = []
    for task in tasks:
        (prediction,) = task["predictions"]
        (choice,) = prediction["result"]
        assert view.find("Choices").get("name") == choice["from_name"]
        assert view.find("Choices").get("toName") == choice["to_name"] == view.find("Image").get("name")
        assert set(choice["value"]["choices"]) <= set(choices)
        scores.append((choice["value"]["choices"] != ["none of these"], prediction["score"]))
    assert scores == sorted(scores)


def test_label_studio_accepts_the_tasks(label_studio):
    checker = pytest.importorskip("label_studio_sdk.label_interface", reason="not part of any extra")
    interface, tasks = label_studio
    for task in tasks:
        assert checker.LabelInterface(interface).validate_task(task, validate_regions_only=False), task


@pytest.mark.filterwarnings("ignore")  # of gradio's own parts
def test_gradio_app(photos):
    pytest.importorskip("gradio", reason="the extra `gradio` brings it")
    from gradio_client import Client, handle_file

    pipe = pipeline(NumpyEncoder(), NAMES, reject=True)
    page = load("gradio_app").build(pipe)
    page.launch(prevent_thread_lock=True, quiet=True, inbrowser=False)
    try:
        client = Client(page.local_url, verbose=False)
        label, learned = client.predict(handle_file(photos / "00.png"), True, api_name="/classify")
        assert {one["label"] for one in label["confidences"]} == set(NAMES)
        assert learned == "1 images learned, without labels"
        paths = [handle_file(photos / f"{i:02d}.png") for i in range(1, 5)]
        gallery, learned = client.predict(paths, api_name="/classify_files")
        assert learned.startswith("5 images")
        assert all(re.match(rf"({'|'.join(NAMES)}) \d+%$", one["caption"]) for one in gallery)
        assert client.predict(api_name="/forget").startswith("0 images")
        label, learned = client.predict(None, True, api_name="/classify")
        assert learned.startswith("0 images")
    finally:
        page.close()


@pytest.mark.skipif(
    "FIFTYONE_DATABASE_URI" not in os.environ, reason="needs FiftyOne and a running MongoDB (FIFTYONE_DATABASE_URI)"
)
def test_fiftyone_dataset(photos):
    fiftyone = pytest.importorskip("fiftyone")
    dataset = fiftyone.Dataset.from_images_dir(str(photos))
    try:
        load("fiftyone_dataset").classify(dataset, pipeline(NumpyEncoder(), NAMES), "zeroshift")
        found = dataset.values("zeroshift")
        assert len(found) == 30
        again = pipeline(NumpyEncoder(), NAMES)(dataset.values("filepath"))
        assert [one.label for one in found] == [answer[0]["label"] for answer in again]
        assert all(0 <= one.entropy <= np.log(3) + 1e-6 for one in found)
    finally:
        dataset.delete()
