"""RA-TTA: the zero-shot posterior combined with images retrieved from an external database for the likely classes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from zeroshift.arrays import Array, Backend, check_labels, check_matrix, namespace
from zeroshift.method import EpisodicMethod
from zeroshift.methods._shared.prompts import checked_prompts
from zeroshift.methods._shared.similarity import unit_rows
from zeroshift.methods._shared.sinkhorn import REGULARISATION, transport
from zeroshift.methods._shared.top_k import top_k
from zeroshift.parameters import Number, array_parameter, parameter
from zeroshift.views import entropy
from zeroshift.zero_shot import logits, softmax

__all__ = [
    "RATTA",
    "CandidateClasses",
    "DescriptionBank",
    "candidate_classes",
    "checked_descriptions",
    "largest_cosines",
    "quantile_cosines",
]


WORK_NUMBERS = 4_000_000
"""Cosines, or coordinates of rows, in memory together."""

LOG_GUARD = 1e-7
"""Added to a retrieved probability before its logarithm, as in the authors' code: most of them are 0."""

Descriptions = Array | tuple[Array, np.ndarray]
"""Embeddings of descriptions (K, P, d), or a pair of embeddings (R, d) and the class of each row (R,)."""


class DescriptionBank(NamedTuple):
    """All descriptions as rows, each with its class; classes may have different numbers of them."""

    rows: Array
    """(R, d)."""
    classes: Array
    """(R,), in the library of the rows."""

    @classmethod
    def of(cls, descriptions: Descriptions) -> DescriptionBank:
        """From checked descriptions in either form.

        >>> DescriptionBank.of(np.ones((2, 3, 1))).classes
        array([0, 0, 0, 1, 1, 1])
        """
        if isinstance(descriptions, tuple):
            rows, classes = descriptions
        else:
            rows = descriptions.reshape(-1, descriptions.shape[2])
            classes = np.repeat(np.arange(descriptions.shape[0]), descriptions.shape[1])
        return cls(rows, Backend.of(rows).index(classes))


def checked_descriptions(name: str, given: Any, prototypes: Array) -> Descriptions:
    """A checked copy of unit embeddings (K, P, d), or of a pair of embeddings (R, d) and classes (R,).

    Errors mention `name`. If most descriptions are nearer to another class's prototype than to their own, a warning is
    issued.
    """
    if not isinstance(given, (tuple, list)):
        return checked_prompts(given, prototypes)
    if len(given) != 2:
        raise TypeError(
            f"{name} must be an array (K, P, d) or a pair (descriptions, classes); got a {type(given).__name__} of "
            f"{len(given)}. Fix: {name}=(descriptions, classes)."
        )
    rows = check_matrix(f"{name} descriptions", given[0], columns=prototypes.shape[1])
    classes = check_labels(f"{name} classes", given[1], rows=rows.shape[0], classes=prototypes.shape[0])
    backend = Backend.of(prototypes)
    with backend.computing():
        rows = backend.copy(backend.asarray(rows))
        checked_prompts(_class_means(rows, classes, prototypes), prototypes)
    return rows, classes


def _class_means(rows: Array, classes: np.ndarray, prototypes: Array) -> Array:
    """(K, 1, d), of unit length; the prototype if a class has no descriptions or they cancel out."""
    xp = Backend.of(rows).xp
    means = xp.stack([xp.sum(rows[Backend.of(rows).index(classes == k)], axis=0) for k in range(prototypes.shape[0])])
    means = unit_rows(means)
    is_zero = xp.linalg.vector_norm(means, axis=-1, keepdims=True) < 0.5
    return xp.where(is_zero, Backend.of(rows).asarray(prototypes, means.dtype), means)[:, None, :]


def quantile_cosines(views: Array, bank: Array, level: float) -> Array:
    """For each image of views (B, V, d) and row of a bank (R, d), a quantile of the views' cosines with it: (B, R).

    Interpolated linearly between two views. The bank is read in blocks.

    >>> import numpy as np
    >>> quantile_cosines(np.array([[[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]]]), np.eye(2), 0.75)
    array([[0.8, 0.9]])
    """
    xp = namespace(views)
    images, n_views, dimension = views.shape
    position = level * (n_views - 1)
    below = math.floor(position)
    above, fraction = min(below + 1, n_views - 1), position - below
    size = max(1, WORK_NUMBERS // max(images * n_views, dimension))
    parts = []
    for start in range(0, bank.shape[0], size):
        block = Backend.of(views).asarray(bank[start : start + size], views.dtype)
        cosines = xp.sort(block[None, :, :] @ xp.matrix_transpose(views), axis=-1)
        parts.append(cosines[..., below] + fraction * (cosines[..., above] - cosines[..., below]))
    return xp.concat(parts, axis=1)


def largest_cosines(queries: Array, database: Array, k: int) -> Array:
    """Cosines of each query (L, d) with the k nearest rows of a database (n, d), largest first: (L, k).

    An exact search. The database is read in blocks.

    >>> import numpy as np
    >>> largest_cosines(np.eye(2), np.array([[0.8, 0.6], [0.0, 1.0], [1.0, 0.0]]), 2)
    array([[1. , 0.8],
           [1. , 0.6]])
    """
    xp = namespace(queries)
    best = None
    size = max(1, WORK_NUMBERS // max(queries.shape))
    for start in range(0, database.shape[0], size):
        block = Backend.of(queries).asarray(database[start : start + size], queries.dtype)
        cosines, _ = top_k(queries @ block.T, k)
        best = cosines if best is None else top_k(xp.concat([best, cosines], axis=1), k)[0]
    return best


class CandidateClasses(NamedTuple):
    """The classes with enough descriptions among the n of each image: L candidates of B images."""

    images: Array
    """(L,), the image of each candidate."""
    positions: Array
    """(L,), which of the image's descriptions is the first of the class."""
    prototypes: Array
    """(B, n, d), for each description the direction of all the image's descriptions of the same class."""
    shared: Array
    """(B, d), the direction of all candidates' descriptions together; zero if there is none."""


def candidate_classes(descriptions: Array, classes: Array, minimum: int) -> CandidateClasses:
    """The classes (B, n) that occur at least `minimum` times among each image's n descriptions (B, n, d).

    >>> import numpy as np
    >>> found = candidate_classes(np.eye(3)[None], np.array([[4, 7, 4]]), 2)
    >>> found.images, found.positions, found.shared.round(3)
    (array([0]), array([0]), array([[0.707, 0.   , 0.707]]))
    """
    xp = namespace(descriptions)
    same = classes[:, :, None] == classes[:, None, :]
    enough = xp.sum(xp.astype(same, xp.int64), axis=-1) >= minimum
    order = xp.arange(classes.shape[1], device=Backend.of(classes).device)
    first = ~xp.any(same & (order[None, :] < order[:, None]), axis=-1)
    images, positions = xp.nonzero(enough & first)
    kept = xp.astype(enough, descriptions.dtype)[:, :, None]
    return CandidateClasses(
        images,
        positions,
        unit_rows(xp.astype(same, descriptions.dtype) @ descriptions),
        unit_rows(xp.sum(kept * descriptions, axis=1)),
    )


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
        self.prompts = checked_descriptions("prompts", self.prompts, self.prototypes)
        unlabelled = check_matrix("unlabelled", self.unlabelled, columns=self.dimension)
        backend = Backend.of(self.prototypes)
        with backend.computing():
            self.unlabelled = backend.copy(backend.asarray(unlabelled))

    def _prepare(self) -> None:
        self._bank = DescriptionBank.of(self.prompts)

    def _images_per_block(self, n_views: int) -> int:
        used = min(self.n_descriptions, self._bank.rows.shape[0])
        max_candidates = max(1, used // self.min_descriptions)
        plans = max_candidates * n_views * min(self.n_neighbours, self.unlabelled.shape[0])
        largest = max(n_views * self.dimension, self._bank.rows.shape[0], used * max(used, self.dimension), plans)
        return max(1, WORK_NUMBERS // largest)

    def _episodes(self, views: Array) -> Array:
        """Probabilities: an average of two posteriors, weighted by their certainty."""
        xp = namespace(views)
        zero_shot = logits(views[:, 0, :], self.prototypes, self.logit_scale)
        posterior, retrieved = softmax(zero_shot), self._retrieved_posterior(views)
        retrieved_entropy = -xp.sum(retrieved * xp.log(retrieved + LOG_GUARD), axis=-1)
        zero_shot_weight, retrieved_weight = (
            xp.exp(1 / (1 + h))[:, None] for h in (entropy(zero_shot), retrieved_entropy)
        )
        share = zero_shot_weight / (zero_shot_weight + retrieved_weight)
        found = xp.any(retrieved > 0, axis=-1)[:, None]
        return xp.where(found, share * posterior + (1 - share) * retrieved, posterior)

    def _probabilities(self, scores: Array) -> Array:
        return scores

    def _retrieved_posterior(self, views: Array) -> Array:
        """The posterior (B, K) from retrieved images; zero for an image without candidates."""
        xp = namespace(views)
        bank = self._bank
        _, numbers = top_k(quantile_cosines(views, bank.rows, self.quantile), self.n_descriptions)
        classes = bank.classes[numbers]
        found = candidate_classes(
            Backend.of(views).asarray(bank.rows[numbers], views.dtype), classes, self.min_descriptions
        )
        zeros = Backend.of(views).zeros((views.shape[0], self.n_classes), views.dtype)
        if found.images.shape[0] == 0:
            return zeros
        relevance = zeros - xp.inf
        relevance[found.images, classes[found.images, found.positions]] = self.logit_scale / (
            1 + self._distances(views, found)
        )
        has_candidates = xp.any(relevance > -xp.inf, axis=-1, keepdims=True)
        return xp.where(has_candidates, softmax(xp.where(has_candidates, relevance, zeros)), zeros)

    def _distances(self, views: Array, found: CandidateClasses) -> Array:
        """For each candidate (L,), the transport cost from the image's views to the images retrieved for it."""
        xp = namespace(views)
        prototypes = found.prototypes[found.images, found.positions]
        retrieved_cosines = largest_cosines(prototypes, self.unlabelled, self.n_neighbours)
        view_cosines = (views @ xp.matrix_transpose(found.prototypes))[found.images, :, found.positions]
        view_weights = softmax(self.logit_scale * (views @ found.shared[:, :, None])[..., 0])
        cost = xp.abs(view_cosines[:, :, None] - retrieved_cosines[:, None, :])
        plans = transport(
            cost,
            view_weights[found.images],
            softmax(self.logit_scale * retrieved_cosines),
            regularisation=self.regularisation,
            iterations=self.iterations,
            tolerance=self.tolerance,
        )
        return xp.sum(plans * cost, axis=(-2, -1))
