"""ECALP: labels propagated from texts over a graph of all samples so far, one step per sample."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import numpy as np

from zeroshift.arrays import Array, Labelled, checked_labelled, namespace, to_numpy
from zeroshift.method import OnlineMethod
from zeroshift.methods._shared.similarity import unit_rows
from zeroshift.methods._shared.sparse import degree_factors, link_matrix
from zeroshift.methods._shared.top_k import top_k
from zeroshift.parameters import Number, array_parameter, parameter, state
from zeroshift.state_checks import check_lengths, check_range
from zeroshift.zero_shot import log_posterior, softmax

NO_NEIGHBOUR = -2.0
"""The cosine of an empty place in a list: lower than every other."""

COSINE_SCALE = 1e12
"""Cosines are rounded to twelve digits: products of another shape round those of equal samples differently."""

LARGEST_WEIGHT = 10.0
"""Weights are powers of cosines, and therefore at most 1 except for rounding, which a large exponent enlarges."""

MIN_VARIANCE = 1e-12
"""A variance below this, or below this share of the largest, counts as zero."""

SOFTENING = 1e-6
"""Added to the square roots of degrees, as in the authors' code."""


class Graph(NamedTuple):
    """The n samples so far. Fixed nodes are the texts, followed by the labelled samples."""

    weighed: Array
    """(n, d): samples as later ones are compared with them. Dimensions in which classes differ count more."""
    nodes: np.ndarray
    """(n, k): the samples most similar to each one, itself included, the most similar first; of equals the earlier."""
    cosines: np.ndarray
    """(n, k): their cosines; `NO_NEIGHBOUR` in empty places."""
    fixed: np.ndarray
    """(n, t): the fixed nodes that each sample is linked to."""
    fixed_weights: np.ndarray
    """(n, t): the weights of these links."""
    classes: np.ndarray
    """(n,): the class of the largest label of each sample."""
    values: np.ndarray
    """(n,): the part of that label that is carried over to the next step."""


class Step(NamedTuple):
    scores: Array
    """(1, K): labels of the newest sample."""
    graph: Graph
    """With the newest sample."""


class ECALP(OnlineMethod):
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

    _graph: Graph = state(
        lambda self: self._empty_graph(), saved_as="", grows=True, check=lambda self, graph: self._check_graph(graph)
    )

    check_exceptions: ClassVar[Mapping[str, str]] = {
        "axes_do_not_matter": "each dimension is weighted by the variance of the prototypes in it",
        "memory_is_bounded": "every sample stays as a node of the graph",
    }

    def _validate(self) -> None:
        if self.support is not None:
            self.support = checked_labelled("support", self.support, self.prototypes)

    def _prepare(self) -> None:
        self._texts = unit_rows(self.prototypes64)
        self._context = variance_weights(self._texts)
        self._labels = np.arange(self.n_classes)
        self._n_fixed_links = min(self.n_text_neighbors, self.n_classes)
        if self.support is not None:
            features, labels = self.support
            self._support = unit_rows(namespace(features).astype(features, self._texts.dtype))
            self._support_context = inverse_variance_weights(self._support)
            self._labels = np.concatenate([self._labels, labels])
            self._n_fixed_links += min(self.n_support_neighbors, len(labels))

    def _empty_graph(self) -> Graph:
        def none(*shape: int, dtype: type = float) -> np.ndarray:
            return np.zeros((0, *shape), dtype=dtype)

        k, t = self.n_neighbors, self._n_fixed_links
        weighed = self.zeros(0, self.dimension)
        return Graph(weighed, none(k, dtype=int), none(k), none(t, dtype=int), none(t), none(dtype=int), none())

    def _check_graph(self, graph: Graph) -> None:
        n = self._n_seen
        for name, array in graph._asdict().items():
            if array.shape[0] != n:
                raise ValueError(f"{name} has {array.shape[0]} rows after {n} samples")
        ends = {"nodes": n, "fixed": len(self._labels), "classes": self.n_classes}
        for name, end in ends.items():
            check_range(name, getattr(graph, name), 0, end - 1)
        check_range("cosines", graph.cosines, NO_NEIGHBOUR, 1)
        check_range("fixed_weights", graph.fixed_weights, 0, LARGEST_WEIGHT)
        # The scaled links enlarge no vector, so labels grow with the rounds and the samples at most.
        check_range("values", graph.values, 0, self.rounds * self._n_fixed_links * (n + 1) ** 2)
        check_lengths("weighed", graph.weighed, unit=True)

    def plan(self, x: Array) -> Step:
        """Add the sample and, to be predicted and then removed, its twin; propagate all labels; keep the largest."""
        xp, graph, n = namespace(x), self._graph, len(self._graph.values)
        x = unit_rows(x)
        weighed = xp.concat([graph.weighed, unit_rows(x * self._context)[None, :]])
        cosines = np.round(to_numpy(weighed @ x) * COSINE_SCALE) / COSINE_SCALE
        nodes, near = self._with_newest(graph, cosines)
        own_fixed, own_weights = self._fixed_links(x[None, :])
        fixed, fixed_weights = (
            np.concatenate([old, new]) for old, new in ((graph.fixed, own_fixed), (graph.fixed_weights, own_weights))
        )
        carried = np.zeros((n + 2, self.n_classes))
        carried[np.arange(n), graph.classes] = graph.values
        labels = self._propagated(carried, *self._with_twin(nodes, near, cosines), fixed, fixed_weights)
        kept = labels[:-1]
        values = self.carry * kept.max(axis=1)
        after = Graph(weighed, nodes, near, fixed, fixed_weights, kept.argmax(axis=1), values)
        return Step(self.as_own(labels[-1:]), after)

    def learn(self, step: Step) -> None:
        self._graph = step.graph

    def answer(self, x: Array, step: Step) -> Array:
        return step.scores

    def score(self, x: Array) -> Array:
        if not len(self._graph.values) and self.support is None:
            return log_posterior(x, self.prototypes64, self.logit_scale) / self.sharpness
        return namespace(x).concat([self.plan(row).scores for row in x])

    def _with_newest(self, graph: Graph, cosines: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The lists of nearest samples (n + 1, k) and their cosines, with a sample of these cosines (n + 1,)."""
        n, k = graph.nodes.shape
        own = np.argsort(-cosines, kind="stable")[:k]
        nodes = np.concatenate([graph.nodes, np.zeros((1, k), dtype=int)])
        near = np.concatenate([graph.cosines, np.full((1, k), NO_NEIGHBOUR)])
        nodes[n, : len(own)], near[n, : len(own)] = own, cosines[own]
        # An equally similar new sample does not enter: earlier ones come first.
        changed = np.flatnonzero(cosines[:n] > graph.cosines[:, -1])
        candidates = np.column_stack([near[changed], cosines[changed]])
        order = np.argsort(-candidates, axis=1, kind="stable")[:, :k]
        near[changed] = np.take_along_axis(candidates, order, axis=1)
        numbers = np.column_stack([nodes[changed], np.full(len(changed), n)])
        nodes[changed] = np.take_along_axis(numbers, order, axis=1)
        return nodes, near

    def _with_twin(self, nodes: np.ndarray, near: np.ndarray, cosines: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same with a twin of the newest sample, as similar to all as that is. Where only one of them fits in a
        list, the twin replaces it, as in the neighbours that the authors' code finds."""
        newest = len(nodes) - 1
        fits = cosines > near[:, -1]
        fits[:-1] |= nodes[:-1, -1] == newest
        nodes, near = nodes.copy(), near.copy()
        nodes[fits, -1], near[fits, -1] = newest + 1, cosines[fits]
        return np.concatenate([nodes, nodes[-1:]]), np.concatenate([near, near[-1:]])

    def _fixed_links(self, x: Array) -> tuple[np.ndarray, np.ndarray]:
        """The fixed nodes nearest to samples (n, d) and the weights of the links, (n, t) each."""
        cosines, nodes = (to_numpy(part) for part in top_k(x @ self._texts.T, self.n_text_neighbors))
        if self.support is not None:
            to_support = unit_rows(x * self._support_context) @ self._support.T
            more, numbers = (to_numpy(part) for part in top_k(to_support, self.n_support_neighbors))
            cosines, nodes = np.column_stack([cosines, more]), np.column_stack([nodes, numbers + self.n_classes])
        return nodes, self._weights(cosines)

    def _weights(self, cosines: np.ndarray) -> np.ndarray:
        """Weights of links. The sign does not matter, as with the even power of the authors."""
        return np.where(cosines == NO_NEIGHBOUR, 0.0, abs(cosines) ** self.gamma)

    def _propagated(
        self, carried: np.ndarray, nodes: np.ndarray, near: np.ndarray, fixed: np.ndarray, fixed_weights: np.ndarray
    ) -> np.ndarray:
        """Labels (n + 2, K) after the rounds, from those carried over; the last two samples have the same fixed links.

        A link counts in both directions and is divided by the square roots of the degrees of its ends.
        """
        n = len(nodes)
        fixed, fixed_weights = np.concatenate([fixed, fixed[-1:]]), np.concatenate([fixed_weights, fixed_weights[-1:]])
        links = link_matrix(nodes, self._weights(near), n)
        links = (links + links.T).tocsr()
        factors = degree_factors(links.sum(axis=1) + fixed_weights.sum(axis=1), SOFTENING)
        links.data *= np.repeat(factors, np.diff(links.indptr)) * factors[links.indices]
        degrees = np.bincount(fixed.reshape(-1), fixed_weights.reshape(-1), minlength=len(self._labels))
        received = fixed_weights * degree_factors(degrees, SOFTENING)[fixed] * factors[:, None]
        from_fixed = link_matrix(self._labels[fixed], received, self.n_classes).toarray()
        labels = carried
        for _ in range(self.rounds):
            labels = self.alpha * (links @ labels + from_fixed) + (1.0 - self.alpha) * carried
        return labels

    def _probabilities(self, scores: Array) -> Array:
        return softmax(self.sharpness * scores)


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
