"""Corrupted copies of image files."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

import zeroshift
from corruption_data import sample_images
from zeroshift.data.corruptions import Corruption, corrupt
from zeroshift.data.corruptions.files import corrupt_files

FOG = Corruption("fog", 3)
CONTRAST = Corruption("contrast", 1)


@pytest.fixture
def source(tmp_path):
    """Two images in two folders, and a file that is none."""
    folder = tmp_path / "images"
    (folder / "b" / "c").mkdir(parents=True)
    first, second = sample_images(2, side=32)
    Image.fromarray(first).save(folder / "a.png")
    Image.fromarray(second).save(folder / "b" / "c" / "d.v2.BMP")
    (folder / "notes.txt").write_text("no image")
    return folder


def files_below(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_layout_and_content_of_copies(source, tmp_path):
    seen = []

    class Bar:
        def __init__(self, total):
            seen.append(total)

        def __enter__(self):
            return lambda images, name: seen.append((images, name))

        def __exit__(self, *_):
            seen.append("end")

    out = tmp_path / "out"
    copies = corrupt_files(source, out, [FOG, CONTRAST], progress=Bar)
    assert files_below(out) == [
        "contrast/1/a.png",
        "contrast/1/b/c/d.v2.png",
        "contrast/1/corruption.json",
        "fog/3/a.png",
        "fog/3/b/c/d.v2.png",
        "fog/3/corruption.json",
    ]
    assert (copies.n_images, copies.written, copies.present, copies.failures) == (2, 4, 0, ())
    assert copies.folders == (out / "fog" / "3", out / "contrast" / "1")
    assert seen == [2, (1, "a.png"), (1, "b/c/d.v2.BMP"), "end"]
    with Image.open(source / "b" / "c" / "d.v2.BMP") as opened:
        second = np.asarray(opened)
    with Image.open(out / "fog" / "3" / "b" / "c" / "d.v2.png") as copy:
        assert copy.format == "PNG"
        np.testing.assert_array_equal(copy, corrupt(second, "fog", 3))
    record = json.loads((out / "fog" / "3" / "corruption.json").read_text())
    assert record == {"zeroshift": zeroshift.__version__, **FOG.describe()}


def test_a_single_image(source, tmp_path):
    copies = corrupt_files(source / "a.png", tmp_path / "out", [FOG])
    assert copies.written == 1
    assert files_below(tmp_path / "out") == ["fog/3/a.png", "fog/3/corruption.json"]


def test_existing_copies_are_kept_and_missing_ones_written(source, tmp_path):
    out = tmp_path / "out"
    corrupt_files(source, out, [FOG])
    kept, lost = out / "fog" / "3" / "a.png", out / "fog" / "3" / "b" / "c" / "d.v2.png"
    before = lost.read_bytes()
    kept.write_bytes(b"mine")
    lost.unlink()
    copies = corrupt_files(source, out, [FOG, CONTRAST])
    assert (copies.written, copies.present) == (3, 1)
    assert kept.read_bytes() == b"mine"
    assert lost.read_bytes() == before
    again = corrupt_files(source, out, [FOG], force=True)
    assert (again.written, again.present) == (2, 0)
    with Image.open(kept) as copy:
        assert copy.size == (32, 32)


def test_copies_of_another_seed_never_mix(source, tmp_path):
    out = tmp_path / "out"
    corrupt_files(source, out, [FOG])
    before = (out / "fog" / "3" / "a.png").read_bytes()
    other = Corruption("fog", 3, seed=1)
    with pytest.raises(
        FileExistsError, match=r"contains copies made with another seed or other constants\. Fix: write"
    ):
        corrupt_files(source, out, [other])
    assert (out / "fog" / "3" / "a.png").read_bytes() == before
    corrupt_files(source, out, [other], force=True)
    assert (out / "fog" / "3" / "a.png").read_bytes() != before
    assert json.loads((out / "fog" / "3" / "corruption.json").read_text())["seed"] == 1


def test_copies_made_for_another_size_never_mix(source, tmp_path):
    corrupt_files(source, tmp_path / "out", [FOG])
    small = Corruption("fog", 3, made_for=32)
    with pytest.raises(FileExistsError, match="other constants"):
        corrupt_files(source, tmp_path / "out", [small])
    corrupt_files(source, tmp_path / "small", [small])
    with Image.open(source / "a.png") as image, Image.open(tmp_path / "small" / "fog" / "3" / "a.png") as copy:
        np.testing.assert_array_equal(copy, corrupt(image, "fog", 3, made_for=32))


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_a_damaged_record_is_not_trusted(source, tmp_path, content):
    corrupt_files(source, tmp_path / "out", [FOG])
    (tmp_path / "out" / "fog" / "3" / "corruption.json").write_text(content)
    with pytest.raises(FileExistsError, match="another seed"):
        corrupt_files(source, tmp_path / "out", [FOG])


def test_files_of_unknown_origin_are_not_taken_for_copies(source, tmp_path):
    target = tmp_path / "out" / "fog" / "3"
    target.mkdir(parents=True)
    (target / "a.png").write_bytes(b"mine")
    with pytest.raises(FileExistsError, match=r"a\.png exists, and no corruption\.json describes it\. Fix: write"):
        corrupt_files(source, tmp_path / "out", [FOG])
    assert (target / "a.png").read_bytes() == b"mine"


def test_unusable_images_are_skipped_and_reported(source, tmp_path):
    (source / "broken.jpg").write_bytes(b"<html>")
    Image.new("RGB", (4, 4)).save(source / "tiny.png")
    copies = corrupt_files(source, tmp_path / "out", [FOG, CONTRAST])
    assert (copies.n_images, copies.written) == (4, 4)
    assert [failure.name for failure in copies.failures] == ["broken.jpg", "tiny.png"]
    assert copies.failures[0].reason.startswith("broken.jpg: is not an image")
    assert copies.failures[1].reason.startswith("tiny.png: image must be at least 8 pixels high and wide; got 4 x 4")
    with pytest.raises(ValueError, match=r"broken\.jpg: is not an image"):
        corrupt_files(source, tmp_path / "strict", [FOG], strict=True)


def test_workers_write_the_same_bytes(source, tmp_path):
    noise = [Corruption("gaussian_noise", 2), FOG]
    (source / "broken.jpg").write_bytes(b"<html>")
    alone = corrupt_files(source, tmp_path / "alone", noise)
    shared = corrupt_files(source, tmp_path / "shared", noise, workers=2)
    assert (shared.written, shared.failures) == (alone.written, alone.failures)
    assert files_below(tmp_path / "shared") == files_below(tmp_path / "alone")
    for name in files_below(tmp_path / "alone"):
        assert (tmp_path / "shared" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()


def test_a_folder_among_the_images_is_refused(source, tmp_path):
    for out in (source, source / "out", tmp_path / "images" / ".." / "images" / "b"):
        with pytest.raises(ValueError, match=r"out must be outside the images, .*Fix: pass a folder next to them"):
            corrupt_files(source, out, [FOG])
    assert files_below(source) == ["a.png", "b/c/d.v2.BMP", "notes.txt"]
    inside = tmp_path / "out" / "fog" / "3"
    inside.mkdir(parents=True)
    image = inside / "a.png"
    Image.new("RGB", (16, 16)).save(image)
    for images in (inside, image):
        with pytest.raises(ValueError, match=r"is in .*, where copies are written"):
            corrupt_files(images, tmp_path / "out", [FOG], force=True)
    assert image.exists()


def test_two_images_of_one_name_are_refused(source, tmp_path):
    (source / "a.jpg").touch()
    with pytest.raises(ValueError, match=r"a\.jpg and a\.png would both be written as a\.png\. Fix: rename"):
        corrupt_files(source, tmp_path / "out", [FOG])
    assert not (tmp_path / "out").exists()


def test_missing_source(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"no such file or folder: .*Fix: pass a folder of images, or one image"
    ):
        corrupt_files(tmp_path / "none", tmp_path / "out", [FOG])


def test_folders_that_cannot_be_created_or_written(source, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"the folder .*fog.* cannot be created .*Fix: write to another folder"):
        corrupt_files(source, tmp_path / "file", [FOG])
    corrupt_files(source / "a.png", tmp_path / "out", [FOG])
    (tmp_path / "out" / "fog" / "3" / "b").touch()  # a file where a folder should be
    with pytest.raises(OSError, match=r"d\.v2\.png cannot be written .*written copies are kept"):
        corrupt_files(source, tmp_path / "out", [FOG])


def test_copies_are_written_atomically(source, tmp_path, monkeypatch):
    def half(self, path, *_):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", half)
    with pytest.raises(OSError, match="No space left on device"):
        corrupt_files(source, tmp_path / "out", [FOG])
    assert files_below(tmp_path / "out") == ["fog/3/corruption.json"]


def test_a_wrong_number_of_workers(source, tmp_path):
    with pytest.raises(ValueError, match=r"workers must be at least 0; got -1\. Fix: 0 works in this process"):
        corrupt_files(source, tmp_path / "out", [FOG], workers=-1)
