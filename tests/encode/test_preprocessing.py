"""Resize, crop and normalise: computed by hand, and for images of every shape."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from zeroshift.encode.preprocessing import PixelPreprocessing, affine_table, to_rgb_image

MEAN, STD = [0.5, 0.25, 0.0], [0.5, 0.25, 1.0]
TABLE = affine_table(MEAN, STD)


def shorter(size: int, crop: tuple[int, int]) -> PixelPreprocessing:
    return PixelPreprocessing(("shorter", size), crop, "bicubic", TABLE)


def test_the_table():
    assert TABLE.shape == (3, 256)
    assert TABLE.dtype == np.float32
    np.testing.assert_allclose(TABLE[:, 0], [-1, -1, 0])
    np.testing.assert_allclose(TABLE[:, 255], [1, 3, 1])
    np.testing.assert_allclose(TABLE[:, 51], [(0.2 - 0.5) / 0.5, (0.2 - 0.25) / 0.25, 0.2], rtol=1e-6)


@pytest.mark.parametrize(
    ("size", "resized"),
    [
        # The longer side by cutting, not rounding: 10 * 20 / 12 = 16.67, 10 * 12 / 7 = 17.14, 10 * 50 / 3 = 166.67.
        ((20, 12), (16, 10)),
        ((12, 20), (10, 16)),
        ((7, 12), (10, 17)),
        ((50, 3), (166, 10)),
        ((10, 10), (10, 10)),
        ((1, 1), (10, 10)),
    ],
)
def test_the_shorter_side_is_scaled(size, resized):
    assert shorter(10, (10, 10)).resize_image(Image.new("RGB", size)).size == resized


def test_the_crop_is_of_the_centre_and_black_beyond():
    columns = np.tile(np.arange(7, dtype=np.uint8), (5, 1))
    image = Image.fromarray(np.stack([columns, columns, columns], axis=-1))
    crop = PixelPreprocessing(None, (3, 4), "bicubic", TABLE)
    (pixels,) = crop(image)
    np.testing.assert_array_equal(pixels[0], np.tile([1, 2, 3, 4], (3, 1)))
    # Half a pixel too much goes to the right and to the bottom: columns 1 to 4 of 0 to 6, then rows likewise.
    turned = image.transpose(Image.Transpose.TRANSPOSE)
    (rows,) = PixelPreprocessing(None, (4, 3), "bicubic", TABLE)(turned)
    np.testing.assert_array_equal(rows[0], np.tile([[1], [2], [3], [4]], 3))
    (wider,) = PixelPreprocessing(None, (5, 10), "bicubic", TABLE)(image)
    np.testing.assert_array_equal(wider[0, 0], [0, 0, 0, 1, 2, 3, 4, 5, 6, 0])


def test_exact_does_not_keep_the_aspect_ratio():
    exact = PixelPreprocessing(("exact", 4, 6), None, "nearest", TABLE)
    assert exact.size == (4, 6)
    (pixels,) = exact(Image.new("RGB", (50, 3), (1, 2, 3)))
    assert pixels.shape == (3, 4, 6)
    np.testing.assert_array_equal(pixels[:, 0, 0], [1, 2, 3])


def test_the_filter_is_pillows():
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 9, 3), dtype=np.uint8))
    for name in ("nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"):
        expected = np.asarray(image.resize((4, 4), Image.Resampling[name.upper()])).transpose(2, 0, 1)
        found = PixelPreprocessing(("exact", 4, 4), None, name, TABLE)(image)[0]
        np.testing.assert_array_equal(found, expected)


@settings(deadline=None)
@given(width=st.integers(1, 60), height=st.integers(1, 60), side=st.integers(1, 12), crop=st.integers(1, 14))
def test_the_size_is_right_for_any_image(width, height, side, crop):
    preprocessing = shorter(side, (crop, crop + 1))
    (pixels,) = preprocessing(Image.new("RGB", (width, height), "white"))
    assert pixels.shape == (3, *preprocessing.size) == (3, crop, crop + 1)
    assert pixels.dtype == np.uint8
    assert pixels.flags.c_contiguous


@given(st.integers(0, 255), st.integers(0, 2))
def test_bytes_and_numbers_mean_the_same(value, channel):
    preprocessing = shorter(1, (1, 1))
    pixels = np.full((2, 3, 1, 1), value, np.uint8)
    found = preprocessing.values(pixels)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[1, channel, 0, 0], (value / 255 - MEAN[channel]) / STD[channel], atol=1e-6)
    np.testing.assert_allclose(preprocessing.values(pixels.astype(np.float32)), found, atol=1e-6)


@pytest.mark.parametrize("resize", [None, ("shorter", 5)])
def test_images_of_different_sizes_are_refused(resize):
    with pytest.raises(ValueError, match=r"crop=None with resize=.* gives images of different sizes.*Fix: give crop="):
        PixelPreprocessing(resize, None, "bicubic", TABLE)


def test_descriptions_differ_between_settings():
    base = shorter(8, (8, 8))
    others = [
        shorter(9, (8, 8)),
        shorter(8, (8, 7)),
        PixelPreprocessing(("shorter", 8), (8, 8), "bilinear", TABLE),
        PixelPreprocessing(("exact", 8, 8), (8, 8), "bicubic", TABLE),
        PixelPreprocessing(("shorter", 8), (8, 8), "bicubic", affine_table([0.5] * 3, STD)),
        PixelPreprocessing(("shorter", 8), (8, 8), "bicubic", affine_table(MEAN, [0.5] * 3)),
    ]
    assert base.describe() == shorter(8, (8, 8)).describe() == pickle.loads(pickle.dumps(base)).describe()
    bent = TABLE.copy()
    bent[1, 100] += 0.5  # with the same ends
    others.append(PixelPreprocessing(("shorter", 8), (8, 8), "bicubic", bent))
    described = [repr(each.describe()) for each in [base, *others]]
    assert len(set(described)) == len(described)


class TestPictures:
    def test_arrays(self):
        grey = np.arange(12, dtype=np.uint8).reshape(3, 4)
        image = to_rgb_image(grey)
        assert (image.mode, image.size) == ("RGB", (4, 3))
        np.testing.assert_array_equal(np.asarray(image)[..., 2], grey)
        np.testing.assert_array_equal(np.asarray(to_rgb_image(np.stack([grey] * 3, axis=-1))), np.asarray(image))

    @pytest.mark.parametrize(
        "array",
        [np.zeros((3, 4, 3)), np.zeros((3, 4, 5), np.uint8), np.zeros(3, np.uint8), np.zeros((3, 5, 7), np.uint8)],
    )
    def test_arrays_that_are_no_images(self, array):
        with pytest.raises(ValueError, match=r"must be uint8, \(H, W, 3\), \(H, W, 4\) or \(H, W\); got .*Fix: "):
            to_rgb_image(array)

    def test_a_file_that_is_none(self, tmp_path):
        (tmp_path / "x.png").write_bytes(b"no picture")
        with pytest.raises(ValueError, match=r"x\.png"):
            to_rgb_image(tmp_path / "x.png")
        with pytest.raises(FileNotFoundError):
            to_rgb_image(str(tmp_path / "y.png"))
