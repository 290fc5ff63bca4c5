"""RA-TTA: the zero-shot posterior, joined by what images of an external index say of the likely classes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from zeroshift.arrays import Array, Home, check_labels, check_matrix, namespace
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
    "Candidates",
    "DescriptionBank",
    "candidates",
    "checked_descriptions",
    "largest_cosines",
    "quantile_cosines",
]


# Descriptions of classes as one bank of rows, each with its class: as many of a class as there are.


Descriptions = Array | tuple[Array, np.ndarray]
"""(K, P, d), or a pair: (R, d), and the class of each row (R,)."""


class DescriptionBank(NamedTuple):
    rows: Array
    """(R, d)."""
    classes: Array
    """(R,), at home where the rows are."""

    @classmethod
    def of(cls, descriptions: Descriptions) -> DescriptionBank:
        """Of checked descriptions in either form.

        >>> DescriptionBank.of(np.ones((2, 3, 1))).classes
        array([0, 0, 0, 1, 1, 1])
        """
        if isinstance(descriptions, tuple):
            rows, classes = descriptions
        else:
            rows = descriptions.reshape(-1, descriptions.shape[2])
            classes = np.repeat(np.arange(descriptions.shape[0]), descriptions.shape[1])
        return cls(rows, Home.of(rows).index(classes))


def checked_descriptions(name: str, given: Any, prototypes: Array) -> Descriptions:
    """Unit embeddings (K, P, d), or a pair of them (R, d) and their classes (R,); refused by `name`; copied.

    In either form, descriptions that mostly lie nearer to another class's prototype than to their own are warned of.
    """
    if not isinstance(given, (tuple, list)):
        return checked_prompts(given, prototypes)
    if len(given) != 2:
        raise TypeError(
            f"{name} must be an array (K, P, d) or a pair (descriptions, classes); got a {type(given).__name__} of "
            f"{len(given)}. Fix: {name}=(descriptions, classes)."
        )
    check_matrix(f"{name} descriptions", given[0], columns=prototypes.shape[1])
    classes = check_labels(f"{name} classes", given[1], rows=given[0].shape[0], classes=prototypes.shape[0])
    home = Home.of(prototypes)
    with home.computing():
        rows = home.copy(home.bring(given[0]))
        checked_prompts(_mean_of_each_class(rows, classes, prototypes), prototypes)
    return rows, classes


def _mean_of_each_class(rows: Array, classes: np.ndarray, prototypes: Array) -> Array:
    """(K, 1, d), of unit length; the prototype of a class without descriptions, or with such as cancel out."""
    xp = Home.of(rows).xp
    means = xp.stack([xp.sum(rows[Home.of(rows).index(classes == k)], axis=0) for k in range(prototypes.shape[0])])
    means = unit_rows(means)
    lost = xp.linalg.vector_norm(means, axis=-1, keepdims=True) < 0.5
    return xp.where(lost, Home.of(rows).bring(prototypes, means.dtype), means)[:, None, :]


# What RA-TTA looks up: the descriptions most views of an image are like, the classes they speak for, and images of an
# index like those. Banks and indices are read in blocks, so that their size is no one's memory.


WORK_NUMBERS = 4_000_000
"""Cosines, or coordinates of rows, held at once."""


def quantile_cosines(views: Array, bank: Array, level: float) -> Array:
    """For each image of views (B, V, d) and row of a bank (R, d), a quantile of the views' cosines with it: (B, R).

    Between two views it is interpolated linearly.

    >>> import numpy as np
    >>> quantile_cosines(np.array([[[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]]]), np.eye(2), 0.75)
    array([[0.8, 0.9]])
    """
    xp = namespace(views)
    images, n_views, dimension = views.shape
    position = level * (n_views - 1)
    below = math.floor(position)
    above, share = min(below + 1, n_views - 1), position - below
    size = max(1, WORK_NUMBERS // max(images * n_views, dimension))
    found = []
    for start in range(0, bank.shape[0], size):
        block = Home.of(views).bring(bank[start : start + size], views.dtype)
        cosines = xp.sort(block[None, :, :] @ xp.matrix_transpose(views), axis=-1)
        found.append(cosines[..., below] + share * (cosines[..., above] - cosines[..., below]))
    return xp.concat(found, axis=1)


def largest_cosines(queries: Array, index: Array, k: int) -> Array:
    """Of each query (L, d) with the k rows of an index (n, d) nearest to it, nearest first: (L, k). Exact.

    >>> import numpy as np
    >>> largest_cosines(np.eye(2), np.array([[0.8, 0.6], [0.0, 1.0], [1.0, 0.0]]), 2)
    array([[1. , 0.8],
           [1. , 0.6]])
    """
    xp = namespace(queries)
    best = None
    size = max(1, WORK_NUMBERS // max(queries.shape))
    for start in range(0, index.shape[0], size):
        block = Home.of(queries).bring(index[start : start + size], queries.dtype)
        found, _ = top_k(queries @ block.T, k)
        best = found if best is None else top_k(xp.concat([best, found], axis=1), k)[0]
    return best


class Candidates(NamedTuple):
    """The classes enough of an image's n descriptions speak for, L in all, of B images."""

    images: Array
    """(L,), whose candidate it is."""
    places: Array
    """(L,), which of the image's descriptions is the first of the class."""
    prototypes: Array
    """(B, n, d), at each description's place the direction of all the image's descriptions of that class."""
    shared: Array
    """(B, d), the direction of all candidates' descriptions together; zero where there is none."""


def candidates(descriptions: Array, classes: Array, least: int) -> Candidates:
    """The classes (B, n) of which at least `least` are among each image's n descriptions (B, n, d).

    >>> import numpy as np
    >>> found = candidates(np.eye(3)[None], np.array([[4, 7, 4]]), 2)
    >>> found.images, found.places, found.shared.round(3)
    (array([0]), array([0]), array([[0.707, 0.   , 0.707]]))
    """
    xp = namespace(descriptions)
    same = classes[:, :, None] == classes[:, None, :]
    enough = xp.sum(xp.astype(same, xp.int64), axis=-1) >= least
    order = xp.arange(classes.shape[1], device=Home.of(classes).device)
    first = ~xp.any(same & (order[None, :] < order[:, None]), axis=-1)
    images, places = xp.nonzero(enough & first)
    kept = xp.astype(enough, descriptions.dtype)[:, :, None]
    return Candidates(
        images,
        places,
        unit_rows(xp.astype(same, descriptions.dtype) @ descriptions),
        unit_rows(xp.sum(kept * descriptions, axis=1)),
    )


LOG_GUARD = 1e-7
"""Added to a retrieved probability before its logarithm, as in the authors' code: most of them are 0."""


class RATTA(EpisodicMethod):
    """Finds the descriptions an image's views are most like, retrieves images like them for each class that has enough,
    and joins the zero-shot posterior with one by how near, in optimal transport, those are to the views.

    An image for which no class has enough descriptions is answered by the zero-shot classifier.

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
    example_parameters: ClassVar[Mapping[str, Any]] = {"prompts": "descriptions"}
    state_size = "(R + n) d, for R descriptions and n images of the database"
    complexity = "O(V R d + C n d + C V S I) for an image, C = 4 candidates, S retrieved for each, I rounds of scaling"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        dataset: {"quantile": 0.9}
        for dataset in ("imagenet", "imagenet_a", "imagenetv2", "imagenet_r", "imagenet_sketch")
    }

    prompts: Array | tuple[Array, np.ndarray] = array_parameter(
        "Unit-length text embeddings of descriptions: P of each class, or, where classes have different numbers of them, R in all and the class of each."
    )
    unlabelled: Array = array_parameter(
        "Unit-length features of the database of images that is searched: any images, of which no label is known."
    )
    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)
    quantile: float = parameter(
        Number(0, 1),
        "An image is as like a description as this quantile of its views: 0.75 on fine-grained data, 0.9 on ImageNet and its variants (presets).",
        default=0.75,
    )
    n_descriptions: int = parameter(Number(low=1, integer=True), "Descriptions kept for an image.", default=20)
    min_descriptions: int = parameter(
        Number(low=1, integer=True), "Those a class must have among them to be a candidate.", default=5
    )
    n_neighbours: int = parameter(
        Number(low=1, integer=True), "Images of the database retrieved for a candidate.", default=20
    )
    regularisation: float = parameter(
        REGULARISATION, "How far the transport is smoothed by entropy, in units of differences of cosines.", default=0.1
    )
    iterations: int = parameter(
        Number(low=1, integer=True),
        "Sinkhorn's scaling ends after so many rounds, or when a plan's marginal is off by less than the other, which is looked at every ten rounds.",
        default=100,
    )
    tolerance: float = parameter(
        Number(low=0),
        "Sinkhorn's scaling ends after so many rounds, or when a plan's marginal is off by less than the other, which is looked at every ten rounds.",
        default=1e-2,
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
