"""Damaged or unusual images: skipped or read with a note, and reported either way."""

from __future__ import annotations

import io

import numpy as np
import pytest

pytest.importorskip("transformers")

from PIL import Image

from encode.numpy_encoder import noise
from pet_images import encoded, load, record


@pytest.fixture
def extract(call, model, tmp_path):
    def extract(source, *options):
        out = tmp_path / "f.safetensors"
        return call("extract", source, "--classes", "cat,dog", "--encoder", model, "--out", out, *options)

    return extract


def line_of(done) -> str:
    assert done.exit_code == 2, (done.stdout, done.stderr, done.exception)
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.fixture
def odd(tmp_path):
    """One good image among damaged and unusual ones."""
    folder = tmp_path / "odd"
    folder.mkdir()
    noise(0, 40, 30).save(folder / "good.png")
    whole = io.BytesIO()
    noise(1, 64, 48).save(whole, "JPEG")
    (folder / "cut.jpg").write_bytes(whole.getvalue()[:-700])
    (folder / "nothing.png").write_bytes(b"")
    (folder / "page.jpg").write_text("<html>not found</html>")
    noise(2, 20, 20).save(folder / "moving.gif", save_all=True, append_images=[noise(3, 20, 20)])
    noise(4, 20, 20).convert("CMYK").save(folder / "print.jpg")
    Image.fromarray((np.arange(400).reshape(20, 20) * 160).astype(np.uint16)).save(folder / "deep.png")
    return folder


def test_unreadable_images_are_skipped_and_reported(extract, odd, tmp_path):
    done = extract(odd, "--quiet")
    assert done.exit_code == 0
    for message in (
        "warning: cut.jpg: is truncated or damaged (",
        "warning: nothing.png: is empty (0 bytes). Fix: copy or download it again, or delete it.",
        "warning: page.jpg: is not an image (it looks like a web page or text). Fix: ",
        "warning: moving.gif: animated, 2 frames: the first is used",
        "warning: print.jpg: CMYK: converted to RGB without a colour profile",
        "warning: deep.png: more than 8 bits of grey: scaled to 8",
    ):
        assert message in done.stderr
    assert done.stderr.count("\n") == 6
    features = load(tmp_path / "f.safetensors")
    assert features.sample_names == ("deep.png", "good.png", "moving.gif", "print.jpg")
    assert features.provenance["skipped"] == ["cut.jpg", "nothing.png", "page.jpg"]
    summary = record(extract(odd, "--json", "--force"))
    assert [entry["image"] for entry in summary["skipped"]] == ["cut.jpg", "nothing.png", "page.jpg"]
    assert summary["skipped"][1]["why"] == "is empty (0 bytes)"


def test_the_first_frame_is_the_one_used(extract, odd, tmp_path, model):
    assert extract(odd).exit_code == 0
    first = tmp_path / "first.png"
    with Image.open(odd / "moving.gif") as moving:
        moving.convert("RGB").save(first)
    features = load(tmp_path / "f.safetensors")
    at = features.sample_names.index("moving.gif")
    np.testing.assert_allclose(features.features[at], encoded(model, [first])[0], atol=1e-3)


def test_only_the_first_few_of_many_are_named(extract, odd):
    for i in range(6):
        (odd / f"zero-{i}.png").touch()
    done = extract(odd, "--quiet")
    assert "and 4 more images skipped; --json lists them all" in done.stderr


def test_on_error_stop_stops_at_the_first(extract, odd, tmp_path):
    line = line_of(extract(odd, "--on-error", "stop"))
    assert line.startswith("error: cut.jpg: is truncated or damaged (")
    assert not (tmp_path / "f.safetensors").exists()


def test_no_readable_image(extract, tmp_path):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.png").touch()
    (tmp_path / "bad" / "b.jpg").write_text("text")
    line = line_of(extract(tmp_path / "bad"))
    assert "a.png" in line
    assert not (tmp_path / "f.safetensors").exists()
