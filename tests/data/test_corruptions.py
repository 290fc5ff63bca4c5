"""All fifteen corruptions: constants, common properties, random numbers, and invalid arguments."""

from __future__ import annotations

import hashlib
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from corruption_data import PUBLISHED, both_sizes, frost_photographs, grey, sample_images
from zeroshift.data.corruptions import GROUPS, KINDS, SEVERITIES, Corruption, corrupt
from zeroshift.data.corruptions.constants import CONSTANTS

FIXED = {"defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression"}
"""Kinds that follow from the image alone."""

# ---- kinds and constants


def test_kinds_are_in_the_papers_order():
    assert KINDS == (
        "gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur",
        "snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression",
    )  # fmt: skip
    assert tuple(GROUPS) == ("noise", "blur", "weather", "digital")
    assert SEVERITIES == (1, 2, 3, 4, 5)


@both_sizes
def test_constants_are_the_published_ones(made_for):
    assert tuple(CONSTANTS[made_for]) == KINDS
    for kind, rows in PUBLISHED[made_for].items():
        ours = list(zip(*CONSTANTS[made_for][kind].values(), strict=True))
        np.testing.assert_allclose(ours, rows, rtol=1e-12, err_msg=kind)


@pytest.mark.parametrize(
    ("made_for", "published"),
    [
        (224, [(1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)]),
        (32, [(1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)]),
    ],
)
def test_zooms_are_the_published_ranges(made_for, published):
    table = CONSTANTS[made_for]["zoom_blur"]
    for step, zooms, (stop, published_step) in zip(table["step"], table["zooms"], published, strict=True):
        np.testing.assert_allclose(1 + step * np.arange(zooms), np.arange(1, stop, published_step))


# ---- every kind at every severity


@both_sizes
@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("kind", KINDS)
def test_result_is_a_new_image_and_depends_on_the_seed(made_for, kind, severity):
    image = sample_images(1)[0][:64, :48]
    before = image.copy()
    result = corrupt(image, kind, severity, made_for=made_for)
    assert result.shape == image.shape
    assert result.dtype == np.uint8
    assert not np.array_equal(result, image)
    np.testing.assert_array_equal(image, before)
    np.testing.assert_array_equal(corrupt(image.copy(), kind, severity, made_for=made_for), result)  # the same again
    other = corrupt(image, kind, severity, seed=1, made_for=made_for)
    assert np.array_equal(other, result) == (kind in FIXED)
    assert result.flags.writeable
    assert not np.shares_memory(result, image)


@pytest.mark.parametrize("kind", KINDS)
def test_pillow_images_and_read_only_arrays(kind):
    image = sample_images(1)[0]
    image.flags.writeable = False
    result = corrupt(Image.fromarray(image), kind, 2)
    assert isinstance(result, Image.Image)
    assert result.mode == "RGB"
    np.testing.assert_array_equal(np.asarray(result), corrupt(image, kind, 2))


@both_sizes
@pytest.mark.parametrize("shape", [(8, 8), (8, 40), (300, 9)])
@pytest.mark.parametrize("kind", KINDS)
def test_any_size_from_8_pixels_on(made_for, kind, shape):
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    for severity in SEVERITIES:
        assert corrupt(image, kind, severity, made_for=made_for).shape == image.shape


@both_sizes
def test_black_and_white_images(made_for):
    with np.errstate(all="raise"):
        for kind in KINDS:
            for level in (0, 255):
                assert corrupt(grey(level, 16), kind, 5, made_for=made_for).shape == (16, 16, 3)


# ---- random streams


def test_the_result_depends_on_the_key_and_not_on_the_order():
    images = sample_images()
    noise = Corruption("gaussian_noise", 3)
    forwards = [noise(image, key) for key, image in enumerate(images)]
    backwards = [noise(image, key) for key, image in reversed(list(enumerate(images)))]
    for one, other in zip(forwards, reversed(backwards), strict=True):
        np.testing.assert_array_equal(one, other)
    flat = grey(128)
    keys = [0, 1, b"0", b"", b"1", 2**80, -1, None]
    assert len({noise(flat, key).tobytes() for key in keys}) == len(keys)
    np.testing.assert_array_equal(noise(flat, np.int64(7)), noise(flat, 7))


def test_random_numbers_differ_between_kinds_severities_and_seeds():
    draws = {
        Corruption(kind, severity, seed)._rng(b"image").random()
        for kind in KINDS
        for severity in SEVERITIES
        for seed in (0, 1, 10)
    }
    assert len(draws) == 15 * 5 * 3
    assert {Corruption(kind, 5, 1, made_for=32)._rng(b"image").random() for kind in KINDS} < draws  # of both tables


def test_images_that_differ_in_one_pixel_get_different_noise():
    one, other = grey(128), grey(128)
    other[0, 0, 0] = 129
    changed = corrupt(one, "gaussian_noise", 1) != corrupt(other, "gaussian_noise", 1)
    assert changed.mean() > 0.9


def test_a_corruption_gives_the_same_result_in_another_process():
    corruption = Corruption("snow", 4, seed=3)
    assert pickle.loads(pickle.dumps(corruption)) == corruption
    code = (
        "import pickle, sys, hashlib, numpy as np\n"
        "corruption = pickle.load(sys.stdin.buffer)\n"
        "print(hashlib.sha256(corruption(np.full((64, 64, 3), 99, np.uint8), b'key').tobytes()).hexdigest())"
    )
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(corruption), capture_output=True, check=True)
    assert done.stdout.decode().strip() == hashlib.sha256(corruption(grey(99), b"key").tobytes()).hexdigest()


def test_random_numbers_are_stable_across_versions():
    """Copies written by earlier versions must stay the ones this version would write."""
    first = Corruption("gaussian_noise", 1)._rng(b"zeroshift").integers(2**32, size=3).tolist()
    assert first == GOLDEN_NUMBERS


GOLDEN_NUMBERS = [2366486456, 3709511604, 720780215]
"""Computed independently of the library: sha256 of b"gaussian_noise:1:0:bytes:zeroshift", big-endian, as the entropy of
NumPy's SeedSequence, Philox, integers below 2**32."""


# ---- provenance and refusals


@both_sizes
@pytest.mark.parametrize("kind", KINDS)
def test_describe_is_plain_json(made_for, kind):
    record = Corruption(kind, np.int64(2), seed=np.int32(5), made_for=np.int64(made_for)).describe()
    assert json.loads(json.dumps(record)) == record
    assert (record["kind"], record["severity"], record["seed"], record["made_for"]) == (kind, 2, 5, made_for)
    assert list(record["constants"].values()) == [values[1] for values in CONSTANTS[made_for][kind].values()]
    assert record.get("frost") == ("procedural" if kind == "frost" else None)


def test_describe_identifies_frost_photographs_without_their_path(tmp_path):
    folder = frost_photographs(tmp_path)
    record = Corruption("frost", frost_images=folder).describe()
    assert record["frost"].startswith("photographs, sha256:")
    assert str(tmp_path) not in json.dumps(record)
    # Others are another corruption: features of one must not be taken for those of the other.
    (folder / "frost3.png").write_bytes((folder / "frost2.png").read_bytes())
    assert Corruption("frost", frost_images=folder).describe() != record


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("gausian_noise",),
            "kind must be one of gaussian_noise, .*got 'gausian_noise'. Did you mean 'gaussian_noise'",
        ),
        (("fog", 6), "severity must be an integer from 1 to 5; got 6. Fix: 5 is the strongest"),
        (("fog", 0), "severity must be an integer from 1 to 5; got 0"),
        (("fog", True), "severity must be .*got True"),
        (("fog", 2.5), "severity must be .*got 2.5"),
        (("fog", "5"), "severity must be .*got '5'"),
        (("fog", 5, -1), "seed must be an integer of at least 0; got -1. Fix: seed=0"),
        (("fog", 5, None), "seed must be .*got None"),
        (
            ("fog", 5, 0, None, 64),
            "made_for must be 224, .*ImageNet-C, or 32, .*CIFAR-10-C; got 64. Fix: made_for=32 for images of about 32",
        ),
        (("fog", 5, 0, None, "32"), "made_for must be .*got '32'"),
        (("fog", 5, 0, None, 32.0), "made_for must be .*got 32.0"),
        (("fog", 5, 0, None, None), "made_for must be .*got None"),
    ],
)
def test_wrong_parameters_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Corruption(*arguments)


@pytest.mark.parametrize(
    ("image", "error", "message"),
    [
        ("a.png", TypeError, "must be a Pillow image or a NumPy array; got str. Fix: Image.open"),
        (Image.new("L", (9, 9)), ValueError, "must have the mode RGB; got L. Fix: image.convert"),
        (np.zeros((9, 9, 3)), TypeError, "must be of type uint8.*got float64. Fix: .255 . image"),
        (np.zeros((9, 9), np.uint8), ValueError, r"must have the shape \(H, W, 3\); got \(9, 9\). Fix: np.stack"),
        (np.zeros((3, 9, 9), np.uint8), ValueError, r"got \(3, 9, 9\)"),
        (np.zeros((2, 9, 9, 3), np.uint8), ValueError, r"got \(2, 9, 9, 3\)"),
        (np.zeros((7, 9, 3), np.uint8), ValueError, "at least 8 pixels high and wide; got 7 x 9 .*Fix: enlarge"),
        (Image.new("RGB", (7, 9)), ValueError, "got 9 x 7"),
    ],
)
def test_wrong_images_are_refused(image, error, message):
    with pytest.raises(error, match=message):
        corrupt(image, "fog")


def test_small_images_are_refused_with_the_recommended_size():
    for made_for in (224, 32):
        with pytest.raises(ValueError, match=rf"Fix: enlarge it, for example to {made_for} x {made_for}, the size"):
            corrupt(grey(0, 7), "fog", made_for=made_for)


def test_a_wrong_key_is_refused():
    with pytest.raises(TypeError, match=r"key must be bytes, an integer or None; got 'a'\. Fix: pass the"):
        Corruption("fog")(grey(0), "a")


def test_importing_is_light():
    code = "import sys, zeroshift.data.corruptions; print([m for m in ('scipy', 'PIL') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
