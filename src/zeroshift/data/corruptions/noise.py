"""Noise of the sensor: Gaussian, shot and impulse noise, drawn for each channel of each pixel on its own."""

from __future__ import annotations

import numpy as np

from zeroshift.data.corruptions.operations import LEVELS, to_levels, to_unit

__all__ = ["gaussian_noise", "impulse_noise", "shot_noise"]


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
