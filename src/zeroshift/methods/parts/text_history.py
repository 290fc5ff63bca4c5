"""HisTPT's memory of text features: the latest, the hardest of those, and a slow average of what leaves either."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from zeroshift.arrays import Array, Home, to_numpy
from zeroshift.methods.parts.text_queue import TextQueue
from zeroshift.zero_shot import confidence, graded, log_softmax, softmax

__all__ = ["Remembered", "TextHistory", "retrieved"]


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
        order = newest_first[np.argsort(-graded(entropies[newest_first]), stable=True)]
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
