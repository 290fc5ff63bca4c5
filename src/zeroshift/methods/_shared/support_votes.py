"""Votes of labelled samples for their class, as in Tip-Adapter, which other methods extend."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from zeroshift.arrays import Array, to_numpy
from zeroshift.features.checks import BLOCK_ENTRIES
from zeroshift.frozen import Expression
from zeroshift.methods._shared.few_shot import FewShotMethod, most_accurate
from zeroshift.methods._shared.similarity import SHARPNESS, exponential_kernel
from zeroshift.parameters import Number, parameter
from zeroshift.zero_shot import logits

STEPS = Number(low=1, integer=True)


class SupportVotes(FewShotMethod):
    """Adds votes of the support samples to the zero-shot logits: each votes for its class, by similarity.

    With a validation set, the parameters of `_grid` are searched there. A subclass may compare other features than
    those given (`_compared`), and may add to the scores.
    """

    logit_scale: float = parameter(
        Number(low=0, above=True), "Scale of the zero-shot logits; 100 for CLIP.", default=100.0
    )
    beta: float = parameter(
        SHARPNESS, "Sharpness of the kernel exp(-beta (1 - cosine)) if there is no validation set.", default=1.0
    )
    alpha: float = parameter(
        Number(low=0),
        "Weight of the votes relative to the zero-shot logits if there is no validation set.",
        default=1.17,
    )

    @property
    @abstractmethod
    def _grid(self) -> dict[str, Sequence[float]]:
        """Candidates of every parameter that is searched. Of equally good ones, the first is chosen."""

    def _prepare(self) -> None:
        self._values = self.as_own(np.eye(self.n_classes)[self.support[1]])
        super()._prepare()

    def _fit(self) -> None:
        self._use_keys(self._compared(self._support64))

    def _use_keys(self, keys: Array) -> None:
        """Vote with these keys (N, d), and choose the parameters."""
        self._keys = keys
        if self.validation is None:
            self._chosen = {name: getattr(self, name) for name in self._grid}
        else:
            # TIP-X keeps the votes of every beta.
            width = len(self.support[1]) + len(self._grid["beta"]) * self.n_classes
            self._chosen = most_accurate(self.validation, width, self._grid, self._scores_by)

    def _compared(self, features: Array) -> Array:
        """What is compared of features (n, d)."""
        return features

    def _zero_shot(self, x: Array) -> Array:
        return logits(x, self.prototypes64, self.logit_scale)

    def _cosines(self, x: Array) -> Array:
        return self._compared(x) @ self._keys.T

    def _scores_by(self, x: Array) -> Callable[..., Array]:
        """The scores (n, K) of features as a function of the parameters that are searched."""
        zero_shot, cosines = self._zero_shot(x), self._cosines(x)
        votes = lru_cache(1)(lambda beta: exponential_kernel(cosines, beta) @ self._values)
        return lambda beta, alpha: zero_shot + alpha * votes(beta)

    def _predict_scores(self, features: Array) -> Array:
        return self._scores_by(features)(**self._chosen)

    def _frozen_scores(self, x: Expression, compared: Expression, weights: Array) -> Expression:
        """Probabilities of features, by what is compared of them, if each key has a weight (N, 1)."""
        beta = self._chosen["beta"]
        kernels = (compared @ (beta * to_numpy(self._keys)).T - beta).exp()
        votes = kernels @ (self._chosen["alpha"] * weights * self._values)
        return (x.linear(self.logit_scale * self.prototypes64) + votes).softmax()

    @property
    def _predict_rows(self) -> int:
        # Every row is compared with all support samples.
        return max(1, min(super()._predict_rows, BLOCK_ENTRIES // len(self.support[1])))


def candidates(start: float, end: float, steps: int) -> list[float]:
    """Equally spaced from the start; the end is one step after the last.

    >>> candidates(1.0, 3.0, 4)
    [1.0, 1.5, 2.0, 2.5]
    """
    return [start + i * (end - start) / steps for i in range(steps)]
