"""A made-up pair of coupled sides, as a function of the prototypes: its "images" are unit features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from zeroshift.arrays import Array, Home, check_matrix
from zeroshift.methods.parts.example_towers import WIDTH, WORDS, ExampleText
from zeroshift.methods.parts.example_vision import ExampleVision
from zeroshift.methods.parts.examples import example_unlabelled
from zeroshift.methods.parts.maple_towers import CoupledPrompts, Look
from zeroshift.methods.parts.rows import unit_rows
from zeroshift.methods.parts.tuning_losses import through_unit_rows

__all__ = ["ExampleMaple", "example_maple", "example_token_source"]

LAYERS = 3
REACH = 0.1
"""How far prompts move an image at most, along each direction: the classes stay told apart."""


class ExampleMaple(CoupledPrompts):
    """The text side is `ExampleText`; the prompt q of the image side is the mean word c, projected: q = P c.

    x becomes unit(x + h) with h = sum_i REACH tanh(q)_i u_i, u the directions of `ExampleVision`. An image has two
    tokens in layer l: its own, the three numbers u . (x + l h), and the prompt's, (l + 1) q. The parameters are the
    words and P. Turning images and prototypes turns the features, and permuting the classes changes nothing.
    """

    def __init__(self, prototypes: Array) -> None:
        self._text, self._home = ExampleText(prototypes), Home.of(prototypes)
        self._directions = ExampleVision(prototypes)._directions
        projection = np.random.default_rng(7).normal(size=WIDTH * WIDTH)
        self.parameters = np.concatenate([self._text.context.reshape(-1), projection])
        self.n_classes, self.dimension = self._text.n_classes, self._text.dimension
        self.input_shape, self.n_layers, self.token_shape = (self.dimension,), LAYERS, (2, WIDTH)

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"example": [self.n_classes, self.dimension]}

    def check(self, name: str, images: Any) -> None:
        check_matrix(name, images, columns=self.dimension)

    def text(self, parameters: Array) -> Array:
        return self._text.features(self._parts(parameters)[0])

    def pull_back_text(self, parameters: Array, upstream: Array) -> Array:
        words, projection = self._parts(parameters)
        to_words = self._text.pull_back(words, upstream)
        return self._joined(to_words, 0 * projection, parameters)

    def look(self, images: Array, parameters: Array, layers: int = 0) -> Look:
        xp = self._home.xp
        with self._home.computing():
            rows, (prompt, shift) = self._home.bring(images, xp.float64), self._shift(parameters)
            tokens = self._home.zeros((rows.shape[0], layers, *self.token_shape))
            for layer in range(layers):
                tokens[:, layer, 0, :] = (rows + layer * shift) @ self._directions.T
                tokens[:, layer, 1, :] = (layer + 1) * prompt
            caller = Home.of(parameters)
            return Look(caller.bring(unit_rows(rows + shift)), caller.bring(tokens))

    def pull_back_images(self, images: Array, parameters: Array, upstream: Look) -> Array:
        xp = self._home.xp
        with self._home.computing():
            words, projection = self._parts(parameters)
            prompt, shift = self._shift(parameters)
            rows, above, tokens = (self._home.bring(array, xp.float64) for array in (images, *upstream))
            numbers = xp.arange(tokens.shape[1], dtype=xp.float64, device=self._home.device)[None, :, None]
            to_shift = xp.sum(through_unit_rows(above, rows + shift), axis=0)
            to_shift = to_shift + xp.sum(numbers * tokens[:, :, 0, :], axis=(0, 1)) @ self._directions
            to_prompt = REACH * (1 - xp.tanh(prompt) ** 2) * (self._directions @ to_shift)
            to_prompt = to_prompt + xp.sum((numbers + 1) * tokens[:, :, 1, :], axis=(0, 1))
            mean = xp.mean(words, axis=0)
            to_words = xp.broadcast_to(projection.T @ to_prompt / WORDS, words.shape)
            return self._joined(to_words, to_prompt[:, None] * mean[None, :], parameters)

    def _parts(self, parameters: Array) -> tuple[Array, Array]:
        """Words (n, width) and projection (width, width), at home."""
        xp = self._home.xp
        flat, cut = self._home.bring(parameters, xp.float64), WORDS * WIDTH
        return xp.reshape(flat[:cut], (WORDS, WIDTH)), xp.reshape(flat[cut:], (WIDTH, WIDTH))

    def _shift(self, parameters: Array) -> tuple[Array, Array]:
        """q (width,), and h (d,)."""
        xp = self._home.xp
        words, projection = self._parts(parameters)
        prompt = projection @ xp.mean(words, axis=0)
        return prompt, REACH * xp.tanh(prompt) @ self._directions

    def _joined(self, words: Array, projection: Array, like: Array) -> Array:
        xp = self._home.xp
        return Home.of(like).bring(xp.concat([xp.reshape(words, (-1,)), xp.reshape(projection, (-1,))]))

    def __repr__(self) -> str:
        return f"<example of coupled prompts for {self.n_classes} classes>"


def example_maple(prototypes: Array) -> ExampleMaple | None:
    """None for prototypes that are none: the method that is given both refuses those first."""
    try:
        check_matrix("prototypes", prototypes)
    except (TypeError, ValueError):
        return None
    return ExampleMaple(prototypes)


def example_token_source(prototypes: Array) -> tuple[Array, Array] | None:
    """Means and variances of the tokens of three made-up samples a class."""
    images, maple = example_unlabelled(prototypes), example_maple(prototypes)
    if maple is None:
        return None
    tokens = maple.look(images, maple.parameters, LAYERS).tokens
    xp = Home.of(tokens).xp
    return xp.mean(tokens, axis=0), xp.var(tokens, axis=0)
