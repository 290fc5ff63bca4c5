"""Ice crystals on a window pane, drawn: what frost is made of where its photographs are not at hand.

Stems start anywhere and grow straight; twigs leave them on both sides at 60 degrees, as ice does, and twiglets leave
the twigs. Clouds make some of the pane whiter than the rest.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from zeroshift.data.corruptions.plasma import plasma

__all__ = ["ice"]

PIXELS_PER_STEM = 500
"""A 224 x 224 image shows a hundred stems."""
STEM_LENGTHS = (25.0, 90.0)
"""Pixels."""
BRANCHING = np.pi / 3
"""Ice is hexagonal: its branches part at 60 degrees."""
SPACINGS = (3.0, 3.0)
"""Pixels between twigs on a stem, and between twiglets on a twig."""
BRANCH_LENGTHS = (0.2, 0.5)
"""Of what is left of the parent beyond the fork, so that crystals taper like ferns."""
BRIGHTNESS = (1.0, 0.6, 0.3)
"""Of stems, twigs and twiglets."""
SAMPLES_PER_PIXEL = 2
SOFTNESS = 0.6
"""Standard deviation of the strokes' edge, in pixels."""
CLOUD_DECAY = 1.5
CLOUD_WEIGHT = 0.7
"""How bright the whitest cloud is without a crystal on it."""
TINT = (0.86, 0.94, 1.0)
"""Ice in shade is a little blue."""


class Strokes(NamedTuple):
    """Straight strokes: where each starts, (n, 2) as row and column, its direction in radians and its length."""

    start: np.ndarray
    angle: np.ndarray
    length: np.ndarray


def ice(height: int, width: int, rng: np.random.Generator) -> np.ndarray:
    """A pane of frost, (height, width, 3), float64 in [0, 255].

    >>> pane = ice(32, 48, np.random.default_rng(0))
    >>> pane.shape, bool(pane.min() >= 0), bool(pane.max() <= 255)
    ((32, 48, 3), True, True)
    """
    from scipy.ndimage import gaussian_filter

    # Stems may start outside, so that the border is as frosted as the middle.
    margin = STEM_LENGTHS[1] / 2
    area = (height + 2 * margin) * (width + 2 * margin)
    count = round(area / PIXELS_PER_STEM)
    strokes = Strokes(
        rng.uniform((-margin, -margin), (height + margin, width + margin), size=(count, 2)),
        rng.uniform(0, 2 * np.pi, size=count),
        rng.uniform(*STEM_LENGTHS, size=count),
    )
    drawn = np.zeros((height, width))
    _draw(drawn, strokes, BRIGHTNESS[0])
    for spacing, brightness in zip(SPACINGS, BRIGHTNESS[1:], strict=True):
        strokes = _branches(strokes, spacing, rng)
        _draw(drawn, strokes, brightness)
    needles = 1 - np.exp(-gaussian_filter(drawn, SOFTNESS))
    side = 2 ** int(np.ceil(np.log2(max(height, width))))
    clouds = CLOUD_WEIGHT * plasma(side, CLOUD_DECAY, rng)[:height, :width]
    # Screened, as two slides on one projector: crystals stay visible in white clouds and nothing passes 1.
    pane = 1 - (1 - needles) * (1 - clouds)
    return 255 * pane[..., None] * np.array(TINT)


def _branches(parents: Strokes, spacing: float, rng: np.random.Generator) -> Strokes:
    """Strokes that leave `parents` every `spacing` pixels, to either side in turn at random."""
    counts = (parents.length / spacing).astype(int)
    parent = np.repeat(np.arange(len(counts)), counts)
    rank = np.arange(len(parent)) - np.repeat(np.cumsum(counts) - counts, counts)
    along = (rank + rng.uniform(0, 1, size=len(parent))) * spacing
    angle = parents.angle[parent]
    side = rng.choice([-1, 1], size=len(parent))
    return Strokes(
        parents.start[parent] + along[:, None] * _direction(angle),
        angle + side * BRANCHING,
        (parents.length[parent] - along) * rng.uniform(*BRANCH_LENGTHS, size=len(parent)),
    )


def _draw(canvas: np.ndarray, strokes: Strokes, brightness: float) -> None:
    """Add strokes to `canvas`, each sample shared among the four pixels around it."""
    counts = np.ceil(strokes.length * SAMPLES_PER_PIXEL).astype(int)
    stroke = np.repeat(np.arange(len(counts)), counts)
    rank = np.arange(len(stroke)) - np.repeat(np.cumsum(counts) - counts, counts)
    points = strokes.start[stroke] + rank[:, None] / SAMPLES_PER_PIXEL * _direction(strokes.angle[stroke])
    low = np.floor(points).astype(int)
    share = points - low
    for down in (0, 1):
        for right in (0, 1):
            row, column = low[:, 0] + down, low[:, 1] + right
            weight = np.abs(1 - down - share[:, 0]) * np.abs(1 - right - share[:, 1])
            inside = (row >= 0) & (row < canvas.shape[0]) & (column >= 0) & (column < canvas.shape[1])
            pixel = row[inside] * canvas.shape[1] + column[inside]
            light = np.bincount(pixel, weight[inside], minlength=canvas.size).reshape(canvas.shape)
            canvas += brightness / SAMPLES_PER_PIXEL * light


def _direction(angle: np.ndarray) -> np.ndarray:
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1)
