"""The script that computes sets of CLIP features again: small images, a tiny model, the same commands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")
pytest.importorskip("transformers")

import public_clip

from data.miniatures import build
from encode import tiny
from encode.numpy_encoder import noise
from zeroshift import FeatureSet
from zeroshift.cli.app import app

pytestmark = [
    pytest.mark.filterwarnings("ignore::zeroshift.data.catalogue.CountWarning"),
    pytest.mark.filterwarnings("ignore:.* prompts are longer than the 24 tokens"),  # of the tiny model
    pytest.mark.filterwarnings("ignore:the text encoder does not tell"),
]
SCRIPT = Path(public_clip.__file__)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return tiny.clip(tmp_path_factory.mktemp("model") / "clip")


@pytest.fixture(scope="module")
def aerial(tmp_path_factory) -> Path:
    """Images in the layout of WHU-RS19."""
    folder = tmp_path_factory.mktemp("images") / "WHU-RS19"
    for k, name in enumerate(("Airport", "footballField", "railwayStation")):
        (folder / name).mkdir(parents=True)
        for i in range(4):
            noise(10 * k + i, 40, 44).save(folder / name / f"{name.lower()}_{i:02d}.jpg")
    return folder


def run(commands) -> dict:
    for command in commands:
        done = CliRunner().invoke(app, command[1:])
        assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_folder_of_classes(aerial, model, tmp_path):
    adapted = run(public_clip.commands("whurs19_clip_vitb32", aerial, tmp_path, str(model)))
    features = FeatureSet.load(tmp_path / "whurs19_clip_vitb32.safetensors")
    assert features.class_names == ("Airport", "footballField", "railwayStation")
    assert np.bincount(features.labels).tolist() == [4, 4, 4]
    assert features.provenance["prompts"]["custom"]["templates"] == [public_clip.AERIAL[-1]]
    found, recorded = public_clip.report("whurs19_clip_vitb32", adapted).splitlines()
    assert found.startswith(f"12 images zero-shot {100 * adapted['zero_shot_accuracy']:.1f} %, adapted ")
    assert recorded == "recorded  zero-shot 81.3 %, adapted 96.9 %, gain +15.6 points"


@pytest.mark.parametrize(("name", "images"), [("dtd_test_clip_vitb32", 3), ("stanford_cars_val_clip_vitb32", 1)])
def test_data_sets_in_the_layout_of_coop(name, images, model, tmp_path):
    build(tmp_path, public_clip.SETS[name][1][0])
    adapted = run(public_clip.commands(name, tmp_path, tmp_path, str(model)))
    assert public_clip.report(name, adapted).startswith(f"{images} images  zero-shot ")


def test_every_recorded_set_of_clip_features_is_covered():
    names = {name for name in json.loads(public_clip.RECORDED.read_text()) if "_clip_" in name}
    assert names == public_clip.SETS.keys()


@pytest.mark.slow
def test_the_script(aerial, model):
    command = [sys.executable, SCRIPT, "whurs19_clip_rn50", aerial, "--encoder", model]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.split()[:3] for line in done.stdout.splitlines()[:2]] == [
        ["$", "zeroshift", name] for name in ("extract", "adapt")
    ]
    assert "recorded  zero-shot 71.5 %, adapted 96.8 %" in done.stdout
    missing = subprocess.run([*command[:3], "nowhere"], capture_output=True, text=True, check=False)
    assert missing.returncode
    assert "nowhere is neither a file or folder" in missing.stderr
    assert "Traceback" not in missing.stderr
