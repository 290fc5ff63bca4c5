"""A model's own image processor, taken over: as resize, crop and table where that is all, as itself where not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from zeroshift.encode.preprocessing import RESAMPLING, PixelPreprocessing, Pixels, Preprocessing

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["OwnProcessor", "preprocessing_of"]

PROBES = ((61, 97), (97, 61), (300, 20))
"""Width and height of the pictures both ways are compared on: upright, lying, and longer than any crop."""


def preprocessing_of(processor: Any, *, side: int) -> Preprocessing:
    """What `processor` does, as `PixelPreprocessing` if that gives the very same values on pictures of several shapes.

    `side` is the picture's height and width where the processor does not say (it then makes patches of any number).
    """
    simple = _as_pixels(processor)
    if simple is not None and all(_agree(simple, processor, size) for size in PROBES):
        return simple
    return OwnProcessor(processor, side)


class OwnProcessor(Preprocessing):
    """The model's own processor, called in the worker processes; slower to start, since they load transformers."""

    def __init__(self, processor: Any, side: int) -> None:
        self.processor = processor
        self.size = (side, side)

    def __call__(self, image: Image) -> Pixels:
        return self._made(image)

    def ready(self, image: Image) -> Pixels:
        # One that scales to more than it then crops would take the picture's middle again. One that does not crop finds
        # the picture of the right size already.
        cropping = getattr(self.processor, "do_center_crop", False)
        return self._made(image, **({"do_resize": False, "do_center_crop": False} if cropping else {}))

    def _made(self, image: Image, **settings: Any) -> Pixels:
        made = self.processor(images=image, return_tensors="np", **settings)
        return tuple(np.asarray(made[name][0]) for name in self.processor.model_input_names if name in made)

    def describe(self) -> dict[str, Any]:
        settings = {name: value for name, value in self.processor.to_dict().items() if not name.startswith("_")}
        return {"processor": json.loads(json.dumps(settings, default=str))}


def _as_pixels(processor: Any) -> PixelPreprocessing | None:
    """The settings read as resize, crop and table; None where they say something else."""
    names = {number: name for name, number in RESAMPLING.items()}
    resample = names.get(int(getattr(processor, "resample", None) or 0))
    resize = _resize(processor)
    crop = None
    if getattr(processor, "do_center_crop", False):
        crop = (processor.crop_size["height"], processor.crop_size["width"])
    table = _table(processor)
    if resample is None or table is None or (crop is None and (resize is None or resize[0] == "shorter")):
        return None
    return PixelPreprocessing(resize, crop, resample, table)


def _resize(processor: Any) -> tuple[Any, ...] | None:
    size = getattr(processor, "size", None)
    if not getattr(processor, "do_resize", False) or not size:
        return None
    if size.get("shortest_edge"):
        return ("shorter", int(size["shortest_edge"]))
    return ("exact", int(size["height"]), int(size["width"]))


def _table(processor: Any) -> np.ndarray | None:
    """What the processor makes of each of the 256 values, asked of itself: whatever its arithmetic, to the last bit."""
    from PIL import Image

    ramp = np.repeat(np.arange(256, dtype=np.uint8).reshape(16, 16, 1), 3, axis=2)
    try:
        made = processor(images=Image.fromarray(ramp), do_resize=False, do_center_crop=False, return_tensors="np")
        values = np.asarray(made["pixel_values"][0], np.float32)
    except (TypeError, ValueError, KeyError):
        return None
    return values.reshape(3, 256) if values.shape == (3, 16, 16) else None


def _agree(simple: PixelPreprocessing, processor: Any, size: tuple[int, int]) -> bool:
    from PIL import Image

    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    (pixels,) = simple(image)
    own = np.asarray(processor(images=image, return_tensors="np")["pixel_values"][0])
    return own.shape == pixels.shape and bool(np.array_equal(simple.values(pixels), own.astype(np.float32)))
