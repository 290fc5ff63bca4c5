"""Weather: snow, frost, fog and bright light."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from zeroshift.data.corruptions.corruption import crop, thinned
from zeroshift.data.corruptions.operations import LEVELS, blur_along, clipped_zoom, ice, plasma, to_levels, to_unit

__all__ = ["brightness", "fog", "frost", "snow"]

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
        pane = crop(frost_images, height, width, rng, every)
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
