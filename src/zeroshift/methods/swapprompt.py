"""SwapPrompt: a prompt tuned on a whole set, and its moving average, each other's teacher on two views of an image."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from zeroshift.adapt.transductive import MostConfident
from zeroshift.arrays import Array, Home, Rows, namespace, to_numpy
from zeroshift.methods._shared.prompt_tuned import TEXT, PromptTuned
from zeroshift.methods._shared.towers import PromptedText
from zeroshift.methods._shared.tuning import AdamW, cross_entropy, logits_to_text
from zeroshift.parameters import Number, model_parameter, parameter
from zeroshift.zero_shot import log_softmax, logits, pseudo_class, softmax

__all__ = ["ImageViews", "PseudoLabels", "SwapPrompt", "pseudo_loss", "surest_of_each_class", "swap_loss"]


# A set of images, one view of some of them at a time: what goes over a set again and again with few views needs.


WORK_NUMBERS = 4_000_000
"""Features or logits held at once: 32 MB in float64."""


class ImageViews:
    """Checked rows, (N, V, d) with views or (N, d) without: the image itself is view 0 of both."""

    def __init__(self, rows: Rows, n_classes: int) -> None:
        shape = rows[:1].shape
        self._rows, self._several = rows, len(shape) == 3
        self.n_views = int(shape[1]) if self._several else 1
        self._at_once = max(1, WORK_NUMBERS // max(n_classes, int(shape[-1])))

    def __len__(self) -> int:
        return len(self._rows)

    def blocks(self) -> Iterator[slice]:
        """Which images are looked at together."""
        return (slice(start, min(start + self._at_once, len(self))) for start in range(0, len(self), self._at_once))

    def view(self, images: slice, number: int) -> Array:
        """(n, d): view `number` of these images, the others left where they are."""
        if not self._several:
            return self._rows[images]
        return self._rows[images, number]  # type: ignore[index]  # the one view only, of memory-mapped ones too

    def pick(self, numbers: Array) -> Array:
        """(n, d): view 0 of the images with these numbers."""
        if not self._several:
            return self._rows.take(numbers)
        return self._rows[to_numpy(numbers), 0]  # type: ignore[index]


# SwapPrompt's two losses: what one prompt says of a view, predicted by the other from another view; and pseudo-labels.
#
# Each comes with its gradient with respect to the text features of the prompt that learns, in closed form.


class PseudoLabels(NamedTuple):
    """Some images and the classes they are taken for: (n, d) and (n,)."""

    features: Array
    classes: Array


def swap_loss(views: tuple[Array, Array], online: Array, target: Array, logit_scale: float) -> tuple[Array, Array]:
    """CE(target on one view, online on the other), both ways, summed over images; and its gradient (K, d).

    Two views (n, d) of the same images, and the text features (K, d) of both prompts; the target's predictions are
    taken as they are. Of equal views and prompts it is twice the entropy:

    >>> import numpy as np
    >>> x = np.array([[0.8, 0.6]])
    >>> loss, _ = swap_loss((x, x), np.eye(2), np.eye(2), 5.0)
    >>> round(float(loss) / 2, 4)
    0.5822
    """
    xp = namespace(online)
    loss, gradient = 0.0, xp.zeros_like(online)
    for seen, asked in (views, views[::-1]):
        wanted = softmax(logits(seen, target, logit_scale))
        losses, to_logits = cross_entropy(logits(asked, online, logit_scale), wanted)
        loss = loss + xp.sum(losses)
        gradient = gradient + logits_to_text(to_logits, asked, logit_scale)
    return loss, gradient


def pseudo_loss(labels: PseudoLabels, online: Array, logit_scale: float) -> tuple[Array, Array]:
    """Cross-entropy with the pseudo-labels, summed over them; and its gradient (K, d)."""
    xp = namespace(online)
    classes = xp.arange(online.shape[0], device=Home.of(online).device)
    one_hot = xp.astype(labels.classes[:, None] == classes, online.dtype)
    losses, to_logits = cross_entropy(logits(labels.features, online, logit_scale), one_hot)
    return xp.sum(losses), logits_to_text(to_logits, labels.features, logit_scale)


def surest_of_each_class(images: ImageViews, text: Array, logit_scale: float, count: int) -> PseudoLabels:
    """Of every class the `count` images it is most probable for, among those it is the most probable class of."""
    home, xp = Home.of(text), namespace(text)
    surest = MostConfident(home, count)
    for block in images.blocks():
        log_y = log_softmax(logits(images.view(block, 0), text, logit_scale))
        highest = xp.max(log_y, axis=1)
        surest.offer(pseudo_class(log_y), highest, xp.exp(highest), block.start)
    classes, _, rows, _, _ = surest.chosen()
    return PseudoLabels(images.pick(rows), classes)


LABELS_AT_ONCE = 4096
"""Pseudo-labelled images looked at together."""


class Prompts(NamedTuple):
    """Both prompts' words (n, width), and the text features (K, d) of the target's, which answers."""

    online: Array
    target: Array
    text: Array


class SwapPrompt(PromptTuned):
    """Tunes a prompt on a whole set: towards the zero-shot classes of each class's surest images, and, on one view of
    an image, towards what a second prompt, the slow average of the first, says of another view. The second answers.

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
    the two prompts, the swapped predictions and the moving average are the paper's, everything else is filled in here.
    The loss is the mean over the pseudo-labelled images plus `swap_weight` times the mean over all images.

    The gradient is that of the whole set, gathered a few images at a time, with one step and one move of the target an
    epoch, where the authors will have taken mini-batches: exact, the same in whatever order the set comes, and the text
    model, most of the cost, is gone through three times an epoch however large the set is. Steps are therefore fewer,
    and `momentum` is for one of them.

    The two views of an epoch are two numbers drawn among all but view 0, which is the image itself, the same for all
    images: views are random themselves. Of two views both are taken, and a single feature is both of its own. Pseudo-
    labels are learned from, and answers given for, the image itself. `adapt` begins anew with each set.
    """

    name = "swapprompt"
    protocol = "transductive"
    needs = ("prototypes", "views", "text")
    takes: ClassVar[tuple[str, ...]] = ()
    reconstructed = "no code was released; losses, optimiser and its constants are filled in from the abstract"
    # Fewer epochs for the common checks, which adapt to many sets.
    example_parameters: ClassVar[Mapping[str, Any]] = {"epochs": 10}
    state_size = "2 K d, and the words of two prompts"
    complexity = "3 E passes of K prompts, E of them with gradients, E = epochs, and O(E N K d)"

    text: PromptedText = model_parameter(
        TEXT, "The text side of the encoder, as `zeroshift.encode.prompted_text` makes it."
    )
    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)
    epochs: int = parameter(
        Number(low=1, integer=True), "Times the set is gone over; a step of AdamW each.", default=50
    )
    n_surest: int = parameter(
        Number(low=1, integer=True),
        "Images of each class, the surest zero-shot, that are given their zero-shot class.",
        default=16,
    )
    swap_weight: float = parameter(
        Number(low=0), "Weight of the swapped predictions beside the pseudo-labels; 0 does without them.", default=1.0
    )
    momentum: float = parameter(
        Number(0, 1),
        "Share of the target prompt that stays as it is at an epoch; 1 leaves it the zero-shot one.",
        default=0.99,
    )
    rate: float = parameter(
        Number(low=0),
        "Of AdamW: the step size, and the share of the words' embeddings taken off at a step, times `rate`.",
        default=2e-3,
    )
    weight_decay: float = parameter(
        Number(low=0),
        "Of AdamW: the step size, and the share of the words' embeddings taken off at a step, times `rate`.",
        default=0.01,
    )
    seed: int = parameter(Number(low=0, integer=True), "Of the draw of two views for each epoch.", default=0)

    def _begin(self) -> None:
        self._prompts = Prompts(self._words, self._words, self._initial)

    @property
    def online(self) -> Array:
        """The embeddings (n, width) of the prompt that was tuned."""
        return Home.of(self.prototypes).copy(self._prompts.online)

    @property
    def target(self) -> Array:
        """The embeddings (n, width) of its moving average, which answers."""
        return Home.of(self.prototypes).copy(self._prompts.target)

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        return self._adapt_set(ImageViews(rows, self.n_classes))

    def _adapt_view_scores(self, images: Rows) -> Iterator[tuple[slice, Array]]:
        return self._adapt_set(ImageViews(images, self.n_classes))

    def _adapt_set(self, images: ImageViews) -> Iterator[tuple[slice, Array]]:
        # Nothing is set before all is learned: an interrupt leaves what an earlier set taught.
        prompts = self._tuned(images)
        self._prompts, self.n_seen = prompts, len(images)
        for block in images.blocks():
            yield block, logits(images.view(block, 0), prompts.text, self.logit_scale)

    def _tuned(self, images: ImageViews) -> Prompts:
        """What the whole set teaches."""
        now = Prompts(self._words, self._words, self._initial)
        labels = surest_of_each_class(images, now.text, self.logit_scale, self.n_surest)
        optimiser = AdamW(self.rate, weight_decay=self.weight_decay)
        draw = np.random.default_rng(self.seed)
        for epoch in range(self.epochs):
            online = self._text_features(now.online) if epoch else now.text
            _, gradient = self._loss(images, two_views(draw, images.n_views), labels, online, now.text)
            words = optimiser.step(now.online, self._to_context(now.online, gradient))
            target = self.momentum * now.target + (1 - self.momentum) * words
            now = Prompts(words, target, self._text_features(target))
        return now

    def _loss(
        self, images: ImageViews, pair: tuple[int, int], labels: PseudoLabels, online: Array, target: Array
    ) -> tuple[Array, Array]:
        """The loss of the whole set at text features (K, d) of both prompts, and its gradient for the online ones."""
        xp, n_labels = namespace(online), labels.features.shape[0]
        loss, gradient = 0.0, xp.zeros_like(online)
        for start in range(0, n_labels, LABELS_AT_ONCE):
            some = PseudoLabels(*(array[start : start + LABELS_AT_ONCE] for array in labels))
            part, to_text = pseudo_loss(some, online, self.logit_scale)
            loss, gradient = loss + part / n_labels, gradient + to_text / n_labels
        for block in images.blocks() if self.swap_weight else ():
            views = images.view(block, pair[0]), images.view(block, pair[1])
            part, to_text = swap_loss(views, online, target, self.logit_scale)
            share = self.swap_weight / len(images)
            loss, gradient = loss + share * part, gradient + share * to_text
        return loss, gradient

    def _predict_scores(self, features: Array) -> Array:
        return logits(features, self._prompts.text, self.logit_scale)

    def _state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return self._prompts._asdict(), {}

    def _restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        for name, own in self._prompts._asdict().items():
            if tuple(arrays[name].shape) != tuple(own.shape):
                raise ValueError(f"{name} of shape {tuple(arrays[name].shape)}, not {tuple(own.shape)}, were saved")
        self._prompts = Prompts(arrays["online"], arrays["target"], arrays["text"])


def two_views(draw: np.random.Generator, n_views: int) -> tuple[int, int]:
    """Numbers of two views, of those that are not the image itself; of fewer than three views the first and the last.

    >>> two_views(np.random.default_rng(0), 1), two_views(np.random.default_rng(0), 2)
    ((0, 0), (0, 1))
    """
    if n_views < 3:
        return 0, n_views - 1
    first, second = draw.choice(n_views - 1, size=2, replace=False) + 1
    return int(first), int(second)
