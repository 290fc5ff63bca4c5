"""TIMO and TIMO-S: images weight the prompts of their class, and prompts join the images of a Gaussian classifier."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from zeroshift.adapt.statistics import discriminant
from zeroshift.arrays import Array, Backend, Labelled, namespace, to_numpy
from zeroshift.methods._shared.few_shot import FewShotMethod, most_accurate
from zeroshift.methods._shared.gaussian_classifier import class_means, fit_gaussians
from zeroshift.methods._shared.prompts import checked_prompts
from zeroshift.methods._shared.similarity import unit_rows
from zeroshift.parameters import Number, Optional, array_parameter, parameter
from zeroshift.zero_shot import softmax

ALPHAS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1e3, 1e4)
"""Weights of the text that are tried on the validation set."""

GAMMAS = tuple(float(gamma) for gamma in range(5, 101, 5))
"""Values of gamma that TIMO-S tries on the validation set."""


class TIMOBase(FewShotMethod):
    """What TIMO and TIMO-S share. The `_fit` of a subclass calls `_join`."""

    linear = True

    state_size = "K d"

    prompts: Array = array_parameter("Unit-length text embeddings of P prompts per class, (K, P, d).")

    def _validate(self) -> None:
        super()._validate()
        self.prompts = checked_prompts(self.prompts, self.prototypes)

    def _prepare(self) -> None:
        self._images = self._support64, self.support[1]
        self._prompts = unit_rows(self.as_float64(self.prompts))
        self._matching = matching_scores(self._prompts, self._images)
        super()._prepare()

    @property
    def text(self) -> Array:
        """The text weights (K, d) computed from prompts and images, of unit length."""
        return Backend.of(self._text).copy(self._text)

    def _join(self, gamma: float, counts: Sequence[int], alpha: float = 1.0) -> dict[str, Any]:
        """Add the scores of the text and of the Gaussians. With a validation set the weight of the text, and which of
        the numbers of prompts joins the images, are chosen there."""
        text = guided_text(self._prompts, self._matching, gamma)
        fits = {}
        for count in counts:
            samples = join_prompts(self._prompts, self._matching, count, self._images)
            fits[count] = fit_gaussians(*samples, self.n_classes)

        def scores_by(x: Array) -> Callable[..., Array]:
            cosines = x @ text.T
            gaussian = {count: discriminant(x, fit.directions, fit.offsets) for count, fit in fits.items()}
            return lambda transferred, alpha: alpha * cosines + gaussian[transferred]

        chosen: dict[str, Any] = {"transferred": counts[0], "alpha": alpha}
        if self.validation is not None:
            grid: dict[str, Sequence[Any]] = {"transferred": counts, "alpha": ALPHAS}
            chosen = most_accurate(self.validation, self.dimension, grid, scores_by)
        fit = fits[chosen["transferred"]]
        self._text, self._head = text, (chosen["alpha"] * text + fit.directions, fit.offsets)
        return chosen

    def _predict_scores(self, features: Array) -> Array:
        return discriminant(features, *self._head)


class TIMO(TIMOBase):
    """Averages the prompts of a class, weighted by how well they match its support images, and adds the Gaussian
    discriminant of support images and prompts together. With a validation set, the weight of the text is chosen there.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import TIMO
    >>> prompts = np.array([[[1.0, 0.0], [0.8, 0.6]], [[0.0, 1.0], [0.6, 0.8]]])
    >>> support = np.array([[0.8, 0.6], [0.6, 0.8]]), np.array([0, 1])
    >>> method = TIMO(np.eye(2), prompts=prompts, support=support, alpha=5.0)
    >>> method.text.round(2)
    array([[0.8, 0.6],
           [0.6, 0.8]])
    >>> method.predict(np.array([0.96, 0.28])).round(3)
    array([0.909, 0.091])

    Notes
    -----
    Li et al., *Text and Image Are Mutually Beneficial: Enhancing Training-Free Few-Shot Classification with CLIP*, AAAI
    2025. The presets are the two values of gamma that the authors' code sets for single data sets. A class without
    support samples is matched with the mean of the other classes' images, and its Gaussian is fitted to its prompts
    alone. The authors match prompts with averages over ten augmentations and fit Gaussians to all of them; here one
    support set serves both. Difference: if no alpha gets a single validation sample right, the smallest is chosen, not
    0.1.
    """

    name = "timo"
    headline = "Weights prompts by the labelled samples"
    overconfident = True
    needs = ("prototypes", "prompts", "support")
    complexity = "O(K d) per sample; the fit O((N + K P) d^2 + d^3) for N support samples and P prompts per class"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "imagenet": {"gamma": 1.0},
        "oxford_flowers": {"gamma": 100.0},
    }

    validation: Labelled | None = array_parameter(
        "Labelled samples to choose `alpha` with, among the powers of ten from 1e-4 to 1e4, the smallest of equally "
        "good ones; `chosen` returns the choice.",
        default=None,
    )
    gamma: float = parameter(
        Number(low=0), "Preference for prompts that match the images well; 0 averages all prompts.", default=50.0
    )
    alpha: float = parameter(
        Number(low=0),
        "Weight of the text's cosines if there is no validation set. The authors always use one; the default, CLIP's "
        "logit scale, is ours.",
        default=100.0,
    )
    transferred: int | None = parameter(
        Optional(Number(low=1, integer=True)),
        "Prompts per class that join its images, best match first, repeated after the last. None joins each prompt "
        "once.",
        default=None,
    )

    def _fit(self) -> None:
        self._chosen = self._join(self.gamma, [self.transferred or self.prompts.shape[1]], self.alpha)
        del self._chosen["transferred"]


class TIMOS(TIMOBase):
    """TIMO with gamma and the number of prompts that join the images also searched on a validation set, so that no
    parameter has to be chosen.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import TIMOS
    >>> prompts = np.array([[[1.0, 0.0], [0.8, 0.6]], [[0.0, 1.0], [0.6, 0.8]]])
    >>> support = np.array([[0.8, 0.6], [0.6, 0.8]]), np.array([0, 1])
    >>> method = TIMOS(np.eye(2), prompts=prompts, support=support, validation=support)
    >>> method.chosen
    {'gamma': 5.0, 'transferred': 1, 'alpha': 0.0001}

    Notes
    -----
    Li et al., *Text and Image Are Mutually Beneficial: Enhancing Training-Free Few-Shot Classification with CLIP*, AAAI
    2025. The notes on `TIMO` apply here too. The search over ten numbers of prompts is the fast one of the authors'
    code.
    """

    name = "timo_s"
    headline = "TIMO with all parameters searched"
    overconfident = True
    needs = ("prototypes", "prompts", "support", "validation")
    complexity = "O(K d) per sample; the fit O((N + K P) d^2 + d^3) for each number of prompts tried"

    validation: Labelled = array_parameter(
        "Labelled samples for the search: first gamma, among 5, 10, ..., 100, with the text alone; then the number of "
        "prompts that join the images, each with its best weight of the text among the powers of ten from 1e-4 to 1e4. "
        "Of equally good values the smallest is chosen; `chosen` returns the choice.",
    )
    candidates: int = parameter(
        Number(low=1, integer=True),
        "How many numbers of prompts are tried, evenly spread from 1 to 2 P; 1 tries a single prompt only.",
        default=10,
    )

    def _validate(self) -> None:
        if self.validation is None:
            raise TypeError(
                "validation must be a pair (features, labels) for the search; got None. "
                "Fix: pass one, or use TIMO, which needs no search."
            )
        super()._validate()

    def _fit(self) -> None:
        texts = {gamma: guided_text(self._prompts, self._matching, gamma) for gamma in GAMMAS}
        self._chosen = most_accurate(
            self.validation, self.dimension, {"gamma": GAMMAS}, lambda x: lambda gamma: x @ texts[gamma].T
        )
        counts = np.unique(np.linspace(1, 2 * self.prompts.shape[1], self.candidates).astype(int)).tolist()
        self._chosen |= self._join(self._chosen["gamma"], counts)


def matching_scores(prompts: Array, support: Labelled) -> Array:
    """Cosines (K, P) between the prompts (K, P, d) and the mean image of their class.

    A class without samples is matched with the mean of the other classes' mean images.

    >>> matching_scores(np.eye(2)[:, None, :], (np.array([[0.8, 0.6], [0.6, 0.8]]), np.array([0, 1])))
    array([[0.8],
           [0.8]])
    """
    anchors = class_means(*support, prompts.shape[0], unit=True)
    return namespace(prompts).matmul(prompts, anchors[:, :, None])[:, :, 0]


def guided_text(prompts: Array, matching: Array, gamma: float) -> Array:
    """One unit text weight per class (K, d): its prompts, weighted by the softmax of their matching scores.

    The scores of a class are first divided by their length, then multiplied by `gamma`.

    >>> prompts = np.array([[[1.0, 0.0], [0.0, 1.0]]])
    >>> guided_text(prompts, np.array([[0.3, 0.4]]), gamma=1.0).round(6)
    array([[0.633492, 0.773749]])
    """
    weights = softmax(gamma * unit_rows(matching))
    return unit_rows(namespace(prompts).matmul(weights[:, None, :], prompts)[:, 0, :])


def join_prompts(prompts: Array, matching: Array, count: int, support: Labelled) -> Labelled:
    """The support samples preceded by `count` prompts per class, best match first, each scaled by its score.

    After the last prompt, the best is used again.

    >>> prompts = np.array([[[1.0, 0.0], [0.0, 1.0]]])
    >>> features, labels = join_prompts(prompts, np.array([[0.3, 0.4]]), 3, (np.array([[0.8, 0.6]]), np.array([0])))
    >>> features
    array([[0. , 0.4],
           [0.3, 0. ],
           [0. , 0.4],
           [0.8, 0.6]])
    """
    backend = Backend.of(prompts)
    classes, available, d = prompts.shape
    ranked = np.argsort(-to_numpy(matching), axis=1, kind="stable")
    picked = backend.index(ranked[:, np.arange(count) % available])
    rows = backend.index(np.arange(classes)[:, None])
    scaled = (prompts[rows, picked] * matching[rows, picked][:, :, None]).reshape(-1, d)
    features, labels = support
    return backend.xp.concat([scaled, features], axis=0), np.concatenate([np.repeat(np.arange(classes), count), labels])
