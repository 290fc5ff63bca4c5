"""ZLaP on a whole set: class labels spread from texts over a graph of texts and images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from zeroshift.arrays import Array, Home, Rows, is_double, namespace
from zeroshift.method import Method
from zeroshift.methods._shared.similarity import normalize_rows
from zeroshift.methods._shared.sparse import SparseMatrix, degree_factors, settled, without_self
from zeroshift.methods._shared.top_k import nearest, top_k
from zeroshift.parameters import Flag, Number, parameter
from zeroshift.zero_shot import posterior

__all__ = ["LinkRule", "TextImageGraph", "ZLaP"]


# ZLaP's graph: K text nodes, n image nodes, links between neighbours, and the class labels spread over it.


class LinkRule(NamedTuple):
    """Which nodes are linked, how strongly, and how far labels spread."""

    n_neighbors: int
    gamma: float
    alpha: float
    scale_similarities: bool


class Links(NamedTuple):
    """The nodes an image is linked to and the weights (n, k each), images counted from 0."""

    images: Array
    image_weights: Array
    texts: Array
    text_weights: Array


class TextImageGraph(NamedTuple):
    """A graph whose labels have settled, and all it takes to answer for images outside it."""

    images: Array
    """(n, d)."""
    labels: Array
    """(K + n, K), float64: how much of each class's label reached each node."""
    limits: tuple[float, float] | None
    """The smallest and the largest similarity, where similarities are scaled."""

    @classmethod
    def of(cls, images: Array, prototypes: Array, rule: LinkRule) -> TextImageGraph:
        """The graph of images (n, d) and one text a class (K, d)."""
        links, limits = _links_within(images, prototypes, rule)
        classes, n = prototypes.shape[0], images.shape[0]
        return cls(images, settled(_matrix(links, classes, n), rule.alpha, classes), limits)

    def one_class_a_node(self) -> TextImageGraph:
        """Every node with the largest of its labels alone."""
        xp = namespace(self.labels)
        largest = xp.argmax(self.labels, axis=1)[:, None]
        classes = xp.arange(self.labels.shape[1], device=Home.of(self.labels).device)
        return self._replace(labels=xp.where(classes == largest, self.labels, xp.zeros_like(self.labels)))

    def image_labels(self) -> Array:
        """(n, K)."""
        return self.labels[self.labels.shape[1] :, :]

    def scores(self, features: Array, prototypes: Array, rule: LinkRule) -> Array:
        """(m, K) for images (m, d) outside the graph: what its labels give along each one's links into it.

        The graph is symmetric, so what would settle at the texts if the image sent out its links' weights is the same
        as the weighted sum of what has settled at its neighbours.
        """
        xp = namespace(features)
        links = _links_into(features, self.images, prototypes, rule, self.limits)
        nodes = xp.concat([links.texts, links.images + prototypes.shape[0]], axis=1)
        weights = xp.concat([links.text_weights, links.image_weights], axis=1)
        weights = xp.astype(weights, self.labels.dtype)
        return xp.matmul(weights[:, None, :], self.labels[nodes, :])[:, 0, :]


def _links_within(images: Array, prototypes: Array, rule: LinkRule) -> tuple[Links, tuple[float, float] | None]:
    xp = namespace(images)
    # An image is its own nearest neighbour and takes one of the places, as in the authors' code.
    between, neighbours = nearest(images, images, rule.n_neighbors)
    across, texts = nearest(images, xp.astype(prototypes, images.dtype, copy=False), rule.n_neighbors)
    limits = None
    if rule.scale_similarities:
        limits = (
            min(float(xp.min(between)), float(xp.min(across))),
            max(float(xp.max(between)), float(xp.max(across))),
        )
        between, across = _scaled(between, limits), _scaled(across, limits)
    weights = without_self(neighbours, _cut(between))
    return Links(neighbours, weights, texts, _cut(across) ** rule.gamma), limits


def _links_into(
    features: Array, images: Array, prototypes: Array, rule: LinkRule, limits: tuple[float, float] | None
) -> Links:
    xp = namespace(features)
    precision = xp.float64 if is_double(features) or is_double(images) else xp.float32
    features, images, prototypes = (xp.astype(array, precision, copy=False) for array in (features, images, prototypes))
    between, neighbours = nearest(features, images, rule.n_neighbors)
    across, texts = top_k(features @ prototypes.T, rule.n_neighbors)
    if limits is not None:
        # Cut before scaling here, and after it within the graph: the authors' order. Cut once more, since what is less
        # similar than anything in the graph would get a negative weight.
        between, across = _scaled(_cut(between), limits), _scaled(_cut(across), limits)
    return Links(neighbours, _cut(between), texts, _cut(across) ** rule.gamma)


def _matrix(links: Links, classes: int, n: int) -> SparseMatrix:
    """Weights in both directions (K + n, K + n), texts first, scaled by the degrees."""
    xp = namespace(links.image_weights)
    columns = xp.concat([links.texts, links.images + classes], axis=1)
    weights = xp.astype(xp.concat([links.text_weights, links.image_weights], axis=1), xp.float64)
    rows = xp.arange(n, dtype=columns.dtype, device=Home.of(weights).device)[:, None] + classes
    rows = xp.broadcast_to(rows, columns.shape)
    rows, columns, weights = (xp.reshape(part, (-1,)) for part in (rows, columns, weights))
    both = SparseMatrix(rows, columns, weights, (classes + n, classes + n)).plus_transpose()
    factors = degree_factors(both.row_sums())
    return both.scaled(factors, factors)


def _cut(similarities: Array) -> Array:
    xp = namespace(similarities)
    return xp.where(similarities > 0, similarities, xp.zeros_like(similarities))


def _scaled(similarities: Array, limits: tuple[float, float]) -> Array:
    low, high = limits
    return (similarities - low) / (high - low) if high > low else similarities


WORK_NUMBERS = 8_000_000
"""Labels of neighbours gathered at once."""


class ZLaP(Method):
    """Links each image of a set to its nearest images and texts, and lets class labels spread from the texts over
    this graph until they settle. An image gets the class whose label reached it most.

    `adapt` starts afresh from the set it is given; `predict` then answers other features by their links into its graph.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import ZLaP
    >>> zlap = ZLaP(np.eye(2), n_neighbors=2, gamma=1.0)
    >>> zlap.adapt_scores(np.array([[0.8, 0.6], [0.6, 0.8]])).round(6)
    array([[0.135391, 0.111659],
           [0.111659, 0.135391]])

    Notes
    -----
    Stojnic, Kalantidis and Tolias, *Label Propagation for Zero-shot Classification with Vision-Language Models*, CVPR
    2024. Scores are the label mass that reached an image; `adapt` divides them by their sum. Among equally near
    neighbours only some may find room, and which depends on their order. Departures: the systems are solved to 1e-10,
    not 1e-6; similarities that are all equal are not scaled.
    """

    name = "zlap"
    protocol = "transductive"
    state_size = "N (d + K)"
    complexity = "O(N^2 d + N k K)"
    computes_in = None

    logit_scale: float = parameter(
        Number(low=0, above=True),
        "Scale of the zero-shot logits; it matters only for `predict` before anything was adapted to.",
        default=100.0,
    )
    n_neighbors: int = parameter(
        Number(low=1, integer=True),
        "Nearest images (an image itself is one of them) and nearest texts each image is linked to.",
        default=5,
    )
    gamma: float = parameter(
        Number(low=0, above=True),
        "Power that cosines between images and texts are raised to; the larger, the more the nearest text counts.",
        default=5.0,
    )
    alpha: float = parameter(
        Number(low=0, high=0.999), "How far labels spread, from 0 (not at all) to below 1.", default=0.3
    )
    scale_similarities: bool = parameter(
        Flag(),
        "Scale all similarities of the graph to lie between 0 and 1 before weights are made of them. Cosines between images are much larger than those with texts; where they differ little, this can change the answers a lot.",
        default=False,
    )

    def _begin(self) -> None:
        self._graph: TextImageGraph | None = None

    @property
    def _rule(self) -> LinkRule:
        return LinkRule(self.n_neighbors, self.gamma, self.alpha, self.scale_similarities)

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        everything = slice(0, len(rows))
        # A copy: it stays with the graph, to answer for images outside it.
        images = Home.of(self.prototypes).copy(rows[everything])
        graph = TextImageGraph.of(images, self.prototypes, self._rule)
        self._graph, self.n_seen = graph, len(rows)
        yield everything, graph.image_labels()

    def _predict_scores(self, features: Array) -> Array:
        if self._graph is None:
            return posterior(features, Home.of(features).bring(self.prototypes, features.dtype), self.logit_scale)
        return self._graph.scores(features, self.prototypes, self._rule)

    @property
    def _predict_rows(self) -> int:
        return max(1, WORK_NUMBERS // (2 * self.n_neighbors * self.n_classes))

    def _probabilities(self, scores: Array) -> Array:
        return normalize_rows(scores)

    def _state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        home = Home.of(self.prototypes)
        if self._graph is None:
            return {"images": home.zeros((0, self.dimension)), "labels": home.zeros((0, self.n_classes))}, {}
        images, labels, limits = self._graph
        # Widened, so that a file always holds the same types; narrowed again without loss.
        arrays = {"images": home.bring(images, home.xp.float64), "labels": labels}
        return arrays, {"double": is_double(images), "limits": limits}

    def _restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        n = arrays["images"].shape[0]
        if n != self.n_seen or tuple(arrays["labels"].shape) != (n and n + self.n_classes, self.n_classes):
            labels = tuple(arrays["labels"].shape)
            raise ValueError(f"{n} images and labels of shape {labels} after {self.n_seen} samples")
        if n == 0:
            self._graph = None
            return
        home = Home.of(self.prototypes)
        images = home.bring(arrays["images"], home.xp.float64 if values["double"] else home.xp.float32)
        limits = None if values["limits"] is None else (float(values["limits"][0]), float(values["limits"][1]))
        self._graph = TextImageGraph(images, arrays["labels"], limits)
