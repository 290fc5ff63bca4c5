"""TIMO and TIMO-S: images weight the prompts of their class, and prompts join the images of a Gaussian classifier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from zeroshift.arrays import Array, Backend, Labelled, namespace, to_numpy
from zeroshift.methods._shared.few_shot import FewShotMethod, accuracy, best_weight
from zeroshift.methods._shared.gaussian_classifier import ClassGroups, LinearDiscriminant, linear_discriminant
from zeroshift.methods._shared.linear_head import LinearHead
from zeroshift.methods._shared.prompts import checked_prompts
from zeroshift.methods._shared.similarity import unit_rows
from zeroshift.parameters import Number, Optional, array_parameter, parameter
from zeroshift.zero_shot import softmax

__all__ = ["TIMO", "TIMOS", "TIMOBase", "guided_text", "join_prompts", "matching_scores"]

ALPHAS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1e3, 1e4)
"""Weights of the text that are tried on the validation set."""

GAMMAS = tuple(float(gamma) for gamma in range(5, 101, 5))
"""Values of gamma that TIMO-S tries on the validation set."""


class TIMOBase(FewShotMethod):
    """What TIMO and TIMO-S share. The `_fit` of a subclass ends with `_set_head`."""

    linear = True

    state_size = "K d"

    prompts: Array = array_parameter("Unit-length text embeddings of P prompts per class, (K, P, d).")

    def _validate(self) -> None:
        super()._validate()
        self.prompts = checked_prompts(self.prompts, self.prototypes)

    @property
    def text(self) -> Array:
        """The text weights (K, d) computed from prompts and images, of unit length."""
        return Backend.of(self._text).copy(self._text)

    def _gaussians(self, prompts: Array, matching: Array, transferred: int) -> LinearDiscriminant:
        return linear_discriminant(*join_prompts(prompts, matching, transferred, self.support), self.n_classes)

    def _best_alpha(self, validation: Labelled, text: Array, gaussians: LinearDiscriminant) -> tuple[float, float]:
        """The weight of the text that is best on the validation set, and its accuracy there."""
        return best_weight(validation, self.n_classes, ALPHAS, lambda x: (gaussians.scores(x), x @ text.T))

    def _set_head(self, text: Array, gaussians: LinearDiscriminant, alpha: float) -> None:
        self._text = text
        # Text and Gaussians are both linear, so one product computes the sum of their scores.
        self._head = LinearHead(alpha * text + gaussians.weights, gaussians.offsets)

    def _predict_scores(self, features: Array) -> Array:
        return self._head.scores(features)


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

    @property
    def chosen(self) -> dict[str, float]:
        return {"alpha": self._alpha}

    def _fit(self) -> None:
        prompts = unit_rows(self._to_float64(self.prompts))
        matching = matching_scores(prompts, self.support)
        text = guided_text(prompts, matching, self.gamma)
        gaussians = self._gaussians(prompts, matching, self.transferred or prompts.shape[1])
        self._alpha = self.alpha
        if self.validation is not None:
            self._alpha, _ = self._best_alpha(self.validation, text, gaussians)
        self._set_head(text, gaussians, self._alpha)


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

    @property
    def chosen(self) -> dict[str, float]:
        return {"gamma": self._gamma, "transferred": self._transferred, "alpha": self._alpha}

    def _fit(self) -> None:
        prompts = unit_rows(self._to_float64(self.prompts))
        matching = matching_scores(prompts, self.support)
        features, labels = self.validation
        wide = self._to_float64(features)
        text_accuracies = [accuracy(wide @ guided_text(prompts, matching, gamma).T, labels) for gamma in GAMMAS]
        self._gamma = GAMMAS[int(np.argmax(text_accuracies))]
        text = guided_text(prompts, matching, self._gamma)
        counts = np.unique(np.linspace(1, 2 * prompts.shape[1], self.candidates).astype(int))
        best_accuracy = -1.0
        for count in counts.tolist():
            gaussians = self._gaussians(prompts, matching, count)
            alpha, its_accuracy = self._best_alpha(self.validation, text, gaussians)
            if its_accuracy > best_accuracy:
                best_accuracy, best = its_accuracy, gaussians
                self._transferred, self._alpha = count, alpha
        self._set_head(text, best, self._alpha)


def matching_scores(prompts: Array, support: Labelled) -> Array:
    """Cosines (K, P) between the prompts (K, P, d) and the mean image of their class.

    A class without samples is matched with the mean of the other classes' mean images.

    >>> matching_scores(np.eye(2)[:, None, :], (np.array([[0.8, 0.6], [0.6, 0.8]]), np.array([0, 1])))
    array([[0.8],
           [0.8]])
    """
    features, labels = support
    backend = Backend.of(prompts)
    groups = ClassGroups(labels, prompts.shape[0])
    anchors = unit_rows(groups.means(backend.asarray(features[backend.index(groups.order)], prompts.dtype)))
    present = backend.index(np.flatnonzero(groups.counts))
    average = unit_rows(backend.xp.mean(anchors[present], axis=0))
    anchors[backend.index(np.flatnonzero(groups.counts == 0))] = average
    return backend.xp.matmul(prompts, anchors[:, :, None])[:, :, 0]


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
    picked = ranked[:, np.arange(count) % available]
    places = backend.index((np.arange(classes)[:, None] * available + picked).reshape(-1))
    scaled = prompts.reshape(-1, d)[places] * matching.reshape(-1)[places][:, None]
    features, labels = support
    joined = backend.xp.concat([scaled, backend.asarray(features, prompts.dtype)], axis=0)
    return joined, np.concatenate([np.repeat(np.arange(classes), count), labels])
