"""HisTPT: prompt tuning that goes on from image to image, held back by what the prompts said before."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from zeroshift.arrays import Array, Home, Rows, namespace, to_numpy
from zeroshift.methods._shared.prompt_tuned import TEXT, PromptTuned
from zeroshift.methods._shared.towers import PromptedText
from zeroshift.methods._shared.tuning import AdamW, cross_entropy, logits_to_text
from zeroshift.methods._shared.whole_steps import WholeViews
from zeroshift.parameters import Choice, Number, model_parameter, parameter
from zeroshift.views import marginal_entropy, select_lowest_entropy
from zeroshift.zero_shot import confidence, log_softmax, logits, pseudo_class, quantize, softmax

__all__ = ["HisTPT", "Remembered", "TextHistory", "TextQueue", "retrieved"]


# The latest text features, first in, first out, in a ring that is allocated once.


class TextQueue:
    """`size` text features (K, d). Image number i has the slot i modulo `size`; image 0 fills them all.

    What the queue would hold with a new entry can be asked before the entry is written.

    >>> import numpy as np
    >>> queue = TextQueue(Home.of(np.eye(1)), size=2, shape=(1, 2), dtype=None)
    >>> queue.write(0, np.array([[1.0, 0.0]]))
    >>> queue.mixed(queue.evenly[None, :], 1, np.array([[0.0, 1.0]]))
    array([[[0.5, 0.5]]])
    """

    def __init__(self, home: Home, size: int, shape: tuple[int, int], dtype: Any) -> None:
        self._home, self.size = home, size
        self.entries = home.zeros((size, *shape), dtype)
        self.evenly = np.full(size, 1 / size)

    def slot(self, image: int) -> int:
        return image % self.size

    def mixed(self, weights: np.ndarray, image: int, newest: Array) -> Array:
        """Means (m, K, d) over the entries once `newest` (K, d) of this image is among them, by weights (m, size)."""
        xp, slot = self._home.xp, self.slot(image)
        others = weights.copy()
        others[:, slot] = 0
        # A product, not a sum of chosen entries: these are large, and are neither copied nor widened.
        mixed = self._home.bring(others, self.entries.dtype) @ xp.reshape(self.entries, (self.size, -1))
        mixed = xp.reshape(self._home.bring(mixed, newest.dtype), (-1, *newest.shape))
        return mixed + self._home.bring(weights[:, slot], newest.dtype)[:, None, None] * newest

    def oldest(self, image: int, newest: Array) -> Array:
        """(K, d): the entry that leaves next once `newest` of this image is among them."""
        leaving = self.slot(image + 1)
        return newest if leaving == self.slot(image) else self._home.bring(self.entries[leaving], newest.dtype)

    def write(self, image: int, newest: Array) -> None:
        """Hold `newest` (K, d). Doing it again changes nothing."""
        self.entries[self.slot(image) if image else slice(None)] = newest

    def newest_first(self, image: int) -> np.ndarray:
        """(size,): the slots of image number `image` and those before it."""
        return (image - np.arange(self.size)) % self.size


# HisTPT's memory of text features: the latest, the hardest of those, and a slow average of what leaves either.


class Remembered(NamedTuple):
    """What the banks hold once an image has entered them; nothing of it is written yet."""

    image: int
    """How many images entered before it."""
    local: Array
    """(K, d): the newest entry of the local bank."""
    hard: Array
    """(K, d): the newest entry of the hard bank."""
    entropies: np.ndarray
    """(L,), of the images whose text features the local bank holds, by slot."""
    prototypes: Array
    """(3, K, d): the global bank, and the means of the local and of the hard one."""


class TextHistory:
    """Three banks of text features (K, d). The first image fills all of them.

    Local: the latest `local_size`, with the entropies of the images they were used for. Hard: for each image the mean
    of the `n_hard` local entries of highest entropy, the newer first on a tie, the latest `hard_size` of them. Global:
    a moving average of the oldest entries of the two.
    """

    def __init__(
        self, home: Home, shape: tuple[int, int], *, sizes: tuple[int, int], n_hard: int, momentum: float, dtype: object
    ) -> None:
        self._home, self.n_hard, self.momentum = home, n_hard, momentum
        self.local, self.hard = (TextQueue(home, size, shape, dtype) for size in sizes)
        self.entropies = np.zeros(sizes[0])  # on the host, as all that only says which entries are meant
        self.prototypes = home.zeros((3, *shape))

    def entered(self, text: Array, entropy: float, image: int) -> Remembered:
        """What is held once the text features (K, d) and the entropy of image number `image` have entered."""
        xp = self._home.xp
        if image == 0:
            return Remembered(image, text, text, np.full_like(self.entropies, entropy), xp.stack([text, text, text]))
        entropies = self.entropies.copy()
        entropies[self.local.slot(image)] = entropy
        weights = np.stack([self.local.evenly, self._hardest(entropies, image)])
        mean, hardest = self.local.mixed(weights, image, text)
        (hard_mean,) = self.hard.mixed(self.hard.evenly[None, :], image, hardest)
        leaving = (self.local.oldest(image, text) + self.hard.oldest(image, hardest)) / 2
        slow = self.momentum * self.prototypes[0] + (1 - self.momentum) * leaving
        return Remembered(image, text, hardest, entropies, xp.stack([slow, mean, hard_mean]))

    def write(self, entry: Remembered) -> None:
        """Hold it. Doing it again changes nothing."""
        self.local.write(entry.image, entry.local)
        self.hard.write(entry.image, entry.hard)
        self.entropies, self.prototypes = entry.entropies, entry.prototypes

    def _hardest(self, entropies: np.ndarray, image: int) -> np.ndarray:
        """Weights (L,) of the mean over the entries of highest entropy."""
        newest_first = self.local.newest_first(image)
        order = newest_first[np.argsort(-quantize(entropies[newest_first]), stable=True)]
        weights = np.zeros_like(entropies)
        weights[order[: self.n_hard]] = 1 / self.n_hard
        return weights

    def arrays(self) -> dict[str, Array]:
        """What to save."""
        return {
            "local": self.local.entries,
            "hard": self.hard.entries,
            "entropies": self._home.bring(self.entropies, self._home.xp.float64),
            "bank_prototypes": self.prototypes,
        }

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Take up what `arrays` gave."""
        for name, own in self.arrays().items():
            if tuple(arrays[name].shape) != tuple(own.shape):
                raise ValueError(f"{name} of shape {tuple(arrays[name].shape)}, not {tuple(own.shape)}, were saved")
        self.local.entries, self.hard.entries = arrays["local"], arrays["hard"]
        self.entropies, self.prototypes = to_numpy(arrays["entropies"]), arrays["bank_prototypes"]


def retrieved(features: Array, prototypes: Array, logit_scale: float) -> Array:
    """Logits (n, K) of features (n, d) from several banks' prototypes (B, K, d), each weighed by how sure it is.

    A bank's weight for a feature is the softmax, over banks, of its negative entropy. Both banks have seen the same:

    >>> import numpy as np
    >>> retrieved(np.array([[0.8, 0.6]]), np.stack([np.eye(2), np.eye(2)]), 5.0)
    array([[4., 3.]])
    """
    xp = Home.of(features).xp
    logits = logit_scale * (features @ xp.permute_dims(prototypes, (0, 2, 1)))
    weights = softmax(confidence(log_softmax(logits)).T)
    return xp.sum(weights.T[:, :, None] * logits, axis=0)


class Tuned(NamedTuple):
    """The prompt after a step: its words, the text features they make, and the optimiser that goes on."""

    words: Array
    text: Array
    optimiser: AdamW


class HisTPT(PromptTuned, WholeViews):
    """Moves the words of the prompt one step for each image, towards the class that three banks of earlier text
    features agree on, and never puts them back. The banks hold the latest text features, those of the hardest images,
    and a slow average: what keeps a prompt that is tuned on and on from forgetting.

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
    their code for segmentation alone. The banks, their order, the retrieval and the loss are as there; ours, for images
    as a whole, are: the words are shared by all classes (theirs are tuned for each class), the views, their selection
    and `rate` are TPT's (their `rate` is 1e-4, for segmentation), the loss is the mean cross-entropy of the surest
    views with the class the banks find for the image itself, and an image's entropy, which says how hard it is, is that
    of the mean over its surest views. Their code takes for it a sum over raw logits, which is no entropy.

    AdamW's moments go on from image to image with the words, as in their training loop. The means of the banks are not
    scaled to unit length, as there. Of equal entropies the newer entry counts as harder; theirs leaves that open. The
    banks are held in the prototypes' precision. `predict` asks the prompt, or the banks, as they stand.
    """

    name = "histpt"
    protocol = "online"
    needs = ("prototypes", "views", "text")
    takes: ClassVar[tuple[str, ...]] = ()
    reconstructed = "the authors' code is for segmentation; classification is put together from it"
    state_size = "K d (L + H + 5), and the words with AdamW's two moments of each"
    complexity = "2 passes of K prompts, 1 of them with gradients, and O(K d (L + H)), for an image"

    text: PromptedText = model_parameter(
        TEXT, "The text side of the encoder, as `zeroshift.encode.prompted_text` makes it."
    )
    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)
    view_ratio: float = parameter(
        Number(0, 1, above=True),
        "Share of the views the loss is made of, those of lowest entropy; at least one.",
        default=0.1,
    )
    local_size: int = parameter(Number(low=1, integer=True), "Entries of the local and of the hard bank.", default=32)
    hard_size: int = parameter(Number(low=1, integer=True), "Entries of the local and of the hard bank.", default=32)
    n_hard: int = parameter(
        Number(low=1, integer=True),
        "How many local entries, those of highest entropy, are averaged for an entry of the hard bank.",
        default=16,
    )
    momentum: float = parameter(Number(0, 1), "Share of the global bank that stays as it is at an image.", default=0.99)
    rate: float = parameter(
        Number(low=0),
        "Of AdamW: the step size, and the share of the words' embeddings taken off at a step, times `rate`.",
        default=5e-3,
    )
    weight_decay: float = parameter(
        Number(low=0),
        "Of AdamW: the step size, and the share of the words' embeddings taken off at a step, times `rate`.",
        default=0.01,
    )
    answer: str = parameter(
        Choice(("prompt", "fused")),
        "Who answers: the prompt after the image's step, or the banks together, which the prompt was tuned towards.",
        default="prompt",
    )

    def _validate(self) -> None:
        super()._validate()
        if self.n_hard > self.local_size:
            raise ValueError(
                f"n_hard must be at most local_size, {self.local_size}, of which they are taken; got {self.n_hard}. "
                f"Fix: n_hard={self.local_size}, or a larger local_size."
            )

    def _begin(self) -> None:
        self._now = Tuned(self._words, self._initial, AdamW(self.rate, weight_decay=self.weight_decay))
        self._history = TextHistory(
            Home.of(self.prototypes),
            (self.n_classes, self.dimension),
            sizes=(self.local_size, self.hard_size),
            n_hard=self.n_hard,
            momentum=self.momentum,
            dtype=self.prototypes.dtype,
        )

    @property
    def context(self) -> Array:
        """The words' embeddings as they stand, (n, width)."""
        self._finish()
        return Home.of(self.prototypes).copy(self._now.words)

    @property
    def banks(self) -> dict[str, Array]:
        """`local` (L, K, d) and `hard` (H, K, d), the newest first, and `global` (K, d); zeros before any image."""
        self._finish()
        history, home = self._history, Home.of(self.prototypes)
        queues = {"local": history.local, "hard": history.hard}
        held = {name: q.entries[home.index(q.newest_first(self.n_seen - 1))] for name, q in queues.items()}
        return {**held, "global": home.copy(history.prototypes[0])}

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        for block, features in rows.blocks(1):
            scores, learned = self._learned(features)
            self._commit(learned)
            yield block, scores[None, :]

    def _adapt_view(self, views: Array) -> Array:
        self._finish()
        scores, learned = self._learned(views)
        self._decide(learned)
        return scores

    def _learned(self, views: Array) -> tuple[Array, partial[None]]:
        """Scores (K,) of one image, view 0 of `views` (V, d), and how to keep what it teaches."""
        now, image = self._now, views[:1, :]
        scores = logits(views, now.text, self.logit_scale)
        kept = select_lowest_entropy(scores, self.view_ratio)
        entry = self._history.entered(now.text, float(marginal_entropy(scores[kept, :])), self.n_seen)
        fused = retrieved(image, entry.prototypes, self.logit_scale)
        tuned = self._step(now, views[kept, :], scores[kept, :], pseudo_class(fused))
        answer = fused if self.answer == "fused" else logits(image, tuned.text, self.logit_scale)
        return answer[0], partial(self._keep, entry, tuned)

    def _step(self, now: Tuned, kept: Array, scores: Array, label: Array) -> Tuned:
        """The prompt one step nearer to the class `label` (1,) for the kept views (n, d), of logits (n, K)."""
        xp = namespace(scores)
        one_hot = xp.astype(xp.arange(self.n_classes, device=Home.of(scores).device) == label, scores.dtype)
        _, gradient = cross_entropy(scores, one_hot)
        to_text = logits_to_text(gradient / kept.shape[0], kept, self.logit_scale)
        optimiser = copy.copy(now.optimiser)  # a step replaces its moments and leaves the old ones as they are
        words = optimiser.step(now.words, self._to_context(now.words, to_text))
        return Tuned(words, self._text_features(words), optimiser)

    def _keep(self, entry: Remembered, tuned: Tuned) -> None:
        self._history.write(entry)
        self._now = tuned

    def _predict_scores(self, features: Array) -> Array:
        if self.answer == "fused" and self.n_seen:
            return retrieved(features, self._history.prototypes, self.logit_scale)
        return logits(features, self._now.text, self.logit_scale)

    def _state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        moments, steps = self._now.optimiser.state()
        return {"words": self._now.words, "text": self._now.text, **self._history.arrays(), **moments}, steps

    def _restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        optimiser = AdamW(self.rate, weight_decay=self.weight_decay)
        optimiser.restore(arrays, values)
        for name, own in (("words", self._now.words), ("text", self._now.text)):
            if tuple(arrays[name].shape) != tuple(own.shape):
                raise ValueError(f"{name} of shape {tuple(arrays[name].shape)}, not {tuple(own.shape)}, were saved")
        self._history.restore(arrays)
        self._now = Tuned(arrays["words"], arrays["text"], optimiser)
