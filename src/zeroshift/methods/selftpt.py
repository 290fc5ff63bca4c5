"""Self-TPT: a prompt adapted to new class names, without images, by a contrast between the prompts of classes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from zeroshift.arrays import Array, Backend, checked_labelled, namespace, to_numpy
from zeroshift.methods._shared.prompt_tuned import PromptTuned
from zeroshift.methods._shared.similarity import unit_rows
from zeroshift.methods._shared.towers import PromptedText
from zeroshift.methods._shared.trained_prompts import descend, planned_epochs
from zeroshift.methods._shared.training import checked_order, label_loss
from zeroshift.methods._shared.tuning import (
    checked_start,
    cross_entropy,
    joined,
    logits_to_text,
    parted,
    through_unit_rows,
    tune,
)
from zeroshift.methods._shared.two_layer_net import TwoLayerNet, checked_net
from zeroshift.parameters import Number, array_parameter, parameter, state
from zeroshift.serialization import restoring
from zeroshift.zero_shot import logits

TEMPERATURE = 0.07
EMBEDDING = 128
"""Dimension in which prompts are compared."""

KEPT = 0.99
"""Share of the average gradient of the classification that each step keeps."""

DIFFERENCE = 1e-3
"""Step of the difference quotient of a gradient, relative to the length of the context."""

SOURCE_FIX = "source=zeroshift.methods.selftpt_source(text, support), from labelled samples of other classes"


class PromptSource(NamedTuple):
    """What is learned from labelled samples of the source's classes: the context (n, width), and the head that compares
    prompts, two linear layers with a rectifier between them."""

    context: Array
    weights1: Array
    biases1: Array
    weights2: Array
    biases2: Array


Linearized = tuple[Array, Callable[[Array], Array]]
"""Text features (V K, d) of a context, and the function from a gradient with respect to them to that of the context."""


def contrast(embeddings: Array, n_classes: int, temperature: float = TEMPERATURE) -> tuple[float, Array]:
    """Contrast of the V prompts of K classes, by their unit embeddings (V K, c), and its gradient (V K, c).

    For each prompt, the mean over the other prompts of its class of the cross-entropy of finding that prompt among all
    others. With equal prompts of a class and orthogonal classes it is smallest:

    >>> import numpy as np
    >>> loss, _ = contrast(np.tile(np.eye(2), (2, 1)), 2, temperature=1.0)
    >>> round(loss, 4)  # ln(e + 2) - 1
    0.5514
    """
    xp, n = namespace(embeddings), embeddings.shape[0]
    numbers = xp.arange(n, device=Backend.of(embeddings).device)
    gaps = numbers[:, None] - numbers
    others, partners = gaps != 0, (gaps != 0) & (gaps % n_classes == 0)
    targets = xp.astype(partners, embeddings.dtype) / max(1, n // n_classes - 1)
    similarities = embeddings @ embeddings.T / temperature
    # Not -inf, which times zero would be NaN.
    losses, slope = cross_entropy(xp.where(others, similarities, xp.full_like(similarities, -1e300)), targets)
    return float(xp.mean(losses)), (slope + slope.T) @ embeddings / (n * temperature)


def _separation(linearized: Linearized, head: TwoLayerNet, n_classes: int, temperature: float) -> Array:
    """Gradient of the contrast of a context, for the context and the head, as one vector."""
    text, pull_back = linearized
    raw = head.outputs(text)
    _, slope = contrast(unit_rows(raw), n_classes, temperature)
    to_text, to_head = head.pull_back(text, through_unit_rows(slope, raw))
    return joined([pull_back(to_text), *to_head])


def _mean_prompt(text: Array, n_classes: int) -> Array:
    """(K, d): the mean over the prompts of a class of text features (V K, d), not normalised."""
    return namespace(text).mean(text.reshape(-1, n_classes, text.shape[-1]), axis=0)


def _length(array: np.ndarray) -> float:
    return float(np.linalg.norm(array))


def _matching_direction(average: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Gradient of one minus the cosine of `average` and `gradient`, for the latter."""
    length = _length(gradient) or 1.0
    aim, unit = average / (_length(average) or 1.0), gradient / length
    return ((aim * unit).sum() * unit - aim) / length


def selftpt_source(
    text: PromptedText,
    support: tuple[Array, np.ndarray],
    *,
    logit_scale: float = 100.0,
    epochs: int = 50,
    batch_size: int = 32,
    rate: float = 2e-3,
    weight_decay: float = 5e-4,
    contrast_weight: float = 1.0,
    matching_weight: float = 1.0,
    temperature: float = TEMPERATURE,
    seed: int = 0,
    order: np.ndarray | None = None,
    head: tuple[Array, Array, Array, Array] | None = None,
) -> PromptSource:
    """SelfTPT's `source`: a context and a head, learned from labelled samples of classes other than the target's.

    SGD with CoOp's schedule on the sum of three losses: the cross-entropy of the samples, the contrast of the prompts,
    and one minus the cosine between their gradients for the context. For the gradient of the last, the gradient of
    the classification is an average over steps, and constant; the derivative of the gradient of the contrast is a
    difference quotient, two more gradients per step.

    Parameters
    ----------
    text : the source's classes: `prompted_text(encoder, class_names, position=SelfTPT.name_positions)`.
    support : features (n, d) and class indices (n,) of the source. The authors' source is ImageNet.
    contrast_weight, matching_weight : weights of the second and the third loss.
    temperature : of the contrast.
    seed, order : the order of the samples in each epoch, drawn or given (epochs, n).
    head : where the head starts; drawn from `seed` by default.
    """
    places = SelfTPT.name_positions
    if not isinstance(text, PromptedText) or text.n_prompts != len(places):
        raise TypeError(
            f"text must be a PromptedText with {len(places)} prompts per class; got {text!r}. "
            f"Fix: zeroshift.encode.prompted_text(encoder, class_names, position={places!r})."
        )
    positive, weight, count = Number(0, above=True), Number(0), Number(0, integer=True)
    for name, allowed, value in (
        ("logit_scale", positive, logit_scale),
        ("epochs", count, epochs),
        ("batch_size", Number(1, integer=True), batch_size),
        ("rate", weight, rate),
        ("weight_decay", weight, weight_decay),
        ("contrast_weight", weight, contrast_weight),
        ("matching_weight", weight, matching_weight),
        ("temperature", positive, temperature),
        ("seed", count, seed),
    ):
        allowed.check(name, value)
    n_classes, width = text.n_classes, text.dimension
    if isinstance(support, (tuple, list)):
        support = tuple(map(to_numpy, support))  # type: ignore[assignment]  # of any length: the next line checks it
    features, labels = checked_labelled("support", support, np.zeros((n_classes, width)))
    features, order = features.astype(np.float64), checked_order(order, epochs, len(labels))
    if head is None:
        head = TwoLayerNet.random(np.random.default_rng([seed, 0]), width, width, EMBEDDING)
    start = [np.asarray(text.context, dtype=np.float64), *checked_net("head", head, width, None, "leave it out")]
    shapes = [part.shape for part in start]
    average: np.ndarray | None = None

    def linearize(context: np.ndarray) -> Linearized:
        towers, pull_back = text.linearize(context)
        return np.asarray(towers, dtype=np.float64), pull_back

    def gradient(rows: np.ndarray, values: np.ndarray) -> tuple[Array, np.ndarray]:
        nonlocal average
        context, *layers = parted(values, shapes)
        (towers, pull_back), head, x = linearize(context), TwoLayerNet(*layers), features[rows]
        mean = _mean_prompt(towers, n_classes)
        loss, slope = label_loss(logits(x, unit_rows(mean), logit_scale), labels[rows])
        below = through_unit_rows(logits_to_text(slope, x, logit_scale), mean) / text.n_prompts
        own = pull_back(np.tile(below, (text.n_prompts, 1)))
        average = own if average is None else KEPT * average + (1 - KEPT) * own
        separation = _separation((towers, pull_back), head, n_classes, temperature)
        total = contrast_weight * separation
        total[: own.size] += own.reshape(-1)
        if matching_weight:
            direction = _matching_direction(average, separation[: own.size].reshape(own.shape))
            step = DIFFERENCE * max(_length(context), 1.0) / (_length(direction) or 1.0)
            # The Hessian times this direction is the derivative of the gradient along it.
            up, down = (
                _separation(linearize(context + sign * direction), head, n_classes, temperature)
                for sign in (step, -step)
            )
            total += matching_weight * (up - down) / (2 * step)
        return loss, total

    planned = planned_epochs(len(labels), epochs, batch_size, rate, seed, order)
    values, _ = descend(joined(start), gradient, planned, weight_decay)
    return PromptSource(*parted(values, shapes))


class SelfTPT(PromptTuned):
    """Adapts a prompt to the class names, once and without images: steps that move the prompts of a class towards each
    other and away from those of other classes. A class has three prompts, with the name after, within and before the
    context words; their mean predicts every image.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import SelfTPT
    >>> from zeroshift.testing.examples import ExampleText, example_prompt_source
    >>> text = ExampleText(np.eye(2), n_prompts=3)
    >>> method = SelfTPT(np.eye(2), text=text, source=example_prompt_source(np.eye(2)), logit_scale=5.0)
    >>> int(method.predict(np.array([0.8, 0.6])).argmax())
    0

    Notes
    -----
    Zhu et al., *Efficient Test-Time Prompt Tuning for Vision-Language Models* (Self-TPT), 2024. No code was
    found. From the abstract and a published summary are the three stages, the contrast between prompts and the matching
    of gradients. Ours are the three prompts of a class, the head, the temperature, weights and step sizes, and the use
    of the mean prompt. Do not compare with published numbers.

    It learns from no sample: `adapt` answers as `predict` does. The source needs labels, those of other classes, and
    the same encoder; the target needs none. Class names that mean nearly the same are pushed apart even if their images
    look the same. With one class there is nothing to compare.
    """

    name = "selftpt"
    headline = "Tunes the prompt on the class names alone"
    protocol = "online"
    needs = ("prototypes", "text", "source")
    linear = True
    reconstructed = "no code was found; prompts of a class, head, weights and steps are our choice after the abstract"
    state_size = "n w + K d for n words of width w, and the head, d^2 + 128 d"
    complexity = "O(K d) per sample; before, S + 1 passes of 3 K prompts, S of them with gradients, S = steps"
    name_positions: ClassVar[tuple[str, ...]] = ("end", "middle", "front")
    example_parameters: ClassVar[Mapping[str, Any]] = {"text": "text_of_positions", "source": "prompt_source"}
    check_exceptions: ClassVar[Mapping[str, str]] = {
        "predict_before_adapt_is_zero_shot": "its prompt is learned from the source and the class names before"
    }

    source: PromptSource = array_parameter(
        "The context and the head learned from labelled samples of other classes; "
        "`zeroshift.methods.selftpt_source` makes them."
    )
    steps: int = parameter(Number(low=0, integer=True), "Steps of AdamW on the class names.", default=10)
    temperature: float = parameter(
        Number(low=0, above=True), "Temperature of the comparison of prompts.", default=TEMPERATURE
    )

    # A reset leaves what was tuned: tuning again would give the same.
    _context: Array = state(
        lambda self: self.__dict__["_context"] if "_context" in self.__dict__ else self._tuned(),
        merge=lambda mine, theirs: mine,
    )
    _text: Array = state(
        lambda self: self.prototypes64 if restoring() else self._classifier_of(self._context),
        merge=lambda mine, theirs: mine,
    )

    @staticmethod
    def _classifier(text: Array, n_classes: int) -> Array:
        return unit_rows(_mean_prompt(text, n_classes))

    def _validate(self) -> None:
        super()._validate()
        if not isinstance(self.source, (tuple, list)) or len(self.source) != 5:
            kind = type(self.source).__name__
            raise TypeError(f"source must be five arrays, a context and the head's; got {kind}. Fix: {SOURCE_FIX}.")
        context = checked_start("source[0]", self.source[0], tuple(self.text.context.shape), SOURCE_FIX)
        head = checked_net("source[1:]", self.source[1:], self.dimension, None, SOURCE_FIX)
        self.source = PromptSource(context, *head)

    @property
    def context(self) -> Array:
        """The adapted embeddings (n, width)."""
        return self.as_own(self._context)

    def _classifier_of(self, context: Array) -> Array:
        return self._classifier(self._text_features(context), self.n_classes)

    def _tuned(self) -> Array:
        start, *layers = map(self.as_float64, self.source)

        def gradient(context: Array) -> tuple[None, Array]:
            slope = _separation(self._linearize(context), TwoLayerNet(*layers), self.n_classes, self.temperature)
            return None, slope[: math.prod(context.shape)].reshape(context.shape)

        return tune(start, gradient, self._new_optimizer(), 0 if restoring() else self.steps)[0]

    def _predict_scores(self, features: Array) -> Array:
        return logits(features, self._text, self.logit_scale)
