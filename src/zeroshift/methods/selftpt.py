"""Self-TPT: a prompt adapted to new class names, without images, by a contrast between the prompts of classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from zeroshift.arrays import Array, Backend, checked_labelled, namespace, to_numpy
from zeroshift.methods._shared.prompt_tuned import PromptTuned
from zeroshift.methods._shared.similarity import unit_rows
from zeroshift.methods._shared.towers import PromptedText
from zeroshift.methods._shared.trained_prompts import MOMENTUM
from zeroshift.methods._shared.training import checked_order, epoch_batches, label_loss, warm_cosine_rate
from zeroshift.methods._shared.tuning import SGD, AdamW, checked_start, logits_to_text, through_unit_rows
from zeroshift.methods._shared.two_layer_net import TwoLayerNet, checked_net
from zeroshift.parameters import Number, array_parameter, parameter, state
from zeroshift.serialization import restoring
from zeroshift.zero_shot import log_softmax, logits, softmax

__all__ = ["PromptSource", "SelfTPT", "contrast", "selftpt_source"]

TEMPERATURE = 0.07
EMBEDDING = 128
"""Dimension in which prompts are compared."""

KEPT = 0.99
"""Share of the average gradient of the classification that each step keeps."""

DIFFERENCE = 1e-3
"""Step of the difference quotient of a gradient, relative to the length of the context."""

SOURCE_FIX = "Fix: source=zeroshift.methods.selftpt_source(text, support), from labelled samples of other classes"


class PromptSource(NamedTuple):
    """What is learned from labelled samples of the source's classes: the context (n, width), and the head that compares
    prompts, two linear layers with a rectifier between them."""

    context: Array
    weights1: Array
    biases1: Array
    weights2: Array
    biases2: Array


def contrast(embeddings: Array, n_classes: int, temperature: float = TEMPERATURE) -> tuple[float, Array]:
    """Contrast of the V prompts of K classes, by their unit embeddings (V K, c), and its gradient (V K, c).

    For each prompt, the mean over the other prompts of its class of the cross-entropy of finding that prompt among all
    others. With equal prompts of a class and orthogonal classes it is smallest:

    >>> import numpy as np
    >>> loss, _ = contrast(np.tile(np.eye(2), (2, 1)), 2, temperature=1.0)
    >>> round(loss, 4)  # ln(e + 2) - 1
    0.5514
    """
    xp, backend = namespace(embeddings), Backend.of(embeddings)
    n = embeddings.shape[0]
    numbers = xp.arange(n, device=backend.device)
    others = numbers[:, None] != numbers
    partners = others & (numbers[:, None] % n_classes == numbers % n_classes)
    targets = xp.astype(partners, embeddings.dtype) / max(1, n // n_classes - 1)
    similarities = embeddings @ embeddings.T / temperature
    # Not -inf, which times zero would be NaN.
    scores = xp.where(others, similarities, xp.full_like(similarities, -1e300))
    log_y = xp.where(others, log_softmax(scores), xp.zeros_like(scores))
    loss = -xp.sum(targets * log_y) / n
    below = (softmax(scores) - targets) / (n * temperature)
    return float(loss), (below + below.T) @ embeddings


def _contrast_of_text(text: Array, head: TwoLayerNet, n_classes: int, temperature: float) -> tuple[Array, TwoLayerNet]:
    """Gradients of the contrast of text features (V K, d) with respect to them and to the head."""
    raw = head.outputs(text)
    _, gradient = contrast(unit_rows(raw), n_classes, temperature)
    return head.pull_back(text, through_unit_rows(gradient, raw))


def _mean_prompt(text: Array, n_classes: int) -> Array:
    """(K, d): the mean over the prompts of a class of text features (V K, d), not normalised."""
    xp = namespace(text)
    return xp.mean(xp.reshape(text, (-1, n_classes, text.shape[-1])), axis=0)


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
    _check_text(text)
    count, positive, weight = Number(0, integer=True), Number(0, above=True), Number(0)
    settings = {"rate": rate, "weight_decay": weight_decay, "contrast_weight": contrast_weight}
    for name, value in {**settings, "matching_weight": matching_weight}.items():
        weight.check(name, value)
    epochs, seed = int(count.check("epochs", epochs)), int(count.check("seed", seed))
    batch_size = int(Number(1, integer=True).check("batch_size", batch_size))
    logit_scale = float(positive.check("logit_scale", logit_scale))
    temperature = float(positive.check("temperature", temperature))
    like = np.zeros((text.n_classes, text.dimension))
    features, labels = checked_labelled(
        "support", tuple(map(to_numpy, support)) if _is_pair(support) else support, like
    )
    features = features.astype(np.float64)
    order = checked_order(order, epochs, len(labels))
    if head is None:
        head = TwoLayerNet.random(np.random.default_rng([seed, 0]), text.dimension, text.dimension, EMBEDDING)
    net = checked_net("head", head, text.dimension, None, "leave it out")
    context, average = np.asarray(text.context, dtype=np.float64), None
    optimizers = [SGD(rate, momentum=MOMENTUM, weight_decay=weight_decay) for _ in (context, *net)]
    planned = epoch_batches(len(labels), epochs, batch_size, drop_last=True, seed=seed, order=order)
    for epoch, rows_of_steps in enumerate(planned):
        for rows in rows_of_steps:
            towers, pull_back = text.linearize(context)
            wide = np.asarray(towers, dtype=np.float64)
            upstream = _classification(wide, text.n_classes, features[rows], labels[rows], logit_scale)
            classification = pull_back(upstream)
            average = classification if average is None else KEPT * average + (1 - KEPT) * classification
            text_gradient, net_gradient = _contrast_of_text(wide, net, text.n_classes, temperature)
            separation = pull_back(text_gradient)
            total = classification + contrast_weight * separation
            net_total = [contrast_weight * part for part in net_gradient]
            if matching_weight:
                matching, net_matching = _matching(text, context, net, average, separation, temperature)
                total = total + matching_weight * matching
                net_total = [a + matching_weight * b for a, b in zip(net_total, net_matching, strict=True)]
            stepped = []
            parts = zip(optimizers, (context, *net), (total, *net_total), strict=True)
            for optimizer, before, gradient in parts:
                optimizer.rate = warm_cosine_rate(epoch, epochs, rate)
                stepped.append(optimizer.step(before, gradient))
            context, net = stepped[0], TwoLayerNet(*stepped[1:])
    return PromptSource(context, *net)


def _is_pair(support: Any) -> bool:
    return isinstance(support, (tuple, list)) and len(support) == 2


def _check_text(text: Any) -> None:
    places = SelfTPT.name_positions
    if not isinstance(text, PromptedText) or text.n_prompts != len(places):
        raise TypeError(
            f"text must be a PromptedText with {len(places)} prompts per class; got {text!r}. "
            f"Fix: zeroshift.encode.prompted_text(encoder, class_names, position={places!r})."
        )


def _classification(
    text: np.ndarray, n_classes: int, x: np.ndarray, labels: np.ndarray, logit_scale: float
) -> np.ndarray:
    """Gradient (V K, d) of the mean cross-entropy of features (B, d) with the mean prompts."""
    n_prompts, mean = len(text) // n_classes, _mean_prompt(text, n_classes)
    _, gradient = label_loss(logits(x, unit_rows(mean), logit_scale), labels)
    below = through_unit_rows(logits_to_text(gradient, x, logit_scale), mean)
    return np.tile(below / n_prompts, (n_prompts, 1))


def _matching(
    text: PromptedText,
    context: np.ndarray,
    net: TwoLayerNet,
    average: np.ndarray,
    separation: np.ndarray,
    temperature: float,
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Gradients, for context and head, of one minus the cosine of `average` and the gradient `separation`."""
    lengths = float(np.linalg.norm(average)), float(np.linalg.norm(separation))
    if not min(lengths):
        return np.zeros_like(context), [np.zeros_like(part) for part in net]
    aim, unit = average / lengths[0], separation / lengths[1]
    # dL/dg for g = separation. The Hessian times this direction is the derivative of g along it.
    direction = -(aim - (aim * unit).sum() * unit) / lengths[1]
    size = float(np.linalg.norm(direction))
    if not size:
        return np.zeros_like(context), [np.zeros_like(part) for part in net]
    step = DIFFERENCE * max(float(np.linalg.norm(context)), 1.0)
    ends = []
    for sign in (1, -1):
        moved = context + sign * step / size * direction
        towers, pull_back = text.linearize(moved)
        wide = np.asarray(towers, dtype=np.float64)
        text_gradient, net_gradient = _contrast_of_text(wide, net, text.n_classes, temperature)
        ends.append([pull_back(text_gradient), *net_gradient])
    first, *rest = [(up - down) * (size / (2 * step)) for up, down in zip(*ends, strict=True)]
    return first, rest


class AdaptedPrompt(NamedTuple):
    """The context (n, width), and the classifier (K, d) that its prompts make."""

    context: Array
    text: Array


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
    computes_in = None
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
    _adapted: AdaptedPrompt = state(
        lambda self: self.__dict__.get("_adapted") or self._tuned(),
        saved_as="",
        merge=lambda mine, theirs: mine,  # the same, by the same parameters
    )

    @staticmethod
    def _classifier(text: Array, n_classes: int) -> Array:
        return unit_rows(_mean_prompt(text, n_classes))

    def _validate(self) -> None:
        super()._validate()
        if not isinstance(self.source, (tuple, list)) or len(self.source) != 5:
            raise TypeError(
                f"source must be five arrays, a context and the head's; got {type(self.source).__name__}. {SOURCE_FIX}."
            )
        fix = SOURCE_FIX.removeprefix("Fix: ")
        context = checked_start("source[0]", self.source[0], tuple(self.text.context.shape), fix)
        self.source = PromptSource(context, *checked_net("source[1:]", self.source[1:], self.dimension, None, fix))

    @property
    def context(self) -> Array:
        """The adapted embeddings (n, width)."""
        return Backend.of(self.prototypes).copy(self._adapted.context)

    def _tuned(self) -> AdaptedPrompt:
        backend = Backend.of(self.prototypes)
        context, *layers = (backend.copy(backend.asarray(part, backend.xp.float64)) for part in self.source)
        if restoring():
            return AdaptedPrompt(context, self.prototypes64)
        head, optimizer = TwoLayerNet(*layers), AdamW(self.rate, weight_decay=self.weight_decay)
        for _ in range(self.steps):
            text, pull_back = self._text_and_pull_back(context)
            gradient, _ = _contrast_of_text(text, head, self.n_classes, self.temperature)
            context = optimizer.step(context, pull_back(gradient))
        return AdaptedPrompt(context, self._classifier(self._text_features(context), self.n_classes))

    def _predict_scores(self, features: Array) -> Array:
        return logits(features, self._adapted.text, self.logit_scale)
