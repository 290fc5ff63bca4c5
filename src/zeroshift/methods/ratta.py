"""RA-TTA: the zero-shot posterior combined with images retrieved from an external database for the likely classes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from zeroshift.arrays import Array, Backend, check_labels, check_matrix, namespace
from zeroshift.features.checks import blocks
from zeroshift.method import WORK_NUMBERS, EpisodicMethod
from zeroshift.methods._shared.prompts import checked_prompts
from zeroshift.methods._shared.similarity import unit_rows
from zeroshift.methods._shared.sinkhorn import REGULARISATION, marginal_met, mean_over_plan
from zeroshift.methods._shared.top_k import top_k
from zeroshift.parameters import Number, array_parameter, parameter
from zeroshift.views import entropy
from zeroshift.zero_shot import logits, softmax

LOG_GUARD = 1e-7
"""Added to a retrieved probability before its logarithm, as in the authors' code: most of them are 0."""

TINY = 1e-6
"""Weight of a prototype that is added to a sum of unit vectors so that it is not zero."""

NEVER = -1e300
"""Relevance of a class that is no candidate: its probability is 0."""


def checked_descriptions(given: Any, prototypes: Array) -> Any:
    """A checked copy of unit embeddings (K, P, d), or of a pair of embeddings (R, d) and classes (R,).

    If most descriptions are nearer to another class's prototype than to their own, a warning is issued.
    """
    if not isinstance(given, (tuple, list)):
        return checked_prompts(given, prototypes)
    if len(given) != 2:
        raise TypeError(
            "prompts must be an array (K, P, d) or a pair (descriptions, classes); got a "
            f"{type(given).__name__} of {len(given)}. Fix: prompts=(descriptions, classes)."
        )
    rows = check_matrix("prompts descriptions", given[0], columns=prototypes.shape[1])
    classes = check_labels("prompts classes", given[1], rows=rows.shape[0], classes=prototypes.shape[0])
    backend = Backend.of(prototypes)
    with backend.computing():
        rows = backend.copy(backend.asarray(rows))
        # The prototype stands for a class without descriptions.
        sums = [TINY * prototypes[k] + rows[backend.index(classes == k)].sum(axis=0) for k in range(len(prototypes))]
        checked_prompts(unit_rows(backend.xp.stack(sums))[:, None, :], prototypes)
    return rows, classes


def quantile_cosines(views: Array, bank: Array, level: float) -> Array:
    """For each image of views (B, V, d) and row of a bank (R, d), a quantile of the views' cosines with it: (B, R).

    Interpolated linearly between two views. The bank is read in blocks.

    >>> quantile_cosines(np.array([[[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]]]), np.eye(2), 0.75)
    array([[0.8, 0.9]])
    """
    xp = namespace(views)
    images, n_views, dimension = views.shape
    position = level * (n_views - 1)
    below = math.floor(position)
    above, fraction = min(below + 1, n_views - 1), position - below
    parts = []
    for rows in blocks(bank.shape[0], max(images * n_views, dimension)):
        cosines = xp.sort(Backend.of(views).asarray(bank[rows], views.dtype) @ xp.matrix_transpose(views), axis=-1)
        parts.append((1 - fraction) * cosines[..., below] + fraction * cosines[..., above])
    return xp.concat(parts, axis=1)


def largest_cosines(queries: Array, database: Array, k: int) -> Array:
    """Cosines of each query (L, d) with the k nearest rows of a database (n, d), largest first: (L, k).

    An exact search. The database is read in blocks.

    >>> largest_cosines(np.eye(2), np.array([[0.8, 0.6], [0.0, 1.0], [1.0, 0.0]]), 2)
    array([[1. , 0.8],
           [1. , 0.6]])
    """
    xp = namespace(queries)
    best = queries[:, :0]
    for rows in blocks(database.shape[0], max(queries.shape)):
        cosines = queries @ Backend.of(queries).asarray(database[rows], queries.dtype).T
        best, _ = top_k(xp.concat([best, cosines], axis=1), k)
    return best


class RATTA(EpisodicMethod):
    """Finds the descriptions most similar to the views of an image. For each class with enough of them it retrieves
    similar images from a database. The optimal transport distance of these to the views gives a second posterior, which
    is averaged with the zero-shot one.

    If no class has enough descriptions, the prediction for the image is zero-shot.

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
    use the image and 100 random crops, descriptions from a language model, each after a prompt with the class name, and
    databases of images collected for every data set from LAION-2B, which are not available: here the user provides one.
    The search is exact.

    If every class has fewer than `min_descriptions` descriptions, such as the few prompt modes of a feature set,
    nothing is ever retrieved and all predictions are zero-shot. With the defaults, an image has at most four
    candidates.

    The authors' code casts weights to float16 before the transport, and samples a random part of its larger databases;
    here everything is float64 and nothing is sampled. No output of theirs was available for comparison.
    """

    name = "ratta"
    headline = "Retrieves images that resemble the views"
    needs = ("prototypes", "views", "prompts", "unlabelled")
    example_parameters: ClassVar[Mapping[str, Any]] = {"prompts": "descriptions"}
    state_size = "(R + n) d, for R descriptions and n images of the database"
    complexity = "O(V R d + C n d + C V S I) per image, C = 4 candidates, S retrieved for each, I rounds of scaling"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        dataset: {"quantile": 0.9}
        for dataset in ("imagenet", "imagenet_a", "imagenetv2", "imagenet_r", "imagenet_sketch")
    }

    prompts: Array | tuple[Array, np.ndarray] = array_parameter(
        "Unit-length text embeddings of descriptions: (K, P, d), or a pair of (R, d) and the class of each row (R,) if "
        "classes have different numbers of them."
    )
    unlabelled: Array = array_parameter(
        "Unit-length features (n, d) of the database that is searched: any images, without labels."
    )
    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)
    quantile: float = parameter(
        Number(0, 1),
        "Quantile of the views' cosines that is the similarity of an image with a description; 0.75 for fine-grained "
        "data, 0.9 for ImageNet and its variants (presets).",
        default=0.75,
    )
    n_descriptions: int = parameter(
        Number(low=1, integer=True), "Number of most similar descriptions used per image.", default=20
    )
    min_descriptions: int = parameter(
        Number(low=1, integer=True), "Number of these that a class must have to be a candidate.", default=5
    )
    n_neighbours: int = parameter(
        Number(low=1, integer=True), "Images retrieved from the database per candidate.", default=20
    )
    regularisation: float = parameter(
        REGULARISATION,
        "Weight of the entropy that smooths the transport plan, in units of differences of cosines.",
        default=0.1,
    )
    iterations: int = parameter(
        Number(low=1, integer=True), "Largest number of rounds of Sinkhorn's scaling.", default=100
    )
    tolerance: float = parameter(
        Number(low=0),
        "Sinkhorn's scaling stops earlier if the marginals of the plan are off by less than this, checked every ten "
        "rounds.",
        default=1e-2,
    )

    def _validate(self) -> None:
        self.prompts = checked_descriptions(self.prompts, self.prototypes)
        unlabelled = check_matrix("unlabelled", self.unlabelled, columns=self.dimension)
        backend = Backend.of(self.prototypes)
        with backend.computing():
            self.unlabelled = backend.copy(backend.asarray(unlabelled))

    def _prepare(self) -> None:
        if isinstance(self.prompts, tuple):
            self._texts, classes = self.prompts
        else:
            n_classes, each, dimension = self.prompts.shape
            self._texts, classes = self.prompts.reshape(-1, dimension), np.repeat(np.arange(n_classes), each)
        self._classes = Backend.of(self._texts).index(classes)

    def _images_per_block(self, n_views: int) -> int:
        used = min(self.n_descriptions, self._texts.shape[0])
        plans = max(1, used // self.min_descriptions) * n_views * min(self.n_neighbours, self.unlabelled.shape[0])
        described = used * max(self.n_classes, self.dimension)
        return max(1, WORK_NUMBERS // max(n_views * self.dimension, self._texts.shape[0], described, plans))

    def _episodes(self, views: Array) -> Array:
        """Probabilities: an average of two posteriors, weighted by their certainty."""
        xp = namespace(views)
        zero_shot = logits(views[:, 0, :], self.prototypes64, self.logit_scale)
        relevance = self._relevance(views)
        posterior, retrieved = softmax(zero_shot), softmax(relevance)
        retrieved_entropy = -xp.sum(retrieved * xp.log(retrieved + LOG_GUARD), axis=-1)
        weight, other = (xp.exp(1 / (1 + h))[:, None] for h in (entropy(zero_shot), retrieved_entropy))
        combined = (weight * posterior + other * retrieved) / (weight + other)
        return xp.where(xp.any(relevance > NEVER, axis=-1, keepdims=True), combined, posterior)

    def _probabilities(self, scores: Array) -> Array:
        return scores

    def _relevance(self, views: Array) -> Array:
        """Relevance (B, K) of the candidates, the classes with enough of the descriptions nearest to an image."""
        xp, backend = namespace(views), Backend.of(views)
        _, chosen = top_k(quantile_cosines(views, self._texts, self.quantile), self.n_descriptions)
        descriptions = backend.asarray(self._texts[chosen], views.dtype)
        members = self._classes[chosen][:, :, None] == xp.arange(self.n_classes, device=backend.device)
        enough = xp.sum(xp.astype(members, xp.int64), axis=1) >= self.min_descriptions
        images, classes = xp.nonzero(enough)
        relevance = NEVER * xp.astype(~enough, views.dtype)
        # Directions of the descriptions of each candidate (L, d), and of all candidates of its image together.
        own = xp.astype(members[images, :, classes], views.dtype)
        directions = unit_rows((own[:, None, :] @ descriptions[images])[:, 0, :])
        kept = xp.astype(xp.any(members & enough[:, None, :], axis=-1), views.dtype)
        shared = unit_rows((kept[:, None, :] @ descriptions)[:, 0, :])
        distances = self._distances(views[images], directions, shared[images])
        relevance[images, classes] = self.logit_scale / (1 + distances)
        return relevance

    def _distances(self, views: Array, directions: Array, shared: Array) -> Array:
        """Transport costs (L,) from views (L, V, d) to the images retrieved for the directions (L, d)."""
        xp = namespace(views)
        retrieved = largest_cosines(directions, self.unlabelled, self.n_neighbours)
        cost = xp.abs(retrieved[:, :, None] - (directions[:, None, :] @ xp.matrix_transpose(views)))
        weights = softmax(self.logit_scale * retrieved)
        return mean_over_plan(
            cost,
            xp.exp(-cost / self.regularisation),
            weights,
            softmax(self.logit_scale * (views @ shared[:, :, None])[..., 0]),
            iterations=self.iterations,
            done=marginal_met(weights, self.tolerance),
        )
