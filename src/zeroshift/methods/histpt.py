"""HisTPT: prompt tuning that continues from image to image, regularised by text features of earlier prompts."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np

from zeroshift.arrays import Array, Backend, namespace
from zeroshift.methods._shared.prompt_tuned import OnlinePromptTuning
from zeroshift.methods._shared.training import label_loss
from zeroshift.methods._shared.tuning import AdamW, logits_to_text, tune
from zeroshift.parameters import Choice, Number, parameter, state
from zeroshift.state_checks import check_range
from zeroshift.views import marginal_entropy, select_lowest_entropy
from zeroshift.zero_shot import confidence, log_softmax, logits, pseudo_class, quantize, softmax


class Banks(NamedTuple):
    """Text features (K, d) of earlier prompts. In queues, image number i has the slot i modulo their length."""

    local: Array
    """(L, K, d): the latest text features."""
    entropies: np.ndarray
    """(L,): entropies of the images they were used for, on the host."""
    hard: Array
    """(H, K, d): for each of the latest images the mean of the local entries of highest entropy."""
    bank_prototypes: Array
    """(3, K, d): the global bank, a moving average of the oldest entries of both; the means of local and hard bank."""

    def check_seen(self, n_seen: int) -> None:
        """ValueError for entropies that no images have."""
        check_range("entropies", self.entropies, 0)


def stored(queue: Array, image: int, entry: Array | float) -> Array:
    """A copy of a queue with the entry of image number `image`. The first image fills all slots."""
    queue = Backend.of(queue).copy(queue)
    queue[image % len(queue) if image else slice(None)] = entry
    return queue


def newest_first(length: int, image: int) -> np.ndarray:
    """The slots of image number `image` and of those before it.

    >>> newest_first(3, 4)
    array([1, 0, 2])
    """
    return (image - np.arange(length)) % length


def retrieve_logits(features: Array, prototypes: Array, logit_scale: float) -> Array:
    """Logits (n, K) of features (n, d) from the prototypes (B, K, d) of several banks, weighted by their confidence.

    The weight of a bank for a feature is the softmax, over banks, of its negative entropy. With equal banks:

    >>> import numpy as np
    >>> retrieve_logits(np.array([[0.8, 0.6]]), np.stack([np.eye(2), np.eye(2)]), 5.0)
    array([[4., 3.]])
    """
    xp = namespace(features)
    scores = logit_scale * (features @ xp.permute_dims(prototypes, (0, 2, 1)))
    weights = softmax(confidence(log_softmax(scores)).T)
    return xp.sum(weights.T[:, :, None] * scores, axis=0)


class HisTPT(OnlinePromptTuning):
    """Tunes the context of the prompt one step per image, towards the class that three banks of earlier text features
    predict, and never restores it. The banks hold the latest text features, those of the hardest images, and a slow
    average. They keep a prompt that is tuned continually from forgetting.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import HisTPT
    >>> from zeroshift.testing.examples import ExampleText
    >>> text = ExampleText(np.eye(2))
    >>> histpt = HisTPT(text.features(text.context), text=text, logit_scale=5.0)
    >>> histpt.adapt_views(np.array([[0.8, 0.6], [1.0, 0.0], [0.6, 0.8]])).round(3)
    array([0.734, 0.266])

    Notes
    -----
    Zhang et al., *Historical Test-time Prompt Tuning for Vision Foundation Models*, NeurIPS 2024. The authors released
    their code for segmentation only. The banks, their order, the retrieval and the loss are as there. For the
    classification of whole images we chose the following: all classes share the context (theirs is tuned per class);
    views, their selection and `rate` are TPT's (their `rate` is 1e-4, for segmentation); the loss is the mean
    cross-entropy of the most confident views with the class the banks predict for the image itself; and the entropy of
    an image, which measures how hard it is, is that of the mean over its most confident views. Their code uses a sum
    over raw logits instead, which is not an entropy.

    The moments of AdamW continue from image to image with the context, as in their training loop. The means of the
    banks are not scaled to unit length, as there. Of equal entropies the newer entry counts as harder; theirs leaves
    that open. `predict` uses the present prompt or banks.
    """

    name = "histpt"
    headline = "Tunes a prompt, with banks of earlier ones"
    not_frozen = "it weights its banks by the entropy that each has for a sample"
    reconstructed = "the authors' code is for segmentation; classification is our adaptation of it"
    state_size = "K d (L + H + 5), and the context with the two moments of AdamW"
    complexity = "2 passes of K prompts, 1 of them with gradients, and O(K d (L + H)), per image"

    local_size: int = parameter(Number(low=1, integer=True), "Entries of the local bank.", default=32, sizes_state=True)
    hard_size: int = parameter(Number(low=1, integer=True), "Entries of the hard bank.", default=32, sizes_state=True)
    n_hard: int = parameter(
        Number(low=1, integer=True),
        "Local entries averaged for one entry of the hard bank, those of highest entropy.",
        default=16,
    )
    momentum: float = parameter(Number(0, 1), "Share of the global bank that each image keeps.", default=0.99)
    answer: str = parameter(  # type: ignore[assignment]  # the method `answer` is found in the class
        Choice(("prompt", "fused")),
        'What predicts an image: the "prompt" after its step, or the "fused" banks, towards which it was tuned.',
        default="prompt",
    )

    _context: Array = state(lambda self: self._initial_context, saved_as="words")
    _text: Array = state(lambda self: self._initial_text)
    _optimizer: AdamW = state(
        lambda self: self._new_optimizer(),
        saved_as="",
        check=lambda self, optimizer: optimizer.check(self._context, self.n_seen),
    )
    _banks: Banks = state(lambda self: self._no_banks(), saved_as="")

    def _validate(self) -> None:
        super()._validate()
        if self.n_hard > self.local_size:
            raise ValueError(
                f"n_hard must be at most local_size, {self.local_size}; got {self.n_hard}. "
                f"Fix: n_hard={self.local_size}, or a larger local_size."
            )

    def _no_banks(self) -> Banks:
        shape = self.n_classes, self.dimension
        local, hard, prototypes = (self.zeros(size, *shape) for size in (self.local_size, self.hard_size, 3))
        return Banks(local, np.zeros(self.local_size), hard, prototypes)

    @property
    def context(self) -> Array:
        """The present embeddings (n, width) of the context."""
        return self.as_own(self._context)

    @property
    def banks(self) -> dict[str, Array]:
        """`local` (L, K, d) and `hard` (H, K, d), the newest first, and `global` (K, d); zeros before any image."""
        index, banks, image = Backend.of(self.prototypes).index, self._banks, self.n_seen - 1
        local = banks.local[index(newest_first(self.local_size, image))]
        hard = banks.hard[index(newest_first(self.hard_size, image))]
        return {"local": local, "hard": hard, "global": self.as_own(banks.bank_prototypes[0])}

    def plan(self, views: Array) -> tuple[Any, ...]:
        """Banks, context, its text features and the optimizer after an image."""
        scores = logits(views, self._text, self.logit_scale)
        kept = select_lowest_entropy(scores, self.view_ratio)
        banks = self._banks_with(self._text, float(marginal_entropy(scores[kept, :])))
        fused = retrieve_logits(views[:1, :], banks.bank_prototypes, self.logit_scale)

        def gradient(context: Array) -> tuple[Array, Array]:
            """Of the mean cross-entropy of the kept views with the class that the banks predict for the image."""
            classes = namespace(kept).zeros_like(kept) + pseudo_class(fused)
            loss, slope = label_loss(scores[kept, :], classes)
            return loss, self._pull_back(context, logits_to_text(slope, views[kept, :], self.logit_scale))

        optimizer = copy.copy(self._optimizer)
        context, _ = tune(self._context, gradient, optimizer)
        return banks, context, self._text_features(context), optimizer

    def _banks_with(self, text: Array, entropy: float) -> Banks:
        """The banks after the text features (K, d) and the entropy of the next image. Of equal entropies the newer
        entry counts as harder."""
        image, before = self._n_seen, self._banks
        local, entropies = stored(before.local, image, text), stored(before.entropies, image, entropy)
        newest = newest_first(self.local_size, image)
        hardest = newest[np.argsort(-quantize(entropies[newest]), stable=True)[: self.n_hard]]
        hard = stored(before.hard, image, local[Backend.of(text).index(hardest)].mean(axis=0))
        oldest = (local[(image + 1) % self.local_size] + hard[(image + 1) % self.hard_size]) / 2
        average = self.momentum * before.bank_prototypes[0] + (1 - self.momentum) * oldest if image else text
        prototypes = namespace(text).stack([average, local.mean(axis=0), hard.mean(axis=0)])
        return Banks(local, entropies, hard, prototypes)

    def learn(self, step: tuple[Any, ...]) -> None:
        self._banks, self._context, self._text, self._optimizer = step

    def score(self, views: Array) -> Array:
        if self.answer == "fused" and self._n_seen:
            return retrieve_logits(views[:, 0, :], self._banks.bank_prototypes, self.logit_scale)
        return logits(views[:, 0, :], self._text, self.logit_scale)
