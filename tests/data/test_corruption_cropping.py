"""Photographs brought to the size of ImageNet-C's before they are corrupted."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from zeroshift.data.corruptions import Corruption, CroppedCorruption
from zeroshift.data.corruptions.corruption import resize_and_crop


def ramp(width: int, height: int) -> Image.Image:
    """Red says how far right a pixel is, green how far down: an image that shows where it was cut."""
    x, y = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return Image.fromarray(np.stack([x, y, 0 * x], axis=-1).round().astype(np.uint8))


@pytest.mark.parametrize(
    # (width, height), what the scaled image measures, where the middle begins; by the rules ImageNet-C was made with:
    # the longer side is 256 times longer / shorter, cut down, and the margin is half the rest, halves to even.
    ("size", "scaled", "corner"),
    [
        ((500, 375), (341, 256), (58, 16)),  # margins of 58.5 go to 58 ...
        ((375, 500), (256, 341), (16, 58)),
        ((500, 333), (384, 256), (80, 16)),
        ((640, 426), (384, 256), (80, 16)),  # 384.6, cut down
        ((343, 256), (343, 256), (60, 16)),  # ... and margins of 59.5 to 60
        ((256, 256), (256, 256), (16, 16)),
        ((225, 225), (256, 256), (16, 16)),
    ],
)
def test_the_shorter_side_is_256_and_the_middle_224(size, scaled, corner):
    image = ramp(*size)
    left, top = corner
    wanted = image.resize(scaled, Image.Resampling.BILINEAR).crop((left, top, left + 224, top + 224))
    np.testing.assert_array_equal(resize_and_crop(image), wanted)


@pytest.mark.parametrize("size", [(224, 224), (32, 32), (100, 224), (500, 200)])
def test_small_images_are_unchanged(size):
    image = ramp(*size)
    assert resize_and_crop(image) is image


def test_images_are_corrupted_after_cropping():
    corruption = Corruption("gaussian_noise", 2, seed=4)
    made = CroppedCorruption(corruption)(ramp(640, 480), b"key")
    assert made.size == (224, 224)
    np.testing.assert_array_equal(made, corruption(resize_and_crop(ramp(640, 480)), b"key"))
    assert not np.array_equal(made, CroppedCorruption(corruption)(ramp(640, 480), b"another"))


def test_describe():
    corruption = Corruption("fog", 3)
    described = CroppedCorruption(corruption).describe()
    assert described == {**corruption.describe(), "shorter_side": 256, "side": 224}
    assert json.loads(json.dumps(described)) == described


def test_severities_for_small_images_do_not_crop():
    corruption = Corruption("contrast", 3, made_for=32)
    image = ramp(300, 260)
    np.testing.assert_array_equal(CroppedCorruption(corruption)(image, b"key"), corruption(image, b"key"))
    assert CroppedCorruption(corruption).describe() == corruption.describe()
