"""Decoding of an image for the encoder: equal results in every process."""

from __future__ import annotations

import os

import numpy as np
import pytest

from encode.numpy_encoder import PREPROCESSING, write_images
from zeroshift.data.images import ImageFiles
from zeroshift.encode.extraction.images import Decoder, default_workers
from zeroshift.encode.extraction.store import content_digest
from zeroshift.encode.views import Views
from zeroshift.workers import Workers


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    top = tmp_path_factory.mktemp("pictures")
    write_images(top, 40)
    (top / "bad.png").write_bytes(b"not a picture")
    return top


@pytest.fixture(scope="module")
def files(folder):
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.png"))
    return ImageFiles(folder, tuple(names))


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


def decoded(decoder, count, indices):
    with Workers(decoder, count, doing="decodes images") as workers:
        return list(workers.map(indices))


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
    assert bad.digest == content_digest(b"not a picture")


def test_without_views_images_are_preprocessed(files):
    found = Decoder(files, PREPROCESSING)(0)
    (pixels,) = PREPROCESSING(files.open(0).image)
    np.testing.assert_array_equal(found.pixels[0], pixels[None])
    assert found.digest == content_digest(files.read(0))


def test_views_and_corruptions_are_the_same_whoever_makes_them(files):
    decoder = Decoder(files, PREPROCESSING, Mirror(), Views(3))
    indices = [i for i in range(12) if files.names[i] != "bad.png"]
    for one, other in zip(decoded(decoder, 2, indices), decoded(decoder, 0, indices), strict=True):
        assert same(one, other)
        assert one.pixels[0].shape == (3, 3, 6, 6)


@pytest.mark.parametrize(
    ("count", "cores", "workers"), [(48, 8, 0), (49, 8, 7), (49, 1, 1), (49, None, 1), (10**6, 99, 16)]
)
def test_how_many_there_are(monkeypatch, count, cores, workers):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert default_workers(count) == workers
    # A share of the machine counts, not the machine.
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 8}, raising=False)
    assert default_workers(count) == (2 if workers else 0)
