"""Snow, frost, fog and brightness compared with values computed by hand or by plain loops."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from corruption_data import PUBLISHED, both_sizes, frost_photographs, grey, sample_images
from zeroshift.data.corruptions import SEVERITIES, Corruption, corrupt
from zeroshift.data.corruptions.kinds import FROST_IMAGES, crop_frost
from zeroshift.data.corruptions.operations import Strokes, _branches, clipped_zoom, directional_blur, draw_frost, plasma


@both_sizes
def test_snow_whitens_and_never_darkens(made_for):
    for severity in SEVERITIES:
        image = sample_images(1)[0]
        assert (corrupt(image, "snow", severity, made_for=made_for).astype(int) >= image - 1).all()


@both_sizes
@pytest.mark.parametrize("severity", SEVERITIES)
def test_snow_is_flakes_laid_over_twice(made_for, severity):
    mean, spread, zoom, threshold, radius, sigma, keep = PUBLISHED[made_for]["snow"][severity - 1]
    snow = Corruption("snow", severity, made_for=made_for)
    stream = snow._rng(b"key")
    image = sample_images(1)[0]
    flakes = clipped_zoom(stream.normal(mean, spread, size=(96, 96)), zoom)
    flakes = np.where(flakes < threshold, 0, np.clip(flakes, 0, 1))
    angle = stream.uniform(-135, -45)  # downwards or upwards, the trail being to one side
    fallen = directional_blur((flakes * 255).astype(np.uint8), radius=radius, sigma=sigma, angle=angle) / 255
    unit = image / 255
    grey = 0.299 * unit[..., 0] + 0.587 * unit[..., 1] + 0.114 * unit[..., 2]
    whitened = keep * unit + (1 - keep) * np.maximum(unit, 1.5 * grey[..., None] + 0.5)
    expected = 255 * np.clip(whitened + (fallen + np.rot90(fallen, 2))[..., None], 0, 1)
    assert np.abs(snow(image, b"key") - expected).max() < 1.001


def test_snow_whitens_grey_where_no_flake_falls():
    # At severity 1 flakes are rare: the commonest level is keep * g + (1 - keep) * min(1.5 g + 0.5, ...) of g = 51/255.
    snowy = corrupt(grey(51, 128), "snow", 1)
    assert np.bincount(snowy.ravel()).argmax() == int((0.8 * 0.2 + 0.2 * (1.5 * 0.2 + 0.5)) * 255 + 1e-6)


def test_plasma_fills_the_unit_interval_and_wraps():
    clouds = plasma(64, 2.0, np.random.default_rng(0))
    assert (clouds.min(), clouds.max()) == (0, 1)
    # Opposite edges are neighbours: no step between them larger than those within.
    within = np.abs(np.diff(clouds, axis=0)).max()
    assert np.abs(clouds[0] - clouds[-1]).max() < 2 * within
    smooth, hard = (np.abs(np.diff(plasma(64, decay, np.random.default_rng(1)))).mean() for decay in (3.0, 1.4))
    assert smooth < hard / 2


def test_plasma_is_diamond_square_point_by_point():
    """Against loops over points, with the random heights drawn in the same order."""
    side, decay = 8, 1.7
    rng = np.random.default_rng(3)
    heights, step, reach = np.zeros((side, side)), side, 100.0
    while step >= 2:
        half = step // 2
        # Where new points lie in a square of the grid, and how far, (down, right), their four neighbours are.
        diagonal = [(-half, -half), (-half, half), (half, -half), (half, half)]
        straight = [(-half, 0), (half, 0), (0, -half), (0, half)]
        for down, right, neighbours in [(half, half, diagonal), (0, half, straight), (half, 0, straight)]:
            for row in range(down, side, step):
                for column in range(right, side, step):
                    four = [heights[(row + y) % side, (column + x) % side] for y, x in neighbours]
                    heights[row, column] = sum(four) / 4 + reach * rng.uniform(-reach, reach)
        step, reach = half, reach / decay
    expected = (heights - heights.min()) / (heights.max() - heights.min())
    np.testing.assert_allclose(plasma(side, decay, np.random.default_rng(3)), expected, atol=1e-12)


@both_sizes
@pytest.mark.parametrize("severity", SEVERITIES)
def test_fog_is_clouds_before_the_image_and_keeps_its_brightest_value(made_for, severity):
    thickness, decay, map_side = PUBLISHED[made_for]["fog"][severity - 1]
    fog = Corruption("fog", severity, made_for=made_for)
    image = sample_images(1, side=map_side)[0][1:, 1:]
    clouds = plasma(map_side, decay, fog._rng(b"key"))[:-1, :-1, None]
    brightest = image.max() / 255
    expected = 255 * brightest * (image / 255 + thickness * clouds) / (brightest + thickness)
    assert np.abs(fog(image, b"key") - expected).max() < 1.001
    # On black with one white pixel the highest cloud of the whole map shows: thickness / (1 + thickness) of white.
    image = grey(0, map_side)
    image[1, 2] = 255
    foggy = fog(image)
    foggy[1, 2] = 0
    assert foggy.max() == pytest.approx(255 * thickness / (1 + thickness), abs=1)


def test_fog_of_a_black_image_is_black():
    assert corrupt(grey(0), "fog", 5).max() == 0


def test_large_images_get_clouds_of_their_size():
    image = grey(200, 8).repeat(40, axis=1)[:, :300]
    foggy = corrupt(image, "fog", 3)
    assert foggy.shape == (8, 300, 3)
    assert len(np.unique(foggy[:, 256:])) > 3


@both_sizes
@pytest.mark.parametrize("severity", SEVERITIES)
def test_brightness_of_a_known_colour(made_for, severity):
    (amount,) = PUBLISHED[made_for]["brightness"][severity - 1]
    image = grey(0, 8)
    image[:4] = (100, 50, 25)
    raised = 100 / 255 + amount
    colour = [int(part * raised * 255 + 1e-6) for part in (1, 0.5, 0.25)]  # hue and saturation stay
    result = corrupt(image, "brightness", severity, made_for=made_for)
    assert result[0, 0].tolist() == colour
    assert set(result[4:].ravel().tolist()) == {int(amount * 255 + 1e-6)}  # black has no hue: grey
    assert corrupt(grey(250, 8), "brightness", severity, made_for=made_for).min() == 255


def test_drawn_frost_is_whitish_blue_and_covers_the_pane():
    pane = draw_frost(224, 224, np.random.default_rng(0))
    assert 90 < pane.mean() < 190
    assert pane.std() > 25
    assert (np.diff(pane, axis=2) >= 0).all()
    quarters = pane.reshape(2, 112, 2, 112, 3).mean(axis=(1, 3, 4))
    assert quarters.min() > 0.5 * quarters.max()


def test_branches_leave_at_60_degrees_and_from_the_stem():
    stem = Strokes(np.array([[10.0, 20.0]]), np.array([0.0]), np.array([30.0]))
    twigs = _branches(stem, 3.0, np.random.default_rng(0))
    assert len(twigs.angle) == 10
    np.testing.assert_allclose(np.abs(twigs.angle), np.pi / 3)
    assert {-1, 1} == set(np.sign(twigs.angle))
    np.testing.assert_allclose(twigs.start[:, 0], 10)
    assert ((twigs.start[:, 1] >= 20) & (twigs.start[:, 1] < 50)).all()
    # What is left of the stem bounds them: they taper.
    assert (twigs.length <= 0.5 * (50 - twigs.start[:, 1])).all()


def test_the_photographs_are_the_five_that_the_release_draws_from():
    assert FROST_IMAGES == ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")


@both_sizes
@pytest.mark.parametrize("severity", SEVERITIES)
def test_frost_from_photographs_is_the_weighted_sum(made_for, tmp_path, severity):
    photographs = frost_photographs(tmp_path, scale=5)
    image_weight, frost_weight, _ = PUBLISHED[made_for]["frost"][severity - 1]
    expected = {int(image_weight * 100 + frost_weight * 40 * k + 1e-6) for k in range(5)}
    frosts = [Corruption("frost", severity, seed, photographs, made_for)(grey(100, 16)) for seed in range(40)]
    found = {int(level) for frost in frosts for level in np.unique(frost)}
    # JPEG may move a level by one; all five photographs turn up among forty draws.
    assert len(found) >= 5
    assert all(min(abs(level - wanted) for wanted in expected) <= 1 for level in found)


def test_frost_for_small_images_is_every_fifth_pixel_of_the_pane(tmp_path):
    rng = np.random.default_rng(0)
    photograph = rng.integers(0, 256, (61, 58, 3), dtype=np.uint8)  # 12 x 12 fifths: 12.2 and 11.6, rounded
    for name in FROST_IMAGES:
        Image.fromarray(photograph).save(tmp_path / name, "PNG")
    # As OpenCV shrinks linearly: the middle of pixel k is at 5 (k + 1/2) - 1/2 of the large image.
    places = np.stack(np.meshgrid(5 * (np.arange(12) + 0.5) - 0.5, 5 * (np.arange(12) + 0.5) - 0.5, indexing="ij"))
    small = np.stack([ndimage.map_coordinates(photograph[..., c], places, order=1) for c in range(3)], axis=-1)
    found = crop_frost(tmp_path, 12, 12, rng, every=5)
    np.testing.assert_array_equal(found, small)
    drawn = Corruption("frost", 3, made_for=32)
    pane = draw_frost(80, 60, drawn._rng(b"key"))[2::5, 2::5]
    np.testing.assert_array_equal(drawn(np.zeros((16, 12, 3), np.uint8), b"key"), np.floor(0.4 * pane + 1e-6))


def test_frost_images_that_are_missing_or_too_small(tmp_path):
    photographs = frost_photographs(tmp_path)
    with pytest.raises(ValueError, match=r"the image has 64 x 64 pixels and frost.* only 40 x 30.*Fix: shrink"):
        corrupt(grey(0), "frost", frost_images=photographs)
    with pytest.raises(ValueError, match=r"has 64 x 64 pixels and frost.* only 8 x 6 with one pixel in 5, so frost"):
        corrupt(grey(0), "frost", frost_images=photographs, made_for=32)
    (photographs / FROST_IMAGES[2]).unlink()
    with pytest.raises(FileNotFoundError, match=r"has no frost3\.png\. Fix: get them from"):
        Corruption("frost", frost_images=photographs)
    assert Corruption("fog", frost_images=photographs)(grey(50)).shape == (64, 64, 3)  # ignores it
