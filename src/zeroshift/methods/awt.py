"""AWT: views and descriptions weighted by certainty, and matched by optimal transport."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from zeroshift.arrays import Array, Home
from zeroshift.low_entropy import entropy
from zeroshift.methods.parts.certainty import certainty_weights, replaced_entropy
from zeroshift.methods.parts.class_transports import WORK_NUMBERS, ClassTransports
from zeroshift.methods.parts.examples import example_prompts
from zeroshift.methods.parts.prompts import checked_prompts
from zeroshift.methods.parts.sinkhorn import REGULARISATION
from zeroshift.parameters import Constraint, Number
from zeroshift.view_method import EpisodicMethod
from zeroshift.zero_shot import logits

__all__ = ["AWT"]


class AWT(EpisodicMethod):
    """Weighs an image's views and each class's descriptions by how sure they make the classifier, and scores a class by
    the cosine of views and descriptions, averaged over the optimal transport between the two sets of weights.

    With a single view it is what the ADAPT paper's appendix calls AWT*: descriptions are weighted, views are not.

    Parameters
    ----------
    prototypes : (K, d) array or tensor
        One unit-length text embedding a class. Scores come from `prompts`; these name the classes and their order.
    prompts : (K, P, d) array or tensor
        P unit-length text embeddings a class: the class name and its descriptions. The authors take 51.
    logit_scale : float
        Scale of the logits; 100 for CLIP.
    image_temperature, text_temperature : float
        Of the softmax over minus the entropies of views, and of descriptions; the lower, the more the surest count.
    regularisation : float
        How far the transport is smoothed by entropy, in units of 1 - cosine.
    iterations, tolerance : int, float
        Sinkhorn's scaling of an image ends after so many rounds, or when the factors of its views change by less than
        the other on average.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import AWT
    >>> prompts = np.array([[[1.0, 0.0], [0.8, 0.6]], [[0.0, 1.0], [0.6, 0.8]]])
    >>> awt = AWT(np.eye(2), prompts=prompts, logit_scale=5.0)
    >>> awt.adapt_views(np.array([[0.96, 0.28], [1.0, 0.0], [0.6, 0.8]])).round(3)
    array([0.94, 0.06])

    Notes
    -----
    Zhu et al., *AWT: Transferring Vision-Language Models via Augmentation, Weighting, and Transportation*, NeurIPS
    2024; the part that is not trained. The authors take the image and 50 random crops of it, and 50 descriptions a
    class from a language model, in a wording of their own: not the prompts ADAPT averages.

    A view's entropy is that of its mean logits over each class's prompts. A description's is that of the image's own
    such logits with its class's entry replaced by the description's: here in closed form, in K P numbers an image
    rather than K^2 P. The K transports of an image stop together, by the mean over all classes, as in the code.

    Everything is computed in float64; the authors' code is float32, 4e-5 away in logits. Kernels of K V P numbers are
    held up to 32 MB, which K = 1000 with 51 views and 51 prompts fits; larger ones are made again, a few classes at a
    time, in every round.
    """

    name = "awt"
    needs = ("prototypes", "views", "prompts")
    array_parameters = ("prototypes", "prompts")
    example_parameters: ClassVar[Mapping[str, Any]] = {"prompts": example_prompts}
    state_size = "K P d, the prompts"
    complexity = "O(K V P (d + I)) for an image, I rounds of Sinkhorn's scaling"
    constraints: ClassVar[Mapping[str, Constraint]] = {
        "logit_scale": Number(low=0, above=True),
        "image_temperature": Number(low=0, above=True),
        "text_temperature": Number(low=0, above=True),
        "regularisation": REGULARISATION,
        "iterations": Number(low=1, integer=True),
        "tolerance": Number(low=0),
    }

    prompts: Array
    logit_scale: float
    image_temperature: float
    text_temperature: float
    regularisation: float
    iterations: int
    tolerance: float

    def __init__(
        self,
        prototypes: Array,
        *,
        prompts: Array,
        logit_scale: float = 100.0,
        image_temperature: float = 0.5,
        text_temperature: float = 0.5,
        regularisation: float = 0.1,
        iterations: int = 100,
        tolerance: float = 1e-2,
    ) -> None:
        super().__init__(
            prototypes,
            prompts=prompts,
            logit_scale=logit_scale,
            image_temperature=image_temperature,
            text_temperature=text_temperature,
            regularisation=regularisation,
            iterations=iterations,
            tolerance=tolerance,
        )

    def _validate(self) -> None:
        self.prompts = checked_prompts(self.prompts, self.prototypes)

    def _begin(self) -> None:
        xp = Home.of(self.prototypes).xp
        self._mean_prompts = xp.sum(self.prompts, axis=1, dtype=xp.float64) / self.prompts.shape[1]

    def _images_at_once(self, n_views: int) -> int:
        return max(1, WORK_NUMBERS // (n_views * max(self.dimension, self.n_classes * self.prompts.shape[1])))

    def _episodes(self, views: Array) -> Array:
        transports = ClassTransports(views, self.prompts, self.regularisation)
        view_weights, prompt_weights = self._weights(views, transports.first_cosines())
        return self.logit_scale * transports.mean_cosines(
            view_weights, prompt_weights, iterations=self.iterations, tolerance=self.tolerance
        )

    def _weights(self, views: Array, first_cosines: Array) -> tuple[Array, Array]:
        """Of the views (B, V), and of each class's prompts by the image itself (B, K, P)."""
        means = logits(views, self._mean_prompts, self.logit_scale)
        replaced = replaced_entropy(means[:, 0, :], self.logit_scale * first_cosines)
        by_view = certainty_weights(entropy(means), self.image_temperature)
        return by_view, certainty_weights(replaced, self.text_temperature)
