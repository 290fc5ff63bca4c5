"""Invalid arguments are refused with their name and a fix, before anything is computed."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from encode.numpy_encoder import PREPROCESSING, VANILLA, NumpyEncoder, image_set, write_images
from zeroshift.encode import Prompts, Views, encode_classes, encode_images, extract, load_encoder
from zeroshift.encode.preprocessing import PixelPreprocessing, affine_table, to_rgb_image
from zeroshift.views import entropy, select_lowest_entropy

ENCODER = NumpyEncoder()
IMAGE = Image.new("RGB", (9, 9))


@pytest.fixture
def images(tmp_path):
    write_images(tmp_path / "pets", 2)
    return image_set(tmp_path / "pets", labelled=False)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"images": "photos"}, r"images must be an ImageSet; got str\. Fix: zeroshift\.data\.open_images"),
        ({"encoder": "composed"}, r"encoder must be an Encoder; got 'composed'\. Fix: encode\.load_encoder"),
        ({"prompts": "vanilla"}, r"prompts must be of the class Prompts; got 'vanilla'\. Fix: Prompts\.named"),
        ({"prompts": ["vanilla"]}, r"prompts must be of the class Prompts; got 'vanilla'\. Fix: Prompts\.named"),
        ({"views": 64}, r"views must be None or, for example, Views\(64\); got 64\. Fix: views=Views\(64\)"),
        (
            {"corruption": "fog"},
            r"corruption must be None or, for example, Corruption.*; got 'fog'\. Fix: corruption=Corr",
        ),
        ({"cache": 3}, r"cache must be a folder or None; got int\. Fix: cache=encode\.default_cache"),
    ],
)
def test_extract_refuses_other_kinds_of_arguments(images, changed, message):
    given = {"images": images, "encoder": ENCODER, "prompts": VANILLA, "class_names": ["cat", "dog"], **changed}
    with pytest.raises(TypeError, match=message):
        extract(given.pop("images"), given.pop("encoder"), given.pop("prompts"), **given)


def test_a_cache_may_be_named_as_text(images, tmp_path):
    named = str(tmp_path / "cache")
    first = extract(images, ENCODER, VANILLA, class_names=["cat", "dog"], cache=named)
    assert first.computed == 2
    assert encode_images(images, ENCODER, cache=tmp_path / "cache").computed == 0
    known = encode_classes(NumpyEncoder(), VANILLA.for_classes(["cat", "dog"]), cache=named).prototypes
    np.testing.assert_array_equal(known, first.features.prototypes_for())


def test_a_model_may_be_named_by_a_path(tiny_folder):
    folder = tiny_folder("clip")
    assert load_encoder(folder).revision == load_encoder(str(folder)).revision


def test_a_string_is_not_a_list_of_prompts():
    with pytest.raises(TypeError, match=r"prompts of class 0 must be a list of sentences; got the string 'cat'.*Fix"):
        encode_classes(ENCODER, ["cat", "dog"])


@pytest.mark.parametrize("given", [IMAGE, "a.png", 3])
def test_one_image_is_not_several(given):
    with pytest.raises(TypeError, match=r"images must be a list; got \w+\. Fix: \[image\]"):
        ENCODER.encode_images(given)


@pytest.mark.parametrize("given", [3, None])
def test_what_is_no_image(given):
    with pytest.raises(
        TypeError, match=rf"an image must be a path.*got {type(given).__name__}\. Fix: PIL\.Image\.open"
    ):
        to_rgb_image(given)


def test_an_image_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no image at .*cat\.png\. Fix: check the path"):
        ENCODER.encode_images([tmp_path / "cat.png"])


def test_prompts_that_are_no_text(tiny_encoder):
    with pytest.raises(TypeError, match=r"prompts must be strings; got 3\. Fix: str\(prompt\)"):
        tiny_encoder("clip").encode_texts(["cat", 3])


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (np.zeros((2, 3, 32, 32), np.uint8), r"batch must be a tuple of arrays .*; got ndarray\. Fix: \(pixels,\)"),
        ((), r"batch must be a tuple of arrays .*; got none\. Fix: \(pixels,\)"),
        ((np.zeros((0, 3, 32, 32), np.uint8),), r"at least one image; got none\. Fix: \(pixels,\)"),
        (
            (np.zeros((2, 3, 4, 5), np.uint8),),
            r"pixels must have the shape \(B, 3, .*; got \(2, 3, 4, 5\)\. Fix: encoder",
        ),
    ],
)
def test_pixels_of_another_shape(tiny_encoder, batch, message):
    with pytest.raises(ValueError, match=message):
        tiny_encoder("clip").encode_pixels(batch)


@pytest.mark.parametrize("name", ["", "  ", 3, None])
def test_class_names_without_information(name):
    with pytest.raises(ValueError, match=r"a class name must be a string that is not blank; got .*\. Fix: give every"):
        Prompts.named("vanilla").for_class(name)


def test_views_are_of_pillow_images():
    with pytest.raises(TypeError, match=r"image must be a Pillow image; got ndarray\. Fix: Image\.fromarray"):
        Views(2)(np.zeros((9, 9, 3), np.uint8), PREPROCESSING, b"key")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"resample": "cubic"}, "resample must be one of 'nearest', .*; got 'cubic'"),
        (
            {"table": np.zeros((3, 4), np.float32)},
            r"table must have \(3, 256\) finite numbers.*got shape \(3, 4\)\. Fix",
        ),
        ({"table": np.full((3, 256), np.nan, np.float32)}, r"table must have \(3, 256\) finite numbers"),
    ],
)
def test_preprocessing_that_cannot_be(changed, message):
    settings = {"resize": ("exact", 4, 4), "crop": None, "resample": "bicubic", "table": PREPROCESSING.table}
    with pytest.raises(ValueError, match=message):
        PixelPreprocessing(**{**settings, **changed})


@pytest.mark.parametrize(("mean", "std"), [([0.5], [0.5]), ([0.5] * 3, [0.5] * 2), ([0.5] * 3, [0.5, 0, 0.5])])
def test_means_and_deviations_that_cannot_be(mean, std):
    with pytest.raises(ValueError, match=r"mean and std must have three numbers each.*Fix: affine_table"):
        affine_table(mean, std)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_entropy_needs_classes(shape):
    with pytest.raises(
        ValueError, match=r"logits must have classes along its last axis; got shape .*\. Fix: \(\.\.\., K\)"
    ):
        entropy(np.zeros(shape))


def test_entropy_needs_an_array():
    with pytest.raises(TypeError, match=r"logits must be a NumPy array or a torch tensor; got list\. Fix"):
        entropy([1.0, 2.0])


def test_of_what_is_no_number_nothing_is_selected():
    logits = np.zeros((4, 3))
    logits[2, 1] = np.nan
    with pytest.raises(ValueError, match=r"logits contains NaN or infinity.*Fix: recompute"):
        select_lowest_entropy(logits, 0.5)
