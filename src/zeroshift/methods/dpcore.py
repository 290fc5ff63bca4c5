"""DPCore: a coreset of visual prompts, each of which restores the source statistics for one kind of batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from zeroshift.arrays import Array, namespace
from zeroshift.methods._shared.image_method import ImageMethod
from zeroshift.methods._shared.source_statistics import Moments, checked_source, distance, distance_gradient, moments
from zeroshift.methods._shared.towers import VisionOutput
from zeroshift.methods._shared.tuning import AdamW, tune
from zeroshift.parameters import Number, Optional, array_parameter, parameter, state
from zeroshift.state_checks import check_range, check_seen
from zeroshift.zero_shot import logits, softmax


class PromptCoreset(NamedTuple):
    """P prompts, each with the statistics of the batches it is for."""

    mean: Array
    """(P, width), of the states of the batches; at first of a batch without a prompt."""
    std: Array
    """(P, width)."""
    prompts: Array
    """(P, tokens, width)."""

    def refined(self, shares: Array, batch: Moments, prompt: Array) -> PromptCoreset:
        """Each element moved by its share (P,) towards a batch and its prompt. Standard deviations only grow."""
        share, growth = shares[:, None], namespace(shares).clip(batch.std - self.std, 0.0, None)
        return PromptCoreset(
            self.mean + share * (batch.mean - self.mean),
            self.std + share * growth,
            self.prompts + share[:, :, None] * (prompt - self.prompts),
        )

    def extended(self, batch: Moments, prompt: Array, capacity: int | None) -> PromptCoreset:
        """With one more element, and without the oldest if it is full."""
        xp = namespace(prompt)
        parts = [xp.concat([kept, new[None]]) for kept, new in zip(self, (*batch, prompt), strict=True)]
        return PromptCoreset(*(part[-(capacity or len(part)) :] for part in parts))

    def check_seen(self, n_seen: int) -> None:
        """ValueError for what no batches of so many images lead to."""
        if not len(self.mean) == len(self.std) == len(self.prompts):
            raise ValueError(f"{len(self.prompts)} prompts have {len(self.mean)} means and {len(self.std)} deviations")
        check_range("std", self.std, 0)
        check_seen("the number of prompts in the coreset", len(self.prompts), n_seen)


class KnownBatch(NamedTuple):
    """A batch that the stored prompts, weighted, bring near enough to the source."""

    weights: Array
    """(P,), with sum 1."""
    prompt: Array
    """The weighted prompt (tokens, width)."""
    output: VisionOutput
    """The batch with this prompt."""


class CoresetStep(NamedTuple):
    """What a batch leads to."""

    scores: Array
    """(B, K)."""
    coreset: PromptCoreset


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
    complexity = "2 + E passes per batch and E with gradients, E = 1 for a known batch and 50 for a new one"
    reconstructed = "the authors' code is for a supervised ViT; states and head of CLIP are our reading"
    example_parameters: ClassVar[Mapping[str, Any]] = {
        "batch_size": 4,
        "n_tokens": 32,
        "steps_new": 3,
    }
    check_exceptions: ClassVar[Mapping[str, str]] = {
        "memory_is_bounded": "a batch that differs from the source and from earlier ones adds a prompt; set capacity",
    }

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
        lambda self: PromptCoreset(
            self.zeros(0, self.vision.width),
            self.zeros(0, self.vision.width),
            self.zeros(0, self.n_tokens, self.vision.width),
        ),
        saved_as="",
        grows=True,
    )

    def _validate(self) -> None:
        super()._validate()
        fix = "source=source_statistics(vision, images, prototypes)"
        pair = checked_source(self.source, ("mean", "std"), lambda given: (self.vision.width,), fix)
        self.source = self._target = Moments(*map(self.as_own, pair))

    def _prepare(self) -> None:
        width = self.vision.width
        bound = math.sqrt(6 / (self.vision.patches.inputs + width))
        draw = np.random.default_rng(self.seed)
        self._initial_prompt = self.as_own(draw.uniform(-bound, bound, (self.n_tokens, width)))

    @property
    def coreset_size(self) -> int:
        """Prompts in the coreset."""
        return len(self._coreset.prompts)

    @property
    def _predict_rows(self) -> int:
        return self.batch_size

    def plan(self, images: Array) -> CoresetStep:
        if len(images) == 1:
            return CoresetStep(self.score(images), self._coreset)
        plain = self._encode(images)
        known = self._known(images, plain)
        if known:
            prompt, last = self._tuned(images, known.prompt, self.steps_known)
            coreset = self._coreset.refined(self.momentum * known.weights, moments(last.states), prompt)
        else:
            prompt, last = self._tuned(images, self._initial_prompt, self.steps_new)
            coreset = self._coreset.extended(moments(plain.states), prompt, self.capacity)
        return CoresetStep(self._scores(last), coreset)

    def learn(self, step: CoresetStep) -> None:
        self._coreset = step.coreset

    def score(self, images: Array) -> Array:
        plain = self._encode(images)
        known = self._known(images, plain)
        return self._scores(known.output if known else plain)

    def _scores(self, output: VisionOutput) -> Array:
        return logits(output.features, self.prototypes64, self.logit_scale)

    def _known(self, images: Array, plain: VisionOutput) -> KnownBatch | None:
        """The batch under the weighted prompt, or None if that does not bring it near enough to the source."""
        if not len(self._coreset.prompts):
            return None
        own, std_weight = moments(plain.states), self.std_weight if len(plain.states) > 1 else 0.0
        stored = Moments(self._coreset.mean, self._coreset.std)
        weights = softmax(-distance(own, stored, std_weight) / self.temperature)
        prompt = (weights[:, None, None] * self._coreset.prompts).sum(axis=0)
        output = self._encode(images, prompt)
        before, after = (distance(one, self._target, std_weight) for one in (own, moments(output.states)))
        return KnownBatch(weights, prompt, output) if after < self.threshold * before else None

    def _tuned(self, images: Array, prompt: Array, steps: int) -> tuple[Array, VisionOutput]:
        """The prompt after the steps, and the batch before the last of them."""

        def gradient(prompt: Array) -> tuple[VisionOutput, Array]:
            output = self._encode(images, prompt)
            to_states = distance_gradient(output.states, self._target, self.std_weight)
            return output, self.as_float64(self.vision.pull_back(images, prompt, to_states))

        prompt, outputs = tune(prompt, gradient, AdamW(self.rate, weight_decay=self.weight_decay), steps)
        return prompt, outputs[-1]
