"""Noise, blur and digital damage compared with values computed by hand, by loops or by other libraries."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from corruption_data import PUBLISHED, both_sizes, grey, sample_images
from zeroshift.data.corruptions import SEVERITIES, Corruption, corrupt
from zeroshift.data.corruptions.kinds import _shuffle_sources, disk_kernel
from zeroshift.data.corruptions.operations import (
    affine_from_points,
    clipped_zoom,
    directional_blur,
    displace,
    line_kernel,
)

# ---- noise


@both_sizes
@pytest.mark.parametrize("severity", [1, 2, 3])
def test_gaussian_noise_has_its_deviation(made_for, severity):
    noisy = corrupt(grey(128, 128), "gaussian_noise", severity, made_for=made_for) / 255
    sigma = PUBLISHED[made_for]["gaussian_noise"][severity - 1][0]
    # Within 2.8 sigma nothing is clipped to speak of; 4 standard errors of a deviation from 49152 values are 1.3 %.
    assert noisy.std() == pytest.approx(sigma, rel=0.02)
    assert noisy.mean() == pytest.approx(128 / 255 - 0.5 / 255, abs=4 * sigma / math.sqrt(noisy.size))


@both_sizes
@pytest.mark.parametrize("severity", SEVERITIES)
def test_shot_noise_counts_photons(made_for, severity):
    (photons,) = PUBLISHED[made_for]["shot_noise"][severity - 1]
    noisy = corrupt(grey(51, 128), "shot_noise", severity, made_for=made_for)  # a fifth of white
    levels = {int(min(count / photons, 1) * 255 + 1e-6) for count in range(1000)}
    assert set(np.unique(noisy).tolist()) <= levels
    error = math.sqrt(0.2 / photons / noisy.size)
    # Truncation takes up to a level; what is clipped at white, a percent at most.
    assert noisy.mean() / 255 == pytest.approx(0.2, abs=4 * error + 1 / 255 + 0.01)
    dark = corrupt(grey(0), "shot_noise", severity, made_for=made_for)
    assert dark.max() == 0


@both_sizes
@pytest.mark.parametrize("severity", SEVERITIES)
def test_impulse_noise_hits_its_share_half_black_half_white(made_for, severity):
    (amount,) = PUBLISHED[made_for]["impulse_noise"][severity - 1]
    noisy = corrupt(grey(100, 128), "impulse_noise", severity, made_for=made_for)
    assert set(np.unique(noisy).tolist()) == {0, 100, 255}
    error = 4 * math.sqrt(amount / noisy.size)
    assert np.mean(noisy == 0) == pytest.approx(amount / 2, abs=error)
    assert np.mean(noisy == 255) == pytest.approx(amount / 2, abs=error)


# ---- blur


def test_the_disk_is_one_and_round():
    for radius, smoothing in PUBLISHED[224]["defocus_blur"][:3]:
        kernel = disk_kernel(radius, smoothing)
        assert kernel.shape == (17, 17)
        assert kernel.sum() == pytest.approx(1)
        inside = np.hypot(*np.mgrid[-8:9, -8:9]) <= radius
        assert kernel[inside].sum() > (0.999 if smoothing == 0.1 else 0.9)
        assert kernel[np.hypot(*np.mgrid[-8:9, -8:9]) > radius + 1.5].max() < 1e-12
    # Without smoothing, equal weights: 29 pixels lie within 3 of the middle one.
    np.testing.assert_allclose(np.unique(disk_kernel(3, 0.1).round(9)), [0, round(1 / 29, 9)])
    assert disk_kernel(10, 0.5).shape == (21, 21)


def test_disks_for_small_images_are_of_1_5_and_9_pixels():
    blot = math.exp(-1 / (2 * 0.6**2)) / (1 + 2 * math.exp(-1 / (2 * 0.6**2)))
    across = np.array([blot, 1 - 2 * blot, blot])
    np.testing.assert_allclose(disk_kernel(0.5, 0.6)[7:10, 7:10], np.outer(across, across))
    # Smoothing of 0.2 and 0.1 leaves less than 1e-5 to the neighbours.
    np.testing.assert_allclose(disk_kernel(1, 0.2)[7:10, 7:10] * 5, [[0, 1, 0], [1, 1, 1], [0, 1, 0]], atol=2e-5)
    np.testing.assert_allclose(disk_kernel(1.5, 0.1)[7:10, 7:10] * 9, np.ones((3, 3)), atol=2e-5)
    for radius, smoothing in PUBLISHED[32]["defocus_blur"]:
        assert disk_kernel(radius, smoothing).sum() == pytest.approx(1)


def test_disks_that_touch_their_square_gain_weight_as_in_the_release():
    # Mirrored at the edge, each side gains w (row before the last - last row), twice over: 7 and 1 pixels of 197.
    weight = math.exp(-2) / (1 + 2 * math.exp(-2))
    gain = weight * (7 - 1) / 197
    one_way = 1 + 2 * gain
    assert disk_kernel(8, 0.5).sum() == pytest.approx(one_way + 2 * gain, abs=1e-3)


@both_sizes
@pytest.mark.parametrize("severity", SEVERITIES)
def test_defocus_is_the_sum_over_the_disk(made_for, severity):
    image = sample_images(1, side=40)[0]
    kernel = disk_kernel(*PUBLISHED[made_for]["defocus_blur"][severity - 1])
    direct = np.stack([ndimage.correlate(image[..., c] / 255, kernel, mode="mirror") for c in range(3)], axis=-1)
    expected = np.floor(np.clip(direct, 0, 1) * 255 + 1e-6)
    np.testing.assert_array_equal(corrupt(image, "defocus_blur", severity, made_for=made_for), expected)


@pytest.mark.parametrize(("reach", "size"), [(1, (9, 12)), (2, (17, 10)), (4, (20, 20))])
def test_glass_takes_pixels_one_after_the_other(reach, size):
    """Against the plain loop, last pixel first, each taking the present value of another."""
    shifts = np.random.default_rng(reach).integers(-reach, reach, size=(size[0] - 2 * reach, size[1] - 2 * reach, 2))
    values = np.arange(size[0] * size[1]).reshape(size)
    for row in range(size[0] - reach, reach, -1):
        for column in range(size[1] - reach, reach, -1):
            down, right = shifts[row - reach - 1, column - reach - 1]
            values[row, column] = values[row + down, column + right]
    np.testing.assert_array_equal(_shuffle_sources(size, shifts, reach), values.ravel())


@both_sizes
@pytest.mark.parametrize("severity", SEVERITIES)
def test_glass_is_blurred_shuffled_as_often_as_published_and_blurred_again(made_for, severity):
    sigma, reach, passes = PUBLISHED[made_for]["glass_blur"][severity - 1]
    glass = Corruption("glass_blur", severity, made_for=made_for)
    stream = glass._rng(b"key")

    def blurred(pixels):
        return np.floor(ndimage.gaussian_filter(pixels / 255, (sigma, sigma, 0), mode="nearest") * 255 + 1e-6)

    image = sample_images(1, side=24)[0]
    pixels = blurred(image)
    for _ in range(passes):
        shifts = stream.integers(-reach, reach, size=(24 - 2 * reach, 24 - 2 * reach, 2))
        pixels = pixels.reshape(-1, 3)[_shuffle_sources((24, 24), shifts, reach)].reshape(24, 24, 3)
    np.testing.assert_array_equal(glass(image, b"key"), blurred(pixels))


@both_sizes
def test_glass_leaves_flat_areas_flat(made_for):
    for severity in SEVERITIES:
        np.testing.assert_array_equal(corrupt(grey(77), "glass_blur", severity, made_for=made_for), grey(77))


def test_the_motion_kernel_is_half_a_gaussian_along_the_angle():
    weights, offsets = line_kernel(10, 3, angle=0)
    assert len(weights) == 21
    assert weights.sum() == pytest.approx(1)
    assert weights[3] / weights[0] == pytest.approx(math.exp(-0.5))
    np.testing.assert_array_equal(offsets, [(0, k) for k in range(21)])
    np.testing.assert_array_equal(line_kernel(2, 1, angle=-90)[1], [(-k, 0) for k in range(5)])
    # At 45 degrees a step is 0.707 pixels each way: 0, 0.71, 1.41, 2.12, 2.83.
    np.testing.assert_array_equal(line_kernel(2, 1, angle=45)[1], [(k, k) for k in (0, 1, 1, 2, 3)])


def test_motion_spreads_a_point_along_the_line_and_repeats_the_border():
    image = np.zeros((5, 9), np.uint8)
    image[2, 4] = 255
    weights, _ = line_kernel(2, 1.5, angle=0)
    blurred = directional_blur(image, radius=2, sigma=1.5, angle=0)
    np.testing.assert_array_equal(blurred[2], np.floor(255 * np.array([*weights[::-1], 0, 0, 0, 0]) + 0.5))
    assert blurred[[0, 1, 3, 4]].max() == 0
    edge = np.zeros((5, 9), np.uint8)
    edge[:, -1] = 200
    assert directional_blur(edge, radius=2, sigma=1.5, angle=0)[0, -1] == 200


@both_sizes
@pytest.mark.parametrize("severity", SEVERITIES)
def test_motion_goes_up_to_45_degrees_off_the_horizontal(made_for, severity):
    radius, sigma = PUBLISHED[made_for]["motion_blur"][severity - 1]
    motion = Corruption("motion_blur", severity, made_for=made_for)
    image = sample_images(1)[0]
    expected = directional_blur(image, radius=radius, sigma=sigma, angle=motion._rng(b"key").uniform(-45, 45))
    np.testing.assert_array_equal(motion(image, b"key"), expected)


@both_sizes
@pytest.mark.parametrize("kind", ["motion_blur", "zoom_blur", "elastic_transform", "pixelate"])
def test_a_constant_image_stays_constant(made_for, kind):
    for severity in SEVERITIES:
        np.testing.assert_array_equal(corrupt(grey(93), kind, severity, made_for=made_for), grey(93))


@pytest.mark.parametrize("factor", [1, 1.01, 1.3, 2.5, 4.5])
def test_the_zoom_is_scipys(factor):
    image = np.random.default_rng(0).random((33, 50, 3))
    kept = [math.ceil(side / factor) for side in (33, 50)]
    top, left = (33 - kept[0]) // 2, (50 - kept[1]) // 2
    zoomed = ndimage.zoom(image[top : top + kept[0], left : left + kept[1]], (factor, factor, 1), order=1)
    top, left = (zoomed.shape[0] - 33) // 2, (zoomed.shape[1] - 50) // 2
    np.testing.assert_allclose(clipped_zoom(image, factor), zoomed[top : top + 33, left : left + 50], atol=1e-12)


# ---- digital


@both_sizes
@pytest.mark.parametrize("severity", SEVERITIES)
def test_contrast_on_two_levels(made_for, severity):
    image = grey(40, 8)
    image[:, :4] = 200
    (factor,) = PUBLISHED[made_for]["contrast"][severity - 1]
    result = corrupt(image, "contrast", severity, made_for=made_for)
    assert set(result[:, :4].ravel().tolist()) == {int(120 + factor * 80 + 1e-6)}
    assert set(result[:, 4:].ravel().tolist()) == {int(120 - factor * 80 + 1e-6)}


@both_sizes
@pytest.mark.parametrize("severity", SEVERITIES)
def test_pixelate_and_jpeg_are_pillows_own(made_for, severity):
    image = Image.fromarray(sample_images(1)[0][:90])
    (scale,) = PUBLISHED[made_for]["pixelate"][severity - 1]
    small = image.resize((int(96 * scale), int(90 * scale)), Image.Resampling.BOX)
    assert corrupt(image, "pixelate", severity, made_for=made_for) == small.resize((96, 90), Image.Resampling.BOX)
    with io.BytesIO() as file:
        image.save(file, "JPEG", quality=PUBLISHED[made_for]["jpeg_compression"][severity - 1][0])
        np.testing.assert_array_equal(corrupt(image, "jpeg_compression", severity, made_for=made_for), Image.open(file))


def test_three_points_carry_the_image_along():
    image = np.random.default_rng(0).random((9, 9, 3))
    points = np.array([[0.0, 0.0], [0.0, 8.0], [8.0, 0.0]])
    turned = np.array([[8.0, 0.0], [0.0, 0.0], [8.0, 8.0]])  # a quarter turn to the left
    np.testing.assert_allclose(affine_from_points(image, points, turned), np.rot90(image), atol=1e-9)


def test_displacements_say_where_a_pixel_comes_from():
    image = np.random.default_rng(0).random((6, 7, 3))
    field = np.zeros((6, 7, 2))
    field[..., 1] = 1
    moved = displace(image, field)
    np.testing.assert_allclose(moved[:, :-1], image[:, 1:])
    np.testing.assert_allclose(moved[:, -1], image[:, -1])  # reflected at the rim of the last pixel


@both_sizes
@pytest.mark.parametrize("severity", SEVERITIES)
def test_elastic_is_three_points_moved_and_then_a_smooth_field(made_for, severity):
    distance, sigma, jitter = PUBLISHED[made_for]["elastic_transform"][severity - 1]
    elastic = Corruption("elastic_transform", severity, made_for=made_for)
    stream = elastic._rng(b"key")
    image = sample_images(1)[0][:, :80]
    # A third of the shorter side, 80 // 3, around the middle, (48, 40).
    corners = np.array([(74.0, 66.0), (22.0, 66.0), (22.0, 14.0)])
    moved = corners + stream.uniform(-jitter, jitter, size=(3, 2))
    forward = np.linalg.solve(np.c_[corners, np.ones(3)], moved)
    rows, columns = np.mgrid[:96, :80]
    came_from = (np.stack([rows.ravel(), columns.ravel()], axis=1) - forward[2]) @ np.linalg.inv(forward[:2])
    noise = stream.uniform(-1, 1, size=(96, 80, 2))
    down, right = (
        distance * ndimage.gaussian_filter(noise[..., axis], sigma, mode="reflect", truncate=3) for axis in (0, 1)
    )
    expected = []
    for channel in range(3):
        tilted = ndimage.map_coordinates(image[..., channel] / 255, came_from.T, order=1, mode="mirror")
        field = [rows + down, columns + right]
        expected.append(ndimage.map_coordinates(tilted.reshape(96, 80), field, order=1, mode="reflect") * 255)
    assert np.abs(elastic(image, b"key") - np.stack(expected, axis=-1)).max() < 1.001


@both_sizes
def test_elastic_moves_pixels_and_invents_none(made_for):
    image = sample_images(1)[0]
    for severity in SEVERITIES:
        result = corrupt(image, "elastic_transform", severity, made_for=made_for)
        assert image.min() <= result.min() <= result.max() <= image.max()
