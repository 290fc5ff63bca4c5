"""ECALP: labels propagated from texts over a graph of all samples so far, one step per sample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from zeroshift.arrays import Array, Backend, Labelled, Rows, checked_labelled, namespace
from zeroshift.method import Method
from zeroshift.methods._shared.similarity import unit_rows
from zeroshift.methods._shared.sparse import SparseMatrix, degree_factors
from zeroshift.methods._shared.top_k import top_k
from zeroshift.parameters import Number, array_parameter, parameter, state
from zeroshift.state_checks import check_lengths, check_range
from zeroshift.zero_shot import log_posterior, softmax

__all__ = [
    "ECALP",
    "ContextLinks",
    "GrowingGraph",
    "NeighbourLists",
    "NewNode",
    "PropagationRule",
    "inverse_variance_weights",
    "largest_indices",
    "variance_weights",
]

NO_NEIGHBOUR = -2.0
"""The cosine of an empty place in a list: lower than every other."""


class NeighbourLists(NamedTuple):
    """The k nodes most similar to each of n nodes, including itself; of equally similar nodes the earlier ones.

    The lists stay exact while nodes are added one by one.

    >>> import numpy as np
    >>> lists = NeighbourLists.empty(Backend.of(np.eye(2)), 2)
    >>> for cosines in ([0.9], [0.5, 0.9], [0.7, 0.2, 0.9]):
    ...     lists = lists.with_node(np.array(cosines), np.array(cosines))
    >>> lists.nodes
    array([[0, 2],
           [1, 0],
           [2, 0]])
    """

    nodes: Array
    """(n, k), the most similar first."""
    cosines: Array
    """(n, k); `NO_NEIGHBOUR` in empty places."""
    weights: Array
    """(n, k) weights of the links; 0 in empty places."""

    @classmethod
    def empty(cls, backend: Backend, k: int) -> NeighbourLists:
        return cls(backend.zeros((0, k), backend.xp.int64), backend.zeros((0, k)), backend.zeros((0, k)))

    def with_node(self, cosines: Array, weights: Array) -> NeighbourLists:
        """The lists with one more node; its cosines (n + 1,) are those with all earlier nodes and with itself."""
        xp = namespace(cosines)
        n, k = self.nodes.shape
        own = largest_indices(cosines, k)
        new = (own, cosines[own], weights[own])
        if n + 1 < k:
            empty = Backend.of(cosines).zeros((k - n - 1,))
            new = (
                xp.concat([own, xp.astype(empty, own.dtype)]),
                xp.concat([new[1], empty + NO_NEIGHBOUR]),
                xp.concat([new[2], empty]),
            )
        nodes, near, linked = (xp.concat([old, row[None, :]], axis=0) for old, row in zip(self, new, strict=True))
        # An equally similar new node does not enter: earlier nodes come first.
        (changed,) = xp.nonzero(cosines[:n] > self.cosines[:, -1])
        if changed.shape[0]:
            candidates = xp.concat([near[changed, :], cosines[changed, None]], axis=1)
            order = xp.argsort(-candidates, axis=1, stable=True)[:, :k]
            new_node = xp.full_like(nodes[changed, :1], n)
            near[changed, :] = xp.take_along_axis(candidates, order, axis=1)
            nodes[changed, :] = xp.take_along_axis(xp.concat([nodes[changed, :], new_node], axis=1), order, axis=1)
            linked[changed, :] = xp.take_along_axis(
                xp.concat([linked[changed, :], weights[changed, None]], axis=1), order, axis=1
            )
        return NeighbourLists(nodes, near, linked)

    def with_twin(self, cosines: Array, weights: Array) -> tuple[Array, Array]:
        """Nodes and weights (n + 1, k) after a copy (the twin) of the last node, with these cosines (n,), is added.

        The twin is as similar to all nodes as the last node is. Where only one of them fits in a list, the twin
        replaces the last node, as in the neighbours that the authors' code finds.
        """
        xp = namespace(cosines)
        n = cosines.shape[0]
        fits = cosines > self.cosines[:, -1]
        fits[:-1] |= self.nodes[:-1, -1] == n - 1
        last = xp.where(fits, xp.full_like(self.nodes[:, -1], n), self.nodes[:, -1])
        nodes = xp.concat([self.nodes[:, :-1], last[:, None]], axis=1)
        last = xp.where(fits, weights, self.weights[:, -1])
        linked = xp.concat([self.weights[:, :-1], last[:, None]], axis=1)
        return xp.concat([nodes, nodes[-1:, :]], axis=0), xp.concat([linked, linked[-1:, :]], axis=0)


def largest_indices(values: Array, k: int) -> Array:
    """Indices of the k largest entries of a vector, largest first; fewer if it is shorter. Of equals the first.

    >>> import numpy as np
    >>> largest_indices(np.array([0.5, 0.9, 0.5, 0.5]), 3)
    array([1, 0, 2])
    """
    xp = namespace(values)
    k = min(k, values.shape[0])
    edge = xp.sort(values)[-k]
    (above,) = xp.nonzero(values > edge)
    (equal,) = xp.nonzero(values == edge)
    chosen = xp.concat([above, equal[: k - above.shape[0]]])
    return chosen[xp.argsort(-values[chosen], stable=True)]


LARGEST_WEIGHT = 10.0
"""Weights are powers of cosines, and therefore at most 1 except for rounding, which a large exponent enlarges."""

COSINE_SCALE = 1e12
"""Cosines are rounded to twelve digits: products of another shape round those of equal samples differently."""

MIN_VARIANCE = 1e-12
"""A variance below this, or below this share of the largest, counts as zero."""


class ContextLinks:
    """Weights of links: cosines in which dimensions are weighted by their variance.

    Samples are linked to each other and to fixed nodes, which are the texts followed by the labelled samples.
    Everything is float64, and samples have unit length.
    """

    def __init__(self, prototypes: Array, support: Labelled | None, n_texts: int, n_support: int, gamma: float) -> None:
        backend = Backend.of(prototypes)
        self._gamma = gamma
        self._texts = unit_rows(backend.asarray(prototypes, backend.xp.float64))
        self._context = variance_weights(self._texts)
        self._n_texts = min(n_texts, prototypes.shape[0])
        self._n_support = 0
        labels = np.arange(prototypes.shape[0])
        if support is not None:
            self._support = unit_rows(backend.asarray(support[0], backend.xp.float64))
            self._support_context = inverse_variance_weights(self._support)
            self._n_support = min(n_support, len(support[1]))
            labels = np.concatenate([labels, support[1]])
        self.labels = backend.index(labels)
        """The class of each fixed node."""

    @property
    def n_fixed(self) -> int:
        """Number of fixed nodes each sample is linked to."""
        return self._n_texts + self._n_support

    def weighted(self, x: Array) -> Array:
        """Samples (n, d) as later ones are compared with them: dimensions in which classes differ count more."""
        return unit_rows(x * self._context)

    def cosines(self, x: Array, weighted: Array) -> Array:
        """Cosines (n, m) of samples (n, d) with weighted earlier ones (m, d)."""
        return namespace(x).round(x @ weighted.T * COSINE_SCALE) / COSINE_SCALE

    def weights(self, cosines: Array) -> Array:
        """Weights of links from cosines. The sign does not matter, as with the even power of the authors."""
        return abs(cosines) ** self._gamma

    def fixed(self, x: Array) -> tuple[Array, Array]:
        """The fixed nodes nearest to each sample and the weights of the links, (n, n_fixed) each."""
        xp = namespace(x)
        cosines, nodes = top_k(x @ self._texts.T, self._n_texts)
        if self._n_support:
            support_cosines, numbers = top_k(unit_rows(x * self._support_context) @ self._support.T, self._n_support)
            cosines = xp.concat([cosines, support_cosines], axis=1)
            nodes = xp.concat([nodes, numbers + self._texts.shape[0]], axis=1)
        return nodes, self.weights(cosines)


def variance_weights(prototypes: Array) -> Array:
    """Variances (d,) over classes, scaled to unit length; equal weights if the classes do not differ at all.

    >>> import numpy as np
    >>> variance_weights(np.array([[1.0, 0.0, 0.5], [0.0, 1.0, 0.5]])).round(6)
    array([0.707107, 0.707107, 0. ])
    """
    xp = namespace(prototypes)
    variances = xp.var(prototypes, axis=0)
    if float(xp.max(variances)) <= MIN_VARIANCE:
        variances = xp.ones_like(variances)
    return variances / xp.linalg.vector_norm(variances)


def inverse_variance_weights(features: Array) -> Array:
    """1 / variance (d,), and 0 for a dimension without variance; equal weights if no dimension varies.

    >>> import numpy as np
    >>> inverse_variance_weights(np.array([[1.0, 0.0, 0.5], [0.0, 0.5, 0.5]]))
    array([ 4., 16.,  0.])
    """
    xp = namespace(features)
    variances = xp.var(features, axis=0)
    varies = variances > MIN_VARIANCE * xp.max(variances)
    ones = xp.ones_like(variances)
    if not bool(xp.any(varies)):
        return ones
    return xp.where(varies, 1.0 / xp.where(varies, variances, ones), 0.0 * ones)


SOFTENING = 1e-6
"""Added to the square roots of degrees, as in the authors' code."""


class PropagationRule(NamedTuple):
    alpha: float
    rounds: int
    carry: float
    labels: Array
    """The class (f,) of each fixed node: first the texts, then the labelled samples."""
    n_classes: int


class NewNode(NamedTuple):
    """The links of a sample to the n samples before it, to itself, and to its nearest fixed nodes."""

    cosines: Array
    """(n + 1,), the last with itself."""
    weights: Array
    """(n + 1,)."""
    fixed: Array
    """(t,)."""
    fixed_weights: Array
    """(t,)."""


class GraphStep(NamedTuple):
    """The graph of one step: n samples, the newest sample, and its twin, which is predicted and then removed."""

    lists: NeighbourLists
    fixed: Array
    fixed_weights: Array
    links: SparseMatrix
    """(n + 2, n + 2), scaled by the degrees."""
    fixed_labels: SparseMatrix
    """(n + 2, K): labels received from the fixed nodes in every round."""
    carried_labels: SparseMatrix
    """(n + 2, K): labels carried over from the step before, one per sample."""


class GrowingGraph(NamedTuple):
    """The graph of n samples. Adding a sample returns a new graph."""

    lists: NeighbourLists
    fixed: Array
    """(n, t): the fixed nodes each sample is linked to."""
    fixed_weights: Array
    """(n, t)."""
    fixed_degrees: Array
    """(f,): sum of the weights of all links to each fixed node."""
    classes: Array
    """(n,): the class of the largest label of each sample."""
    values: Array
    """(n,): the part of that label that is carried over."""

    @classmethod
    def empty(cls, backend: Backend, n_neighbors: int, n_fixed_links: int, n_fixed: int) -> GrowingGraph:
        integer = backend.xp.int64
        return cls(
            NeighbourLists.empty(backend, n_neighbors),
            backend.zeros((0, n_fixed_links), integer),
            backend.zeros((0, n_fixed_links)),
            backend.zeros((n_fixed,)),
            backend.zeros((0,), integer),
            backend.zeros((0,)),
        )

    @property
    def size(self) -> int:
        return int(self.values.shape[0])

    def with_node(self, node: NewNode, rule: PropagationRule) -> tuple[Array, GrowingGraph]:
        """The labels (K,) of a new node, and the graph with it. Every label changes, so all are propagated."""
        xp = namespace(self.values)
        step = self._step(node, rule)
        fixed_labels = step.fixed_labels.dense()
        labels: Array = step.carried_labels
        carried = step.carried_labels.dense() if rule.alpha != 1.0 else None
        for _ in range(rule.rounds):
            labels = step.links @ labels
            labels += fixed_labels
            if carried is not None:
                labels = rule.alpha * labels + (1.0 - rule.alpha) * carried
        kept = labels[:-1, :]
        classes = xp.argmax(kept, axis=1)
        values = rule.carry * xp.take_along_axis(kept, classes[:, None], axis=1)[:, 0]
        fixed_degrees = _add_degrees(self.fixed_degrees, node)
        graph = GrowingGraph(step.lists, step.fixed[:-1, :], step.fixed_weights[:-1, :], fixed_degrees, classes, values)
        return labels[-1, :], graph

    def predict(self, node: NewNode, rule: PropagationRule) -> Array:
        """The labels (K,) that a new node would get. Nothing changes.

        The links are symmetric, so instead of propagating all labels to the twin this propagates the weight of the twin
        to all labels: products with a vector instead of a matrix.
        """
        step = self._step(node, rule)
        weight = Backend.of(self.values).zeros((self.size + 2, 1))
        weight[-1, 0] = 1.0
        total = 0.0 * weight
        for _ in range(rule.rounds):
            total += weight
            weight = rule.alpha * (step.links @ weight)
        carried = step.carried_labels.T @ ((1.0 - rule.alpha) * total + weight)
        return (rule.alpha * (step.fixed_labels.T @ total) + carried)[:, 0]

    def _step(self, node: NewNode, rule: PropagationRule) -> GraphStep:
        backend, n = Backend.of(self.values), self.size
        xp = backend.xp
        lists = self.lists.with_node(node.cosines, node.weights)
        nodes, weights = lists.with_twin(node.cosines, node.weights)
        links = SparseMatrix.of_lists(nodes, weights, n + 2).plus_transpose()
        fixed = xp.concat([self.fixed, node.fixed[None, :], node.fixed[None, :]], axis=0)
        new = node.fixed_weights[None, :]
        fixed_weights = xp.concat([self.fixed_weights, new, new], axis=0)
        factors = degree_factors(links.row_sums() + xp.sum(fixed_weights, axis=1), SOFTENING)
        fixed_factors = degree_factors(_add_degrees(_add_degrees(self.fixed_degrees, node), node), SOFTENING)
        received = fixed_weights * fixed_factors[fixed] * factors[:, None]
        fixed_labels = SparseMatrix.of_lists(rule.labels[fixed], received, rule.n_classes)
        zeros = backend.zeros((2,))
        classes = xp.concat([self.classes, xp.astype(zeros, self.classes.dtype)])
        values = xp.concat([self.values, zeros])
        carried_labels = SparseMatrix.of_lists(classes[:, None], values[:, None], rule.n_classes)
        return GraphStep(lists, fixed, fixed_weights, links.scaled(factors, factors), fixed_labels, carried_labels)


def _add_degrees(degrees: Array, node: NewNode) -> Array:
    """Degrees with one more node's links to the fixed nodes, which are all different."""
    degrees = Backend.of(degrees).copy(degrees)
    degrees[node.fixed] += node.fixed_weights
    return degrees


BLOCK_ROWS = 256
WORK_NUMBERS = 4_000_000
"""Cosines in memory at one time."""


class ECALP(Method):
    """Stores every sample as a node of a growing graph, linked to its nearest samples and texts. At each step class
    labels propagate over the whole graph for a few rounds, and the newest sample gets its strongest label.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import ECALP
    >>> ECALP(np.eye(3, 8)).adapt(np.eye(3, 8)[[0, 1, 2, 1]]).argmax(axis=1)
    array([0, 1, 2, 1])

    Notes
    -----
    Li et al., *Efficient and Context-Aware Label Propagation for Zero-/Few-Shot Training-Free Adaptation of
    Vision-Language Model*, ICLR 2025. The newest sample is in the graph twice; the copy is predicted and then removed.
    Both are equally similar to all others; where only one fits in a list, the copy is taken, as in the authors'
    results. A cosine between two samples weights the dimensions of the earlier one by the variance of the prototypes,
    and a cosine with a labelled sample by the inverse of the variance of the labelled samples. `predict` returns what
    `adapt` would return next, and learns nothing. Differences from the authors' code: neighbours are exact, where their
    lists can permanently lose some of the first ten samples; dimensions in which labelled samples do not vary are
    ignored, where their code divides by zero; a `gamma` that is not even applies to the absolute value of a cosine.
    """

    name = "ecalp"
    headline = "Propagates labels over a graph that grows"
    not_frozen = "it looks up the nearest of all samples before"
    protocol = "online"
    state_size = "N (d + k), which grows with the stream"
    complexity = "O(N d + N k K) per sample"

    logit_scale: float = parameter(
        Number(low=0, above=True),
        "Scale of the zero-shot logits, which are used only by `predict` before anything was learned.",
        default=100.0,
    )
    n_neighbors: int = parameter(
        Number(low=1, high=10_000, integer=True), "Samples each sample is linked to, including itself.", default=8
    )
    n_text_neighbors: int = parameter(Number(low=1, integer=True), "Texts each sample is linked to.", default=3)
    n_support_neighbors: int = parameter(
        Number(low=1, integer=True), "Labelled samples each sample is linked to.", default=8
    )
    gamma: float = parameter(
        Number(low=0, above=True),
        "Exponent of the absolute cosines; a larger one favours the nearest neighbours.",
        default=10.0,
    )
    alpha: float = parameter(
        Number(low=0, high=1),
        "Share of a label that comes from the neighbours; the rest was carried over from the step before.",
        default=1.0,
    )
    rounds: int = parameter(Number(low=1, integer=True), "Rounds of propagation per step.", default=3)
    carry: float = parameter(
        Number(low=0, high=1),
        "Share of its largest label that a sample carries over to the next step; the other labels are dropped.",
        default=0.2,
    )
    sharpness: float = parameter(
        Number(low=0, above=True),
        "Factor of the scores in the softmax: scores are small and differ by about 1e-3.",
        default=10_000.0,
    )
    support: Labelled | None = array_parameter(
        "Labelled samples (features, labels). They become nodes with fixed labels, like the texts.", default=None
    )

    _graph: GrowingGraph = state(lambda self: self._empty_graph())
    # Samples in the form that later ones are compared with; rows after those of the graph are spare.
    _weighted: Array = state(lambda self: Backend.of(self.prototypes).zeros((0, self.dimension)))

    check_exceptions: ClassVar[Mapping[str, str]] = {
        "axes_do_not_matter": "each dimension is weighted by the variance of the prototypes in it",
        "memory_is_bounded": "every sample stays as a node of the graph",
    }

    def _validate(self) -> None:
        if self.support is not None:
            self.support = checked_labelled("support", self.support, self.prototypes)

    def _prepare(self) -> None:
        self._links = ContextLinks(
            self.prototypes, self.support, self.n_text_neighbors, self.n_support_neighbors, self.gamma
        )
        self._rule = PropagationRule(self.alpha, self.rounds, self.carry, self._links.labels, self.n_classes)

    def _empty_graph(self) -> GrowingGraph:
        backend, links = Backend.of(self.prototypes), self._links
        return GrowingGraph.empty(backend, self.n_neighbors, links.n_fixed, links.labels.shape[0])

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        start = 0
        while start < len(rows):
            n = self._graph.size
            block = slice(start, min(len(rows), start + self._predict_rows))
            start = block.stop
            x = unit_rows(rows[block])
            self._reserve(n + x.shape[0])
            # Rows from n on do not count until the graph has grown.
            self._weighted[n : n + x.shape[0], :] = self._links.weighted(x)
            cosines = self._links.cosines(x, self._weighted[: n + x.shape[0], :])
            nodes, weights = self._links.fixed(x)
            answers = Backend.of(x).zeros((x.shape[0], self.n_classes))
            for row in range(x.shape[0]):
                node = self._new_node(cosines[row, : n + row + 1], nodes[row, :], weights[row, :])
                answers[row, :], graph = self._graph.with_node(node, self._rule)
                with self._learning():
                    self._graph = graph
            yield block, answers

    def _predict_scores(self, features: Array) -> Array:
        if self._graph.size == 0 and self.support is None:
            return log_posterior(features, self.prototypes, self.logit_scale) / self.sharpness
        x = unit_rows(features)
        cosines = self._links.cosines(x, self._weighted[: self._graph.size, :])
        nodes, weights = self._links.fixed(x)
        answers = Backend.of(x).zeros((x.shape[0], self.n_classes))
        for row in range(x.shape[0]):
            own = x[row : row + 1, :]
            itself = self._links.cosines(own, self._links.weighted(own))[0, :]
            node = self._new_node(namespace(x).concat([cosines[row, :], itself]), nodes[row, :], weights[row, :])
            answers[row, :] = self._graph.predict(node, self._rule)
        return answers

    def _new_node(self, cosines: Array, nodes: Array, weights: Array) -> NewNode:
        return NewNode(cosines, self._links.weights(cosines), nodes, weights)

    @property
    def _predict_rows(self) -> int:
        return max(1, min(BLOCK_ROWS, WORK_NUMBERS // (self._graph.size + BLOCK_ROWS)))

    def _probabilities(self, scores: Array) -> Array:
        return softmax(self.sharpness * scores)

    def _reserve(self, n: int) -> None:
        """Make room for n samples. The array at least doubles when it grows, so that samples are rarely copied."""
        size = self._weighted.shape[0]
        if size < n:
            backend = Backend.of(self.prototypes)
            more = backend.zeros((max(n, 2 * size) - size, self.dimension))
            self._weighted = backend.xp.concat([self._weighted, more], axis=0)

    def _state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        # Without the spare rows of the samples, and without prefixes.
        graph = self._graph
        arrays = {**graph.lists._asdict(), **graph._asdict(), "weighed": self._weighted[: graph.size, :]}
        del arrays["lists"]
        return arrays, {}

    def _restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        n, fresh = self.n_seen, ECALP._state(self)[0]
        for name, own in fresh.items():
            rows = own.shape[0] if name == "fixed_degrees" else n
            if tuple(arrays[name].shape) != (rows, *own.shape[1:]):
                raise ValueError(f"{name} has shape {tuple(arrays[name].shape)} after {n} samples")
        xp = namespace(self.prototypes)
        ends = {"nodes": n, "fixed": fresh["fixed_degrees"].shape[0], "classes": self.n_classes}
        for name, end in ends.items():
            if n and not (int(xp.min(arrays[name])) >= 0 and int(xp.max(arrays[name])) < end):
                raise ValueError(f"{name} must be from 0 to {end - 1}")
        check_range("cosines", arrays["cosines"], NO_NEIGHBOUR, 1)
        for name in ("weights", "fixed_weights"):
            check_range(name, arrays[name], 0, LARGEST_WEIGHT)
        check_range("fixed_degrees", arrays["fixed_degrees"], 0, LARGEST_WEIGHT * n)
        # The scaled links enlarge no vector, so labels grow with the rounds and the samples at most.
        check_range("values", arrays["values"], 0, self.rounds * self._links.n_fixed * (n + 1) ** 2)
        check_lengths("weighed", arrays["weighed"], unit=True)
        lists = NeighbourLists(*(arrays[name] for name in NeighbourLists._fields))
        self._graph = GrowingGraph(lists, *(arrays[name] for name in GrowingGraph._fields[1:]))
        self._weighted = arrays["weighed"]
