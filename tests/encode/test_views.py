"""Views: the unchanged image, crops as in torchvision, and reproducibility."""

from __future__ import annotations

import json
import math
import pickle

import numpy as np
import pytest
from PIL import Image

from zeroshift.encode.preprocessing import PixelPreprocessing, Preprocessing, affine_table
from zeroshift.encode.views import Views, crop_box

SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
CLIP = PixelPreprocessing(("shorter", 8), (8, 8), "bicubic", affine_table(mean=[0.5] * 3, std=[0.25] * 3))
WIDE = PixelPreprocessing(("exact", 6, 10), None, "bilinear", affine_table(mean=[0.5] * 3, std=[0.25] * 3))


class WithMask(Preprocessing):
    """Returns two arrays per image, as models for images of any shape do."""

    size = (8, 8)

    def __call__(self, image):
        return self.to_pixels(image.resize((8, 8)))

    def to_pixels(self, image):
        pixels = np.asarray(image).transpose(2, 0, 1)
        return pixels, pixels[0] > 100

    def describe(self):
        return {}


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def ramps(side: int = 240) -> Image.Image:
    """Red says the column, green the row: a crop tells where it is from."""
    y, x = np.mgrid[:side, :side]
    return Image.fromarray(np.stack([x, y, np.zeros_like(x)], axis=-1).astype(np.uint8))


def pixels_of(views: Views, image: Image.Image, preprocessing: Preprocessing = CLIP, key: bytes = b"key") -> np.ndarray:
    (pixels,) = views(image, preprocessing, key)
    return pixels


@pytest.mark.parametrize("preprocessing", [CLIP, WIDE])
def test_view_0_is_the_unchanged_image(preprocessing):
    image = noise(30, 20)
    plain = preprocessing(image)[0]
    pixels = pixels_of(Views(5), image, preprocessing)
    assert pixels.shape == (5, 3, *preprocessing.size)
    assert pixels.dtype == np.uint8
    np.testing.assert_array_equal(pixels[0], plain)
    mixed = pixels_of(Views(5, augmix=True), image, preprocessing)
    assert mixed.dtype == np.float32
    np.testing.assert_array_equal(mixed[0], plain)
    np.testing.assert_allclose(preprocessing.values(mixed[0]), preprocessing.values(plain), rtol=0, atol=1e-6)


def test_n_views_counts_the_plain_one():
    np.testing.assert_array_equal(pixels_of(Views(1), noise(9, 9)), CLIP(noise(9, 9))[0][None])
    assert Views().n_views == 64


@pytest.mark.parametrize("augmix", [False, True])
def test_fewer_views_are_the_first_of_more(augmix):
    image = noise(40, 30)
    more = pixels_of(Views(24, augmix=augmix), image)
    np.testing.assert_array_equal(pixels_of(Views(7, augmix=augmix), image), more[:7])
    assert len({view.tobytes() for view in more}) == 24


@pytest.mark.parametrize("augmix", [False, True])
def test_views_depend_only_on_seed_and_key(augmix):
    """Not by what was made before, by whom, or by the state of anybody's random numbers."""
    image, views = noise(40, 30), Views(6, augmix=augmix, seed=3)
    first = pixels_of(views, image, key=b"a")
    np.random.seed(0)
    pixels_of(views, noise(10, 10), key=b"b")
    for maker in (views, pickle.loads(pickle.dumps(views)), Views(6, augmix=augmix, seed=3)):
        np.testing.assert_array_equal(pixels_of(maker, image, key=b"a"), first)
    for other in (pixels_of(views, image, key=b"b"), pixels_of(Views(6, augmix=augmix, seed=4), image, key=b"a")):
        assert (other[1:] != first[1:]).any(axis=(1, 2, 3)).all()


def test_seed_and_key_do_not_run_into_each_other():
    draws = [
        Views(seed=seed)._rng(key, 1).random() for seed, key in [(1, b"2"), (12, b""), (1, b""), (0, b"\0"), (0, b"")]
    ]
    assert len(set(draws)) == len(draws)


def test_the_crops_of_a_key_stay_what_they_are():
    """Features are kept under a key that does not know NumPy's version: should its streams change, this says so."""
    boxes = [crop_box((640, 480), SCALE, RATIO, Views()._rng(b"picture", view)) for view in (1, 2, 63)]
    assert boxes == [(118, 47, 288, 233), (360, 5, 585, 258), (80, 266, 274, 444)]


def test_images_are_cropped_then_resized_then_flipped():
    image, views = noise(50, 40), Views(20)
    pixels, flips = pixels_of(views, image, WIDE), 0
    for view in range(1, 20):
        rng = views._rng(b"key", view)
        box = crop_box(image.size, SCALE, RATIO, rng)
        expected = np.asarray(image.crop(box).resize((10, 6), Image.Resampling.BILINEAR))
        if rng.random() < 0.5:
            flips += 1
            expected = expected[:, ::-1]
        np.testing.assert_array_equal(pixels[view], expected.transpose(2, 0, 1))
    assert 0 < flips < 19


@pytest.mark.parametrize(("flip", "low", "high"), [(0.0, 0, 0), (1.0, 300, 300), (0.5, 120, 180), (0.2, 35, 85)])
def test_the_share_of_mirrored_views(flip, low, high):
    pixels = pixels_of(Views(301, flip=flip), ramps())[1:].astype(int)
    assert (pixels[:, 1, -1] > pixels[:, 1, 0]).all()  # never upside down
    assert low <= int((pixels[:, 0, 0, 0] > pixels[:, 0, 0, -1]).sum()) <= high


def test_area_ratio_and_place_are_drawn_evenly():
    """With areas up to one half every crop fits a square, so nothing is drawn twice and the laws are the plain ones."""
    rng, side, scale = np.random.default_rng(0), 2000, (0.1, 0.5)
    boxes = np.array([crop_box((side, side), scale, RATIO, rng) for _ in range(3000)])
    left, top, right, bottom = boxes.T
    width, height = right - left, bottom - top
    for drawn, low, high in [
        (width * height / side**2, *scale),
        (np.log(width / height), math.log(3 / 4), math.log(4 / 3)),
        (left / (side - width), 0, 1),
        (top / (side - height), 0, 1),
    ]:
        even = (np.sort(drawn) - low) / (high - low)
        assert even[0] > -0.005
        assert even[-1] < 1.005
        # Kolmogorov and Smirnov: 1.95 / sqrt(n) is passed once in a thousand draws.
        assert np.abs(even - np.linspace(0, 1, 3000)).max() < 1.95 / math.sqrt(3000)


@pytest.mark.parametrize("size", [(100, 100), (64, 200), (333, 50), (2, 3), (1, 1)])
def test_crops_are_inside_the_image(size):
    rng = np.random.default_rng(1)
    for _ in range(500):
        left, top, right, bottom = crop_box(size, SCALE, RATIO, rng)
        assert 0 <= left < right <= size[0]
        assert 0 <= top < bottom <= size[1]


@pytest.mark.parametrize(
    ("size", "scale", "ratio", "box"),
    [
        # All of the area, in a shape other than the picture's own, never fits.
        ((500, 30), (1.0, 1.0), RATIO, (230, 0, 270, 30)),  # 40 wide: 4/3 of the height
        ((30, 500), (1.0, 1.0), RATIO, (0, 230, 30, 270)),  # 40 high: the width by 3/4
        # Neither does next to nothing of it, which is rounded to no pixels.
        ((90, 80), (1e-12, 1e-12), RATIO, (0, 0, 90, 80)),  # of an allowed shape: all of it
        ((1, 1), (1e-12, 1e-12), (3.0, 4.0), (0, 0, 1, 1)),  # a third of a pixel high would be none
        ((1, 1), (1e-12, 1e-12), (0.25, 0.3), (0, 0, 1, 1)),
    ],
)
def test_the_crop_of_the_centre_where_none_fits(size, scale, ratio, box):
    assert crop_box(size, scale, ratio, np.random.default_rng(0)) == box


@pytest.mark.parametrize("augmix", [False, True])
@pytest.mark.parametrize("size", [(1, 1), (3, 500), (500, 3), (2, 2)])
def test_tiny_and_extreme_images(size, augmix):
    image = noise(*size)
    pixels = pixels_of(Views(12, augmix=augmix), image)
    assert pixels.shape == (12, 3, 8, 8)
    assert np.isfinite(pixels).all()


def test_augmix_alters_the_same_crops():
    image = noise(40, 40)
    plain, mixed = pixels_of(Views(30), image).astype(float), pixels_of(Views(30, augmix=True), image)
    assert mixed.min() >= 0
    assert mixed.max() <= 255 + 1e-3
    differences = np.abs(mixed - plain).mean(axis=(1, 2, 3))[1:]
    others = np.abs(mixed - np.roll(plain, 1, axis=0)).mean(axis=(1, 2, 3))[2:]
    assert (differences > 0).mean() > 0.9
    assert differences.mean() < others.mean() / 2


def test_augmix_severity():
    image = noise(40, 40)
    weak, strong = (pixels_of(Views(30, augmix=True, severity=severity), image) for severity in (1, 10))
    plain = pixels_of(Views(30), image).astype(float)
    assert np.abs(strong - plain).mean() > 1.2 * np.abs(weak - plain).mean()


def test_several_arrays_per_image_are_stacked():
    pixels, mask = Views(4)(noise(20, 20), WithMask(), b"key")
    assert pixels.shape == (4, 3, 8, 8)
    assert mask.shape == (4, 8, 8)
    np.testing.assert_array_equal(mask, pixels[:, 0] > 100)


def test_augmix_of_several_arrays_is_refused():
    with pytest.raises(ValueError, match=r"one array of bytes; it returns 2 arrays of uint8, bool\. Fix: augmix=Fal"):
        Views(4, augmix=True)(noise(20, 20), WithMask(), b"key")


def test_describe_is_json_with_all_relevant_settings():
    described = Views(16, augmix=True, seed=5).describe()
    assert json.loads(json.dumps(described)) == described
    assert described == {
        "n_views": 16,
        "augmix": True,
        "seed": 5,
        "scale": [0.08, 1.0],
        "ratio": [3 / 4, 4 / 3],
        "flip": 0.5,
        "severity": 1,
    }
    assert Views(severity=1).describe() == Views(severity=7).describe()  # without AugMix it decides nothing
    assert Views(augmix=True).describe() != Views(augmix=True, severity=7).describe()


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"n_views": 0}, ValueError, r"n_views must be an integer of at least 1; got 0\."),
        ({"n_views": 2.5}, ValueError, r"n_views must be an integer of at least 1; got 2\.5\."),
        ({"augmix": "yes"}, TypeError, r"augmix must be True or False; got 'yes'\."),
        ({"seed": -1}, ValueError, r"seed must be an integer of at least 0; got -1\."),
        ({"scale": (0, 1)}, ValueError, r"scale must be a pair \(lowest: a number greater than 0 .*; got \(0, 1\)\."),
        ({"scale": (0.5, 1.5)}, ValueError, r"scale must be a pair .*; got \(0\.5, 1\.5\)\."),
        ({"scale": (0.9, 0.1)}, ValueError, r"scale must have its lower value first.* Fix: scale=\(0\.1, 0\.9\)\."),
        ({"ratio": (2, 1)}, ValueError, r"ratio must have its lower value first.* Fix: ratio=\(1\.0, 2\.0\)\."),
        ({"ratio": 1.0}, TypeError, r"ratio must be a pair .*greater than 0.*; got 1\.0\."),
        ({"flip": 1.1}, ValueError, r"flip must be a number from 0 to 1; got 1\.1\."),
        ({"severity": 11}, ValueError, r"severity must be an integer from 1 to 10; got 11\."),
    ],
)
def test_what_views_refuse(given, kind, message):
    with pytest.raises(kind, match=message):
        Views(**given)


def test_what_a_call_refuses():
    with pytest.raises(TypeError, match=r"key must be bytes; got str\. Fix: "):
        Views(2)(noise(9, 9), CLIP, "key")
    with pytest.raises(ValueError, match=r"image must have mode 'RGB'; got 'L'\. Fix: image\.convert"):
        Views(2)(noise(9, 9).convert("L"), CLIP, b"key")
