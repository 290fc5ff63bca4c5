"""Preprocessing from the configuration of open_clip models."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from PIL import Image

from zeroshift.encode.families.open_clip import RoundedCrop, preprocessing_from_config

CONFIG = {
    "size": (8, 8),
    "mode": "RGB",
    "mean": (0.5, 0.25, 0.5),
    "std": (0.5, 0.25, 0.25),
    "interpolation": "bicubic",
    "resize_mode": "shortest",
    "fill_color": 0,
}


@pytest.mark.parametrize(("size", "side"), [(8, 8), ((16, 16), 16), ([24, 24], 24)])
def test_the_shortest_side_is_resized_and_the_centre_cropped(size, side):
    made = preprocessing_from_config({**CONFIG, "size": size}, "m")
    assert (made.resize, made.crop, made.resample, made.size) == (
        ("shorter", side),
        (side, side),
        "bicubic",
        (side, side),
    )
    # Black, white: less the mean, by the standard deviation, channel by channel.
    np.testing.assert_allclose(made.table[:, [0, 255]], [[-1, 1], [-1, 3], [-2, 2]], atol=1e-6)


def test_squash_uses_the_whole_image():
    made = preprocessing_from_config(
        {**CONFIG, "resize_mode": "squash", "size": (4, 8), "interpolation": "bilinear"}, "m"
    )
    assert (made.resize, made.crop, made.resample) == (("exact", 4, 8), None, "bilinear")


def test_random_interpolation_is_bicubic_outside_training_and_shortest_the_default():
    config = {name: value for name, value in CONFIG.items() if name != "resize_mode"}
    made = preprocessing_from_config({**config, "interpolation": "random"}, "m")
    assert (made.resize, made.resample) == (("shorter", 8), "bicubic")


@pytest.mark.parametrize(("margin", "corner"), [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 2), (6, 3), (7, 4)])
def test_the_crops_corner_is_where_torchvision_has_it(margin, corner):
    # torchvision rounds half the margin, 1.5 and 2.5 both to 2.
    made = preprocessing_from_config(CONFIG, "m")
    columns = np.broadcast_to(np.arange(8 + margin, dtype=np.uint8)[None, :, None], (8, 8 + margin, 3))
    for lying in (True, False):
        image = Image.fromarray(np.ascontiguousarray(columns if lying else columns.transpose(1, 0, 2)))
        assert np.asarray(made.crop_image(image)).min() == corner
    assert isinstance(made, RoundedCrop)


def test_the_preprocessing_can_be_pickled_and_describes_its_corner():
    made = preprocessing_from_config(CONFIG, "m")
    image = Image.fromarray(np.random.default_rng(1).integers(0, 256, (11, 20, 3), dtype=np.uint8))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(made))(image)[0], made(image)[0])
    assert made.describe()["crop_corner"] == "rounded to even"
