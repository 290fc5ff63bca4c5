"""The fifteen kinds of corruption, as functions of an 8-bit image, a random generator and the kind's constants."""

from __future__ import annotations

import hashlib
import io
import math
from functools import lru_cache
from pathlib import Path

import numpy as np

from zeroshift.data.corruptions.operations import (
    LEVELS,
    affine_from_points,
    clipped_zoom,
    directional_blur,
    displace,
    draw_frost,
    plasma,
    to_levels,
    to_unit,
)
from zeroshift.data.images import decode, pillow

__all__ = [
    "brightness",
    "contrast",
    "defocus_blur",
    "disk_kernel",
    "elastic_transform",
    "fog",
    "frost",
    "gaussian_noise",
    "glass_blur",
    "impulse_noise",
    "jpeg_compression",
    "motion_blur",
    "pixelate",
    "shot_noise",
    "snow",
    "zoom_blur",
]


# Noise


def gaussian_noise(image: np.ndarray, rng: np.random.Generator, *, sigma: float) -> np.ndarray:
    """Normal noise with standard deviation `sigma`, where 1 is the range from black to white."""
    return to_levels(to_unit(image) + rng.normal(scale=sigma, size=image.shape))


def shot_noise(image: np.ndarray, rng: np.random.Generator, *, photons: float) -> np.ndarray:
    """Poisson noise: a white pixel has `photons` photons on average."""
    return to_levels(rng.poisson(to_unit(image) * photons) / photons)


def impulse_noise(image: np.ndarray, rng: np.random.Generator, *, amount: float) -> np.ndarray:
    """Salt and pepper: a fraction `amount` of the values becomes black or white, with equal probability."""
    hit = rng.random(image.shape) < amount
    salt = rng.random(image.shape) < 0.5
    return np.where(hit, np.where(salt, LEVELS, 0), image).astype(np.uint8)


# Blur

SMALL_DISK = 8
"""Disks up to this radius have a kernel of this half-width and are smoothed over 3 x 3 pixels; larger disks fill their
kernel and are smoothed over 5 x 5. From the released code."""

MOTION_ANGLES = (-45, 45)
"""Range of the direction of motion, in degrees."""


def disk_kernel(radius: float, smoothing: float) -> np.ndarray:
    """A disk of equal weights, smoothed by a Gaussian with standard deviation `smoothing`.

    Like the released code, the Gaussian mirrors the disk at the edge of its kernel. A disk that reaches the edge
    (radius 8 and 10, ImageNet-C's severities 4 and 5) thereby gains one percent of weight, and images become slightly
    brighter.

    >>> [round(float(disk_kernel(radius, 0.5).sum()), 3) for radius in (3, 8, 10)]
    [1.0, 1.013, 1.011]
    """
    from scipy.ndimage import correlate1d

    half, reach = (SMALL_DISK, 1) if radius <= SMALL_DISK else (int(radius), 2)
    across = np.arange(-half, half + 1)
    disk = (across[:, None] ** 2 + across**2 <= radius**2).astype(float)
    disk /= disk.sum()
    gaussian = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * smoothing**2))
    gaussian /= gaussian.sum()
    for axis in (0, 1):
        disk = correlate1d(disk, gaussian, axis=axis, mode="mirror")
    return disk


def defocus_blur(image: np.ndarray, rng: np.random.Generator, *, radius: float, smoothing: float) -> np.ndarray:
    """Defocus: each point becomes a disk. `rng` is not used."""
    kernel = disk_kernel(radius, smoothing)
    margin = kernel.shape[0] // 2
    padded = np.pad(to_unit(image), [(margin, margin), (margin, margin), (0, 0)], mode="reflect")
    # The Fourier transform is several times faster than a sum over the disk; the margin absorbs the wrap-around.
    size = padded.shape[:2]
    spectrum = np.fft.rfft2(padded, axes=(0, 1)) * np.fft.rfft2(kernel, size)[..., None]
    return to_levels(np.fft.irfft2(spectrum, size, axes=(0, 1))[2 * margin :, 2 * margin :])


def glass_blur(image: np.ndarray, rng: np.random.Generator, *, sigma: float, reach: int, passes: int) -> np.ndarray:
    """Frosted glass: blurred, each pixel replaced by one up to `reach` away, then blurred again.

    The paper describes a swap of two pixels. The code that made ImageNet-C copies one over the other, because the two
    sides of its swap share memory. This does the same, so that results are comparable with ImageNet-C.
    """
    from scipy.ndimage import gaussian_filter

    def blurred(pixels: np.ndarray) -> np.ndarray:
        return to_levels(gaussian_filter(to_unit(pixels), (sigma, sigma, 0), mode="nearest"))

    pixels = blurred(image)
    height, width = pixels.shape[:2]
    rows, columns = height - 2 * reach, width - 2 * reach
    for _ in range(passes):
        shifts = rng.integers(-reach, reach, size=(rows, columns, 2))
        pixels = pixels.reshape(-1, 3)[_shuffle_sources((height, width), shifts, reach)].reshape(pixels.shape)
    return blurred(pixels)


def _shuffle_sources(size: tuple[int, int], shifts: np.ndarray, reach: int) -> np.ndarray:
    """The source of each pixel's final value, (H * W,) row by row, when pixels are replaced one after another.

    Pixels `reach` + 1 to size - `reach` of each side are replaced, the last first, row by row. A pixel that takes its
    value from a later pixel gets what that one was replaced with before. All such chains are followed in parallel.
    """
    height, width = size
    inner = np.s_[reach + 1 : height - reach + 1, reach + 1 : width - reach + 1]
    steps = np.zeros(size, dtype=np.intp)
    steps[inner] = shifts[..., 0] * width + shifts[..., 1]
    replaced = np.zeros(size, dtype=bool)
    replaced[inner] = True
    own = np.arange(height * width)
    taken = own + steps.ravel()
    # A link points to the source if that was replaced before; otherwise the chain ends here.
    link = np.where((taken > own) & replaced.ravel()[taken], taken, own)
    while not np.array_equal(further := link[link], link):
        link = further
    return taken[link]


def motion_blur(image: np.ndarray, rng: np.random.Generator, *, radius: int, sigma: float) -> np.ndarray:
    """Motion blur in a random direction up to 45 degrees from the horizontal."""
    return directional_blur(image, radius=radius, sigma=sigma, angle=rng.uniform(*MOTION_ANGLES))


def zoom_blur(image: np.ndarray, rng: np.random.Generator, *, step: float, zooms: int) -> np.ndarray:
    """Zoom blur: the mean of the image and `zooms` enlargements. `rng` is not used."""
    unit = to_unit(image)
    # The first enlargement is by 1, so the image counts twice, as in the released code.
    total = unit + sum(clipped_zoom(unit, 1 + step * k) for k in range(zooms))
    return to_levels(total / (zooms + 1))


# Weather

LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in the luminance (ITU-R BT.601)."""
WHITENING = (1.5, 0.5)
"""Factor and offset of the grey of a snowy day. From the released code."""
SNOWFALL_ANGLES = (-135, -45)
"""Range of the direction of the snowfall, in degrees."""


def snow(
    image: np.ndarray,
    rng: np.random.Generator,
    *,
    mean: float,
    spread: float,
    zoom: float,
    threshold: float,
    radius: int,
    sigma: float,
    keep: float,
) -> np.ndarray:
    """Falling snow in front of a whitened image.

    Flakes are the values above `threshold` of normal noise (`mean`, `spread`), enlarged by `zoom`. They are blurred
    along their fall and added to the image twice, once rotated by 180 degrees. The image itself is blended with a
    brighter, greyer version; `keep` is the weight of the original.
    """
    flakes = clipped_zoom(rng.normal(mean, spread, size=image.shape[:2]), zoom)
    flakes[flakes < threshold] = 0
    angle = rng.uniform(*SNOWFALL_ANGLES)
    fallen = to_unit(directional_blur(to_levels(flakes), radius=radius, sigma=sigma, angle=angle))[..., None]
    unit = to_unit(image)
    grey = (unit @ np.array(LUMA))[..., None]
    whitened = np.maximum(unit, WHITENING[0] * grey + WHITENING[1])
    return to_levels(keep * unit + (1 - keep) * whitened + fallen + fallen[::-1, ::-1])


def frost(
    image: np.ndarray,
    rng: np.random.Generator,
    *,
    image_weight: float,
    frost_weight: float,
    every: int,
    frost_images: Path | None = None,
) -> np.ndarray:
    """Frost on a window pane, added to a dimmed image.

    ImageNet-C crops frost from photographs that we may not distribute. Here it is drawn (`draw_frost`) and blended
    with the published weights, so results on frost are close to those of ImageNet-C but not equal. With the photographs
    in the folder `frost_images` it is the published procedure. Either is subsampled to one pixel in `every` per side,
    so that small images show as much of the pane as large ones.
    """
    height, width = image.shape[:2]
    if frost_images is None:
        pane = subsample(draw_frost(height * every, width * every, rng), every)
    else:
        pane = crop_frost(frost_images, height, width, rng, every)
    return to_levels((image_weight * image + frost_weight * pane) / LEVELS)


def fog(image: np.ndarray, rng: np.random.Generator, *, thickness: float, decay: float, map_side: int) -> np.ndarray:
    """Clouds of `thickness` in front of the image, scaled so that the brightest value does not change.

    The clouds are the corner of a map of `map_side` x `map_side` pixels, or of the next power of two for larger images.
    """
    height, width = image.shape[:2]
    side = max(map_side, 2 ** math.ceil(math.log2(max(height, width))))
    clouds = plasma(side, decay, rng)[:height, :width, None]
    unit = to_unit(image)
    brightest = unit.max()
    return to_levels((unit + thickness * clouds) * brightest / (brightest + thickness))


def brightness(image: np.ndarray, rng: np.random.Generator, *, amount: float) -> np.ndarray:
    """Add `amount` to the value of HSV, clipped at 1; hue and saturation do not change. `rng` is not used."""
    unit = to_unit(image)
    value = unit.max(axis=2, keepdims=True)
    raised = np.minimum(value + amount, 1)
    # For constant hue and saturation, all channels are proportional to the value; black becomes grey.
    return to_levels(np.where(value > 0, unit * (raised / np.where(value > 0, value, 1)), raised))


# Digital

FIELD_REACH = 3.0
"""Truncation of the Gaussian that smooths the displacements, in standard deviations."""


def contrast(image: np.ndarray, rng: np.random.Generator, *, factor: float) -> np.ndarray:
    """Scale the distance of each channel from its mean by `factor`. `rng` is not used."""
    unit = to_unit(image)
    mean = unit.mean(axis=(0, 1), keepdims=True)
    return to_levels(mean + factor * (unit - mean))


def elastic_transform(
    image: np.ndarray, rng: np.random.Generator, *, distance: float, sigma: float, jitter: float
) -> np.ndarray:
    """An affine map that moves three points by up to `jitter`, then a displacement of each pixel.

    Displacements are uniform noise up to `distance`, smoothed by a Gaussian with standard deviation `sigma`. With
    ImageNet-C's constants, severities 1 and 2 tilt the whole image and 3 to 5 ripple it; the squared error is largest
    at severity 2.
    """
    from scipy.ndimage import gaussian_filter

    size = np.array(image.shape[:2])
    centre, arm = size // 2, min(size) // 3
    corners = centre + arm * np.array([(1, 1), (-1, 1), (-1, -1)])
    moved = affine_from_points(to_unit(image), corners, corners + rng.uniform(-jitter, jitter, size=corners.shape))
    noise = rng.uniform(-1, 1, size=(*size, 2))
    field = distance * gaussian_filter(noise, (sigma, sigma, 0), mode="reflect", truncate=FIELD_REACH)
    return to_levels(displace(moved, field))


def pixelate(image: np.ndarray, rng: np.random.Generator, *, scale: float) -> np.ndarray:
    """Shrink to `scale` of each side and enlarge again, with Pillow's box filter. `rng` is not used."""
    Image = pillow()
    height, width = image.shape[:2]
    small = Image.fromarray(image).resize((int(width * scale), int(height * scale)), Image.Resampling.BOX)
    return np.array(small.resize((width, height), Image.Resampling.BOX))


def jpeg_compression(image: np.ndarray, rng: np.random.Generator, *, quality: int) -> np.ndarray:
    """Save with Pillow as a JPEG of this quality, and read again. `rng` is not used."""
    Image = pillow()
    with io.BytesIO() as file:
        Image.fromarray(image).save(file, "JPEG", quality=quality)
        with Image.open(file) as opened:
            return np.array(opened)


# Photographs of frost, for users who have ImageNet-C's

FROST_IMAGES = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")
"""The photographs that are used. The released code contains a sixth, frost6.jpg, but picks among the first five."""


def check_frost_images(folder: Path) -> None:
    """Raise if the folder lacks one of the photographs."""
    missing = [name for name in FROST_IMAGES if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"frost_images must be a folder with {', '.join(FROST_IMAGES)}; {folder} has no {', '.join(missing)}. "
            "Fix: get them from the code released with ImageNet-C, or omit frost_images to draw frost."
        )


def crop_frost(folder: Path, height: int, width: int, rng: np.random.Generator, every: int = 1) -> np.ndarray:
    """A random crop, (height, width, 3), of a random photograph, subsampled first."""
    path = folder / FROST_IMAGES[rng.integers(len(FROST_IMAGES))]
    photograph = subsample(_read_frost_image(path), every)
    margins = photograph.shape[0] - height, photograph.shape[1] - width
    if min(margins) < 0:
        subsampled = f" with one pixel in {every}" if every > 1 else ""
        raise ValueError(
            f"the image has {width} x {height} pixels and {path.name} only {photograph.shape[1]} x "
            f"{photograph.shape[0]}{subsampled}, so frost cannot be cropped from it. "
            "Fix: shrink the image, or omit frost_images."
        )
    top, left = (int(rng.integers(max(free, 1))) for free in margins)
    return photograph[top : top + height, left : left + width]


def subsample(pane: np.ndarray, every: int) -> np.ndarray:
    """One pixel, the middle one, of each `every` along both sides.

    >>> subsample(np.arange(144).reshape(12, 12), 5).tolist()
    [[26, 31], [86, 91]]
    """
    return pane[every // 2 :: every, every // 2 :: every]


@lru_cache(maxsize=len(FROST_IMAGES))
def _read_frost_image(path: Path) -> np.ndarray:
    """Cached, because each is needed thousands of times."""
    return np.asarray(decode(path.read_bytes(), path.name).image)


def frost_digest(folder: Path) -> str:
    """Digest of the photographs: frost from other photographs is another corruption."""
    digest = hashlib.sha256()
    for name in FROST_IMAGES:
        digest.update(hashlib.sha256((folder / name).read_bytes()).digest())
    return digest.hexdigest()[:16]
