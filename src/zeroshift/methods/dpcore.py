"""DPCore: a coreset of visual prompts, each of which restores the source statistics for one kind of batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from zeroshift.arrays import Array, Backend, namespace
from zeroshift.methods._shared.image_method import VISION, ImageMethod
from zeroshift.methods._shared.source_statistics import Moments, checked_source, distance, distance_gradient, moments
from zeroshift.methods._shared.towers import PromptedVision, VisionOutput
from zeroshift.methods._shared.tuning import AdamW
from zeroshift.parameters import Number, Optional, array_parameter, model_parameter, parameter, state
from zeroshift.state_checks import check_range, check_seen
from zeroshift.zero_shot import logits, softmax

__all__ = ["DPCore", "PromptCoreset"]


@dataclass(frozen=True)
class PromptCoreset:
    """P prompts, each with the statistics of the batches it is for. Updates return a new coreset."""

    statistics: Moments
    """Mean and standard deviation (P, width) of the states of the batches; at first of a batch without a prompt."""
    prompts: Array
    """(P, tokens, width)."""

    @classmethod
    def empty(cls, backend: Backend, tokens: int, width: int) -> PromptCoreset:
        no_rows = backend.zeros((0, width))
        return cls(Moments(no_rows, no_rows), backend.zeros((0, tokens, width)))

    def __len__(self) -> int:
        return int(self.prompts.shape[0])

    def weights(self, batch: Moments, temperature: float, std_weight: float) -> Array:
        """Weights (P,) with sum 1: how similar a batch with these statistics is to the batches of each prompt."""
        return softmax(-distance(batch, self.statistics, std_weight) / temperature)

    def weighted_prompt(self, weights: Array) -> Array:
        """Weighted mean (tokens, width) of the prompts."""
        return namespace(weights).sum(weights[:, None, None] * self.prompts, axis=0)

    def refined(self, shares: Array, batch: Moments, prompt: Array) -> PromptCoreset:
        """Each element moved by its share (P,) towards a batch and its prompt. Standard deviations only grow."""
        xp = namespace(shares)
        mean, std = self.statistics
        share = shares[:, None]
        growth = xp.where(batch.std > std, batch.std - std, xp.zeros_like(std))
        statistics = Moments(mean + share * (batch.mean - mean), std + share * growth)
        return PromptCoreset(statistics, self.prompts + share[:, :, None] * (prompt - self.prompts))

    def extended(self, batch: Moments, prompt: Array, capacity: int | None) -> PromptCoreset:
        """The coreset with one more element, and without the oldest if it is full."""
        xp = namespace(prompt)
        first = 0 if capacity is None else max(0, len(self) + 1 - capacity)
        mean, std, prompts = (
            xp.concat([kept, new[None]])[first:]
            for kept, new in zip((*self.statistics, self.prompts), (*batch, prompt), strict=True)
        )
        return PromptCoreset(Moments(mean, std), prompts)

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return {"mean": self.statistics.mean, "std": self.statistics.std, "prompts": self.prompts}, {}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> PromptCoreset:
        shapes = tuple(tuple(arrays[name].shape) for name in ("mean", "std", "prompts"))
        size, (tokens, width) = shapes[2][0], tuple(self.prompts.shape[1:])
        if shapes != ((size, width), (size, width), (size, tokens, width)):
            raise ValueError(f"the arrays of the coreset have the shapes {shapes}: not prompts of {tokens} x {width}")
        check_range("std", arrays["std"], 0)
        return PromptCoreset(Moments(arrays["mean"], arrays["std"]), arrays["prompts"])


class EncodedBatch(NamedTuple):
    """A batch without a prompt, and with the weighted prompt of the coreset."""

    plain: VisionOutput
    statistics: Moments
    """Moments of the states without a prompt."""
    weights: Array
    """Weights (P,) of the prompts; None, like the next two, while the coreset is empty."""
    prompt: Array
    """The weighted prompt (tokens, width)."""
    prompted: VisionOutput | None
    is_known: bool
    """Whether that prompt brings the batch near enough to the source."""


class DPCore(ImageMethod):
    """Tunes visual prompt tokens until the image states of a batch have the mean and standard deviation of the source,
    and stores the prompt with the statistics of the batch. A batch for which the stored prompts, weighted by
    similarity, already work well only refines them. Any other batch adds a prompt, so the coreset grows with every new
    kind of shift.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import DPCore
    >>> from zeroshift.testing.examples import ExampleVision, example_source
    >>> prototypes = np.eye(2)
    >>> dpcore = DPCore(prototypes, vision=ExampleVision(prototypes), source=example_source(prototypes))
    >>> images = np.array([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
    >>> dpcore.adapt(images).argmax(axis=1), dpcore.coreset_size
    (array([0, 1, 0]), 1)

    Notes
    -----
    Zhang et al., *DPCore: Dynamic Prompt Coreset for Continual Test-Time Adaptation*, ICML 2025. Written for a
    supervised ViT; here, in CLIP, the states are the class token after the last layer norm and the logits the zero-shot
    ones. As in the authors' code, predictions are those of the last forward pass, before the last step; a new prompt is
    stored with the statistics of its batch without a prompt, while stored ones are refined with statistics under the
    prompt; their standard deviations only grow; and the step size is 0.1, not the 0.01 of their configuration.

    A single image has no standard deviation: it is predicted with what was learned, comparing means only, and nothing
    is learned from it. `predict` also works batch by batch: with the weighted prompt if the batch is known, otherwise
    without a prompt. A standard deviation of exactly 0 has the gradient 0 here, and NaN in the authors' code.
    """

    name = "dpcore"
    headline = "Tunes visual prompts, one per kind of shift"
    needs = ("prototypes", "vision", "source")
    state_size = "P (n + 2) w for P prompts of n tokens of width w; P grows with N if capacity is None"
    complexity = "2 passes per batch and E passes with gradients, E = 1 for a known batch and 50 for a new one"
    reconstructed = "the authors' code is for a supervised ViT; states and head of CLIP are our reading"
    example_parameters: ClassVar[Mapping[str, Any]] = {
        "batch_size": 4,
        "n_tokens": 32,
        "steps_new": 3,
    }
    check_exceptions: ClassVar[Mapping[str, str]] = {
        "memory_is_bounded": "a batch that differs from the source and from earlier ones adds a prompt; set capacity",
    }

    vision: PromptedVision = model_parameter(VISION, "Image side of the encoder.")
    source: tuple[Array, Array] = array_parameter(
        "Mean and standard deviation (width,) of the image states before the shift. `source_statistics` computes them."
    )
    n_tokens: int = parameter(Number(low=1, integer=True), "Tokens per prompt.", default=8)
    steps_known: int = parameter(Number(low=1, integer=True), "Steps of AdamW for a known batch.", default=1)
    steps_new: int = parameter(Number(low=1, integer=True), "Steps of AdamW for a new kind of batch.", default=50)
    rate: float = parameter(Number(low=0), "Step size of AdamW.", default=0.1)
    weight_decay: float = parameter(
        Number(low=0), "Weight decay of AdamW: each step shrinks the prompt by this share, times `rate`.", default=0.01
    )
    temperature: float = parameter(
        Number(low=0, above=True), "Temperature of the softmax over distances that weights the prompts.", default=3.0
    )
    threshold: float = parameter(
        Number(low=0),
        "A batch is known if the weighted prompt reduces its distance from the source to less than this share.",
        default=0.8,
    )
    momentum: float = parameter(
        Number(0, 1), "How far a prompt moves towards a known batch, multiplied by its weight.", default=0.999
    )
    std_weight: float = parameter(
        Number(low=0), "Weight of the standard deviations in a distance, relative to the means.", default=1.0
    )
    capacity: int | None = parameter(
        Optional(Number(low=1, integer=True)),
        "Largest number of prompts; the oldest is removed first. None keeps all, as the authors do.",
        default=None,
    )
    seed: int = parameter(
        Number(low=0, integer=True), "Seed of the initial prompt, from which every new one is tuned.", default=0
    )

    _coreset: PromptCoreset = state(
        lambda self: self._empty_coreset(),
        saved_as="",
        check=lambda self, coreset: check_seen("the number of prompts in the coreset", len(coreset), self.n_seen),
    )

    def _empty_coreset(self) -> PromptCoreset:
        return PromptCoreset.empty(Backend.of(self.prototypes), self.n_tokens, self.vision.width)

    def _validate(self) -> None:
        super()._validate()
        self.source = checked_source(self.source, self.vision, Backend.of(self.prototypes))

    def _prepare(self) -> None:
        backend = Backend.of(self.prototypes)
        self._text = backend.asarray(self.prototypes, backend.xp.float64)
        self._target = Moments(*self.source)
        width = self.vision.width
        bound = math.sqrt(6 / (self.vision.patches.inputs + width))
        draw = np.random.default_rng(self.seed)
        self._initial_prompt = backend.asarray(draw.uniform(-bound, bound, (self.n_tokens, width)))

    @property
    def coreset_size(self) -> int:
        """Prompts in the coreset."""
        return len(self._coreset)

    def _adapt_batch(self, images: Array) -> Array:
        batch = self._encode_batch(images)
        if images.shape[0] == 1:
            scores, coreset = self._batch_scores(batch), self._coreset
        elif batch.is_known:
            prompt, last = self._tune(images, batch.prompt, self.steps_known, batch.prompted)
            coreset = self._coreset.refined(self.momentum * batch.weights, moments(last.states), prompt)
            scores = logits(last.features, self._text, self.logit_scale)
        else:
            prompt, last = self._tune(images, self._initial_prompt, self.steps_new)
            coreset = self._coreset.extended(batch.statistics, prompt, self.capacity)
            scores = logits(last.features, self._text, self.logit_scale)
        with self._learning(images.shape[0]):
            self._coreset = coreset
        return scores

    def _predict_scores(self, features: Array) -> Array:
        return self._batch_scores(self._encode_batch(features))

    def _batch_scores(self, batch: EncodedBatch) -> Array:
        """Scores without a step: with the weighted prompt if the batch is known, otherwise without a prompt."""
        output = batch.prompted if batch.is_known and batch.prompted is not None else batch.plain
        return logits(output.features, self._text, self.logit_scale)

    def _encode_batch(self, images: Array) -> EncodedBatch:
        plain = self._encode(images)
        statistics = moments(plain.states)
        if not len(self._coreset):
            return EncodedBatch(plain, statistics, None, None, None, is_known=False)
        std_weight = self.std_weight if images.shape[0] > 1 else 0.0
        weights = self._coreset.weights(statistics, self.temperature, std_weight)
        prompt = self._coreset.weighted_prompt(weights)
        prompted = self._encode(images, prompt)
        before, after = (distance(own, self._target, std_weight) for own in (statistics, moments(prompted.states)))
        is_known = bool(after < self.threshold * before)
        return EncodedBatch(plain, statistics, weights, prompt, prompted, is_known)

    def _tune(
        self, images: Array, prompt: Array, steps: int, initial: VisionOutput | None = None
    ) -> tuple[Array, VisionOutput]:
        """The prompt after the steps, and the batch encoded before the last step; `initial` is it before the first."""
        backend = Backend.of(self.prototypes)
        optimizer = AdamW(self.rate, weight_decay=self.weight_decay)
        last = initial or self._encode(images, prompt)
        for step in range(steps):
            last = self._encode(images, prompt) if step else last
            state_gradient = distance_gradient(last.states, self._target, self.std_weight)
            gradient = backend.asarray(self.vision.pull_back(images, prompt, state_gradient), backend.xp.float64)
            prompt = optimizer.step(prompt, gradient)
        return prompt, last
