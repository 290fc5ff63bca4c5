"""The photographs of frost that ImageNet-C was made with, for those who have them."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

import numpy as np

from zeroshift.data.decoding import decode

__all__ = ["PHOTOGRAPHS", "check_folder", "crop", "digest", "thinned"]

PHOTOGRAPHS = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")
"""Those that are drawn from. The released code comes with a sixth, frost6.jpg, but picks among the first five."""


def check_folder(folder: Path) -> None:
    """Refuse a folder that lacks one of the photographs."""
    missing = [name for name in PHOTOGRAPHS if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"frost_images must be a folder with {', '.join(PHOTOGRAPHS)}; {folder} has no {', '.join(missing)}. "
            "Fix: take them from the code released with ImageNet-C, or leave frost_images out to have frost drawn."
        )


def crop(folder: Path, height: int, width: int, rng: np.random.Generator, every: int = 1) -> np.ndarray:
    """A piece of one of the photographs, both at random, (height, width, 3); the photograph `thinned` before."""
    path = folder / PHOTOGRAPHS[rng.integers(len(PHOTOGRAPHS))]
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


@lru_cache(maxsize=len(PHOTOGRAPHS))
def _photograph(path: Path) -> np.ndarray:
    """Kept, because each is asked for thousands of times."""
    return np.asarray(decode(path.read_bytes(), path.name).image)


def digest(folder: Path) -> str:
    """Of the files' content: frost cut from other photographs is another corruption."""
    read = hashlib.sha256()
    for name in PHOTOGRAPHS:
        read.update(hashlib.sha256((folder / name).read_bytes()).digest())
    return read.hexdigest()[:16]
