"""The fifteen kinds of corruption."""

from __future__ import annotations

import hashlib
import io
import math
from functools import lru_cache
from pathlib import Path

import numpy as np

from zeroshift.data.corruptions.operations import (
    LEVELS,
    blur_along,
    clipped_zoom,
    displace,
    ice,
    move_points,
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


def gaussian_noise(image: np.ndarray, rng: np.random.Generator, *, sigma: float) -> np.ndarray:
    """Normal noise of standard deviation `sigma`, as in poor light; 1 is the range from black to white."""
    return to_levels(to_unit(image) + rng.normal(scale=sigma, size=image.shape))


def shot_noise(image: np.ndarray, rng: np.random.Generator, *, photons: float) -> np.ndarray:
    """Poisson noise of light that comes in quanta, `photons` of them for white on average."""
    return to_levels(rng.poisson(to_unit(image) * photons) / photons)


def impulse_noise(image: np.ndarray, rng: np.random.Generator, *, amount: float) -> np.ndarray:
    """Salt and pepper: a share `amount` of the values becomes black or white, either as likely."""
    hit = rng.random(image.shape) < amount
    salt = rng.random(image.shape) < 0.5
    return np.where(hit, np.where(salt, LEVELS, 0), image).astype(np.uint8)


SMALL_DISK = 8
"""Disks up to this radius lie in a square of this half-width and are smoothed over 3 x 3 pixels; larger ones fill
their square and are smoothed over 5 x 5. From the released code."""

MOTION_ANGLES = (-45, 45)
"""Degrees between which the direction of a motion is drawn."""


def disk_kernel(radius: float, smoothing: float) -> np.ndarray:
    """A disk of equal weights, its rim softened by a Gaussian of standard deviation `smoothing`.

    The Gaussian mirrors the disk at the edge of its square, as the released code does. A disk that reaches the edge
    (radius 8 and 10, ImageNet-C's severities 4 and 5) so gains one percent of weight: those images come out a little
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
    """The image of a lens out of focus: each point becomes a disk. `rng` is not used."""
    kernel = disk_kernel(radius, smoothing)
    margin = kernel.shape[0] // 2
    padded = np.pad(to_unit(image), [(margin, margin), (margin, margin), (0, 0)], mode="reflect")
    # By Fourier transform, several times as fast as a sum over the disk; what wraps around falls into the margin.
    size = padded.shape[:2]
    spectrum = np.fft.rfft2(padded, axes=(0, 1)) * np.fft.rfft2(kernel, size)[..., None]
    return to_levels(np.fft.irfft2(spectrum, size, axes=(0, 1))[2 * margin :, 2 * margin :])


def glass_blur(image: np.ndarray, rng: np.random.Generator, *, sigma: float, reach: int, passes: int) -> np.ndarray:
    """The image behind frosted glass: blurred, each pixel replaced by one up to `reach` away, blurred again.

    The paper speaks of swapping two pixels; the code that made ImageNet-C copies one over the other, because the two
    sides of its swap share memory. Results compare with ImageNet-C only if this is kept, so it is.
    """
    from scipy.ndimage import gaussian_filter

    def blurred(pixels: np.ndarray) -> np.ndarray:
        return to_levels(gaussian_filter(to_unit(pixels), (sigma, sigma, 0), mode="nearest"))

    pixels = blurred(image)
    height, width = pixels.shape[:2]
    rows, columns = height - 2 * reach, width - 2 * reach
    for _ in range(passes):
        shifts = rng.integers(-reach, reach, size=(rows, columns, 2))
        pixels = pixels.reshape(-1, 3)[_sources((height, width), shifts, reach)].reshape(pixels.shape)
    return blurred(pixels)


def _sources(size: tuple[int, int], shifts: np.ndarray, reach: int) -> np.ndarray:
    """The pixel whose value each pixel (H * W, row by row) ends with, when one after the other takes that of another.

    Pixels `reach` + 1 to size - `reach` of each side take part, the last first, row by row: what a pixel takes from one
    further on, that one has taken from elsewhere before. Such chains are followed to their ends all at once.
    """
    height, width = size
    inner = np.s_[reach + 1 : height - reach + 1, reach + 1 : width - reach + 1]
    steps = np.zeros(size, dtype=np.intp)
    steps[inner] = shifts[..., 0] * width + shifts[..., 1]
    replaced = np.zeros(size, dtype=bool)
    replaced[inner] = True
    own = np.arange(height * width)
    taken = own + steps.ravel()
    # A link leads to the pixel taken from if that one had been replaced before; else the chain ends here.
    link = np.where((taken > own) & replaced.ravel()[taken], taken, own)
    while not np.array_equal(further := link[link], link):
        link = further
    return taken[link]


def motion_blur(image: np.ndarray, rng: np.random.Generator, *, radius: int, sigma: float) -> np.ndarray:
    """The image of a camera that moved, in a random direction up to 45 degrees off the horizontal."""
    return blur_along(image, radius=radius, sigma=sigma, angle=rng.uniform(*MOTION_ANGLES))


def zoom_blur(image: np.ndarray, rng: np.random.Generator, *, step: float, zooms: int) -> np.ndarray:
    """The image of a camera that came nearer: the mean of the image and `zooms` enlargements. `rng` is not used."""
    unit = to_unit(image)
    # The first enlargement is by 1, so the image itself counts twice; so it does in the released code.
    total = unit + sum(clipped_zoom(unit, 1 + step * k) for k in range(zooms))
    return to_levels(total / (zooms + 1))


LUMA = (0.299, 0.587, 0.114)
"""How bright red, green and blue are to the eye (ITU-R BT.601)."""
WHITENING = (1.5, 0.5)
"""A snowy day's grey: this times the grey of the image, plus this. From the released code."""
SNOWFALL_ANGLES = (-135, -45)
"""Degrees between which the direction of the snowfall is drawn."""


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
    """Falling snow in front of an image that is whitened itself.

    The brightest spots of normal noise (`mean`, `spread`), enlarged by `zoom`, are the flakes; what is below
    `threshold` is not. They are blurred along their fall and laid over the image twice, once turned by 180 degrees. A
    share `keep` of the image stays as it was, the rest is made brighter and greyer.
    """
    flakes = clipped_zoom(rng.normal(mean, spread, size=image.shape[:2]), zoom)
    flakes[flakes < threshold] = 0
    angle = rng.uniform(*SNOWFALL_ANGLES)
    fallen = to_unit(blur_along(to_levels(flakes), radius=radius, sigma=sigma, angle=angle))[..., None]
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
    """Ice crystals on a window pane, added to a dimmed image.

    ImageNet-C cuts the frost from photographs that are not ours to ship. Here it is drawn (`crystals.ice`) and blended
    with the published weights, so numbers on frost are near those of ImageNet-C but not the same. With the photographs
    in the folder `frost_images` it is the published procedure. Of either one pixel in `every` is taken along each side,
    so that small images show as much of the pane as large ones.
    """
    height, width = image.shape[:2]
    if frost_images is None:
        pane = thinned(ice(height * every, width * every, rng), every)
    else:
        pane = crop_frost(frost_images, height, width, rng, every)
    return to_levels((image_weight * image + frost_weight * pane) / LEVELS)


def fog(image: np.ndarray, rng: np.random.Generator, *, thickness: float, decay: float, map_side: int) -> np.ndarray:
    """Clouds of `thickness` before the image, all scaled so that the brightest value stays what it was.

    The clouds are a corner of a map of `map_side` x `map_side` pixels, as published; of the next power of two for
    larger images.
    """
    height, width = image.shape[:2]
    side = max(map_side, 2 ** math.ceil(math.log2(max(height, width))))
    clouds = plasma(side, decay, rng)[:height, :width, None]
    unit = to_unit(image)
    brightest = unit.max()
    return to_levels((unit + thickness * clouds) * brightest / (brightest + thickness))


def brightness(image: np.ndarray, rng: np.random.Generator, *, amount: float) -> np.ndarray:
    """Brighter by `amount` of the range: the value of HSV, at most 1; hue and saturation stay. `rng` is not used."""
    unit = to_unit(image)
    value = unit.max(axis=2, keepdims=True)
    raised = np.minimum(value + amount, 1)
    # At one hue and saturation all channels are in proportion to the value; black has neither and turns grey.
    return to_levels(np.where(value > 0, unit * (raised / np.where(value > 0, value, 1)), raised))


FIELD_REACH = 3.0
"""Standard deviations after which the Gaussian that smooths the displacements is cut off."""


def contrast(image: np.ndarray, rng: np.random.Generator, *, factor: float) -> np.ndarray:
    """Each channel drawn towards its mean over the image, to `factor` of its distance. `rng` is not used."""
    unit = to_unit(image)
    mean = unit.mean(axis=(0, 1), keepdims=True)
    return to_levels(mean + factor * (unit - mean))


def elastic_transform(
    image: np.ndarray, rng: np.random.Generator, *, distance: float, sigma: float, jitter: float
) -> np.ndarray:
    """Bent like rubber: an affine map that moves three points by up to `jitter`, then displacements pixel by pixel.

    These are uniform noise up to `distance`, smoothed by a Gaussian of standard deviation `sigma`. As published for
    ImageNet-C, severities 1 and 2 tilt the whole image and 3 to 5 ripple it: damage by squared error is largest at
    severity 2.
    """
    from scipy.ndimage import gaussian_filter

    size = np.array(image.shape[:2])
    centre, arm = size // 2, min(size) // 3
    corners = centre + arm * np.array([(1, 1), (-1, 1), (-1, -1)])
    moved = move_points(to_unit(image), corners, corners + rng.uniform(-jitter, jitter, size=corners.shape))
    noise = rng.uniform(-1, 1, size=(*size, 2))
    field = distance * gaussian_filter(noise, (sigma, sigma, 0), mode="reflect", truncate=FIELD_REACH)
    return to_levels(displace(moved, field))


def pixelate(image: np.ndarray, rng: np.random.Generator, *, scale: float) -> np.ndarray:
    """Shrunk to `scale` of its sides and enlarged again, by Pillow's box filter. `rng` is not used."""
    Image = pillow()
    height, width = image.shape[:2]
    small = Image.fromarray(image).resize((int(width * scale), int(height * scale)), Image.Resampling.BOX)
    return np.array(small.resize((width, height), Image.Resampling.BOX))


def jpeg_compression(image: np.ndarray, rng: np.random.Generator, *, quality: int) -> np.ndarray:
    """Saved by Pillow as a JPEG of this quality, and read again. `rng` is not used."""
    Image = pillow()
    with io.BytesIO() as file:
        Image.fromarray(image).save(file, "JPEG", quality=quality)
        with Image.open(file) as opened:
            return np.array(opened)


FROST_IMAGES = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")
"""Those that are drawn from. The released code comes with a sixth, frost6.jpg, but picks among the first five."""


def check_frost_images(folder: Path) -> None:
    """Refuse a folder that lacks one of the photographs."""
    missing = [name for name in FROST_IMAGES if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"frost_images must be a folder with {', '.join(FROST_IMAGES)}; {folder} has no {', '.join(missing)}. "
            "Fix: take them from the code released with ImageNet-C, or leave frost_images out to have frost drawn."
        )


def crop_frost(folder: Path, height: int, width: int, rng: np.random.Generator, every: int = 1) -> np.ndarray:
    """A piece of one of the photographs, both at random, (height, width, 3); the photograph `thinned` before."""
    path = folder / FROST_IMAGES[rng.integers(len(FROST_IMAGES))]
    photograph = thinned(_photograph(path), every)
    room = photograph.shape[0] - height, photograph.shape[1] - width
    if min(room) < 0:
        thin = f" when one in {every} is taken" if every > 1 else ""
        raise ValueError(
            f"the image has {width} x {height} pixels and {path.name} only {photograph.shape[1]} x "
            f"{photograph.shape[0]}{thin}, so no frost can be cut from it. "
            "Fix: shrink the image, or leave frost_images out."
        )
    top, left = (int(rng.integers(max(free, 1))) for free in room)
    return photograph[top : top + height, left : left + width]


def thinned(pane: np.ndarray, every: int) -> np.ndarray:
    """The middle one of each `every` pixels along both sides.

    >>> thinned(np.arange(144).reshape(12, 12), 5).tolist()
    [[26, 31], [86, 91]]
    """
    return pane[every // 2 :: every, every // 2 :: every]


@lru_cache(maxsize=len(FROST_IMAGES))
def _photograph(path: Path) -> np.ndarray:
    """Kept, because each is asked for thousands of times."""
    return np.asarray(decode(path.read_bytes(), path.name).image)


def frost_digest(folder: Path) -> str:
    """Of the files' content: frost cut from other photographs is another corruption."""
    read = hashlib.sha256()
    for name in FROST_IMAGES:
        read.update(hashlib.sha256((folder / name).read_bytes()).digest())
    return read.hexdigest()[:16]
