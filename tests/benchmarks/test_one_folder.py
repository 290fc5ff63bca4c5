"""The comparison of one folder: the programs answer, zero-shot is the same in all, and the page has the numbers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import one_folder
from sections import section

from encode import tiny
from encode.numpy_encoder import noise
from zeroshift import pipeline
from zeroshift.data import packs
from zeroshift.encode import Prompts

CLASSES = ["cat", "dog", "horse"]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return tiny.clip(tmp_path_factory.mktemp("model") / "clip")


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for i in range(12):
        noise(i, 40 + i, 44).save(folder / f"{i:02d}.png")
    return folder


@pytest.mark.filterwarnings("ignore")  # of transformers
def test_zero_shot_is_that_of_transformers(model, photos):
    import transformers

    paths = sorted(photos.iterdir())
    theirs = transformers.pipeline("zero-shot-image-classification", model=str(model))
    found = theirs(list(map(str, paths)), candidate_labels=CLASSES)
    prompts = Prompts.from_templates(["This is a photo of {}."])
    ours = pipeline(model, CLASSES, method="zero_shot", prompts=prompts, device="cpu")(paths)
    for answer, expected in zip(ours, found, strict=True):
        assert [one["label"] for one in answer] == [one["label"] for one in expected]
        assert [one["score"] for one in answer] == pytest.approx([one["score"] for one in expected], abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transformers", "zeroshift"])
def test_programs_answer_every_image(name, model, photos):
    command = [sys.executable, one_folder.PROGRAMS[name], photos, model, ",".join(CLASSES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line.rsplit(" ", 2) for line in done.stdout.splitlines() if line.startswith(str(photos))]
    assert [Path(path).name for path, *_ in rows] == [path.name for path in sorted(photos.iterdir())]
    assert {label for _, label, _ in rows} <= set(CLASSES)


def test_the_page_has_the_lines_and_accuracies():
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section("one_folder").splitlines()]
    titles, _, *programs = [row for row in rows if len(row) > 1]
    assert [row[0] for row in programs] == list(one_folder.PROGRAMS)
    before, after = one_folder.accuracies(packs.load("cifar10"))
    for row in programs:
        cells = dict(zip(titles, row, strict=True))
        assert int(cells["lines"]) == one_folder.lines(one_folder.PROGRAMS[row[0]])
        expected = after if row[0] == "zeroshift" else before
        assert float(cells["accuracy, cifar10"]) == pytest.approx(expected, abs=0.25)
        assert re.match(r"\d+\.\d \(\d+\.\d-\d+\.\d\)$", next(cells[name] for name in titles if "seconds" in name))
