"""HisTPT: prompt tuning that continues from image to image, regularised by text features of earlier prompts."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from zeroshift.arrays import Array, Backend, Rows, namespace, to_numpy
from zeroshift.method import ViewMethod
from zeroshift.methods._shared.prompt_tuned import PromptTuned
from zeroshift.methods._shared.tuning import AdamW, cross_entropy, logits_to_text
from zeroshift.parameters import Choice, Number, parameter, state
from zeroshift.state_checks import check_range
from zeroshift.views import marginal_entropy, select_lowest_entropy
from zeroshift.zero_shot import confidence, log_softmax, logits, pseudo_class, quantize, softmax

__all__ = ["HisTPT", "HistoryUpdate", "TextHistory", "TextQueue", "retrieve_logits"]


class TextQueue:
    """The latest `size` text features (K, d), in a ring buffer.

    Image number i has the slot i modulo `size`; image 0 fills all slots. Means can be computed as if a new entry were
    already stored.

    >>> import numpy as np
    >>> queue = TextQueue(Backend.of(np.eye(1)), size=2, shape=(1, 2), dtype=None)
    >>> queue.store(0, np.array([[1.0, 0.0]]))
    >>> queue.weighted_means(queue.even_weights[None, :], 1, np.array([[0.0, 1.0]]))
    array([[[0.5, 0.5]]])
    """

    def __init__(self, backend: Backend, size: int, shape: tuple[int, int], dtype: Any) -> None:
        self._backend, self.size = backend, size
        self.entries = backend.zeros((size, *shape), dtype)
        self.even_weights = np.full(size, 1 / size)

    def slot(self, image: int) -> int:
        return image % self.size

    def weighted_means(self, weights: np.ndarray, image: int, newest: Array) -> Array:
        """Means (m, K, d) over the entries with `newest` (K, d) of this image stored, by weights (m, size)."""
        xp, slot = self._backend.xp, self.slot(image)
        others = weights.copy()
        others[:, slot] = 0
        # A matrix product: it neither copies the entries, which are large, nor converts them to another precision.
        means = self._backend.asarray(others, self.entries.dtype) @ xp.reshape(self.entries, (self.size, -1))
        means = xp.reshape(self._backend.asarray(means, newest.dtype), (-1, *newest.shape))
        return means + self._backend.asarray(weights[:, slot], newest.dtype)[:, None, None] * newest

    def oldest(self, image: int, newest: Array) -> Array:
        """The entry (K, d) that will be replaced next, with `newest` of this image stored."""
        leaving = self.slot(image + 1)
        return newest if leaving == self.slot(image) else self._backend.asarray(self.entries[leaving], newest.dtype)

    def store(self, image: int, newest: Array) -> None:
        """Store `newest` (K, d) of this image."""
        self.entries[self.slot(image) if image else slice(None)] = newest

    def newest_first(self, image: int) -> np.ndarray:
        """The slots (size,) of image number `image` and of those before it."""
        return (image - np.arange(self.size)) % self.size


class HistoryUpdate(NamedTuple):
    """An update of `TextHistory` by one image, not yet applied."""

    image: int
    """Number of images before it."""
    local: Array
    """(K, d): the new entry of the local bank."""
    hard: Array
    """(K, d): the new entry of the hard bank."""
    entropies: np.ndarray
    """(L,): entropies of the images in the local bank, by slot."""
    prototypes: Array
    """(3, K, d): the global bank, and the means of the local and of the hard bank."""


class TextHistory:
    """Three banks of text features (K, d). The first image fills all of them.

    Local: the latest `local_size` text features, with the entropies of the images they were used for. Hard: for each
    image the mean of the `n_hard` local entries of highest entropy (of equal ones the newer), the latest `hard_size` of
    these. Global: a moving average of the oldest entries of the two.
    """

    def __init__(
        self,
        backend: Backend,
        shape: tuple[int, int],
        *,
        sizes: tuple[int, int],
        n_hard: int,
        momentum: float,
        dtype: object,
    ) -> None:
        self._backend, self.n_hard, self.momentum = backend, n_hard, momentum
        self.local, self.hard = (TextQueue(backend, size, shape, dtype) for size in sizes)
        self.entropies = np.zeros(sizes[0])  # on the host, where entries are selected
        self.prototypes = backend.zeros((3, *shape))

    def update(self, text: Array, entropy: float, image: int) -> HistoryUpdate:
        """The update by the text features (K, d) and the entropy of image number `image`."""
        xp = self._backend.xp
        if image == 0:
            return HistoryUpdate(image, text, text, np.full_like(self.entropies, entropy), xp.stack([text, text, text]))
        entropies = self.entropies.copy()
        entropies[self.local.slot(image)] = entropy
        weights = np.stack([self.local.even_weights, self._hard_weights(entropies, image)])
        local_mean, hard = self.local.weighted_means(weights, image, text)
        (hard_mean,) = self.hard.weighted_means(self.hard.even_weights[None, :], image, hard)
        oldest = (self.local.oldest(image, text) + self.hard.oldest(image, hard)) / 2
        average = self.momentum * self.prototypes[0] + (1 - self.momentum) * oldest
        return HistoryUpdate(image, text, hard, entropies, xp.stack([average, local_mean, hard_mean]))

    def apply(self, update: HistoryUpdate) -> None:
        """Store an update."""
        self.local.store(update.image, update.local)
        self.hard.store(update.image, update.hard)
        self.entropies, self.prototypes = update.entropies, update.prototypes

    def _hard_weights(self, entropies: np.ndarray, image: int) -> np.ndarray:
        """Weights (L,) of the mean over the entries of highest entropy."""
        newest_first = self.local.newest_first(image)
        order = newest_first[np.argsort(-quantize(entropies[newest_first]), stable=True)]
        weights = np.zeros_like(entropies)
        weights[order[: self.n_hard]] = 1 / self.n_hard
        return weights

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return {
            "local": self.local.entries,
            "hard": self.hard.entries,
            "entropies": self._backend.asarray(self.entropies, self._backend.xp.float64),
            "bank_prototypes": self.prototypes,
        }, {}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        for name, own in self.state()[0].items():
            if tuple(arrays[name].shape) != tuple(own.shape):
                raise ValueError(f"{name} has shape {tuple(arrays[name].shape)}, not {tuple(own.shape)}")
        check_range("entropies", arrays["entropies"], 0)
        self.local.entries, self.hard.entries = arrays["local"], arrays["hard"]
        self.entropies, self.prototypes = to_numpy(arrays["entropies"]), arrays["bank_prototypes"]


def retrieve_logits(features: Array, prototypes: Array, logit_scale: float) -> Array:
    """Logits (n, K) of features (n, d) from the prototypes (B, K, d) of several banks, weighted by their confidence.

    The weight of a bank for a feature is the softmax, over banks, of its negative entropy. With equal banks:

    >>> import numpy as np
    >>> retrieve_logits(np.array([[0.8, 0.6]]), np.stack([np.eye(2), np.eye(2)]), 5.0)
    array([[4., 3.]])
    """
    xp = Backend.of(features).xp
    logits = logit_scale * (features @ xp.permute_dims(prototypes, (0, 2, 1)))
    weights = softmax(confidence(log_softmax(logits)).T)
    return xp.sum(weights.T[:, :, None] * logits, axis=0)


class HisTPT(PromptTuned, ViewMethod):
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
    that open. The banks are stored in the precision of the prototypes. `predict` uses the present prompt or banks.
    """

    name = "histpt"
    headline = "Tunes a prompt, with banks of earlier ones"
    not_frozen = "it weights its banks by the entropy that each has for a sample"
    protocol = "online"
    needs = ("prototypes", "views", "text")
    takes: ClassVar[tuple[str, ...]] = ()
    reconstructed = "the authors' code is for segmentation; classification is our adaptation of it"
    state_size = "K d (L + H + 5), and the context with the two moments of AdamW"
    complexity = "2 passes of K prompts, 1 of them with gradients, and O(K d (L + H)), per image"

    view_ratio: float = parameter(
        Number(0, 1, above=True),
        "Share of the views used in the loss, those of lowest entropy; at least one.",
        default=0.1,
    )
    local_size: int = parameter(Number(low=1, integer=True), "Entries of the local bank.", default=32, sizes_state=True)
    hard_size: int = parameter(Number(low=1, integer=True), "Entries of the hard bank.", default=32, sizes_state=True)
    n_hard: int = parameter(
        Number(low=1, integer=True),
        "Local entries averaged for one entry of the hard bank, those of highest entropy.",
        default=16,
    )
    momentum: float = parameter(Number(0, 1), "Share of the global bank that each image keeps.", default=0.99)
    answer: str = parameter(
        Choice(("prompt", "fused")),
        'What predicts an image: the "prompt" after its step, or the "fused" banks, towards which it was tuned.',
        default="prompt",
    )

    _context: Array = state(lambda self: self._initial_context, saved_as="words")
    _text: Array = state(lambda self: self._initial_text)
    _optimizer: AdamW = state(
        lambda self: AdamW(self.rate, weight_decay=self.weight_decay),
        saved_as="",
        check=lambda self, optimizer: optimizer.check(self._context, self.n_seen),
    )
    _history: TextHistory = state(lambda self: self._empty_history(), saved_as="")

    def _validate(self) -> None:
        super()._validate()
        if self.n_hard > self.local_size:
            raise ValueError(
                f"n_hard must be at most local_size, {self.local_size}; got {self.n_hard}. "
                f"Fix: n_hard={self.local_size}, or a larger local_size."
            )

    def _empty_history(self) -> TextHistory:
        return TextHistory(
            Backend.of(self.prototypes),
            (self.n_classes, self.dimension),
            sizes=(self.local_size, self.hard_size),
            n_hard=self.n_hard,
            momentum=self.momentum,
            dtype=self.prototypes.dtype,
        )

    @property
    def context(self) -> Array:
        """The present embeddings (n, width) of the context."""
        return Backend.of(self.prototypes).copy(self._context)

    @property
    def banks(self) -> dict[str, Array]:
        """`local` (L, K, d) and `hard` (H, K, d), the newest first, and `global` (K, d); zeros before any image."""
        history, backend = self._history, Backend.of(self.prototypes)
        queues = {"local": history.local, "hard": history.hard}
        banks = {name: q.entries[backend.index(q.newest_first(self.n_seen - 1))] for name, q in queues.items()}
        return {**banks, "global": backend.copy(history.prototypes[0])}

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        return ((block, self._adapt_view(features)[None, :]) for block, features in rows.blocks(1))

    def _adapt_view(self, views: Array) -> Array:
        image = views[:1, :]
        scores = logits(views, self._text, self.logit_scale)
        kept = select_lowest_entropy(scores, self.view_ratio)
        update = self._history.update(self._text, float(marginal_entropy(scores[kept, :])), self.n_seen)
        fused = retrieve_logits(image, update.prototypes, self.logit_scale)
        gradient = self._gradient(views[kept, :], scores[kept, :], pseudo_class(fused))
        optimizer = copy.copy(self._optimizer)  # a step replaces its moments and leaves the old arrays unchanged
        context = optimizer.step(self._context, gradient)
        text = self._text_features(context)
        answer = fused if self.answer == "fused" else logits(image, text, self.logit_scale)
        with self._learning():
            self._history.apply(update)
            self._context, self._text, self._optimizer = context, text, optimizer
        return answer[0]

    def _gradient(self, kept: Array, scores: Array, label: Array) -> Array:
        """Gradient of the mean cross-entropy of kept views (n, d) with the class `label` (1,), at the context."""
        xp = namespace(scores)
        one_hot = xp.astype(xp.arange(self.n_classes, device=Backend.of(scores).device) == label, scores.dtype)
        _, gradient = cross_entropy(scores, one_hot)
        text_gradient = logits_to_text(gradient / kept.shape[0], kept, self.logit_scale)
        return self._context_gradient(self._context, text_gradient)

    def _predict_scores(self, features: Array) -> Array:
        if self.answer == "fused" and self.n_seen:
            return retrieve_logits(features, self._history.prototypes, self.logit_scale)
        return logits(features, self._text, self.logit_scale)
