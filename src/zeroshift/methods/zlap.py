"""ZLaP: zero-shot labels propagated over a graph of images and texts, of a set or of given images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from zeroshift.arrays import Array, Backend, check_matrix, namespace, to_numpy
from zeroshift.method import Method, SetMethod
from zeroshift.methods._shared.similarity import SHARPNESS, normalize_rows
from zeroshift.methods._shared.sparse import link_matrix, scaled_by_degrees
from zeroshift.methods._shared.top_k import nearest, top_k
from zeroshift.parameters import Flag, Number, array_parameter, parameter, state
from zeroshift.state_checks import check_lengths, check_range
from zeroshift.zero_shot import posterior

PREDICT_NUMBERS = 8_000_000
"""Labels of neighbours in memory together."""

TOLERANCE = 1e-10
"""Length of the residual, relative to that of the right-hand side, at which a solution is accepted."""

MAX_ITERATIONS = 1000


class TextImageGraph:
    """A graph of K text nodes and n image nodes with converged labels."""

    def __init__(self, images: Array, labels: Array, limits: tuple[float, float] | None = None) -> None:
        self.images = images
        """(n, d)."""
        self.labels = labels
        """(K + n, K): how much of each class's label reached each node."""
        self.limits = limits
        """The smallest and the largest similarity, if similarities are scaled."""

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return {"images": self.images, "labels": self.labels}, {"limits": self.limits}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> TextImageGraph:
        images, labels = arrays["images"], arrays["labels"]
        n, classes = images.shape[0], self.labels.shape[1]
        if images.shape[1:] != self.images.shape[1:] or tuple(labels.shape) != (n and n + classes, classes):
            raise ValueError(f"images of shape {tuple(images.shape)} with labels of shape {tuple(labels.shape)}")
        check_lengths("images", images)
        check_range("labels", labels, 0)
        limits = values.get("limits")
        return TextImageGraph(images, labels, limits and (float(limits[0]), float(limits[1])))

    def check_seen(self, n_seen: int) -> None:
        if self.images.shape[0] != n_seen:
            raise ValueError(f"the graph has {self.images.shape[0]} images after {n_seen} samples")


class ZLaPBase(Method):
    """The graph that both forms of ZLaP share."""

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
    def _predict_rows(self) -> int:
        return max(1, PREDICT_NUMBERS // (2 * self.n_neighbors * self.n_classes))

    def _probabilities(self, scores: Array) -> Array:
        return normalize_rows(scores)

    def _graph_of(self, images: Array) -> TextImageGraph:
        """The graph of images (n, d) and the texts; the labels of the texts are propagated until they converge."""
        # An image is among its own nearest images, as in the authors' code, but not linked to itself.
        near, images_near = (to_numpy(part) for part in nearest(images, images, self.n_neighbors))
        text, texts = (to_numpy(part) for part in nearest(images, self.prototypes64, self.n_neighbors))
        limits = None
        if self.scale_similarities:
            limits = float(min(near.min(), text.min())), float(max(near.max(), text.max()))
            near, text = rescale(near, limits), rescale(text, limits)
        own = np.arange(len(near))[:, None]
        weights = np.concatenate([text.clip(0) ** self.gamma, np.where(images_near == own, 0.0, near.clip(0))], axis=1)
        size, k = self.n_classes + len(near), weights.shape[1]
        # Texts come first, and have no links of their own.
        columns = np.concatenate([texts, images_near + self.n_classes], axis=1)
        none = np.zeros((self.n_classes, k), dtype=columns.dtype)
        links = link_matrix(np.concatenate([none, columns]), np.concatenate([0.0 * none, weights]), size)
        labels = propagate_labels(scaled_by_degrees((links + links.T).tocsr()), self.alpha, self.n_classes)
        return TextImageGraph(images, self.as_own(labels), limits)

    def _scores_from(self, graph: TextImageGraph, features: Array) -> Array:
        """(m, K) for images (m, d) outside the graph: the labels of the nodes each is linked to, weighted by the links.

        The graph is symmetric, so the labels that would reach the texts from the image are the weighted sum of those
        that reached its neighbours from the texts.
        """
        xp = namespace(features)
        near, images_near = nearest(features, graph.images, self.n_neighbors)
        text, texts = top_k(features @ self.prototypes64.T, self.n_neighbors)
        near, text = (xp.clip(cosines, min=0.0) for cosines in (near, text))
        if graph.limits is not None:
            # The authors clip before scaling here, and after scaling within the graph. A second clip follows, since a
            # similarity below all of the graph's would get a negative weight.
            near, text = (xp.clip(rescale(cosines, graph.limits), min=0.0) for cosines in (near, text))
        nodes = xp.concat([texts, images_near + self.n_classes], axis=1)
        weights = xp.concat([text**self.gamma, near], axis=1)
        return (weights[:, None, :] @ graph.labels[nodes])[:, 0, :]


class ZLaP(SetMethod, ZLaPBase):
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
    state_size = "N (d + K)"
    complexity = "O(N^2 d + N k K)"

    logit_scale: float = parameter(
        Number(low=0, above=True),
        "Scale of the zero-shot logits; it matters only for `predict` before `adapt`.",
        default=100.0,
    )

    _graph: TextImageGraph = state(
        lambda self: TextImageGraph(self.zeros(0, self.dimension), self.zeros(0, self.n_classes)), saved_as=""
    )

    def fit(self, features: Array) -> tuple[Array, dict[str, Any]]:
        # A copy: the graph keeps it to score images outside the set.
        graph = self._graph_of(Backend.of(features).copy(features))
        return graph.labels[self.n_classes :], {"_graph": graph}

    def score(self, features: Array) -> Array:
        if not self._n_seen:
            return posterior(features, self.prototypes64, self.logit_scale)
        return self._scores_from(self._graph, features)


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
        if hasattr(self, "_graph"):
            return
        self._graph = self._graph_of(namespace(self.unlabelled).astype(self.unlabelled, self.prototypes64.dtype))
        if self.sparse:
            labels, classes = to_numpy(self._graph.labels), np.arange(self.n_classes)
            self._graph.labels = self.as_own(np.where(classes == labels.argmax(axis=1)[:, None], labels, 0.0))

    def _predict_scores(self, features: Array) -> Array:
        return self._scores_from(self._graph, features)


def rescale(similarities: Array, limits: tuple[float, float]) -> Array:
    low, high = limits
    return (similarities - low) / (high - low) if high > low else similarities


def propagate_labels(links: Any, alpha: float, n_labelled: int) -> np.ndarray:
    """The limit of label propagation from the first nodes, each with its own label: columns of (I - alpha W)^-1.

    `links` W (n, n) is symmetric with eigenvalues between -1 and 1. Solved by conjugate gradients, all columns
    together; each has its own step lengths.

    >>> pair = link_matrix(np.array([[1], [0]]), np.array([[1.0], [1.0]]), 2)
    >>> propagate_labels(pair, 0.5, 1).round(6)
    array([[1.333333],
           [0.666667]])
    """
    right = np.eye(links.shape[0], n_labelled)
    x, residual, direction = np.zeros_like(right), right, right.copy()
    squared = (residual * residual).sum(axis=0)
    target = TOLERANCE**2 * squared
    for _ in range(MAX_ITERATIONS):
        image = direction - alpha * (links @ direction)
        curvature = (direction * image).sum(axis=0)
        # A column that is solved exactly has no direction left.
        step = squared / np.where(curvature > 0, curvature, 1.0)
        x += step * direction
        residual = residual - step * image
        before, squared = squared, (residual * residual).sum(axis=0)
        if (squared <= target).all():
            break
        direction = residual + squared / np.where(before > 0, before, 1.0) * direction
    # Propagated labels are never negative; rounding leaves tiny negative values where no label arrives.
    return x.clip(0.0)
