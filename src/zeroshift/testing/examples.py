"""Made-up values for array parameters, as functions of the prototypes: what checks and listings build methods with.

They turn and permute as the prototypes do, so that a method's symmetries can be checked with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from zeroshift.arrays import Array, Home, check_matrix, namespace
from zeroshift.methods._shared.similarity import unit_rows
from zeroshift.methods._shared.towers import CoupledPrompts, Glance, Look, Patches, PromptedText, PromptedVision
from zeroshift.methods._shared.tuning import through_unit_rows

__all__ = [
    "EXAMPLES",
    "ExampleMaple",
    "ExampleText",
    "ExampleVision",
    "example_descriptions",
    "example_maple",
    "example_prompts",
    "example_source",
    "example_support",
    "example_text",
    "example_token_source",
    "example_unlabelled",
    "example_vision",
]

LEANINGS = (0.0, 0.3, -0.3)
"""How far the made-up samples of a class lean towards what all prototypes share."""

DESCRIPTION_LEANINGS = (0.0, 0.05, 0.1, 0.15, -0.05, -0.1, -0.15)
"""The same of made-up descriptions: enough of a class for a method that counts them."""


def _where_sound(example: Callable[[Array], Any]) -> Callable[[Array], Any]:
    """None for prototypes that are none: the method that is given both refuses those first."""

    def guarded(prototypes: Array) -> Any:
        try:
            check_matrix("prototypes", prototypes)
        except (TypeError, ValueError):
            return None
        return example(prototypes)

    return guarded


def _leaning(prototypes: Array, leanings: Sequence[float] = LEANINGS) -> Array:
    """(K, P, d): each prototype, and it leaning to either side."""
    home = Home.of(prototypes)
    with home.computing():
        wide = home.bring(prototypes, home.xp.float64)
        shared = namespace(wide).mean(wide, axis=0)
        return home.xp.stack([unit_rows(wide + leaning * shared) for leaning in leanings], axis=1)


@_where_sound
def example_support(prototypes: Array) -> tuple[Array, np.ndarray]:
    """Three labelled samples a class."""
    features = _leaning(prototypes)
    classes, shots, d = features.shape
    return features.reshape(classes * shots, d), np.repeat(np.arange(classes), shots)


@_where_sound
def example_prompts(prototypes: Array) -> Array:
    """Three prompts a class (K, 3, d)."""
    return _leaning(prototypes)


@_where_sound
def example_descriptions(prototypes: Array) -> Array:
    """Seven descriptions a class (K, 7, d)."""
    return _leaning(prototypes, DESCRIPTION_LEANINGS)


@_where_sound
def example_unlabelled(prototypes: Array) -> Array:
    """Three unlabelled samples a class (3 K, d)."""
    features = _leaning(prototypes)
    return features.reshape(-1, features.shape[2])


# Made-up towers, as functions of the prototypes: small closed forms that tune, turn and permute as real ones do.


TEXT_WORDS, TEXT_WIDTH = 2, 3
"""Of the made-up context: few numbers, so that checks are quick."""


class ExampleText(PromptedText):
    """t_k = unit(p_k + sum_i tanh(W c)_i u_ik), c the change of the context and u_i three directions for each class.

    The directions are made of the prototypes alone (their mean, and sums of all of them weighed by powers of their
    cosines), so turning or permuting the prototypes turns or permutes everything. At the initial context it is exactly
    the prototypes.
    """

    def __init__(self, prototypes: Array) -> None:
        self._home = Home.of(prototypes)
        with self._home.computing():
            xp = self._home.xp
            wide = self._home.copy(self._home.bring(prototypes, xp.float64))
            cosines = wide @ wide.T
            mean = xp.broadcast_to(xp.mean(wide, axis=0)[None, :], wide.shape)
            self._directions = xp.stack([mean, unit_rows(cosines**2 @ wide), unit_rows(cosines**3 @ wide)])
            self._prototypes = unit_rows(wide)
        draw = np.random.default_rng(5)
        self.context = draw.normal(size=(TEXT_WORDS, TEXT_WIDTH))
        self._mixing = draw.normal(size=(3, TEXT_WORDS * TEXT_WIDTH))
        self.n_classes, self.dimension = (int(size) for size in prototypes.shape)

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"example": [self.n_classes, self.dimension]}

    def features(self, context: Array) -> Array:
        return Home.of(context).bring(unit_rows(self._raw(self._weights(context))), namespace(context).float64)

    def pull_back(self, context: Array, upstream: Array) -> Array:
        xp = self._home.xp
        weights = self._weights(context)
        raw = self._raw(weights)
        text = unit_rows(raw)
        above = self._home.bring(upstream, xp.float64)
        along = xp.sum(above * text, axis=1, keepdims=True)
        to_raw = (above - along * text) / xp.linalg.vector_norm(raw, axis=1, keepdims=True)
        to_weights = xp.sum(self._directions * to_raw[None, :, :], axis=(1, 2)) * (1 - weights**2)
        gradient = self._home.bring(self._mixing, xp.float64).T @ to_weights
        return Home.of(context).bring(xp.reshape(gradient, (TEXT_WORDS, TEXT_WIDTH)), namespace(context).float64)

    def _weights(self, context: Array) -> Array:
        xp = self._home.xp
        change = self._home.bring(context, xp.float64) - self._home.bring(self.context, xp.float64)
        return xp.tanh(self._home.bring(self._mixing, xp.float64) @ xp.reshape(change, (-1,)))

    def _raw(self, weights: Array) -> Array:
        return self._prototypes + self._home.xp.sum(weights[:, None, None] * self._directions, axis=0)

    def __repr__(self) -> str:
        return f"<example text of {self.n_classes} classes>"


def example_text(prototypes: Array) -> ExampleText | None:
    """None for prototypes that are none: the method that is given both refuses those first."""
    try:
        check_matrix("prototypes", prototypes)
    except (TypeError, ValueError):
        return None
    return ExampleText(prototypes)


# A made-up image side, as a function of the prototypes: its "images" are unit features, and a prompt moves them.


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


# A made-up pair of coupled sides, as a function of the prototypes: its "images" are unit features.


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
        projection = np.random.default_rng(7).normal(size=TEXT_WIDTH * TEXT_WIDTH)
        self.parameters = np.concatenate([self._text.context.reshape(-1), projection])
        self.n_classes, self.dimension = self._text.n_classes, self._text.dimension
        self.input_shape, self.n_layers, self.token_shape = (self.dimension,), LAYERS, (2, TEXT_WIDTH)

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
            to_words = xp.broadcast_to(projection.T @ to_prompt / TEXT_WORDS, words.shape)
            return self._joined(to_words, to_prompt[:, None] * mean[None, :], parameters)

    def _parts(self, parameters: Array) -> tuple[Array, Array]:
        """Words (n, width) and projection (width, width), at home."""
        xp = self._home.xp
        flat, cut = self._home.bring(parameters, xp.float64), TEXT_WORDS * TEXT_WIDTH
        return xp.reshape(flat[:cut], (TEXT_WORDS, TEXT_WIDTH)), xp.reshape(flat[cut:], (TEXT_WIDTH, TEXT_WIDTH))

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


EXAMPLES: Mapping[str, Callable[[Array], Any]] = {
    "support": example_support,
    "validation": example_support,
    "prompts": example_prompts,
    "descriptions": example_descriptions,
    "unlabelled": example_unlabelled,
    "text": example_text,
    "vision": example_vision,
    "maple": example_maple,
    "source": example_source,
    "token_source": example_token_source,
}
"""Made-up values by name. A required parameter of that name is filled with one; `Method.example_parameters` may name
another, as in `{"prompts": "descriptions"}`."""
