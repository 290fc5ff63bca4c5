"""DPCore: a coreset of visual prompts, each for a kind of batch, that bring the batch's statistics back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from zeroshift.arrays import Array, Home, namespace
from zeroshift.methods._shared.image_method import VISION, ImageMethod
from zeroshift.methods._shared.source_statistics import Moments, checked_source, distance, distance_gradient, moments
from zeroshift.methods._shared.towers import Glance, PromptedVision
from zeroshift.methods._shared.tuning import AdamW
from zeroshift.parameters import Number, Optional, array_parameter, model_parameter, parameter
from zeroshift.zero_shot import logits, softmax

__all__ = ["DPCore", "PromptCoreset"]


# DPCore's coreset: prompts, each kept with the statistics of the batches it is for.


@dataclass(frozen=True)
class PromptCoreset:
    """Never written to: what a batch teaches makes another coreset."""

    kinds: Moments
    """(P, width) each: what the batches look like without a prompt, at first."""
    prompts: Array
    """(P, tokens, width)."""

    @classmethod
    def empty(cls, home: Home, tokens: int, width: int) -> PromptCoreset:
        nothing = home.zeros((0, width))
        return cls(Moments(nothing, nothing), home.zeros((0, tokens, width)))

    def __len__(self) -> int:
        return int(self.prompts.shape[0])

    def weights(self, found: Moments, temperature: float, std_weight: float) -> Array:
        """(P,), summing to 1: how like each element's batches one with these statistics is."""
        return softmax(-distance(found, self.kinds, std_weight) / temperature)

    def mixed(self, weights: Array) -> Array:
        """(tokens, width): the prompts, so weighed."""
        return namespace(weights).sum(weights[:, None, None] * self.prompts, axis=0)

    def followed(self, shares: Array, found: Moments, prompt: Array) -> PromptCoreset:
        """Each element moved by its share of the way to a batch and its prompt; standard deviations only grow."""
        xp = namespace(shares)
        mean, std = self.kinds
        share = shares[:, None]
        grown = xp.where(found.std > std, found.std - std, xp.zeros_like(std))
        kinds = Moments(mean + share * (found.mean - mean), std + share * grown)
        return PromptCoreset(kinds, self.prompts + share[:, :, None] * (prompt - self.prompts))

    def joined(self, found: Moments, prompt: Array, capacity: int | None) -> PromptCoreset:
        """One element more; the oldest less where there is no place for it."""
        xp = namespace(prompt)
        first = 0 if capacity is None else max(0, len(self) + 1 - capacity)
        mean, std, prompts = (
            xp.concat([kept, new[None]])[first:]
            for kept, new in zip((*self.kinds, self.prompts), (*found, prompt), strict=True)
        )
        return PromptCoreset(Moments(mean, std), prompts)

    def arrays(self) -> dict[str, Array]:
        return {"mean": self.kinds.mean, "std": self.kinds.std, "prompts": self.prompts}

    def restored(self, arrays: Mapping[str, Array]) -> PromptCoreset:
        """What `arrays` gave; refused where it is of other tokens than these, or not of one piece."""
        found = tuple(tuple(arrays[name].shape) for name in ("mean", "std", "prompts"))
        size, (tokens, width) = found[2][0], tuple(self.prompts.shape[1:])
        if found != ((size, width), (size, width), (size, tokens, width)):
            raise ValueError(f"the coreset's arrays have the shapes {found}: not prompts of {tokens} x {width}")
        return PromptCoreset(Moments(arrays["mean"], arrays["std"]), arrays["prompts"])


class Look(NamedTuple):
    """A batch as it is, and under the prompts learned so far."""

    plain: Glance
    found: Moments
    """Of the batch's states without a prompt."""
    weights: Array
    """(P,) of the coreset's prompts; None, as the next two, while there are none."""
    prompt: Array
    """The prompts, so weighed."""
    prompted: Glance | None
    known: bool
    """Whether that prompt brings the batch near enough to the source."""


class DPCore(ImageMethod):
    """Tunes visual prompt tokens until a batch's image states have the mean and spread of the source's, and keeps the
    prompt with the batch's own statistics. A batch that the kept prompts, weighed by likeness, already serve well only
    refines them; any other adds one, and the coreset grows with every new kind of shift.

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
    ones. As in the authors' code, the answers are those of the last forward pass, before the last step; a new prompt is
    kept with the statistics of its batch without a prompt, while kept ones follow those under the prompt; their
    standard deviations only grow; and the step size is 0.1, not their configuration's 0.01.

    One image alone has no standard deviation: it is answered by what was learned, its mean compared with the kept ones,
    and teaches nothing. `predict`, too, works batch by batch: with the weighed prompt where that serves the batch, and
    without a prompt where it does not. A standard deviation of exactly 0 has a gradient of 0, where the authors' is not
    a number.
    """

    name = "dpcore"
    needs = ("prototypes", "vision", "source")
    state_size = "P (n + 2) w for P prompts of n tokens of width w; P grows with N where capacity is None"
    complexity = "2 passes of the batch and E passes with gradients, E = 1 for a known batch and 50 for a new one"
    reconstructed = "the authors' code is for a supervised ViT; states and head of CLIP are our reading"
    example_parameters: ClassVar[Mapping[str, Any]] = {
        "batch_size": 4,
        "n_tokens": 32,
        "steps_new": 3,
    }
    check_exceptions: ClassVar[Mapping[str, str]] = {
        "memory_is_bounded": "every batch unlike the source and unlike those before adds a prompt; set capacity",
    }

    vision: PromptedVision = model_parameter(
        VISION, "The image side of the encoder, as `zeroshift.encode.prompted_vision` makes it."
    )
    source: tuple[Array, Array] = array_parameter(
        "Of the image states before the shift; `source_statistics` computes them from images."
    )
    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)
    batch_size: int = parameter(
        Number(low=1, integer=True),
        "Images learned from together. Each call's images are cut into batches of this size; the last may be shorter.",
        default=64,
    )
    n_tokens: int = parameter(Number(low=1, integer=True), "Tokens of a prompt.", default=8)
    steps_known: int = parameter(
        Number(low=1, integer=True),
        "Steps of AdamW for a batch the coreset serves, and for one it does not.",
        default=1,
    )
    steps_new: int = parameter(
        Number(low=1, integer=True),
        "Steps of AdamW for a batch the coreset serves, and for one it does not.",
        default=50,
    )
    rate: float = parameter(
        Number(low=0),
        "Of AdamW: the step size, and the share of the prompt taken off at a step, times `rate`.",
        default=0.1,
    )
    weight_decay: float = parameter(
        Number(low=0),
        "Of AdamW: the step size, and the share of the prompt taken off at a step, times `rate`.",
        default=0.01,
    )
    temperature: float = parameter(
        Number(low=0, above=True), "Of the softmax over distances that weighs the prompts.", default=3.0
    )
    threshold: float = parameter(
        Number(low=0),
        "A batch is served where the weighed prompt leaves less than this share of its distance from the source.",
        default=0.8,
    )
    momentum: float = parameter(
        Number(0, 1), "How far, times its weight, a kept prompt follows a batch it served.", default=0.999
    )
    std_weight: float = parameter(
        Number(low=0), "Of the standard deviations in a distance, against the means.", default=1.0
    )
    capacity: int | None = parameter(
        Optional(Number(low=1, integer=True)),
        "The most prompts kept, the oldest forgotten first; None keeps all, as the authors do.",
        default=None,
    )
    seed: int = parameter(Number(low=0, integer=True), "Of the prompt every new one is tuned from.", default=0)

    def _validate(self) -> None:
        super()._validate()
        self.source = checked_source(self.source, self.vision, Home.of(self.prototypes))

    def _begin(self) -> None:
        home = Home.of(self.prototypes)
        self._text = home.bring(self.prototypes, home.xp.float64)
        self._target = Moments(*self.source)
        width = self.vision.width
        bound = math.sqrt(6 / (self.vision.patches.inputs + width))
        self._initial = home.bring(np.random.default_rng(self.seed).uniform(-bound, bound, (self.n_tokens, width)))
        self._coreset = PromptCoreset.empty(home, self.n_tokens, width)

    @property
    def coreset_size(self) -> int:
        """Prompts kept."""
        self._finish()
        return len(self._coreset)

    def _learned(self, images: Array) -> tuple[Array, partial[None]]:
        look = self._look(images)
        if images.shape[0] == 1:
            return self._scores(look), partial(self._put, self._coreset)
        if look.known:
            prompt, last = self._tuned(images, look.prompt, self.steps_known, look.prompted)
            coreset = self._coreset.followed(self.momentum * look.weights, moments(last.states), prompt)
        else:
            prompt, last = self._tuned(images, self._initial, self.steps_new)
            coreset = self._coreset.joined(look.found, prompt, self.capacity)
        return logits(last.features, self._text, self.logit_scale), partial(self._put, coreset)

    def _put(self, coreset: PromptCoreset) -> None:
        self._coreset = coreset

    def _predict_scores(self, features: Array) -> Array:
        return self._scores(self._look(features))

    def _scores(self, look: Look) -> Array:
        """Without a step: under the weighed prompt where it serves the batch."""
        seen = look.prompted if look.known and look.prompted is not None else look.plain
        return logits(seen.features, self._text, self.logit_scale)

    def _look(self, images: Array) -> Look:
        plain = self._see(images)
        found = moments(plain.states)
        if not len(self._coreset):
            return Look(plain, found, None, None, None, known=False)
        std_weight = self.std_weight if images.shape[0] > 1 else 0.0
        weights = self._coreset.weights(found, self.temperature, std_weight)
        prompt = self._coreset.mixed(weights)
        prompted = self._see(images, prompt)
        before, after = (distance(own, self._target, std_weight) for own in (found, moments(prompted.states)))
        return Look(plain, found, weights, prompt, prompted, known=bool(after < self.threshold * before))

    def _tuned(self, images: Array, prompt: Array, steps: int, seen: Glance | None = None) -> tuple[Array, Glance]:
        """The prompt after the steps, and the batch before the last of them; `seen` is it before the first."""
        home = Home.of(self.prototypes)
        optimiser = AdamW(self.rate, weight_decay=self.weight_decay)
        last = seen or self._see(images, prompt)
        for step in range(steps):
            last = self._see(images, prompt) if step else last
            gradient = distance_gradient(last.states, self._target, self.std_weight)
            to_prompt = home.bring(self.vision.pull_back(images, prompt, gradient), home.xp.float64)
            prompt = optimiser.step(prompt, to_prompt)
        return prompt, last

    def _state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return self._coreset.arrays(), {}

    def _restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        self._coreset = self._coreset.restored(arrays)
