"""Thumbnails: small, with the proportions of the image, and without metadata."""

import base64
import io

import numpy as np
import pytest

Image = pytest.importorskip("PIL.Image")

from zeroshift.report.contact_sheet import BYTES_PER_PIXEL, HEADER_BYTES, thumbnail  # noqa: E402


def decoded(small):
    return Image.open(io.BytesIO(base64.b64decode(small.uri.partition(",")[2])))


@pytest.mark.parametrize(
    ("size", "expected"),
    [((640, 480), (160, 120)), ((300, 900), (53, 160)), ((32, 24), (32, 24)), ((4000, 2), (160, 1))],
)
def test_thumbnails_keep_proportions_and_are_never_enlarged(size, expected):
    small = thumbnail(Image.new("RGB", size), 160)
    assert (small.width, small.height) == decoded(small).size == expected


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGBA", "CMYK"])
def test_thumbnails_of_other_modes(mode):
    small = decoded(thumbnail(Image.new("RGB", (200, 200), "white").convert(mode), 160))
    assert small.mode == "RGB"
    assert min(small.getpixel((80, 80))) > 250


def test_thumbnails_hold_nothing_but_pixels():
    private = Image.Exif()
    private[0x010E] = "at backend"
    buffer = io.BytesIO()
    Image.new("RGB", (300, 200), "red").save(buffer, "JPEG", exif=private, comment=b"secret", icc_profile=b"profile")
    original = Image.open(buffer)
    assert original.getexif()[0x010E] == "at backend"
    small = thumbnail(original, 160)
    data = base64.b64decode(small.uri.partition(",")[2])
    assert not any(word in data for word in (b"Exif", b"at backend", b"secret", b"profile"))
    assert {"exif", "comment", "icc_profile"}.isdisjoint(decoded(small).info)


@pytest.mark.parametrize("longest", [160, 320])
def test_thumbnails_are_small_even_of_noise(longest):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (400, 400, 3), dtype=np.uint8))
    small = thumbnail(noise, longest)
    assert len(base64.b64decode(small.uri.partition(",")[2])) <= HEADER_BYTES + BYTES_PER_PIXEL * longest**2
