"""A made-up image side, as a function of the prototypes: its "images" are unit features, and a prompt moves them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from zeroshift.arrays import Array, Home, check_matrix
from zeroshift.methods.parts.examples import example_unlabelled
from zeroshift.methods.parts.rows import unit_rows
from zeroshift.methods.parts.towers import Glance, Patches, PromptedVision
from zeroshift.methods.parts.tuning_losses import through_unit_rows

__all__ = ["ExampleVision", "example_source", "example_vision"]

WIDTH = 3
"""Of a token: as many as there are directions a prompt moves features along."""


class ExampleVision(PromptedVision):
    """x becomes unit(x + sum_i w_i u_i), w the mean over the prompt's tokens p of tanh(W p); its state is (u_i . x).

    The three directions u are made of the prototypes alone: their mean, and sums of all of them weighed by powers of
    their cosines with it. So turning images and prototypes turns the features, and permuting the classes changes
    nothing. Without a prompt the features are the images themselves.
    """

    def __init__(self, prototypes: Array) -> None:
        self._home = Home.of(prototypes)
        with self._home.computing():
            xp = self._home.xp
            wide = unit_rows(self._home.bring(prototypes, xp.float64))
            mean = unit_rows(xp.mean(wide, axis=0))
            cosines = wide @ mean
            self._directions = unit_rows(xp.stack([mean, cosines**2 @ wide - mean, (1 - cosines) @ wide + mean]))
        self._mixing = np.random.default_rng(6).normal(size=(WIDTH, WIDTH))
        self.dimension, self.width = int(prototypes.shape[1]), WIDTH
        self.input_shape = (self.dimension,)
        self.patches = Patches(inputs=self.dimension, mean=0.01, std=0.5)

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"example": [self.dimension]}

    def check(self, name: str, images: Any) -> None:
        check_matrix(name, images, columns=self.dimension)

    def see(self, images: Array, prompt: Array | None) -> Glance:
        with self._home.computing():
            features = self._home.bring(images, self._home.xp.float64)
            if prompt is not None:
                features = unit_rows(features + self._weights(prompt)[1] @ self._directions)
            states = features @ self._directions.T
        caller = Home.of(images if prompt is None else prompt)
        return Glance(caller.bring(features), caller.bring(states))

    def pull_back(self, images: Array, prompt: Array, upstream: Array) -> Array:
        xp = self._home.xp
        with self._home.computing():
            each, weights = self._weights(prompt)
            raw = self._home.bring(images, xp.float64) + weights @ self._directions
            above = self._home.bring(upstream, xp.float64) @ self._directions
            to_weights = xp.sum(through_unit_rows(above, raw) @ self._directions.T, axis=0)
            gradient = (to_weights * (1 - each**2) / each.shape[0]) @ self._home.bring(self._mixing)
        return Home.of(prompt).bring(gradient)

    def _weights(self, prompt: Array) -> tuple[Array, Array]:
        """tanh(W p) of each token, and their mean."""
        xp = self._home.xp
        each = xp.tanh(self._home.bring(prompt, xp.float64) @ self._home.bring(self._mixing).T)
        return each, xp.mean(each, axis=0)

    def __repr__(self) -> str:
        return f"<example vision of d = {self.dimension}>"


def example_vision(prototypes: Array) -> ExampleVision | None:
    """None for prototypes that are none: the method that is given both refuses those first."""
    try:
        check_matrix("prototypes", prototypes)
    except (TypeError, ValueError):
        return None
    return ExampleVision(prototypes)


def example_source(prototypes: Array) -> tuple[Array, Array] | None:
    """Mean and standard deviation of the states of three made-up samples a class."""
    images, vision = example_unlabelled(prototypes), example_vision(prototypes)
    if vision is None:
        return None
    states = vision.see(images, None).states
    with Home.of(states).computing():
        xp = Home.of(states).xp
        return xp.mean(states, axis=0), xp.std(states, axis=0, correction=1)
