"""TIMO: images weigh the prompts of their class, and prompts join the images of a Gaussian classifier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from zeroshift.arrays import Array, Home, Labelled, namespace, to_numpy
from zeroshift.methods._shared.few_shot import FewShotMethod, best_weight
from zeroshift.methods._shared.gaussian_classifier import ClassGroups, LinearDiscriminant, linear_discriminant
from zeroshift.methods._shared.linear_head import LinearHead
from zeroshift.methods._shared.prompts import checked_prompts
from zeroshift.methods._shared.similarity import unit_rows
from zeroshift.parameters import Number, Optional, array_parameter, parameter
from zeroshift.zero_shot import softmax

__all__ = ["TIMO", "GuidedMethod", "guided_text", "join_prompts", "matching_scores"]


# How TIMO lets images weigh the prompts of a class, and prompts join its images.


def matching_scores(prompts: Array, support: Labelled) -> Array:
    """Cosines (K, P) between the prompts (K, P, d) and the mean image of their class.

    A class without samples is matched with the mean of the other classes' mean images.

    >>> matching_scores(np.eye(2)[:, None, :], (np.array([[0.8, 0.6], [0.6, 0.8]]), np.array([0, 1])))
    array([[0.8],
           [0.8]])
    """
    features, labels = support
    home = Home.of(prompts)
    groups = ClassGroups(labels, prompts.shape[0])
    anchors = unit_rows(groups.means(home.bring(features[home.index(groups.order)], prompts.dtype)))
    present = home.index(np.flatnonzero(groups.counts))
    average = unit_rows(home.xp.mean(anchors[present], axis=0))
    anchors[home.index(np.flatnonzero(groups.counts == 0))] = average
    return home.xp.matmul(prompts, anchors[:, :, None])[:, :, 0]


def guided_text(prompts: Array, matching: Array, gamma: float) -> Array:
    """One unit text weight a class (K, d): its prompts, weighted by the softmax of their matching scores.

    The scores of a class are first divided by their length, then multiplied by `gamma`.

    >>> prompts = np.array([[[1.0, 0.0], [0.0, 1.0]]])
    >>> guided_text(prompts, np.array([[0.3, 0.4]]), gamma=1.0).round(6)
    array([[0.633492, 0.773749]])
    """
    weights = softmax(gamma * unit_rows(matching))
    return unit_rows(namespace(prompts).matmul(weights[:, None, :], prompts)[:, 0, :])


def join_prompts(prompts: Array, matching: Array, count: int, support: Labelled) -> Labelled:
    """The support samples with `count` prompts a class before them, best match first, each as long as its score.

    After the last prompt the best comes again.

    >>> prompts = np.array([[[1.0, 0.0], [0.0, 1.0]]])
    >>> features, labels = join_prompts(prompts, np.array([[0.3, 0.4]]), 3, (np.array([[0.8, 0.6]]), np.array([0])))
    >>> features
    array([[0. , 0.4],
           [0.3, 0. ],
           [0. , 0.4],
           [0.8, 0.6]])
    """
    home = Home.of(prompts)
    classes, available, d = prompts.shape
    ranked = np.argsort(-to_numpy(matching), axis=1, kind="stable")
    picked = ranked[:, np.arange(count) % available]
    places = home.index((np.arange(classes)[:, None] * available + picked).reshape(-1))
    scaled = prompts.reshape(-1, d)[places] * matching.reshape(-1)[places][:, None]
    features, labels = support
    joined = home.xp.concat([scaled, home.bring(features, prompts.dtype)], axis=0)
    return joined, np.concatenate([np.repeat(np.arange(classes), count), labels])


# What TIMO and TIMO-S share: prompts, text weights chosen by images, and one linear head for text and Gaussians.


ALPHAS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1e3, 1e4)
"""Weights of the text tried on the validation set."""


class GuidedMethod(FewShotMethod):
    """A subclass's `_fit` ends with `_keep`."""

    array_parameters = ("prototypes", "prompts", "support", "validation")

    prompts: Array

    def _validate(self) -> None:
        super()._validate()
        self.prompts = checked_prompts(self.prompts, self.prototypes)

    @property
    def text(self) -> Array:
        """The text weights (K, d) the images chose, of unit length."""
        return Home.of(self._text).copy(self._text)

    def _gaussians(self, prompts: Array, matching: Array, transferred: int) -> LinearDiscriminant:
        return linear_discriminant(*join_prompts(prompts, matching, transferred, self.support), self.n_classes)

    def _best_alpha(self, text: Array, gaussians: LinearDiscriminant) -> tuple[float, float]:
        """The text weight found on the validation set, and the accuracy it has there."""
        assert self.validation is not None
        return best_weight(self.validation, self.n_classes, ALPHAS, lambda x: (gaussians.scores(x), x @ text.T))

    def _keep(self, text: Array, gaussians: LinearDiscriminant, alpha: float) -> None:
        self._text = text
        # Text and Gaussians are linear both, so one product answers for the two.
        self._head = LinearHead(alpha * text + gaussians.weights, gaussians.offsets)

    def _predict_scores(self, features: Array) -> Array:
        return self._head.scores(features)


class TIMO(GuidedMethod):
    """Averages the prompts of a class by how well they match its support images, and adds the Gaussian discriminant of
    support images and matching prompts together. With a validation set the weight of the text is chosen there.

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
    2025. The presets are the two values of gamma the authors' code sets by data set. A class without support samples is
    matched with the mean of the other classes' images, and its Gaussian rests on its prompts alone. The authors match
    prompts with averages over ten augmentations and fit Gaussians to all of them; here one support set serves both.
    Departure: where no alpha gets a single validation sample right, the smallest is taken, not 0.1.
    """

    name = "timo"
    needs = ("prototypes", "prompts", "support")
    state_size = "K d"
    complexity = "O(K d) a sample; the fit O((N + K P) d^2 + d^3) for N support samples and P prompts a class"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "imagenet": {"gamma": 1.0},
        "oxford_flowers": {"gamma": 100.0},
    }

    prompts: Array = array_parameter("P unit-length text embeddings a class.")
    support: Labelled = array_parameter("Labelled samples: unit features (n, d) and class indices (n,).")
    validation: Labelled | None = array_parameter(
        "Labelled samples to choose `alpha` on, among the powers of ten from 1e-4 to 1e4; of equally good ones the smallest wins. What was found is in `chosen`.",
        default=None,
    )
    gamma: float = parameter(
        Number(low=0), "How strongly the best matching prompts are preferred: 0 averages them all.", default=50.0
    )
    alpha: float = parameter(
        Number(low=0),
        "Weight of the text's cosines where there is no validation set. The authors always use one; 100, CLIP's logit scale, is ours.",
        default=100.0,
    )
    transferred: int | None = parameter(
        Optional(Number(low=1, integer=True)),
        "Prompts a class that join its images, best match first, beginning anew after the last. Unless given each prompt joins once.",
        default=None,
    )

    @property
    def chosen(self) -> dict[str, float]:
        return {"alpha": self._alpha}

    def _fit(self) -> None:
        prompts = unit_rows(self._wide(self.prompts))
        matching = matching_scores(prompts, self.support)
        text = guided_text(prompts, matching, self.gamma)
        gaussians = self._gaussians(prompts, matching, self.transferred or prompts.shape[1])
        self._alpha = self.alpha if self.validation is None else self._best_alpha(text, gaussians)[0]
        self._keep(text, gaussians, self._alpha)
