"""APE, training-free: labelled samples vote on the channels that separate the classes, weighted by their surprise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from zeroshift.arrays import Array, Backend, Labelled, to_numpy
from zeroshift.frozen import Expression
from zeroshift.methods._shared.few_shot import FewShotMethod, count_correct, row_blocks
from zeroshift.methods._shared.gaussian_classifier import ClassGroups
from zeroshift.methods._shared.similarity import SHARPNESS, exponential_kernel, unit_rows
from zeroshift.methods.tip_adapter import KERNEL_NUMBERS, KERNEL_NUMBERS_ON_GPU, SEARCH_START
from zeroshift.parameters import Number, Pair, array_parameter, parameter
from zeroshift.zero_shot import logits, softmax

__all__ = ["APE"]

SMALL = 1e-6
"""Added to labels and probabilities before their ratio."""

RESNET_50 = 1024
"""Dimension of the features that the authors chose numbers of channels for."""


def _preset(
    channels: int, weights: tuple[float, float], alpha: float, scale: tuple[float, float, float], gamma_steps: int = 20
) -> dict[str, Any]:
    beta_end, alpha_end, gamma_end = scale
    return {
        "channel_share": channels / RESNET_50,
        "criterion_weights": weights,
        "alpha": alpha,
        "search_scale": (float(beta_end), float(alpha_end)),
        "gamma_scale": float(gamma_end),
        "gamma_steps": gamma_steps,
    }


class APE(FewShotMethod):
    """Tip-Adapter on a part of the channels: those in which classes differ most, by the support samples and the
    prototypes. A support sample votes with more weight if its prototype does not recognise it. With a validation set,
    the sharpness, the weight of the votes and that of the disagreement are searched there.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import APE
    >>> support = np.array([[0.8, 0.6], [0.6, 0.8]]), np.array([0, 1])
    >>> method = APE(np.eye(2), support=support, logit_scale=5.0, channel_share=1.0)
    >>> method.predict_scores(np.array([0.96, 0.28])).round(6)
    array([6.845087, 3.185039])

    Notes
    -----
    Zhu et al., *Not All Features Matter: Enhancing Few-shot CLIP with Adaptive Prior Refinement*, ICCV 2023; the
    variant without training. The defaults are those of the authors' ImageNet configuration, with half of the channels.
    They set the number of channels and the weights of the criterion for each data set (`presets`, for the 1024 channels
    of ResNet-50), and do not say how these were chosen. Their code searches on every data set, for ImageNet on the test
    set itself. It takes the same number of samples of every class; here the numbers may differ. The zero-shot logits
    use all channels.
    """

    name = "ape"
    headline = "Labelled samples vote on selected channels"
    state_size = "N d for N support samples"
    complexity = "O(N d + K d) per sample"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "imagenet": _preset(500, (0.7, 0.3), 2.0, (7, 7, 0.5), 5),
        "caltech101": _preset(800, (0.5, 0.5), 1.0, (7, 7, 1)),
        "dtd": _preset(400, (0.5, 0.5), 3.0, (7, 7, 1)),
        "eurosat": _preset(700, (0.9, 0.1), 1.0, (30, 5, 1.5)),
        "fgvc_aircraft": _preset(800, (0.1, 0.9), 5.0, (20, 10, 1)),
        "food101": _preset(700, (0.3, 0.7), 0.8, (7, 7, 1)),
        "oxford_flowers": _preset(700, (0.4, 0.6), 3.0, (7, 7, 1)),
        "oxford_pets": _preset(800, (0.7, 0.3), 2.0, (7, 7, 1)),
        "stanford_cars": _preset(500, (0.6, 0.4), 1.0, (10, 7, 1)),
        "sun397": _preset(800, (0.7, 0.3), 1.0, (10, 7, 1)),
        "ucf101": _preset(700, (0.3, 0.7), 2.0, (10, 7, 1.5)),
    }
    check_exceptions: ClassVar[Mapping[str, str]] = {
        "axes_do_not_matter": "selects channels, so the axes are part of the method"
    }

    validation: Labelled | None = array_parameter(
        "Labelled samples to search `beta`, `alpha` and `gamma` with; `chosen` returns the choice.", default=None
    )
    logit_scale: float = parameter(
        Number(low=0, above=True), "Scale of the zero-shot logits; 100 for CLIP.", default=100.0
    )
    channel_share: float = parameter(
        Number(0, 1, above=True), "Share of the channels in which samples are compared; at least one.", default=0.5
    )
    criterion_weights: tuple[float, float] = parameter(
        Pair(Number(low=0), Number(low=0), ("similarity", "variance")),
        "Channels with a small similarity between classes and a large variance of the prototypes are kept; weights of "
        "the two.",
        default=(0.7, 0.3),
    )
    beta: float = parameter(
        SHARPNESS, "Sharpness of the kernel exp(-beta (1 - cosine)) if there is no validation set.", default=1.0
    )
    alpha: float = parameter(
        Number(low=0),
        "Weight of the votes relative to the zero-shot logits if there is no validation set.",
        default=2.0,
    )
    gamma: float = parameter(
        Number(low=0, high=4),
        "A support sample votes with the weight exp(gamma D) if there is no validation set; D is how much, in bits, "
        "its zero-shot prediction differs from its label.",
        default=0.1,
    )
    search_scale: tuple[float, float] = parameter(
        Pair(Number(SEARCH_START, SHARPNESS.high), Number(low=SEARCH_START), ("beta", "alpha")),
        "Upper ends of the search. Candidates start at 0.1 and stop one step before the end.",
        default=(7.0, 7.0),
    )
    search_steps: tuple[int, int] = parameter(
        Pair(Number(low=1, integer=True), Number(low=1, integer=True), ("beta", "alpha")),
        "Number of candidates of each. All combinations are tried; of equally good ones, the smallest beta is chosen, "
        "then the smallest alpha and gamma.",
        default=(200, 20),
    )
    gamma_scale: float = parameter(
        Number(low=0, high=4), "Upper end of the search for gamma, which starts at 0.", default=0.5
    )
    gamma_steps: int = parameter(Number(low=1, integer=True), "Number of candidates of gamma.", default=5)

    @property
    def chosen(self) -> dict[str, float]:
        return {"beta": self._beta, "alpha": self._alpha, "gamma": self._gamma}

    @property
    def channels(self) -> np.ndarray:
        """The channels in which samples are compared, best first."""
        return self._channels.copy()

    def _fit(self) -> None:
        features, labels = self.support
        prototypes = self._to_float64(self.prototypes)
        self._groups = ClassGroups(labels, self.n_classes)
        keys = self._to_float64(features)[Backend.of(features).index(self._groups.order)]
        labels = labels[self._groups.order]
        self._similarity, criterion = self._judge_channels(to_numpy(self._groups.sums(keys)), to_numpy(prototypes))
        kept = max(1, round(self.channel_share * self.dimension))
        self._channels = np.argsort(-criterion, kind="stable")[:kept]
        refined = self._refine(keys)
        self._divergences = _divergences(to_numpy(softmax(refined @ self._refine(prototypes).T)), labels)
        self._beta, self._alpha, self._gamma = self.beta, self.alpha, self.gamma
        if self.validation is not None:
            self._beta, self._alpha, self._gamma = self._search(refined, *self.validation)
        backend = Backend.of(self.prototypes)
        self._keys = backend.asarray(refined, self.prototypes.dtype)
        self._weights = backend.asarray(np.exp(self._gamma * self._divergences)[:, None], self.prototypes.dtype)

    def _judge_channels(self, sums: np.ndarray, prototypes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean product of two samples of different classes, prototypes included, and the criterion, per channel."""
        members = self._groups.counts + 1
        sums = sums + prototypes
        pairs = members.sum() ** 2 - (members**2).sum()
        similarity = (sums.sum(axis=0) ** 2 - (sums**2).sum(axis=0)) / max(1, pairs)
        variance = prototypes.var(axis=0) * self.n_classes / max(1, self.n_classes - 1)
        similar, varied = self.criterion_weights
        return similarity, varied * variance - similar * similarity

    def _refine(self, features: Array) -> Array:
        """The selected channels (n, Q) of features (n, d), as rows of unit length."""
        backend = Backend.of(features)
        return unit_rows(backend.xp.take(features, backend.index(self._channels), axis=1))

    def _search(self, keys: Array, features: Array, labels: np.ndarray) -> tuple[float, float, float]:
        (beta_end, alpha_end), (beta_steps, alpha_steps) = self.search_scale, self.search_steps
        step = (beta_end - SEARCH_START) / beta_steps
        alphas = [SEARCH_START + j * (alpha_end - SEARCH_START) / alpha_steps for j in range(alpha_steps)]
        gammas = [i * self.gamma_scale / self.gamma_steps for i in range(self.gamma_steps)]
        backend = Backend.of(self.prototypes)
        xp = backend.xp
        prototypes = self._to_float64(self.prototypes)
        factors = [backend.asarray(np.exp(gamma * self._divergences)[:, None], xp.float64) for gamma in gammas]
        weights = xp.asarray(alphas, dtype=xp.float64, device=backend.device)
        correct = backend.zeros((beta_steps, alpha_steps, self.gamma_steps), xp.int64)
        for block in row_blocks(len(labels), max(keys.shape[0], self.n_classes), backend):
            x, block_labels = self._to_float64(features[block]), backend.index(labels[block])
            zero_shot = self.logit_scale * (x @ prototypes.T)
            cosines = keys @ self._refine(x).T
            # Betas are equally spaced, so consecutive kernels differ by the same factor: a product, not an exponential.
            kernel, ratio = exponential_kernel(cosines, SEARCH_START), exponential_kernel(cosines, step)
            for i in range(beta_steps):
                for g, factor in enumerate(factors):
                    votes = self._groups.sums(kernel * factor).T
                    correct[i, :, g] += count_correct(zero_shot, votes, block_labels, weights)
                kernel *= ratio
        best = int(np.argmax(to_numpy(correct)))
        i, j, g = (int(part) for part in np.unravel_index(best, (beta_steps, alpha_steps, self.gamma_steps)))
        return SEARCH_START + i * step, alphas[j], gammas[g]

    def _predict_scores(self, features: Array) -> Array:
        backend = Backend.of(features)
        keys, weights = (backend.asarray(part, features.dtype) for part in (self._keys, self._weights))
        kernel = exponential_kernel(keys @ self._refine(features).T, self._beta)
        votes = self._groups.sums(kernel * weights).T
        return logits(features, self.prototypes, self.logit_scale) + self._alpha * votes

    def _frozen(self, x: Expression) -> Expression:
        labels = self.support[1][self._groups.order]
        votes = np.zeros((len(labels), self.n_classes))
        votes[np.arange(len(labels)), labels] = self._alpha * to_numpy(self._weights)[:, 0]
        refined = (x @ np.eye(self.dimension)[:, self._channels]).unit()
        kernels = (refined @ (self._beta * to_numpy(self._keys).astype(np.float64)).T - self._beta).exp()
        return (x.linear(self.logit_scale * self._to_float64(self.prototypes)) + kernels @ votes).softmax()

    @property
    def _predict_rows(self) -> int:
        # Every row is compared with all support samples.
        numbers = KERNEL_NUMBERS_ON_GPU if Backend.of(self.prototypes).on_gpu else KERNEL_NUMBERS
        return max(1, min(super()._predict_rows, numbers // self._keys.shape[0]))


def _divergences(predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Bits (n,) by which predictions (n, K) miss the labels (n,).

    >>> _divergences(np.array([[0.5, 0.5], [0.25, 0.75]]), np.array([0, 0])).round(3)
    array([1., 2.])
    """
    return np.asarray(np.log2((1 + SMALL) / (predictions[np.arange(len(labels)), labels] + SMALL)))
