"""What image states look like before the shift: made from images, and checked where they are given."""

from __future__ import annotations

import math
from typing import Any

from zeroshift.arrays import Array, Home, check_matrix, is_array
from zeroshift.low_entropy import entropy
from zeroshift.methods.parts.batch_statistics import Moments, moments
from zeroshift.methods.parts.towers import PromptedVision
from zeroshift.parameters import Number
from zeroshift.zero_shot import logits

__all__ = ["checked_source", "source_statistics"]

FIX = "Fix: source=source_statistics(vision, images, prototypes)"


def source_statistics(
    vision: PromptedVision,
    images: Array,
    prototypes: Array,
    *,
    logit_scale: float = 100.0,
    max_entropy: float | None = None,
    limit: int = 300,
    batch_size: int = 64,
) -> Moments:
    """Mean and standard deviation of the states of images from before the shift, for `DPCore`'s `source`.

    Parameters
    ----------
    vision : the image side, without a prompt.
    images : (N, ...), as `vision` takes them. Labels are not needed.
    prototypes, logit_scale : the classifier by whose certainty images are kept.
    max_entropy : images are kept whose prediction has a lower entropy; log(K) / 2 - 1 unless given, as the authors have
        it for ImageNet's K = 1000. That is below 0 for fewer than eight classes.
    limit : the first so many of those are used.
    batch_size : images looked at together.
    """
    check_matrix("prototypes", prototypes, columns=vision.dimension)
    vision.check("images", images)
    limit = int(Number(2, integer=True).check("limit", limit))
    batch_size = int(Number(1, integer=True).check("batch_size", batch_size))
    bound = math.log(prototypes.shape[0]) / 2 - 1 if max_entropy is None else float(max_entropy)
    home = Home.of(prototypes)
    kept, found = [], 0
    with home.computing():
        wide = home.bring(prototypes, home.xp.float64)
        for start in range(0, images.shape[0], batch_size):
            seen = vision.see(images[start : start + batch_size], None)
            features, states = (home.bring(array, home.xp.float64) for array in seen)
            kept.append(states[entropy(logits(features, wide, logit_scale)) < bound])
            found += kept[-1].shape[0]
            if found >= limit:
                break
        if found < 2:
            raise ValueError(
                f"{found} of {images.shape[0]} images have a prediction of entropy below max_entropy = {bound:.3g}; "
                "at least two are needed. Fix: more images, or a larger max_entropy, log(K) to keep nearly all."
            )
        return moments(home.xp.concat(kept)[:limit])


def checked_source(source: Any, vision: PromptedVision, home: Home) -> tuple[Array, Array]:
    """A pair (mean, std) as it was given, copied to `home` in float64; refused where it does not fit `vision`."""
    if not isinstance(source, (tuple, list)) or len(source) != 2:
        raise TypeError(f"source must be a pair (mean, std); got {type(source).__name__}. {FIX}.")
    parts = []
    for name, given in zip(("mean", "std"), source, strict=True):
        if not is_array(given) or tuple(given.shape) != (vision.width,):
            found = f"shape {tuple(given.shape)}" if is_array(given) else type(given).__name__
            raise ValueError(
                f"source's {name} must be an array of shape ({vision.width},), as a state is; got {found}. {FIX}."
            )
        with home.computing():
            parts.append(home.copy(home.bring(given, home.xp.float64)))
        if not bool(home.xp.all(home.xp.isfinite(parts[-1]))):
            raise ValueError(f"source's {name} holds NaN or infinity. {FIX}.")
    if bool((parts[1] < 0).any()):
        raise ValueError(f"source's std holds a negative number, which no standard deviation is. {FIX}.")
    return parts[0], parts[1]
