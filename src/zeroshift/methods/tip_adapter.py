"""Tip-Adapter, training-free: labelled samples vote for their class through a kernel, added to the zero-shot logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from zeroshift.arrays import Array, Backend, Labelled, to_numpy
from zeroshift.frozen import Expression
from zeroshift.methods._shared.few_shot import FewShotMethod, count_correct, row_blocks
from zeroshift.methods._shared.gaussian_classifier import ClassGroups
from zeroshift.methods._shared.similarity import SHARPNESS, exponential_kernel, frozen_votes
from zeroshift.parameters import Number, Pair, array_parameter, parameter
from zeroshift.zero_shot import logits

__all__ = ["TipAdapter"]

SEARCH_START = 0.1
"""Smallest candidate of the search, for both parameters."""

KERNEL_NUMBERS, KERNEL_NUMBERS_ON_GPU = 1 << 22, 1 << 26
"""Kernel values in memory together during prediction."""


def _preset(alpha: float, search_scale: tuple[float, float]) -> dict[str, Any]:
    return {"beta": 1.0, "alpha": alpha, "search_scale": search_scale}


class TipAdapter(FewShotMethod):
    """Adds votes of labelled support samples to the zero-shot logits; nearer samples have more weight. With a
    validation set, the sharpness and the weight of the votes are searched there.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import TipAdapter
    >>> support = np.array([[0.8, 0.6], [0.6, 0.8]]), np.array([0, 1])
    >>> method = TipAdapter(np.eye(2), support=support, logit_scale=5.0, alpha=1.0)
    >>> method.predict_scores(np.array([0.96, 0.28])).round(6)
    array([5.738005, 2.218731])

    Notes
    -----
    Zhang et al., *Tip-Adapter: Training-free Adaption of CLIP for Few-shot Classification*, ECCV 2022. The defaults are
    those of the authors' ImageNet configuration. Their code searches on every data set, for ImageNet on the test set
    itself, with the ranges in `presets`. A class without support samples gets no vote. Differences: the authors average
    ten augmentations of an image into one support sample, here samples are used as given; if no pair gets a single
    validation sample right, the first is chosen, not (0, 0).
    """

    name = "tip_adapter"
    headline = "Labelled samples vote by similarity"
    state_size = "N d for N support samples"
    complexity = "O(N d + K d) per sample"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "imagenet": _preset(1.17, (7.0, 3.0)),
        "caltech101": _preset(3.0, (12.0, 5.0)),
        "dtd": _preset(2.0, (13.0, 13.0)),
        "eurosat": _preset(2.0, (12.0, 10.0)),
        "fgvc_aircraft": _preset(5.0, (30.0, 30.0)),
        "food101": _preset(1.17, (10.0, 10.0)),
        "oxford_flowers": _preset(10.0, (50.0, 50.0)),
        "oxford_pets": _preset(1.17, (7.0, 3.0)),
        "stanford_cars": _preset(3.0, (20.0, 10.0)),
        "sun397": _preset(1.17, (12.0, 10.0)),
        "ucf101": _preset(3.0, (7.0, 3.0)),
    }

    validation: Labelled | None = array_parameter(
        "Labelled samples to search `beta` and `alpha` with; `chosen` returns the choice.", default=None
    )
    logit_scale: float = parameter(
        Number(low=0, above=True), "Scale of the zero-shot logits; 100 for CLIP.", default=100.0
    )
    beta: float = parameter(
        SHARPNESS,
        "Sharpness of the kernel exp(-beta (1 - cosine)) if there is no validation set.",
        default=1.0,
    )
    alpha: float = parameter(
        Number(low=0),
        "Weight of the votes relative to the zero-shot logits if there is no validation set.",
        default=1.17,
    )
    search_scale: tuple[float, float] = parameter(
        Pair(Number(SEARCH_START, SHARPNESS.high), Number(low=SEARCH_START), ("beta", "alpha")),
        "Upper ends of the search. Candidates start at 0.1 and stop one step before the end.",
        default=(7.0, 3.0),
    )
    search_steps: tuple[int, int] = parameter(
        Pair(Number(low=1, integer=True), Number(low=1, integer=True), ("beta", "alpha")),
        "Number of candidates of each. All pairs are tried; of equally good ones, the smallest beta is chosen, then "
        "the smallest alpha.",
        default=(200, 20),
    )

    @property
    def chosen(self) -> dict[str, float]:
        return {"beta": self._beta, "alpha": self._alpha}

    def _fit(self) -> None:
        features, labels = self.support
        self._groups = ClassGroups(labels, self.n_classes)
        self._keys = features[Backend.of(features).index(self._groups.order)]
        self._choose()

    def _choose(self) -> None:
        self._beta, self._alpha = self.beta, self.alpha
        if self.validation is not None:
            self._beta, self._alpha = self._search(*self.validation)

    def _search(self, features: Array, labels: np.ndarray) -> tuple[float, float]:
        (beta_end, alpha_end), (beta_steps, alpha_steps) = self.search_scale, self.search_steps
        step = (beta_end - SEARCH_START) / beta_steps
        alphas = [SEARCH_START + j * (alpha_end - SEARCH_START) / alpha_steps for j in range(alpha_steps)]
        backend = Backend.of(self.prototypes)
        xp = backend.xp
        keys, prototypes = self._to_float64(self._keys), self._to_float64(self.prototypes)
        weights = xp.asarray(alphas, dtype=xp.float64, device=backend.device)
        correct = backend.zeros((beta_steps, alpha_steps), xp.int64)
        for block in row_blocks(len(labels), max(keys.shape[0], self.n_classes), backend):
            x, block_labels = self._to_float64(features[block]).T, backend.index(labels[block])
            zero_shot = self.logit_scale * (prototypes @ x)
            cosines = keys @ x
            # Betas are equally spaced, so consecutive kernels differ by the same factor: a product, not an exponential.
            kernel, factor = exponential_kernel(cosines, SEARCH_START), exponential_kernel(cosines, step)
            for i in range(beta_steps):
                correct[i] += count_correct(zero_shot.T, self._groups.sums(kernel).T, block_labels, weights)
                kernel *= factor
        i, j = divmod(int(np.argmax(to_numpy(correct))), alpha_steps)
        return SEARCH_START + i * step, alphas[j]

    def _predict_scores(self, features: Array) -> Array:
        return self._scores(features, self._keys, self._beta, self._alpha)

    def _scores(self, features: Array, keys: Array, beta: float, alpha: float) -> Array:
        keys = Backend.of(features).asarray(keys, features.dtype)
        votes = self._groups.sums(exponential_kernel(keys @ features.T, beta)).T
        return logits(features, self.prototypes, self.logit_scale) + alpha * votes

    def _frozen(self, x: Expression) -> Expression:
        # One slot per class for each of its samples, in any order; classes with fewer samples have empty slots.
        features, labels = to_numpy(self._keys), self.support[1][self._groups.order]
        slots = np.zeros(len(labels), dtype=np.int64)
        for k in np.unique(labels):
            slots[labels == k] = np.arange((labels == k).sum())
        keys = np.zeros((self.n_classes, slots.max() + 1, self.dimension))
        weights = np.zeros(keys.shape[:2])
        keys[labels, slots], weights[labels, slots] = features, self._alpha
        scores = x.linear(self.logit_scale * self._to_float64(self.prototypes))
        return (scores + frozen_votes(x, keys, weights, self._beta)).softmax()

    @property
    def _predict_rows(self) -> int:
        # Every row is compared with all support samples.
        numbers = KERNEL_NUMBERS_ON_GPU if Backend.of(self.prototypes).on_gpu else KERNEL_NUMBERS
        return max(1, min(super()._predict_rows, numbers // self._keys.shape[0]))
