"""ZLaP's graph: K text nodes, n image nodes, links between neighbours, and the class labels spread over it."""

from __future__ import annotations

from typing import NamedTuple

from zeroshift.arrays import Array, Home, is_double, namespace
from zeroshift.methods.parts.graph import degree_factors, settled, without_self
from zeroshift.methods.parts.sparse import SparseMatrix
from zeroshift.methods.parts.top_k import nearest, top_k

__all__ = ["LinkRule", "TextImageGraph"]


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
