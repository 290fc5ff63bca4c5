"""Example values for array and model parameters, as functions of the prototypes: the checks build methods with them.

They rotate and permute with the prototypes, so the symmetries of a method can be checked. The model examples
(`ExampleText`, `ExampleVision`, `ExampleMaple`) are small closed forms with exact gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from zeroshift.arrays import Array, Backend, check_matrix, namespace
from zeroshift.methods._shared.similarity import unit_rows
from zeroshift.methods._shared.towers import (
    CoupledPrompts,
    IndependentPrompts,
    LayerOutput,
    Patches,
    PromptedText,
    PromptedVision,
    VisionOutput,
)
from zeroshift.methods._shared.tuning import through_unit_rows

__all__ = [
    "EXAMPLES",
    "ExampleMaple",
    "ExampleText",
    "ExampleTowers",
    "ExampleVision",
    "example_descriptions",
    "example_maple",
    "example_meta_net",
    "example_prompt_parameters",
    "example_prompt_source",
    "example_prompts",
    "example_source",
    "example_support",
    "example_text",
    "example_text_of_positions",
    "example_token_source",
    "example_towers",
    "example_unlabelled",
    "example_vision",
]

T = TypeVar("T")

SHIFTS = (0.0, 0.3, -0.3)
"""How far the example samples of a class are shifted along the mean of all prototypes."""

DESCRIPTION_SHIFTS = (0.0, 0.05, 0.1, 0.15, -0.05, -0.1, -0.15)
"""The same for example descriptions, of which some methods need several per class."""


def _example(make: Callable[[Array], T]) -> Callable[[Array], T]:
    """For invalid prototypes, the example of valid ones: the method that gets both must reject the prototypes."""

    @functools.wraps(make)
    def example(prototypes: Array) -> T:
        try:
            check_matrix("prototypes", prototypes)
        except (TypeError, ValueError):
            prototypes = np.eye(2)
        return make(prototypes)

    return example


def _shifted_prototypes(prototypes: Array, shifts: Sequence[float] = SHIFTS) -> Array:
    """(K, P, d): each prototype, shifted along the mean of all prototypes and scaled to unit length."""
    backend = Backend.of(prototypes)
    with backend.computing():
        wide = backend.asarray(prototypes, backend.xp.float64)
        mean = namespace(wide).mean(wide, axis=0)
        return backend.xp.stack([unit_rows(wide + shift * mean) for shift in shifts], axis=1)


@_example
def example_support(prototypes: Array) -> tuple[Array, np.ndarray]:
    """Three labelled samples per class."""
    features = _shifted_prototypes(prototypes)
    classes, shots, d = features.shape
    return features.reshape(classes * shots, d), np.repeat(np.arange(classes), shots)


@_example
def example_prompts(prototypes: Array) -> Array:
    """Three prompts per class (K, 3, d)."""
    return _shifted_prototypes(prototypes)


@_example
def example_descriptions(prototypes: Array) -> Array:
    """Seven descriptions per class (K, 7, d)."""
    return _shifted_prototypes(prototypes, DESCRIPTION_SHIFTS)


@_example
def example_unlabelled(prototypes: Array) -> Array:
    """Three unlabelled samples per class (3 K, d)."""
    features = _shifted_prototypes(prototypes)
    return features.reshape(-1, features.shape[2])


CONTEXT_LENGTH, CONTEXT_WIDTH = 2, 3
"""Shape of the example context: few numbers, so that checks are quick."""


class ExampleText(PromptedText):
    """t_k = unit(p_k + sum_i tanh(W c)_i u_ik), where c is the change of context and u_i three directions per class.

    The directions depend only on the prototypes (their mean, and sums of all of them weighted by powers of their
    cosines), so rotating or permuting the prototypes rotates or permutes everything. At the initial context the
    features are exactly the prototypes. With several prompts per class, each has another W.
    """

    def __init__(self, prototypes: Array, n_prompts: int = 1) -> None:
        self._backend = Backend.of(prototypes)
        with self._backend.computing():
            xp = self._backend.xp
            wide = self._backend.copy(self._backend.asarray(prototypes, xp.float64))
            cosines = wide @ wide.T
            mean = xp.broadcast_to(xp.mean(wide, axis=0)[None, :], wide.shape)
            self._directions = xp.stack([mean, unit_rows(cosines**2 @ wide), unit_rows(cosines**3 @ wide)])
            self._prototypes = unit_rows(wide)
        draw = np.random.default_rng(5)
        self.context = draw.normal(size=(CONTEXT_LENGTH, CONTEXT_WIDTH))
        self._mixing = draw.normal(size=(3 * n_prompts, CONTEXT_LENGTH * CONTEXT_WIDTH))
        self.norms = np.zeros(3)
        self.n_classes, self.dimension = (int(size) for size in prototypes.shape)
        self.n_prompts = n_prompts

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"example": [self.n_classes, self.dimension]}

    def features(self, context: Array) -> Array:
        return Backend.of(context).asarray(unit_rows(self._raw(self._weights(context))), namespace(context).float64)

    def pull_back(self, context: Array, upstream: Array) -> Array:
        xp = self._backend.xp
        pulled = self._pulled(self._weights(context), upstream)
        gradient = pulled @ self._backend.asarray(self._mixing, xp.float64)
        gradient = gradient if len(context.shape) == 3 else xp.sum(gradient, axis=0)
        return Backend.of(context).asarray(xp.reshape(gradient, tuple(context.shape)), namespace(context).float64)

    def features_with_norms(self, norms: Array) -> Array:
        """unit(p_k + sum_i tanh(n)_i u_ik) for norms n: the prototypes at first."""
        weights = self._norm_weights(norms)
        return Backend.of(norms).asarray(unit_rows(self._raw(weights)), namespace(norms).float64)

    def pull_back_norms(self, norms: Array, upstream: Array) -> Array:
        xp = self._backend.xp
        pulled = xp.reshape(self._pulled(self._norm_weights(norms), upstream), (-1, 3))
        return Backend.of(norms).asarray(xp.sum(pulled, axis=0), namespace(norms).float64)

    def _norm_weights(self, norms: Array) -> Array:
        """tanh(n) for every prompt, (1, V 3)."""
        xp = self._backend.xp
        return xp.tile(xp.tanh(self._backend.asarray(norms, xp.float64)), (1, self.n_prompts))

    def _pulled(self, weights: Array, upstream: Array) -> Array:
        """Gradient (K, V 3) with respect to what `weights` are the tanh of."""
        xp = self._backend.xp
        raw_gradient = through_unit_rows(self._backend.asarray(upstream, xp.float64), self._raw(weights))
        raw_gradient = xp.reshape(raw_gradient, (self.n_prompts, self.n_classes, self.dimension))
        each = xp.sum(self._directions[None] * raw_gradient[:, None], axis=-1)  # (V, 3, K)
        return xp.reshape(xp.permute_dims(each, (2, 0, 1)), (self.n_classes, -1)) * (1 - weights**2)

    def _weights(self, context: Array) -> Array:
        """tanh(W c), (K, V 3), or (1, V 3) with the same context for all classes."""
        xp = self._backend.xp
        change = self._backend.asarray(context, xp.float64) - self._backend.asarray(self.context, xp.float64)
        change = xp.reshape(change, (-1, CONTEXT_LENGTH * CONTEXT_WIDTH))
        return xp.tanh(change @ self._backend.asarray(self._mixing, xp.float64).T)

    def _raw(self, weights: Array) -> Array:
        """(V K, d), not normalised."""
        xp = self._backend.xp
        each = xp.permute_dims(xp.reshape(weights, (-1, self.n_prompts, 3)), (1, 2, 0))  # (V, 3, K or 1)
        shifts = xp.sum(each[..., None] * self._directions[None], axis=1)
        return xp.reshape(self._prototypes[None] + shifts, (-1, self.dimension))

    def __repr__(self) -> str:
        return f"<example text of {self.n_classes} classes>"


@_example
def example_text(prototypes: Array) -> ExampleText:
    """The text side of an example encoder."""
    return ExampleText(prototypes)


TOKEN_WIDTH = 3
"""Numbers per token, which is also the number of directions a prompt moves features along."""


class ExampleVision(PromptedVision):
    """x becomes unit(x + sum_i w_i u_i), w the mean of tanh(W p) over the tokens p of the prompt; its state is u . x.

    The "images" are unit features. The three directions u depend only on the prototypes: their mean, and sums of all
    of them weighted by powers of their cosines with it. So rotating images and prototypes rotates the features, and
    permuting the classes changes nothing. Without a prompt the features are the images themselves.
    """

    def __init__(self, prototypes: Array) -> None:
        self._backend = Backend.of(prototypes)
        with self._backend.computing():
            xp = self._backend.xp
            wide = unit_rows(self._backend.asarray(prototypes, xp.float64))
            mean = unit_rows(xp.mean(wide, axis=0))
            cosines = wide @ mean
            self._directions = unit_rows(xp.stack([mean, cosines**2 @ wide - mean, (1 - cosines) @ wide + mean]))
        self._mixing = np.random.default_rng(6).normal(size=(TOKEN_WIDTH, TOKEN_WIDTH))
        self.dimension, self.width = int(prototypes.shape[1]), TOKEN_WIDTH
        self.input_shape = (self.dimension,)
        self.patches = Patches(inputs=self.dimension, mean=0.01, std=0.5)
        self.norms, self.noise_shape = np.zeros(TOKEN_WIDTH), (TOKEN_WIDTH,)

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"example": [self.dimension]}

    def check(self, name: str, images: Any) -> None:
        check_matrix(name, images, columns=self.dimension)

    def encode(self, images: Array, prompt: Array | None) -> VisionOutput:
        with self._backend.computing():
            features = self._backend.asarray(images, self._backend.xp.float64)
            if prompt is not None:
                features = unit_rows(features + self._weights(prompt)[1] @ self._directions)
            states = features @ self._directions.T
        caller = Backend.of(images if prompt is None else prompt)
        return VisionOutput(caller.asarray(features), caller.asarray(states))

    def pull_back(self, images: Array, prompt: Array, upstream: Array) -> Array:
        xp = self._backend.xp
        with self._backend.computing():
            each, weights = self._weights(prompt)
            raw = self._backend.asarray(images, xp.float64) + weights @ self._directions
            feature_gradient = self._backend.asarray(upstream, xp.float64) @ self._directions
            weight_gradient = xp.sum(through_unit_rows(feature_gradient, raw) @ self._directions.T, axis=0)
            gradient = (weight_gradient * (1 - each**2) / each.shape[0]) @ self._backend.asarray(self._mixing)
        return Backend.of(prompt).asarray(gradient)

    def encode_with_norms(self, images: Array, norms: Array) -> Array:
        """x + sum_i tanh(n)_i u_i for norms n: the images themselves at first."""
        xp = self._backend.xp
        with self._backend.computing():
            shift = xp.tanh(self._backend.asarray(norms, xp.float64)) @ self._directions
            return Backend.of(norms).asarray(self._backend.asarray(images, xp.float64) + shift)

    def pull_back_norms(self, images: Array, norms: Array, upstream: Array) -> Array:
        xp = self._backend.xp
        with self._backend.computing():
            each = xp.tanh(self._backend.asarray(norms, xp.float64))
            total = xp.sum(self._backend.asarray(upstream, xp.float64), axis=0)
            return Backend.of(norms).asarray((1 - each**2) * (self._directions @ total))

    def encode_with_noise(self, images: Array, noise: Array) -> Array:
        """unit(x + sum_i e_i u_i) for noise e."""
        return Backend.of(noise).asarray(unit_rows(self._noisy(images, noise)))

    def pull_back_noise(self, images: Array, noise: Array, upstream: Array) -> Array:
        xp = self._backend.xp
        with self._backend.computing():
            raw_gradient = through_unit_rows(self._backend.asarray(upstream, xp.float64), self._noisy(images, noise))
            return Backend.of(noise).asarray(self._directions @ xp.sum(raw_gradient, axis=0))

    def _noisy(self, images: Array, noise: Array) -> Array:
        xp = self._backend.xp
        with self._backend.computing():
            rows, shift = (self._backend.asarray(array, xp.float64) for array in (images, noise))
            return rows + shift @ self._directions

    def _weights(self, prompt: Array) -> tuple[Array, Array]:
        """tanh(W p) of each token, and their mean."""
        xp = self._backend.xp
        each = xp.tanh(self._backend.asarray(prompt, xp.float64) @ self._backend.asarray(self._mixing).T)
        return each, xp.mean(each, axis=0)

    def __repr__(self) -> str:
        return f"<example vision of d = {self.dimension}>"


@_example
def example_vision(prototypes: Array) -> ExampleVision:
    """The image side of an example encoder, whose images are unit features."""
    return ExampleVision(prototypes)


def example_meta_net(prototypes: Array) -> tuple[Array, Array, Array, Array]:
    """CoCoOp's network: two layers, the first of which rotates with the prototypes."""
    directions, backend = example_vision(prototypes)._directions, example_vision(prototypes)._backend
    draw = np.random.default_rng(8)
    weights1, weights2 = (backend.asarray(0.1 * draw.normal(size=(3, width))) for width in (3, CONTEXT_WIDTH))
    biases1, biases2 = (backend.asarray(0.1 * draw.normal(size=width)) for width in (3, CONTEXT_WIDTH))
    with backend.computing():
        return weights1 @ directions, biases1, weights2.T, biases2


def example_prompt_source(prototypes: Array) -> tuple[Array, ...]:
    """Self-TPT's source: a context next to the initial one, and a head that rotates with the prototypes."""
    text = example_text(prototypes)
    backend, draw = text._backend, np.random.default_rng(9)
    context = text.context + draw.normal(scale=0.1, size=text.context.shape)
    return (backend.asarray(context), *example_meta_net(prototypes))


@_example
def example_text_of_positions(prototypes: Array) -> ExampleText:
    """The text side with a prompt for each place of the class name."""
    return ExampleText(prototypes, n_prompts=3)


def example_source(prototypes: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of the states of three example samples per class."""
    images, vision = example_unlabelled(prototypes), example_vision(prototypes)
    states = vision.encode(images, None).states
    with Backend.of(states).computing():
        xp = Backend.of(states).xp
        return xp.mean(states, axis=0), xp.std(states, axis=0, correction=1)


MAPLE_LAYERS = 3
MAPLE_REACH = 0.1
"""Largest distance a prompt moves an image along each direction; the classes stay distinguishable."""


class ExampleMaple(CoupledPrompts):
    """The text side is `ExampleText`; the prompt q of the image side is the projected mean context row c: q = P c.

    The "images" are unit features. x becomes unit(x + h) with h = sum_i MAPLE_REACH tanh(q)_i u_i, where u are the
    directions of `ExampleVision`. An image has two tokens in layer l: its own, the three numbers u . (x + l h), and the
    prompt's, (l + 1) q. The parameters are the context and P. Rotating images and prototypes rotates the features, and
    permuting the classes changes nothing.
    """

    def __init__(self, prototypes: Array) -> None:
        self._text, self._backend = ExampleText(prototypes), Backend.of(prototypes)
        self._directions = ExampleVision(prototypes)._directions
        projection = np.random.default_rng(7).normal(size=CONTEXT_WIDTH * CONTEXT_WIDTH)
        self.parameters = np.concatenate([self._text.context.reshape(-1), projection])
        self.n_classes, self.dimension = self._text.n_classes, self._text.dimension
        self.input_shape, self.n_layers, self.token_shape = (self.dimension,), MAPLE_LAYERS, (2, CONTEXT_WIDTH)

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"example": [self.n_classes, self.dimension]}

    def check(self, name: str, images: Any) -> None:
        check_matrix(name, images, columns=self.dimension)

    def text(self, parameters: Array) -> Array:
        return self._text.features(self._split(parameters)[0])

    def pull_back_text(self, parameters: Array, upstream: Array) -> Array:
        context, projection = self._split(parameters)
        return self._joined(self._text.pull_back(context, upstream), 0 * projection, parameters)

    def encode_images(self, images: Array, parameters: Array, layers: int = 0) -> LayerOutput:
        xp = self._backend.xp
        with self._backend.computing():
            rows, (prompt, shift) = self._backend.asarray(images, xp.float64), self._shift(parameters)
            tokens = self._backend.zeros((rows.shape[0], layers, *self.token_shape))
            for layer in range(layers):
                tokens[:, layer, 0, :] = (rows + layer * shift) @ self._directions.T
                tokens[:, layer, 1, :] = (layer + 1) * prompt
            caller = Backend.of(parameters)
            return LayerOutput(caller.asarray(unit_rows(rows + shift)), caller.asarray(tokens))

    def pull_back_images(self, images: Array, parameters: Array, upstream: LayerOutput) -> Array:
        xp = self._backend.xp
        with self._backend.computing():
            context, projection = self._split(parameters)
            prompt, shift = self._shift(parameters)
            rows, feature_gradient, tokens = (self._backend.asarray(array, xp.float64) for array in (images, *upstream))
            numbers = xp.arange(tokens.shape[1], dtype=xp.float64, device=self._backend.device)[None, :, None]
            shift_gradient = xp.sum(through_unit_rows(feature_gradient, rows + shift), axis=0)
            shift_gradient = shift_gradient + xp.sum(numbers * tokens[:, :, 0, :], axis=(0, 1)) @ self._directions
            prompt_gradient = MAPLE_REACH * (1 - xp.tanh(prompt) ** 2) * (self._directions @ shift_gradient)
            prompt_gradient = prompt_gradient + xp.sum((numbers + 1) * tokens[:, :, 1, :], axis=(0, 1))
            mean = xp.mean(context, axis=0)
            context_gradient = xp.broadcast_to(projection.T @ prompt_gradient / CONTEXT_LENGTH, context.shape)
            return self._joined(context_gradient, prompt_gradient[:, None] * mean[None, :], parameters)

    def _split(self, parameters: Array) -> tuple[Array, Array]:
        """Context (n, width) and projection (width, width), in the library of the prototypes."""
        xp = self._backend.xp
        flat, cut = self._backend.asarray(parameters, xp.float64), CONTEXT_LENGTH * CONTEXT_WIDTH
        return xp.reshape(flat[:cut], (CONTEXT_LENGTH, CONTEXT_WIDTH)), xp.reshape(
            flat[cut:], (CONTEXT_WIDTH, CONTEXT_WIDTH)
        )

    def _shift(self, parameters: Array) -> tuple[Array, Array]:
        """The prompt q (width,) and the shift h (d,)."""
        xp = self._backend.xp
        context, projection = self._split(parameters)
        prompt = projection @ xp.mean(context, axis=0)
        return prompt, MAPLE_REACH * xp.tanh(prompt) @ self._directions

    def _joined(self, context: Array, projection: Array, like: Array) -> Array:
        xp = self._backend.xp
        return Backend.of(like).asarray(xp.concat([xp.reshape(context, (-1,)), xp.reshape(projection, (-1,))]))

    def __repr__(self) -> str:
        return f"<example of coupled prompts for {self.n_classes} classes>"


class ExampleTowers(ExampleMaple, IndependentPrompts):
    """`ExampleMaple`, whose image features without prompts are the images."""

    def encode_without_prompts(self, images: Array) -> Array:
        return self._backend.asarray(images, self._backend.xp.float64)

    def __repr__(self) -> str:
        return f"<example of prompts in both encoders for {self.n_classes} classes>"


@_example
def example_towers(prototypes: Array) -> ExampleTowers:
    """Both sides of an example encoder with prompts in their first layers."""
    return ExampleTowers(prototypes)


@_example
def example_prompt_parameters(prototypes: Array) -> Array:
    """Prompts next to the initial ones, with which no text feature is a prototype."""
    towers = example_towers(prototypes)
    return towers.parameters + np.random.default_rng(11).normal(scale=0.2, size=towers.parameters.shape)


@_example
def example_maple(prototypes: Array) -> ExampleMaple:
    """Both sides of an example encoder with coupled prompts."""
    return ExampleMaple(prototypes)


def example_token_source(prototypes: Array) -> tuple[Array, Array]:
    """Means and variances of the tokens of three example samples per class."""
    images, maple = example_unlabelled(prototypes), example_maple(prototypes)
    tokens = maple.encode_images(images, maple.parameters, MAPLE_LAYERS).tokens
    xp = Backend.of(tokens).xp
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
    "towers": example_towers,
    "prompt_parameters": example_prompt_parameters,
    "meta_net": example_meta_net,
    "prompt_source": example_prompt_source,
    "text_of_positions": example_text_of_positions,
    "source": example_source,
    "token_source": example_token_source,
}
"""Example values by name. A required parameter of that name gets one; `Method.example_parameters` may name another,
as in `{"prompts": "descriptions"}`."""
