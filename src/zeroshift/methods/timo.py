"""TIMO: images weigh the prompts of their class, and prompts join the images of a Gaussian classifier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from zeroshift.arrays import Array
from zeroshift.labelled import Labelled
from zeroshift.methods.parts.guided import GuidedMethod
from zeroshift.methods.parts.mutual_guidance import guided_text, matching_scores
from zeroshift.methods.parts.rows import unit_rows
from zeroshift.parameters import Constraint, Number, Optional

__all__ = ["TIMO"]


class TIMO(GuidedMethod):
    """Averages the prompts of a class by how well they match its support images, and adds the Gaussian discriminant of
    support images and matching prompts together. With a validation set the weight of the text is chosen there.

    Parameters
    ----------
    prototypes : (K, d) array or tensor
        One unit-length text embedding a class. Their library and device are where the state lives; the text itself
        comes from `prompts`.
    prompts : (K, P, d) array or tensor
        P unit-length text embeddings a class.
    support : (features, labels)
        Labelled samples: unit features (n, d) and class indices (n,).
    validation : (features, labels), optional
        Labelled samples to choose `alpha` on, among the powers of ten from 1e-4 to 1e4; of equally good ones the
        smallest wins. What was found is in `chosen`.
    gamma : float
        How strongly the best matching prompts are preferred: 0 averages them all.
    alpha : float
        Weight of the text's cosines where there is no validation set. The authors always use one; 100, CLIP's logit
        scale, is ours.
    transferred : int, optional
        Prompts a class that join its images, best match first, beginning anew after the last. Unless given each
        prompt joins once.

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
    constraints: ClassVar[Mapping[str, Constraint]] = {
        "gamma": Number(low=0),
        "alpha": Number(low=0),
        "transferred": Optional(Number(low=1, integer=True)),
    }
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "imagenet": {"gamma": 1.0},
        "oxford_flowers": {"gamma": 100.0},
    }

    gamma: float
    alpha: float
    transferred: int | None

    def __init__(
        self,
        prototypes: Array,
        *,
        prompts: Array,
        support: Labelled,
        validation: Labelled | None = None,
        gamma: float = 50.0,
        alpha: float = 100.0,
        transferred: int | None = None,
    ) -> None:
        super().__init__(
            prototypes,
            prompts=prompts,
            support=support,
            validation=validation,
            gamma=gamma,
            alpha=alpha,
            transferred=transferred,
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
