"""SwapPrompt: a prompt and its moving average, tuned on a whole set by predicting each other's predictions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from zeroshift.adapt.transductive import MostConfident
from zeroshift.arrays import Array, Backend, Rows, namespace, to_numpy
from zeroshift.method import ViewMethod
from zeroshift.methods._shared.prompt_tuned import PromptTuned
from zeroshift.methods._shared.tuning import AdamW, cross_entropy, logits_to_text
from zeroshift.parameters import Number, parameter, state
from zeroshift.zero_shot import log_softmax, logits, pseudo_class, softmax

__all__ = [
    "ImageViews",
    "PromptPair",
    "PseudoLabels",
    "SwapPrompt",
    "most_confident_per_class",
    "pseudo_loss",
    "swap_loss",
]

WORK_NUMBERS = 4_000_000
"""Features or logits in memory at one time: 32 MB in float64."""


class ImageViews:
    """A set of images, (N, V, d) with views or (N, d) without, read one view of some images at a time.

    View 0 is the image itself.
    """

    def __init__(self, rows: Rows, n_classes: int) -> None:
        shape = rows[:1].shape
        self._rows, self._has_views = rows, len(shape) == 3
        self.n_views = int(shape[1]) if self._has_views else 1
        self._block_size = max(1, WORK_NUMBERS // max(n_classes, int(shape[-1])))

    def __len__(self) -> int:
        return len(self._rows)

    def blocks(self) -> Iterator[slice]:
        """Slices of the images that are processed together."""
        return (
            slice(start, min(start + self._block_size, len(self))) for start in range(0, len(self), self._block_size)
        )

    def view(self, images: slice, number: int) -> Array:
        """View `number` (n, d) of these images. Other views are not read."""
        if not self._has_views:
            return self._rows[images]
        return self._rows[images, number]  # type: ignore[index]  # reads one view only, also from a memory-mapped file

    def take(self, numbers: Array) -> Array:
        """View 0 (n, d) of the images with these numbers."""
        if not self._has_views:
            return self._rows.take(numbers)
        return self._rows[to_numpy(numbers), 0]  # type: ignore[index]


class PseudoLabels(NamedTuple):
    """Images and their pseudo-classes: (n, d) and (n,)."""

    features: Array
    classes: Array


def swap_loss(views: tuple[Array, Array], online: Array, target: Array, logit_scale: float) -> tuple[Array, Array]:
    """Cross-entropy between the target on one view and the online prompt on the other, in both directions.

    `views` are two views (n, d) of the same images, `online` and `target` the text features (K, d) of both prompts.
    Returns the sum over images, and its gradient (K, d) with respect to `online`; the target is constant. For equal
    views and equal prompts the loss is twice the entropy:

    >>> import numpy as np
    >>> x = np.array([[0.8, 0.6]])
    >>> loss, _ = swap_loss((x, x), np.eye(2), np.eye(2), 5.0)
    >>> round(float(loss) / 2, 4)
    0.5822
    """
    xp = namespace(online)
    loss, gradient = 0.0, xp.zeros_like(online)
    for target_view, online_view in (views, views[::-1]):
        predicted = softmax(logits(target_view, target, logit_scale))
        losses, score_gradient = cross_entropy(logits(online_view, online, logit_scale), predicted)
        loss = loss + xp.sum(losses)
        gradient = gradient + logits_to_text(score_gradient, online_view, logit_scale)
    return loss, gradient


def pseudo_loss(labels: PseudoLabels, online: Array, logit_scale: float) -> tuple[Array, Array]:
    """Sum of the cross-entropies with the pseudo-labels, and its gradient (K, d) with respect to `online`."""
    xp = namespace(online)
    classes = xp.arange(online.shape[0], device=Backend.of(online).device)
    one_hot = xp.astype(labels.classes[:, None] == classes, online.dtype)
    losses, score_gradient = cross_entropy(logits(labels.features, online, logit_scale), one_hot)
    return xp.sum(losses), logits_to_text(score_gradient, labels.features, logit_scale)


def most_confident_per_class(images: ImageViews, text: Array, logit_scale: float, count: int) -> PseudoLabels:
    """For every class the `count` images with the highest probability among those predicted as that class."""
    backend, xp = Backend.of(text), namespace(text)
    candidates = MostConfident(backend, count)
    for block in images.blocks():
        log_y = log_softmax(logits(images.view(block, 0), text, logit_scale))
        highest = xp.max(log_y, axis=1)
        candidates.offer(pseudo_class(log_y), highest, xp.exp(highest), block.start)
    classes, _, rows, _, _ = candidates.chosen()
    return PseudoLabels(images.take(rows), classes)


LABEL_ROWS = 4096
"""Pseudo-labelled images processed together."""


class PromptPair(NamedTuple):
    """The contexts (n, width) of both prompts, and the text features (K, d) of the target, which predicts."""

    online: Array
    target: Array
    text: Array


class SwapPrompt(PromptTuned, ViewMethod):
    """Tunes a prompt on a whole set: towards the zero-shot classes of the most confident images of each class, and, on
    one view of an image, towards the prediction of a second prompt on another view. The second prompt is a slow average
    of the first, and predicts.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import SwapPrompt
    >>> from zeroshift.testing.examples import ExampleText
    >>> text = ExampleText(np.eye(2))
    >>> swapprompt = SwapPrompt(text.features(text.context), text=text, logit_scale=5.0)
    >>> swapprompt.adapt(np.array([[0.8, 0.6], [1.0, 0.0], [0.6, 0.8]])).round(3)
    array([[0.742, 0.258],
           [0.995, 0.005],
           [0.258, 0.742]])

    Notes
    -----
    Ma et al., *SwapPrompt: Test-Time Prompt Adaptation for Vision-Language Models*, NeurIPS 2023. No code was released:
    the two prompts, the swapped predictions and the moving average are the paper's; we chose everything else. The loss
    is the mean over the pseudo-labelled images plus `swap_weight` times the mean over all images.

    The gradient is that of the whole set, summed over a few images at a time, with one step and one update of the
    target per epoch; the authors probably used mini-batches. It is exact and does not depend on the order of the set,
    and the text model, most of the cost, runs three times per epoch however large the set is. There are therefore fewer
    steps, and `momentum` is per epoch.

    The two views of an epoch are drawn from all views except view 0, the image itself; their numbers are the same for
    all images, because the views are random anyway. With two views both are used, and a single feature serves as both.
    Pseudo-labels and predictions use the image itself. Each call of `adapt` starts from the initial prompt.
    """

    name = "swapprompt"
    headline = "Tunes a prompt with pairs of views"
    linear = True
    protocol = "transductive"
    needs = ("prototypes", "views", "text")
    takes: ClassVar[tuple[str, ...]] = ()
    reconstructed = "no code was released; losses, optimiser and its constants are our choice after the abstract"
    # Fewer epochs, because the common checks adapt to many sets.
    example_parameters: ClassVar[Mapping[str, Any]] = {"epochs": 10}
    state_size = "2 K d, and the contexts of two prompts"
    complexity = "3 E passes of K prompts, E of them with gradients, E = epochs, and O(E N K d)"

    epochs: int = parameter(
        Number(low=1, integer=True), "Passes over the set, with one step of AdamW each.", default=50
    )
    n_surest: int = parameter(
        Number(low=1, integer=True),
        "Images per class, the most confident zero-shot predictions, that get their zero-shot class as pseudo-label.",
        default=16,
    )
    swap_weight: float = parameter(
        Number(low=0), "Weight of the swapped predictions relative to the pseudo-labels; 0 disables them.", default=1.0
    )
    momentum: float = parameter(
        Number(0, 1),
        "Share of the target prompt that each epoch keeps; 1 leaves it at the initial prompt.",
        default=0.99,
    )
    rate: float = parameter(Number(low=0), "Step size of AdamW.", default=2e-3)
    seed: int = parameter(Number(low=0, integer=True), "Seed of the draw of two views per epoch.", default=0)

    _prompts: PromptPair = state(lambda self: self._initial_prompts(), saved_as="")

    def _initial_prompts(self) -> PromptPair:
        return PromptPair(self._initial_context, self._initial_context, self._initial_text)

    @property
    def online(self) -> Array:
        """The embeddings (n, width) of the tuned prompt."""
        return Backend.of(self.prototypes).copy(self._prompts.online)

    @property
    def target(self) -> Array:
        """The embeddings (n, width) of its moving average, which predicts."""
        return Backend.of(self.prototypes).copy(self._prompts.target)

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        return self._adapt_set(ImageViews(rows, self.n_classes))

    def _adapt_view_scores(self, images: Rows) -> Iterator[tuple[slice, Array]]:
        return self._adapt_set(ImageViews(images, self.n_classes))

    def _adapt_set(self, images: ImageViews) -> Iterator[tuple[slice, Array]]:
        prompts = self._tune(images)
        with self._learning(len(images), replace=True):
            self._prompts = prompts
        for block in images.blocks():
            yield block, logits(images.view(block, 0), prompts.text, self.logit_scale)

    def _tune(self, images: ImageViews) -> PromptPair:
        """The prompts after all epochs."""
        now = self._initial_prompts()
        labels = most_confident_per_class(images, now.text, self.logit_scale, self.n_surest)
        optimizer = AdamW(self.rate, weight_decay=self.weight_decay)
        draw = np.random.default_rng(self.seed)
        for epoch in range(self.epochs):
            online = self._text_features(now.online) if epoch else now.text
            _, gradient = self._loss(images, two_views(draw, images.n_views), labels, online, now.text)
            context = optimizer.step(now.online, self._context_gradient(now.online, gradient))
            target = self.momentum * now.target + (1 - self.momentum) * context
            now = PromptPair(context, target, self._text_features(target))
        return now

    def _loss(
        self, images: ImageViews, pair: tuple[int, int], labels: PseudoLabels, online: Array, target: Array
    ) -> tuple[Array, Array]:
        """The loss of the whole set at text features (K, d) of both prompts, and its gradient for the online ones."""
        xp, n_labels = namespace(online), labels.features.shape[0]
        loss, gradient = 0.0, xp.zeros_like(online)
        for start in range(0, n_labels, LABEL_ROWS):
            some = PseudoLabels(*(array[start : start + LABEL_ROWS] for array in labels))
            part, part_gradient = pseudo_loss(some, online, self.logit_scale)
            loss, gradient = loss + part / n_labels, gradient + part_gradient / n_labels
        for block in images.blocks() if self.swap_weight else ():
            views = images.view(block, pair[0]), images.view(block, pair[1])
            part, part_gradient = swap_loss(views, online, target, self.logit_scale)
            share = self.swap_weight / len(images)
            loss, gradient = loss + share * part, gradient + share * part_gradient
        return loss, gradient

    def _predict_scores(self, features: Array) -> Array:
        return logits(features, self._prompts.text, self.logit_scale)


def two_views(draw: np.random.Generator, n_views: int) -> tuple[int, int]:
    """Numbers of two views other than view 0, the image itself. With fewer than three views, the first and the last.

    >>> two_views(np.random.default_rng(0), 1), two_views(np.random.default_rng(0), 2)
    ((0, 0), (0, 1))
    """
    if n_views < 3:
        return 0, n_views - 1
    first, second = draw.choice(n_views - 1, size=2, replace=False) + 1
    return int(first), int(second)
