"""RA-TTA: the zero-shot posterior, joined by what images of an external index say of the likely classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from zeroshift.arrays import Array, Home, check_matrix, namespace
from zeroshift.low_entropy import entropy
from zeroshift.methods.parts.description_bank import DescriptionBank, checked_descriptions
from zeroshift.methods.parts.examples import example_descriptions, example_unlabelled
from zeroshift.methods.parts.retrieval import WORK_NUMBERS, Candidates, candidates, largest_cosines, quantile_cosines
from zeroshift.methods.parts.sinkhorn import REGULARISATION, transport
from zeroshift.methods.parts.top_k import top_k
from zeroshift.parameters import Constraint, Number
from zeroshift.view_method import EpisodicMethod
from zeroshift.zero_shot import logits, softmax

__all__ = ["RATTA"]

LOG_GUARD = 1e-7
"""Added to a retrieved probability before its logarithm, as in the authors' code: most of them are 0."""


class RATTA(EpisodicMethod):
    """Finds the descriptions an image's views are most like, retrieves images like them for each class that has enough,
    and joins the zero-shot posterior with one by how near, in optimal transport, those are to the views.

    An image for which no class has enough descriptions is answered by the zero-shot classifier.

    Parameters
    ----------
    prototypes : (K, d) array or tensor
        One unit-length text embedding a class.
    prompts : (K, P, d) array or tensor, or a pair of (R, d) and (R,)
        Unit-length text embeddings of descriptions: P of each class, or, where classes have different numbers of them,
        R in all and the class of each.
    unlabelled : (n, d) array or tensor
        Unit-length features of the database of images that is searched: any images, of which no label is known.
    logit_scale : float
        Scale of the logits; 100 for CLIP.
    quantile : float
        An image is as like a description as this quantile of its views: 0.75 on fine-grained data, 0.9 on ImageNet
        and its variants (presets).
    n_descriptions : int
        Descriptions kept for an image.
    min_descriptions : int
        Those a class must have among them to be a candidate.
    n_neighbours : int
        Images of the database retrieved for a candidate.
    regularisation : float
        How far the transport is smoothed by entropy, in units of differences of cosines.
    iterations, tolerance : int, float
        Sinkhorn's scaling ends after so many rounds, or when a plan's marginal is off by less than the other, which is
        looked at every ten rounds.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import RATTA
    >>> prompts = np.array([[[1.0, 0.0], [0.96, 0.28]], [[0.0, 1.0], [0.28, 0.96]]])
    >>> database = np.array([[0.8, 0.6], [0.6, 0.8]])
    >>> settings = {"n_descriptions": 2, "min_descriptions": 2, "n_neighbours": 1}
    >>> ratta = RATTA(np.eye(2), prompts=prompts, unlabelled=database, logit_scale=5.0, **settings)
    >>> ratta.adapt_views(np.array([[0.8, 0.6], [1.0, 0.0]])).round(3)
    array([0.89, 0.11])

    Notes
    -----
    Lee et al., *RA-TTA: Retrieval-Augmented Test-Time Adaptation for Vision-Language Models*, ICLR 2025. The authors
    take 100 random crops beside the image, descriptions from a language model, each behind a prompt with the class's
    name, and databases of images found for every data set among LAION-2B, which are not available: here the user brings
    one. The search is exact, in blocks.

    With fewer than `min_descriptions` descriptions of every class, such as the few prompt modes of a feature set,
    nothing is ever retrieved and the answer is zero-shot throughout. With the defaults an image has at most four
    candidates.

    The authors' code casts weights to float16 before their transport, and draws a random part of its larger databases;
    here everything is float64 and nothing is drawn. No output of theirs was available to compare with.
    """

    name = "ratta"
    needs = ("prototypes", "views", "prompts", "unlabelled")
    array_parameters = ("prototypes", "prompts", "unlabelled")
    example_parameters: ClassVar[Mapping[str, Any]] = {
        "prompts": example_descriptions,
        "unlabelled": example_unlabelled,
    }
    state_size = "(R + n) d, for R descriptions and n images of the database"
    complexity = "O(V R d + C n d + C V S I) for an image, C = 4 candidates, S retrieved for each, I rounds of scaling"
    constraints: ClassVar[Mapping[str, Constraint]] = {
        "logit_scale": Number(low=0, above=True),
        "quantile": Number(0, 1),
        "n_descriptions": Number(low=1, integer=True),
        "min_descriptions": Number(low=1, integer=True),
        "n_neighbours": Number(low=1, integer=True),
        "regularisation": REGULARISATION,
        "iterations": Number(low=1, integer=True),
        "tolerance": Number(low=0),
    }
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        dataset: {"quantile": 0.9}
        for dataset in ("imagenet", "imagenet_a", "imagenetv2", "imagenet_r", "imagenet_sketch")
    }

    prompts: Array | tuple[Array, np.ndarray]
    unlabelled: Array
    logit_scale: float
    quantile: float
    n_descriptions: int
    min_descriptions: int
    n_neighbours: int
    regularisation: float
    iterations: int
    tolerance: float

    def __init__(
        self,
        prototypes: Array,
        *,
        prompts: Array | tuple[Array, np.ndarray],
        unlabelled: Array,
        logit_scale: float = 100.0,
        quantile: float = 0.75,
        n_descriptions: int = 20,
        min_descriptions: int = 5,
        n_neighbours: int = 20,
        regularisation: float = 0.1,
        iterations: int = 100,
        tolerance: float = 1e-2,
    ) -> None:
        super().__init__(
            prototypes,
            prompts=prompts,
            unlabelled=unlabelled,
            logit_scale=logit_scale,
            quantile=quantile,
            n_descriptions=n_descriptions,
            min_descriptions=min_descriptions,
            n_neighbours=n_neighbours,
            regularisation=regularisation,
            iterations=iterations,
            tolerance=tolerance,
        )

    def _validate(self) -> None:
        self.prompts = checked_descriptions("prompts", self.prompts, self.prototypes)
        check_matrix("unlabelled", self.unlabelled, columns=self.dimension)
        home = Home.of(self.prototypes)
        with home.computing():
            self.unlabelled = home.copy(home.bring(self.unlabelled))

    def _begin(self) -> None:
        self._bank = DescriptionBank.of(self.prompts)

    def _images_at_once(self, n_views: int) -> int:
        kept = min(self.n_descriptions, self._bank.rows.shape[0])
        most = max(1, kept // self.min_descriptions)
        transported = most * n_views * min(self.n_neighbours, self.unlabelled.shape[0])
        held = max(n_views * self.dimension, self._bank.rows.shape[0], kept * max(kept, self.dimension), transported)
        return max(1, WORK_NUMBERS // held)

    def _episodes(self, views: Array) -> Array:
        """Probabilities: what is joined are two of them."""
        xp = namespace(views)
        zero_shot = logits(views[:, 0, :], self.prototypes, self.logit_scale)
        posterior, retrieved = softmax(zero_shot), self._retrieved(views)
        doubt = -xp.sum(retrieved * xp.log(retrieved + LOG_GUARD), axis=-1)
        trust, other = (xp.exp(1 / (1 + h))[:, None] for h in (entropy(zero_shot), doubt))
        share = trust / (trust + other)
        found = xp.any(retrieved > 0, axis=-1)[:, None]
        return xp.where(found, share * posterior + (1 - share) * retrieved, posterior)

    def _probabilities(self, scores: Array) -> Array:
        return scores

    def _retrieved(self, views: Array) -> Array:
        """The posterior (B, K) the database gives; zero where there is no candidate."""
        xp = namespace(views)
        bank = self._bank
        _, numbers = top_k(quantile_cosines(views, bank.rows, self.quantile), self.n_descriptions)
        classes = bank.classes[numbers]
        found = candidates(Home.of(views).bring(bank.rows[numbers], views.dtype), classes, self.min_descriptions)
        nothing = Home.of(views).zeros((views.shape[0], self.n_classes), views.dtype)
        if found.images.shape[0] == 0:
            return nothing
        relevance = nothing - xp.inf
        relevance[found.images, classes[found.images, found.places]] = self.logit_scale / (
            1 + self._distances(views, found)
        )
        there = xp.any(relevance > -xp.inf, axis=-1, keepdims=True)
        return xp.where(there, softmax(xp.where(there, relevance, nothing)), nothing)

    def _distances(self, views: Array, found: Candidates) -> Array:
        """Of each candidate (L,): the cost of taking the image's views to the images retrieved for it."""
        xp = namespace(views)
        prototypes = found.prototypes[found.images, found.places]
        near = largest_cosines(prototypes, self.unlabelled, self.n_neighbours)
        own = (views @ xp.matrix_transpose(found.prototypes))[found.images, :, found.places]
        view_weights = softmax(self.logit_scale * (views @ found.shared[:, :, None])[..., 0])
        cost = xp.abs(own[:, :, None] - near[:, None, :])
        plans = transport(
            cost,
            view_weights[found.images],
            softmax(self.logit_scale * near),
            regularisation=self.regularisation,
            iterations=self.iterations,
            tolerance=self.tolerance,
        )
        return xp.sum(plans * cost, axis=(-2, -1))
