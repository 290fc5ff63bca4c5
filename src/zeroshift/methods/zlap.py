"""ZLaP: class labels propagate from texts over a graph of texts and images. The images are the test set itself, or, in
the inductive form, unlabelled samples known beforehand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from zeroshift.arrays import Array, Backend, Rows, check_matrix, is_double, namespace
from zeroshift.method import Method
from zeroshift.methods._shared.similarity import SHARPNESS, normalize_rows
from zeroshift.methods._shared.sparse import SparseMatrix, degree_factors
from zeroshift.methods._shared.top_k import nearest, top_k
from zeroshift.parameters import Flag, Number, array_parameter, parameter, state
from zeroshift.state_checks import check_lengths, check_range
from zeroshift.zero_shot import posterior

__all__ = ["GraphSettings", "TextImageGraph", "ZLaP", "ZLaPBase", "ZLaPInductive", "propagate_labels", "without_self"]

PREDICT_NUMBERS = 8_000_000
"""Labels of neighbours in memory together."""

SOLVE_NUMBERS = 8_000_000
"""Numbers of a solution that are computed together."""

TOLERANCE = 1e-10
"""Length of the residual, relative to that of the right-hand side, at which a solution is accepted."""

MAX_ITERATIONS = 1000


class GraphSettings(NamedTuple):
    """Which nodes are linked, how strongly, and how far labels propagate."""

    n_neighbors: int
    gamma: float
    alpha: float
    scale_similarities: bool


class ZLaPBase(Method):
    """The parameters that both forms of ZLaP share."""

    computes_in = None
    not_frozen = "it looks up the nearest images and texts of its graph"

    n_neighbors: int = parameter(
        Number(low=1, integer=True),
        "Number of nearest images, and of nearest texts, that an image is linked to. An image of the graph counts as "
        "one of its own nearest images.",
        default=5,
    )
    gamma: float = parameter(
        Number(low=0, high=SHARPNESS.high, above=True),
        "Exponent of the cosines between images and texts; a larger value gives the nearest text more weight.",
        default=5.0,
    )
    alpha: float = parameter(Number(low=0, high=0.999), "How far labels propagate; 0 is not at all.", default=0.3)
    scale_similarities: bool = parameter(
        Flag(),
        "Scale the similarities of the graph to the interval from 0 to 1 before computing weights. Cosines between "
        "images are much larger than those with texts; if they differ little, this can change predictions a lot.",
        default=False,
    )

    @property
    def _settings(self) -> GraphSettings:
        return GraphSettings(self.n_neighbors, self.gamma, self.alpha, self.scale_similarities)

    @property
    def _predict_rows(self) -> int:
        return max(1, PREDICT_NUMBERS // (2 * self.n_neighbors * self.n_classes))

    def _probabilities(self, scores: Array) -> Array:
        return normalize_rows(scores)


class ZLaP(ZLaPBase):
    """Links each image of a set to its nearest images and texts, and propagates class labels from the texts over this
    graph until they converge. An image gets the class whose label reaches it most.

    Every call of `adapt` starts from the beginning with the set it is given; `predict` then scores other features by
    their links into its graph.

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
    2024. Scores are the label mass that reaches an image; `adapt` divides them by their sum. If more neighbours are
    equally near than fit into `n_neighbors`, their order decides which are used. Differences: the systems are solved to
    1e-10, not 1e-6; similarities that are all equal are not scaled.
    """

    name = "zlap"
    headline = "Propagates labels over a graph of the set"
    protocol = "transductive"
    state_size = "N (d + K)"
    complexity = "O(N^2 d + N k K)"

    logit_scale: float = parameter(
        Number(low=0, above=True),
        "Scale of the zero-shot logits; it matters only for `predict` before `adapt`.",
        default=100.0,
    )

    _graph: TextImageGraph = state(lambda self: TextImageGraph.empty(self.prototypes), saved_as="")

    def _derive(self) -> None:
        if self._graph.images.shape[0] != self.n_seen:
            raise ValueError(f"the graph has {self._graph.images.shape[0]} images after {self.n_seen} samples")

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        everything = slice(0, len(rows))
        # A copy: the graph keeps it to score images outside the set.
        images = Backend.of(self.prototypes).copy(rows[everything])
        graph = TextImageGraph.of(images, self.prototypes, self._settings)
        with self._learning(len(rows), replace=True):
            self._graph = graph
        yield everything, graph.image_labels()

    def _predict_scores(self, features: Array) -> Array:
        if self.n_seen == 0:
            return posterior(features, Backend.of(features).asarray(self.prototypes, features.dtype), self.logit_scale)
        return self._graph.scores(features, self.prototypes, self._settings)


class ZLaPInductive(ZLaPBase):
    """Propagates class labels from texts over a graph of unlabelled images, once. A test sample gets the labels of its
    nearest images and texts in that graph and is not added to it: `adapt` only counts.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import ZLaPInductive
    >>> unlabelled = np.array([[0.8, 0.6], [0.6, 0.8]])
    >>> ZLaPInductive(np.eye(2), unlabelled=unlabelled).predict(np.array([0.96, 0.28])).argmax()
    np.int64(0)

    Notes
    -----
    Stojnic, Kalantidis and Tolias, *Label Propagation for Zero-shot Classification with Vision-Language Models*, CVPR
    2024. The authors solve one system per test sample. The graph is symmetric, so the K systems of the texts, solved
    once, give all predictions, with `sparse` or without. Difference: with `scale_similarities`, a similarity of a test
    sample below all of the graph's counts as 0; the authors' code gives it a negative weight.
    """

    name = "zlap_inductive"
    headline = "Propagates labels over given images, once"
    protocol = "online"
    needs = ("prototypes", "unlabelled")
    state_size = "n (d + K), for n unlabelled samples"
    complexity = "O(n d + k K) per sample, after O(n^2 d + n k K)"
    check_exceptions: ClassVar[Mapping[str, str]] = {
        "predict_before_adapt_is_zero_shot": "it has learned from the unlabelled samples before any call of adapt",
    }

    unlabelled: Array = array_parameter(
        "Unit-length features (n, d) of images like the test samples, such as a training set without its labels."
    )
    sparse: bool = parameter(Flag(), "Keep only the largest label of every node.", default=False)

    def _validate(self) -> None:
        unlabelled = check_matrix("unlabelled", self.unlabelled, columns=self.dimension)
        backend = Backend.of(self.prototypes)
        with backend.computing():
            self.unlabelled = backend.copy(backend.asarray(unlabelled))

    def _prepare(self) -> None:
        # The graph depends on the parameters alone, so a reset need not build it again.
        if not hasattr(self, "_graph"):
            graph = TextImageGraph.of(self.unlabelled, self.prototypes, self._settings)
            self._graph = graph.with_largest_labels() if self.sparse else graph

    def _predict_scores(self, features: Array) -> Array:
        return self._graph.scores(features, self.prototypes, self._settings)


@dataclass(frozen=True)
class TextImageGraph:
    """A graph of K text nodes and n image nodes with converged labels, and what is needed to score other images."""

    images: Array
    """(n, d)."""
    labels: Array
    """(K + n, K), float64: how much of each class's label reached each node."""
    limits: tuple[float, float] | None = None
    """The smallest and the largest similarity, if similarities are scaled."""

    @classmethod
    def empty(cls, prototypes: Array) -> TextImageGraph:
        backend, (classes, dimension) = Backend.of(prototypes), prototypes.shape
        return cls(backend.zeros((0, dimension)), backend.zeros((0, classes)))

    @classmethod
    def of(cls, images: Array, prototypes: Array, settings: GraphSettings) -> TextImageGraph:
        """The graph of images (n, d) and one text per class (K, d)."""
        links, limits = _links_within(images, prototypes, settings)
        classes, n = prototypes.shape[0], images.shape[0]
        return cls(images, propagate_labels(_link_matrix(links, classes, n), settings.alpha, classes), limits)

    def with_largest_labels(self) -> TextImageGraph:
        """Every node with the largest of its labels only."""
        xp = namespace(self.labels)
        largest = xp.argmax(self.labels, axis=1)[:, None]
        classes = xp.arange(self.labels.shape[1], device=Backend.of(self.labels).device)
        return replace(self, labels=xp.where(classes == largest, self.labels, xp.zeros_like(self.labels)))

    def image_labels(self) -> Array:
        """(n, K)."""
        return self.labels[self.labels.shape[1] :, :]

    def scores(self, features: Array, prototypes: Array, settings: GraphSettings) -> Array:
        """(m, K) for images (m, d) outside the graph: the labels of the nodes each is linked to, weighted by the links.

        The graph is symmetric, so the labels that would reach the texts from the image are the weighted sum of those
        that reached its neighbours from the texts.
        """
        xp = namespace(features)
        links = _links_into(features, self.images, prototypes, settings, self.limits)
        nodes = xp.concat([links.texts, links.images + prototypes.shape[0]], axis=1)
        weights = xp.concat([links.text_weights, links.image_weights], axis=1)
        weights = xp.astype(weights, self.labels.dtype)
        return xp.matmul(weights[:, None, :], self.labels[nodes, :])[:, 0, :]

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Images are always saved in float64, so that all files have the same types; `double` is their precision."""
        backend = Backend.of(self.images)
        arrays = {"images": backend.asarray(self.images, backend.xp.float64), "labels": self.labels}
        return arrays, {"double": is_double(self.images), "limits": self.limits} if self.images.shape[0] else {}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> TextImageGraph:
        n, dimension = arrays["images"].shape
        classes = self.labels.shape[1]
        if dimension != self.images.shape[1] or tuple(arrays["labels"].shape) != (n and n + classes, classes):
            raise ValueError(f"images of shape {(n, dimension)} with labels of shape {tuple(arrays['labels'].shape)}")
        if n == 0:
            return self
        backend = Backend.of(self.images)
        images = backend.asarray(arrays["images"], backend.xp.float64 if values["double"] else backend.xp.float32)
        check_lengths("images", images)
        check_range("labels", arrays["labels"], 0)
        limits = None if values["limits"] is None else (float(values["limits"][0]), float(values["limits"][1]))
        return TextImageGraph(images, arrays["labels"], limits)


class Links(NamedTuple):
    """The nodes an image is linked to and their weights, (n, k) each; images are counted from 0."""

    images: Array
    image_weights: Array
    texts: Array
    text_weights: Array


def _links_within(
    images: Array, prototypes: Array, settings: GraphSettings
) -> tuple[Links, tuple[float, float] | None]:
    xp = namespace(images)
    # An image is among its own nearest images, as in the authors' code.
    image_cosines, neighbours = nearest(images, images, settings.n_neighbors)
    text_cosines, texts = nearest(images, xp.astype(prototypes, images.dtype, copy=False), settings.n_neighbors)
    limits = None
    if settings.scale_similarities:
        limits = (
            min(float(xp.min(image_cosines)), float(xp.min(text_cosines))),
            max(float(xp.max(image_cosines)), float(xp.max(text_cosines))),
        )
        image_cosines, text_cosines = _rescale(image_cosines, limits), _rescale(text_cosines, limits)
    weights = without_self(neighbours, _positive_part(image_cosines))
    return Links(neighbours, weights, texts, _positive_part(text_cosines) ** settings.gamma), limits


def _links_into(
    features: Array, images: Array, prototypes: Array, settings: GraphSettings, limits: tuple[float, float] | None
) -> Links:
    xp = namespace(features)
    precision = xp.float64 if is_double(features) or is_double(images) else xp.float32
    features, images, prototypes = (xp.astype(array, precision, copy=False) for array in (features, images, prototypes))
    image_cosines, neighbours = nearest(features, images, settings.n_neighbors)
    text_cosines, texts = top_k(features @ prototypes.T, settings.n_neighbors)
    if limits is not None:
        # The authors clip before scaling here, and after scaling within the graph. A second clip follows, since a
        # similarity below all of the graph's would get a negative weight.
        image_cosines = _rescale(_positive_part(image_cosines), limits)
        text_cosines = _rescale(_positive_part(text_cosines), limits)
    return Links(neighbours, _positive_part(image_cosines), texts, _positive_part(text_cosines) ** settings.gamma)


def _link_matrix(links: Links, classes: int, n: int) -> SparseMatrix:
    """Weights in both directions (K + n, K + n), texts first, scaled by the degrees."""
    xp = namespace(links.image_weights)
    columns = xp.concat([links.texts, links.images + classes], axis=1)
    weights = xp.astype(xp.concat([links.text_weights, links.image_weights], axis=1), xp.float64)
    rows = xp.arange(n, dtype=columns.dtype, device=Backend.of(weights).device)[:, None] + classes
    rows = xp.broadcast_to(rows, columns.shape)
    rows, columns, weights = (xp.reshape(part, (-1,)) for part in (rows, columns, weights))
    symmetric = SparseMatrix(rows, columns, weights, (classes + n, classes + n)).plus_transpose()
    factors = degree_factors(symmetric.row_sums())
    return symmetric.scaled(factors, factors)


def _positive_part(similarities: Array) -> Array:
    xp = namespace(similarities)
    return xp.where(similarities > 0, similarities, xp.zeros_like(similarities))


def _rescale(similarities: Array, limits: tuple[float, float]) -> Array:
    low, high = limits
    return (similarities - low) / (high - low) if high > low else similarities


def without_self(nodes: Array, weights: Array) -> Array:
    """Weights (n, k) of lists of neighbours (n, k), with 0 where a node is in its own list.

    >>> import numpy as np
    >>> without_self(np.array([[0, 1], [0, 1]]), np.array([[0.9, 0.5], [0.5, 0.9]]))
    array([[0. , 0.5],
           [0.5, 0. ]])
    """
    xp = namespace(weights)
    own = xp.arange(nodes.shape[0], dtype=nodes.dtype, device=Backend.of(weights).device)[:, None]
    return xp.where(nodes == own, xp.zeros_like(weights), weights)


def propagate_labels(links: SparseMatrix, alpha: float, n_labelled: int) -> Array:
    """The limit of label propagation from the first nodes, each with its own label: columns of (I - alpha W)^-1.

    `links` W (n, n) is symmetric with eigenvalues between -1 and 1. Solved by conjugate gradients, many columns
    together.

    >>> import numpy as np
    >>> pair = SparseMatrix(np.array([0, 1]), np.array([1, 0]), np.array([1.0, 1.0]), (2, 2))
    >>> propagate_labels(pair, 0.5, 1).round(6)
    array([[1.333333],
           [0.666667]])
    """
    n = links.shape[0]
    size = max(1, SOLVE_NUMBERS // n)
    parts = [
        _solve(links, alpha, _unit_columns(links.backend, n, start, min(start + size, n_labelled)))
        for start in range(0, n_labelled, size)
    ]
    return parts[0] if len(parts) == 1 else links.backend.xp.concat(parts, axis=1)


def _unit_columns(backend: Backend, n: int, start: int, stop: int) -> Array:
    columns = backend.zeros((n, stop - start))
    numbers = backend.xp.arange(stop - start, device=backend.device)
    columns[numbers + start, numbers] = 1.0
    return columns


def _solve(links: SparseMatrix, alpha: float, right: Array) -> Array:
    """X with (I - alpha W) X = `right` (n, m). Each column has its own step lengths; none of the columns is zero."""
    xp = namespace(right)
    x = xp.zeros_like(right)
    residual, direction = right, links.backend.copy(right)
    squared = xp.sum(residual * residual, axis=0)
    target = TOLERANCE**2 * squared
    for _ in range(MAX_ITERATIONS):
        image = links @ direction
        image *= -alpha
        image += direction
        curvature = xp.sum(direction * image, axis=0)
        # A column that is solved exactly has no direction left.
        step = squared / xp.where(curvature > 0, curvature, xp.ones_like(curvature))
        x += step * direction
        residual -= step * image
        before, squared = squared, xp.sum(residual * residual, axis=0)
        if bool(xp.all(squared <= target)):
            break
        direction *= squared / xp.where(before > 0, before, xp.ones_like(before))
        direction += residual
    # Propagated labels are never negative; rounding leaves tiny negative values where no label arrives.
    return xp.where(x > 0, x, xp.zeros_like(x))
