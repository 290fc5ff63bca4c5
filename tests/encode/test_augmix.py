"""AugMix: each operation computed by hand, its strengths, the random draws, and mixing of pixels."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from PIL import Image

from zeroshift.encode.preprocessing import PixelPreprocessing, affine_table
from zeroshift.encode.views import OPERATIONS, augmix

LEVELS = (0.1, 0.999)
"""About the ends of what severity 1 draws."""

CLIP = PixelPreprocessing(
    None,
    (16, 24),
    "bicubic",
    affine_table(mean=[0.48145466, 0.4578275, 0.40821073], std=[0.26862954, 0.26130258, 0.27577711]),
)


def picture(array: np.ndarray) -> Image.Image:
    return Image.fromarray(np.asarray(array, np.uint8))


def grey(values: np.ndarray) -> Image.Image:
    return picture(np.repeat(np.asarray(values)[..., None], 3, axis=-1))


def noise(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (height, width, 3))


def applied(name: str, image: Image.Image, level: float = 1.0, sign: int = 1) -> np.ndarray:
    return np.asarray(OPERATIONS[name](image, level, sign)).astype(int)


@pytest.mark.parametrize("level", LEVELS)
def test_autocontrast_stretches_to_the_full_range_at_any_level(level):
    # (value - 100) * 255 / 51
    np.testing.assert_array_equal(applied("autocontrast", grey([[100, 110, 151]]), level)[0, :, 0], [0, 50, 255])


@pytest.mark.parametrize("level", LEVELS)
def test_equalize_spreads_the_values_evenly_at_any_level(level):
    image = grey([[10] * 255, [20] * 255])  # half the pixels below 20: with one pixel a step, 0 and 255
    np.testing.assert_array_equal(applied("equalize", image, level)[:, 0, 0], [0, 255])


@pytest.mark.parametrize(("level", "kept"), [(0.1, 0xF0), (0.999, 0xF0), (2.5, 0xE0), (9.9, 0x80)])
def test_posterize_keeps_the_high_bits(level, kept):
    values = np.arange(256)[None]
    np.testing.assert_array_equal(applied("posterize", grey(values), level)[..., 0], values & kept)


@pytest.mark.parametrize(("level", "threshold"), [(0.1, 254), (0.999, 231), (5, 128)])
def test_solarize_inverts_from_a_threshold_on(level, threshold):
    values = np.arange(256)[None]
    expected = np.where(values < threshold, values, 255 - values)
    np.testing.assert_array_equal(applied("solarize", grey(values), level)[..., 0], expected)


@pytest.mark.parametrize(("level", "degrees"), [(0.1, 0), (0.4, 1), (0.999, 2)])
@pytest.mark.parametrize("sign", [1, -1])
def test_rotate_by_whole_degrees(level, degrees, sign):
    image = picture(noise(20, 20))
    np.testing.assert_array_equal(
        applied("rotate", image, level, sign), np.asarray(image.rotate(sign * degrees, Image.Resampling.BILINEAR))
    )


def test_rotate_has_30_degrees_at_level_10():
    """So 90 at level 30, far outside what is drawn, but exact: a quarter turn."""
    values = noise(12, 12)
    np.testing.assert_array_equal(applied("rotate", picture(values), 30), np.rot90(values))
    np.testing.assert_array_equal(applied("rotate", picture(values), 30, -1), np.rot90(values, -1))


@pytest.mark.parametrize(("level", "pixels"), [(0.1, 0), (0.5, 3), (0.999, 7)])
@pytest.mark.parametrize("axis", [0, 1])
def test_translate_by_whole_pixels_and_black_comes_in(level, pixels, axis):
    """A third of 224 at level 10, so up to 7 at severity 1."""
    values = np.moveaxis(noise(224, 5) if axis == 0 else noise(5, 224), axis, 0)
    name = "translate_y" if axis == 0 else "translate_x"
    for sign in (1, -1):
        expected = np.zeros_like(values)
        if sign == 1:
            expected[: 224 - pixels] = values[pixels:]
        else:
            expected[pixels:] = values[: 224 - pixels]
        moved = applied(name, picture(np.moveaxis(values, 0, axis)), level, sign)
        np.testing.assert_array_equal(np.moveaxis(moved, axis, 0), expected)


@pytest.mark.parametrize(("level", "slope"), [(0.1, 0.003), (1.0, 0.03), (10.0, 0.3)])
@pytest.mark.parametrize("sign", [1, -1])
def test_shear_moves_each_row_or_column_by_its_place(level, slope, sign):
    """On a ramp of 4 a pixel a shift shows as a change of value; near the edges there may be nothing to shift in."""
    y, x = np.mgrid[:60, :60]
    inside = slice(20, 40)
    sheared = applied("shear_x", grey(4 * x), level, sign)[:, inside, 0]
    np.testing.assert_allclose(sheared, (4 * (x + sign * slope * (y + 0.5)))[:, inside], atol=1)
    sheared = applied("shear_y", grey(4 * y), level, sign)[inside, :, 0]
    np.testing.assert_allclose(sheared, (4 * (y + sign * slope * (x + 0.5)))[inside], atol=1)


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_keeps_size_and_mode_even_of_one_pixel(name):
    for size in ((16, 16), (1, 1), (7, 3)):
        result = OPERATIONS[name](Image.new("RGB", size, (1, 2, 3)), 1.0, -1)
        assert (result.size, result.mode) == (size, "RGB")


def test_mixing_pixels_is_mixing_what_the_model_is_given():
    """Normalisation is affine and the weights sum to 1, so it may come after the mixing."""
    image = picture(noise(16, 24))

    def normalised(altered: Image.Image) -> np.ndarray:
        return CLIP.values(CLIP.to_pixels(altered)[0])

    for seed in range(20):
        pixels = augmix(image, lambda altered: CLIP.to_pixels(altered)[0], np.random.default_rng(seed))
        assert pixels.dtype == np.float32
        assert pixels.shape == (3, 16, 24)
        values = augmix(image, normalised, np.random.default_rng(seed))
        np.testing.assert_allclose(CLIP.values(pixels), values, rtol=0, atol=2e-6)


def test_the_weights_are_those_of_the_paper():
    """Beta(1, 1) for the image itself, the rest shared by Dirichlet(1, 1, 1)."""
    calls = 0

    def one_hot(_: Image.Image) -> np.ndarray:
        nonlocal calls
        calls += 1
        return np.eye(4)[(calls - 1) % 4]

    image = Image.new("RGB", (1, 1))
    weights = np.stack([augmix(image, one_hot, np.random.default_rng(seed)) for seed in range(1500)])
    assert calls == 4 * 1500
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-6)
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.mean(axis=0), [1 / 2, 1 / 6, 1 / 6, 1 / 6], atol=0.03)
    np.testing.assert_allclose(weights[:, 0].var(), 1 / 12, atol=0.01)
    shares = weights[:, 1:] / (1 - weights[:, :1])
    np.testing.assert_allclose(shares.var(axis=0), 1 / 18, atol=0.01)  # of a Dirichlet(1, 1, 1)


@pytest.mark.parametrize("severity", [1, 3])
def test_operations_depths_levels_and_signs_are_drawn_evenly(monkeypatch, severity):
    depths: list[int] = []
    drawn: list[tuple[str, float, int]] = []

    def recorder(name):
        def record(image, level, sign):
            drawn.append((name, level, sign))
            deeper = image.copy()
            deeper.info["depth"] = image.info.get("depth", 0) + 1
            return deeper

        return record

    def depth(image: Image.Image) -> np.ndarray:
        depths.append(image.info.get("depth", 0))
        return np.zeros(1)

    for name in list(OPERATIONS):
        monkeypatch.setitem(OPERATIONS, name, recorder(name))
    image = Image.new("RGB", (1, 1))
    for seed in range(1000):
        augmix(image, depth, np.random.default_rng(seed), severity=severity)
    assert depths[::4] == [0] * 1000  # the picture itself, then three chains from it
    counts = Counter(depths)
    assert set(counts) == {0, 1, 2, 3}
    assert max(abs(counts[d] - 1000) for d in (1, 2, 3)) < 150
    names, levels, signs = zip(*drawn, strict=True)
    assert set(names) == set(OPERATIONS)
    assert max(abs(count / len(names) - 1 / 9) for count in Counter(names).values()) < 0.02
    assert min(levels) >= 0.1
    assert max(levels) < severity
    np.testing.assert_allclose(np.mean(levels), (0.1 + severity) / 2, atol=0.05)
    assert abs(np.mean(signs)) < 0.05
    assert set(signs) == {1, -1}
