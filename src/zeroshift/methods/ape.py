"""APE, training-free: labelled samples vote on the channels that separate the classes, weighted by their surprise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from zeroshift.arrays import Array, Backend, namespace, to_numpy
from zeroshift.frozen import Expression
from zeroshift.methods._shared.similarity import SHARPNESS, exponential_kernel, unit_rows
from zeroshift.methods._shared.support_votes import STEPS, candidates
from zeroshift.methods.tip_adapter import SEARCH_START, TipAdapter
from zeroshift.parameters import Number, Pair, parameter
from zeroshift.zero_shot import softmax

SMALL = 1e-6
"""Added to labels and probabilities before their ratio."""

RESNET_50 = 1024
"""Dimension of the features that the authors chose numbers of channels for."""


class APE(TipAdapter):
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
    state_size = "N (d + K) for N support samples"
    complexity = "O(N (d + K)) per sample"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        dataset: {
            "channel_share": channels / RESNET_50,
            "criterion_weights": weights,
            "alpha": alpha,
            "search_scale": search_scale,
            "gamma_scale": gamma_scale,
            "gamma_steps": 5 if dataset == "imagenet" else 20,
        }
        for dataset, channels, weights, alpha, search_scale, gamma_scale in (
            ("imagenet", 500, (0.7, 0.3), 2.0, (7.0, 7.0), 0.5),
            ("caltech101", 800, (0.5, 0.5), 1.0, (7.0, 7.0), 1.0),
            ("dtd", 400, (0.5, 0.5), 3.0, (7.0, 7.0), 1.0),
            ("eurosat", 700, (0.9, 0.1), 1.0, (30.0, 5.0), 1.5),
            ("fgvc_aircraft", 800, (0.1, 0.9), 5.0, (20.0, 10.0), 1.0),
            ("food101", 700, (0.3, 0.7), 0.8, (7.0, 7.0), 1.0),
            ("oxford_flowers", 700, (0.4, 0.6), 3.0, (7.0, 7.0), 1.0),
            ("oxford_pets", 800, (0.7, 0.3), 2.0, (7.0, 7.0), 1.0),
            ("stanford_cars", 500, (0.6, 0.4), 1.0, (10.0, 7.0), 1.0),
            ("sun397", 800, (0.7, 0.3), 1.0, (10.0, 7.0), 1.0),
            ("ucf101", 700, (0.3, 0.7), 2.0, (10.0, 7.0), 1.5),
        )
    }
    check_exceptions: ClassVar[Mapping[str, str]] = {
        "axes_do_not_matter": "selects channels, so the axes are part of the method"
    }

    channel_share: float = parameter(
        Number(0, 1, above=True), "Share of the channels in which samples are compared; at least one.", default=0.5
    )
    criterion_weights: tuple[float, float] = parameter(
        Pair(Number(low=0), Number(low=0), ("similarity", "variance")),
        "Channels with a small similarity between classes and a large variance of the prototypes are kept; weights of "
        "the two.",
        default=(0.7, 0.3),
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
    gamma_scale: float = parameter(
        Number(low=0, high=4), "Upper end of the search for gamma, which starts at 0.", default=0.5
    )
    gamma_steps: int = parameter(STEPS, "Number of candidates of gamma.", default=5)

    @property
    def channels(self) -> np.ndarray:
        """The channels in which samples are compared, best first."""
        return self._channels.copy()

    def _fit(self) -> None:
        keys, labels = self._support64, self.support[1]
        self._channels = self._best_channels(to_numpy(keys), labels, to_numpy(self.prototypes64))
        refined = self._compared(keys) @ self._compared(self.prototypes64).T
        predicted = to_numpy(softmax(refined))[np.arange(len(labels)), labels]
        # In bits: how much the prediction of a support sample differs from its label.
        self._divergences = self.as_own(np.log2((1 + SMALL) / (predicted + SMALL)))
        super()._fit()

    def _best_channels(self, keys: np.ndarray, labels: np.ndarray, prototypes: np.ndarray) -> np.ndarray:
        """The channels where samples of different classes, prototypes included, have the smallest mean product, and the
        prototypes the largest variance."""
        classes = np.eye(self.n_classes)[labels]
        sums, members = prototypes + classes.T @ keys, 1 + classes.sum(axis=0)
        pairs = members.sum() ** 2 - (members**2).sum()
        similarity = (sums.sum(axis=0) ** 2 - (sums**2).sum(axis=0)) / max(1, pairs)
        variance = prototypes.var(axis=0, ddof=min(1, self.n_classes - 1))
        similar, varied = self.criterion_weights
        order = np.argsort(similar * similarity - varied * variance, kind="stable")
        return order[: max(1, round(self.channel_share * self.dimension))]

    def _compared(self, features: Array) -> Array:
        """The selected channels (n, Q), as rows of unit length."""
        backend = Backend.of(features)
        return unit_rows(backend.xp.take(features, backend.index(self._channels), axis=1))

    @property
    def _grid(self) -> dict[str, Sequence[float]]:
        return {**super()._grid, "gamma": candidates(0.0, self.gamma_scale, self.gamma_steps)}

    def _weights(self, gamma: float) -> Array:
        return namespace(self._divergences).exp(gamma * self._divergences)

    def _scores_by(self, x: Array) -> Callable[..., Array]:
        zero_shot, cosines = self._zero_shot(x), self._cosines(x)
        kernel = lru_cache(1)(lambda beta: exponential_kernel(cosines, beta))
        votes = lru_cache(self.gamma_steps)(lambda beta, gamma: kernel(beta) * self._weights(gamma) @ self._values)
        return lambda beta, alpha, gamma: zero_shot + alpha * votes(beta, gamma)

    def _frozen(self, x: Expression) -> Expression:
        compared = (x @ np.eye(self.dimension)[:, self._channels]).unit()
        return self._frozen_scores(x, compared, self._weights(self._chosen["gamma"])[:, None])
