"""SwapPrompt: a prompt and its moving average, tuned on a whole set by predicting each other's predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from zeroshift.arrays import Array, Backend, Rows, namespace, to_numpy
from zeroshift.features.checks import blocks
from zeroshift.method import SetMethod, ViewMethod
from zeroshift.methods._shared.prompt_tuned import PromptTuned
from zeroshift.methods._shared.training import label_loss
from zeroshift.methods._shared.tuning import cross_entropy, logits_to_text, tune
from zeroshift.parameters import Number, parameter, state
from zeroshift.zero_shot import log_softmax, logits, pseudo_class, quantize, softmax


class SwapPrompt(PromptTuned, SetMethod, ViewMethod):
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
    needs = ("prototypes", "views", "text")
    takes = ()
    reads_parts = True
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

    _online: Array = state(lambda self: self._initial_context)
    _target: Array = state(lambda self: self._initial_context)
    _text: Array = state(lambda self: self._initial_text)

    @property
    def online(self) -> Array:
        """The embeddings (n, width) of the tuned prompt."""
        return self.as_own(self._online)

    @property
    def target(self) -> Array:
        """The embeddings (n, width) of its moving average, which predicts."""
        return self.as_own(self._target)

    def _adapt_view_scores(self, images: Rows) -> Iterator[tuple[slice, Array]]:
        return self._adapt_scores(images)

    def fit(self, images: Rows) -> tuple[Array, Mapping[str, Any]]:
        n_views = images[:1].shape[1] if len(images[:1].shape) == 3 else 0

        def view(number: int, some: slice | np.ndarray) -> Array:
            """View `number` (n, d) of some images. Other views are not read."""
            return images[(some, number) if n_views else some]  # type: ignore[index]

        parts = list(blocks(len(images), max(self.n_classes, self.dimension)))
        surest, classes = self._surest(view(0, part) for part in parts)
        labelled = view(0, surest), Backend.of(self.prototypes).index(classes)
        online = target = self._initial_context
        text, optimizer, draw = self._initial_text, self._new_optimizer(), np.random.default_rng(self.seed)
        for _ in range(self.epochs):
            pair = [partial(view, number) for number in two_views(draw, n_views)]
            online, _ = tune(online, partial(self._gradient, labelled, pair, parts, text), optimizer)
            target = self.momentum * target + (1 - self.momentum) * online
            text = self._text_features(target)
        scores = [logits(view(0, part), text, self.logit_scale) for part in parts]
        return namespace(text).concat(scores), {"_online": online, "_target": target, "_text": text}

    def _surest(self, images: Iterable[Array]) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of the most confident zero-shot predictions of each class, and their classes."""
        found = []
        for x in images:
            log_y = log_softmax(logits(x, self._initial_text, self.logit_scale))
            found.append((to_numpy(pseudo_class(log_y)), to_numpy(namespace(log_y).max(log_y, axis=1))))
        classes, highest = (np.concatenate(parts) for parts in zip(*found, strict=True))
        order = np.argsort(-quantize(highest), kind="stable")
        rows = np.concatenate([order[classes[order] == k][: self.n_surest] for k in range(self.n_classes)])
        return rows, classes[rows]

    def _gradient(
        self,
        labelled: tuple[Array, Array],
        pair: Sequence[Callable[[slice], Array]],
        parts: Sequence[slice],
        target: Array,
        context: Array,
    ) -> tuple[None, Array]:
        """Gradient of the loss of the whole set for the online prompt. `target` (K, d) are the text features of the
        other prompt; each of the `pair` reads one view of a part of the images."""
        (x, classes), scale = labelled, self.logit_scale
        text, pull_back = self._linearize(context)
        slope = 0 * text
        for some in blocks(len(x), self.n_classes):
            _, below = label_loss(logits(x[some], text, scale), classes[some])
            slope = slope + len(x[some]) / len(x) * logits_to_text(below, x[some], scale)
        for part in parts if self.swap_weight else ():
            views = [view(part) for view in pair]
            for target_view, online_view in (views, views[::-1]):
                y = softmax(logits(target_view, target, scale))
                _, below = cross_entropy(logits(online_view, text, scale), y)
                slope = slope + self.swap_weight / parts[-1].stop * logits_to_text(below, online_view, scale)
        return None, pull_back(slope)

    def score(self, features: Array) -> Array:
        return logits(features, self._text, self.logit_scale)


def two_views(draw: np.random.Generator, n_views: int) -> tuple[int, int]:
    """Numbers of two views other than view 0, the image itself. With fewer than three views, the first and the last.

    >>> two_views(np.random.default_rng(0), 1), two_views(np.random.default_rng(0), 2)
    ((0, 0), (0, 1))
    """
    if n_views < 3:
        return 0, n_views - 1
    first, second = draw.choice(n_views - 1, size=2, replace=False) + 1
    return int(first), int(second)
