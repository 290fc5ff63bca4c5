"""ECALP: labels spread from texts over a graph of all samples so far, one step a sample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from zeroshift.arrays import Array, Home, Labelled, Rows, checked_labelled, namespace
from zeroshift.method import Method
from zeroshift.methods._shared.similarity import unit_rows
from zeroshift.methods._shared.sparse import SparseMatrix, degree_factors
from zeroshift.methods._shared.top_k import top_k
from zeroshift.parameters import Number, array_parameter, parameter
from zeroshift.zero_shot import log_posterior, softmax

__all__ = [
    "ECALP",
    "Arrival",
    "ContextLinks",
    "GrowingGraph",
    "NeighbourLists",
    "SpreadRule",
    "inverse_spread",
    "largest_first",
    "spread",
]


# Lists of nearest neighbours that are kept exact while samples come in one by one.


NOBODY = -2.0
"""The cosine of an empty place: below every other."""


class NeighbourLists(NamedTuple):
    """The k nodes most similar to each of n nodes, itself among them; of equally similar ones the earlier.

    >>> import numpy as np
    >>> lists = NeighbourLists.empty(Home.of(np.eye(2)), 2)
    >>> for cosines in ([0.9], [0.5, 0.9], [0.7, 0.2, 0.9]):
    ...     lists = lists.joined(np.array(cosines), np.array(cosines))
    >>> lists.nodes
    array([[0, 2],
           [1, 0],
           [2, 0]])
    """

    nodes: Array
    """(n, k), the most similar first."""
    cosines: Array
    """(n, k); `NOBODY` in empty places."""
    weights: Array
    """(n, k), of the links; 0 in empty places."""

    @classmethod
    def empty(cls, home: Home, k: int) -> NeighbourLists:
        return cls(home.zeros((0, k), home.xp.int64), home.zeros((0, k)), home.zeros((0, k)))

    def joined(self, cosines: Array, weights: Array) -> NeighbourLists:
        """With one more node, whose cosines (n + 1,) are those with all before it and with itself."""
        xp = namespace(cosines)
        n, k = self.nodes.shape
        own = largest_first(cosines, k)
        new = (own, cosines[own], weights[own])
        if n + 1 < k:
            empty = Home.of(cosines).zeros((k - n - 1,))
            new = (
                xp.concat([own, xp.astype(empty, own.dtype)]),
                xp.concat([new[1], empty + NOBODY]),
                xp.concat([new[2], empty]),
            )
        nodes, near, linked = (xp.concat([old, row[None, :]], axis=0) for old, row in zip(self, new, strict=True))
        # An equally similar newcomer stays outside: those before it come first.
        (moved,) = xp.nonzero(cosines[:n] > self.cosines[:, -1])
        if moved.shape[0]:
            candidates = xp.concat([near[moved, :], cosines[moved, None]], axis=1)
            order = xp.argsort(-candidates, axis=1, stable=True)[:, :k]
            newcomer = xp.full_like(nodes[moved, :1], n)
            near[moved, :] = xp.take_along_axis(candidates, order, axis=1)
            nodes[moved, :] = xp.take_along_axis(xp.concat([nodes[moved, :], newcomer], axis=1), order, axis=1)
            linked[moved, :] = xp.take_along_axis(
                xp.concat([linked[moved, :], weights[moved, None]], axis=1), order, axis=1
            )
        return NeighbourLists(nodes, near, linked)

    def twinned(self, cosines: Array, weights: Array) -> tuple[Array, Array]:
        """Nodes and weights (n + 1, k) once the last node, whose `cosines` (n,) these are, has an equal behind it.

        The twin is as similar to everyone as the last node is. In a list with room for one of them only, it takes that
        one's place: so do the neighbours the authors' code finds.
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


def largest_first(values: Array, k: int) -> Array:
    """Numbers of the k largest entries of a vector, fewer where it is shorter; among equals the first.

    >>> import numpy as np
    >>> largest_first(np.array([0.5, 0.9, 0.5, 0.5]), 3)
    array([1, 0, 2])
    """
    xp = namespace(values)
    k = min(k, values.shape[0])
    edge = xp.sort(values)[-k]
    (above,) = xp.nonzero(values > edge)
    (level,) = xp.nonzero(values == edge)
    chosen = xp.concat([above, level[: k - above.shape[0]]])
    return chosen[xp.argsort(-values[chosen], stable=True)]


# How strongly ECALP links a sample to others, to texts and to labelled samples: cosines that weigh dimensions.


TELLING = 1e12
"""Cosines are told apart to twelve digits: products of another shape leave those of equal samples a rounding apart."""

NO_SPREAD = 1e-12
"""A variance below this, or below this share of the largest, is none."""


class ContextLinks:
    """Links to the fixed nodes, which are the texts and behind them the labelled samples, and cosines of samples.

    Everything is float64, and samples are of unit length.
    """

    def __init__(self, prototypes: Array, support: Labelled | None, n_texts: int, n_support: int, gamma: float) -> None:
        home = Home.of(prototypes)
        self._gamma = gamma
        self._texts = unit_rows(home.bring(prototypes, home.xp.float64))
        self._context = spread(self._texts)
        self._n_texts = min(n_texts, prototypes.shape[0])
        self._n_support = 0
        labels = np.arange(prototypes.shape[0])
        if support is not None:
            self._support = unit_rows(home.bring(support[0], home.xp.float64))
            self._support_context = inverse_spread(self._support)
            self._n_support = min(n_support, len(support[1]))
            labels = np.concatenate([labels, support[1]])
        self.labels = home.index(labels)
        """The class of each fixed node."""

    @property
    def n_fixed(self) -> int:
        """Fixed nodes each sample is linked to."""
        return self._n_texts + self._n_support

    def weighed(self, x: Array) -> Array:
        """Samples (n, d) as later ones are compared with them: where the classes differ, dimensions count more."""
        return unit_rows(x * self._context)

    def cosines(self, x: Array, weighed: Array) -> Array:
        """(n, m) of samples (n, d) with earlier ones (m, d) that are weighed."""
        return namespace(x).round(x @ weighed.T * TELLING) / TELLING

    def weights(self, cosines: Array) -> Array:
        """Of links, from cosines; of those below zero the size counts, as it does with the authors' even power."""
        return abs(cosines) ** self._gamma

    def fixed(self, x: Array) -> tuple[Array, Array]:
        """The fixed nodes nearest to each sample and the weights of the links, (n, n_fixed) each."""
        xp = namespace(x)
        cosines, nodes = top_k(x @ self._texts.T, self._n_texts)
        if self._n_support:
            more, numbers = top_k(unit_rows(x * self._support_context) @ self._support.T, self._n_support)
            cosines = xp.concat([cosines, more], axis=1)
            nodes = xp.concat([nodes, numbers + self._texts.shape[0]], axis=1)
        return nodes, self.weights(cosines)


def spread(prototypes: Array) -> Array:
    """Variances (d,) at unit length: in which dimensions the classes differ. All alike where they do not differ at all.

    >>> import numpy as np
    >>> spread(np.array([[1.0, 0.0, 0.5], [0.0, 1.0, 0.5]])).round(6)
    array([0.707107, 0.707107, 0. ])
    """
    xp = namespace(prototypes)
    variances = xp.var(prototypes, axis=0)
    if float(xp.max(variances)) <= NO_SPREAD:
        variances = xp.ones_like(variances)
    return variances / xp.linalg.vector_norm(variances)


def inverse_spread(features: Array) -> Array:
    """1 / variance (d,), and 0 for a dimension in which nothing varies. All alike where none does.

    >>> import numpy as np
    >>> inverse_spread(np.array([[1.0, 0.0, 0.5], [0.0, 0.5, 0.5]]))
    array([ 4., 16.,  0.])
    """
    xp = namespace(features)
    variances = xp.var(features, axis=0)
    varies = variances > NO_SPREAD * xp.max(variances)
    ones = xp.ones_like(variances)
    if not bool(xp.any(varies)):
        return ones
    return xp.where(varies, 1.0 / xp.where(varies, variances, ones), 0.0 * ones)


# ECALP's graph: it grows by a sample at a time, and at each step class labels spread over all of it.


SOFTENING = 1e-6
"""Added to the square roots of degrees, as in the authors' code."""


class SpreadRule(NamedTuple):
    alpha: float
    rounds: int
    carry: float
    labels: Array
    """The class (f,) of each fixed node: the texts, then labelled samples."""
    n_classes: int


class Arrival(NamedTuple):
    """A sample's links to the n before it, to itself, and to the fixed nodes nearest to it."""

    cosines: Array
    """(n + 1,), the last with itself."""
    weights: Array
    """(n + 1,)."""
    fixed: Array
    """(t,)."""
    fixed_weights: Array
    """(t,)."""


class Snapshot(NamedTuple):
    """The graph of one step: n samples, the newest, and its twin, which is asked and then forgotten."""

    lists: NeighbourLists
    fixed: Array
    fixed_weights: Array
    links: SparseMatrix
    """(n + 2, n + 2), scaled by the degrees."""
    told: SparseMatrix
    """(n + 2, K): what the fixed nodes say in every round."""
    begun: SparseMatrix
    """(n + 2, K): labels carried over from the step before, one a sample."""


class GrowingGraph(NamedTuple):
    """What stays of n samples: a new graph is made at each step, so that an interrupt leaves the old one whole."""

    lists: NeighbourLists
    fixed: Array
    """(n, t): the fixed nodes each is linked to."""
    fixed_weights: Array
    """(n, t)."""
    fixed_degrees: Array
    """(f,): sums of the weights of all links to each fixed node."""
    classes: Array
    """(n,): the class of each one's largest label."""
    values: Array
    """(n,): the part of that label that is carried over."""

    @classmethod
    def empty(cls, home: Home, n_neighbors: int, n_fixed_links: int, n_fixed: int) -> GrowingGraph:
        whole = home.xp.int64
        return cls(
            NeighbourLists.empty(home, n_neighbors),
            home.zeros((0, n_fixed_links), whole),
            home.zeros((0, n_fixed_links)),
            home.zeros((n_fixed,)),
            home.zeros((0,), whole),
            home.zeros((0,)),
        )

    @property
    def size(self) -> int:
        return int(self.values.shape[0])

    def grown(self, arrival: Arrival, rule: SpreadRule) -> tuple[Array, GrowingGraph]:
        """The newcomer's labels (K,), and the graph with it. Every label changes a little, so all are spread."""
        xp = namespace(self.values)
        now = self._snapshot(arrival, rule)
        told = now.told.dense()
        labels: Array = now.begun
        begun = now.begun.dense() if rule.alpha != 1.0 else None
        for _ in range(rule.rounds):
            labels = now.links @ labels
            labels += told
            if begun is not None:
                labels = rule.alpha * labels + (1.0 - rule.alpha) * begun
        kept = labels[:-1, :]
        classes = xp.argmax(kept, axis=1)
        values = rule.carry * xp.take_along_axis(kept, classes[:, None], axis=1)[:, 0]
        fixed_degrees = _added(self.fixed_degrees, arrival)
        grown = GrowingGraph(now.lists, now.fixed[:-1, :], now.fixed_weights[:-1, :], fixed_degrees, classes, values)
        return labels[-1, :], grown

    def asked(self, arrival: Arrival, rule: SpreadRule) -> Array:
        """The labels (K,) the newcomer would get; nothing changes.

        The links are symmetric, so instead of every label coming to the twin, the twin's own weight goes out to where
        labels are: products with a vector in place of a matrix.
        """
        now = self._snapshot(arrival, rule)
        weight = Home.of(self.values).zeros((self.size + 2, 1))
        weight[-1, 0] = 1.0
        heard = 0.0 * weight
        for _ in range(rule.rounds):
            heard += weight
            weight = rule.alpha * (now.links @ weight)
        return (rule.alpha * (now.told.T @ heard) + now.begun.T @ ((1.0 - rule.alpha) * heard + weight))[:, 0]

    def _snapshot(self, arrival: Arrival, rule: SpreadRule) -> Snapshot:
        home, n = Home.of(self.values), self.size
        xp = home.xp
        lists = self.lists.joined(arrival.cosines, arrival.weights)
        nodes, weights = lists.twinned(arrival.cosines, arrival.weights)
        both = SparseMatrix.of_lists(nodes, weights, n + 2).plus_transpose()
        fixed = xp.concat([self.fixed, arrival.fixed[None, :], arrival.fixed[None, :]], axis=0)
        new = arrival.fixed_weights[None, :]
        fixed_weights = xp.concat([self.fixed_weights, new, new], axis=0)
        factors = degree_factors(both.row_sums() + xp.sum(fixed_weights, axis=1), SOFTENING)
        fixed_factors = degree_factors(_added(_added(self.fixed_degrees, arrival), arrival), SOFTENING)
        said = fixed_weights * fixed_factors[fixed] * factors[:, None]
        told = SparseMatrix.of_lists(rule.labels[fixed], said, rule.n_classes)
        nothing = home.zeros((2,))
        classes = xp.concat([self.classes, xp.astype(nothing, self.classes.dtype)])
        values = xp.concat([self.values, nothing])
        begun = SparseMatrix.of_lists(classes[:, None], values[:, None], rule.n_classes)
        return Snapshot(lists, fixed, fixed_weights, both.scaled(factors, factors), told, begun)


def _added(degrees: Array, arrival: Arrival) -> Array:
    """With one more sample's links to the fixed nodes, which are all different."""
    degrees = Home.of(degrees).copy(degrees)
    degrees[arrival.fixed] += arrival.fixed_weights
    return degrees


BLOCK_ROWS = 256
WORK_NUMBERS = 4_000_000
"""Cosines held at once."""


class ECALP(Method):
    """Keeps every sample as a node of a growing graph, linked to its nearest samples and texts. At each step class
    labels spread over the whole graph for a few rounds, and the newest sample gets the label that reached it most.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import ECALP
    >>> ECALP(np.eye(3, 8)).adapt(np.eye(3, 8)[[0, 1, 2, 1]]).argmax(axis=1)
    array([0, 1, 2, 1])

    Notes
    -----
    Li et al., *Efficient and Context-Aware Label Propagation for Zero-/Few-Shot Training-Free Adaptation of
    Vision-Language Model*, ICLR 2025. The newest sample is in the graph twice; the copy is asked, and forgotten. Both
    are equally near to all others: a list with room for one takes the copy, as in the authors' results. A cosine
    between two samples weighs the earlier one's dimensions by the variance of the prototypes in them, and one with a
    labelled sample by the inverse of the labelled samples' variance. `predict` answers what `adapt` would answer next,
    and learns nothing. Departures: neighbours are exact, where the authors' lists can lose some of the first ten
    samples' for good; dimensions in which labelled samples do not vary are left out, where the authors' code divides by
    zero; a `gamma` that is not even acts on the size of a cosine.
    """

    name = "ecalp"
    protocol = "online"
    state_size = "N (d + k): it grows with the stream"
    complexity = "O(N d + N k K) a sample"

    logit_scale: float = parameter(
        Number(low=0, above=True),
        "Scale of the zero-shot logits; it matters only for `predict` before anything was learned.",
        default=100.0,
    )
    n_neighbors: int = parameter(
        Number(low=1, integer=True), "Samples each sample is linked to, itself included.", default=8
    )
    n_text_neighbors: int = parameter(Number(low=1, integer=True), "Texts each sample is linked to.", default=3)
    n_support_neighbors: int = parameter(
        Number(low=1, integer=True), "Labelled samples each sample is linked to.", default=8
    )
    gamma: float = parameter(
        Number(low=0, above=True),
        "Power that the sizes of cosines are raised to; the larger, the more the nearest count.",
        default=10.0,
    )
    alpha: float = parameter(
        Number(low=0, high=1),
        "Share of a label that comes from the neighbours; the rest is what was carried over from the step before.",
        default=1.0,
    )
    rounds: int = parameter(Number(low=1, integer=True), "How many links a label spreads over at each step.", default=3)
    carry: float = parameter(
        Number(low=0, high=1),
        "Share of its largest label a sample carries over to the next step; it carries none of the others.",
        default=0.2,
    )
    sharpness: float = parameter(
        Number(low=0, above=True),
        "What scores are multiplied by before the softmax: they are small, and differ by about 1e-3.",
        default=10_000.0,
    )
    support: Labelled | None = array_parameter(
        "Labelled samples. They become nodes whose labels are fixed, as the texts' are.", default=None
    )

    check_exceptions: ClassVar[Mapping[str, str]] = {
        "axes_do_not_matter": "dimensions are weighed one by one, by the variance of the prototypes in each",
        "memory_is_bounded": "every sample stays as a node of the graph",
    }

    def _validate(self) -> None:
        if self.support is not None:
            self.support = checked_labelled("support", self.support, self.prototypes)

    def _begin(self) -> None:
        home = Home.of(self.prototypes)
        self._links = ContextLinks(
            self.prototypes, self.support, self.n_text_neighbors, self.n_support_neighbors, self.gamma
        )
        labels = self._links.labels
        self._rule = SpreadRule(self.alpha, self.rounds, self.carry, labels, self.n_classes)
        self._graph = GrowingGraph.empty(home, self.n_neighbors, self._links.n_fixed, labels.shape[0])
        # Samples as later ones are compared with them; there may be room for more behind those that count.
        self._weighed = home.zeros((0, self.dimension))

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        start = 0
        while start < len(rows):
            n = self._graph.size
            block = slice(start, min(len(rows), start + self._predict_rows))
            start = block.stop
            x = unit_rows(rows[block])
            self._make_room(n + x.shape[0])
            # Behind those that count; they count once the graph has grown.
            self._weighed[n : n + x.shape[0], :] = self._links.weighed(x)
            cosines = self._links.cosines(x, self._weighed[: n + x.shape[0], :])
            nodes, weights = self._links.fixed(x)
            answers = Home.of(x).zeros((x.shape[0], self.n_classes))
            for row in range(x.shape[0]):
                arrival = self._arrival(cosines[row, : n + row + 1], nodes[row, :], weights[row, :])
                answers[row, :], graph = self._graph.grown(arrival, self._rule)
                self._graph, self.n_seen = graph, graph.size
            yield block, answers

    def _predict_scores(self, features: Array) -> Array:
        if self._graph.size == 0 and self.support is None:
            return log_posterior(features, self.prototypes, self.logit_scale) / self.sharpness
        x = unit_rows(features)
        cosines = self._links.cosines(x, self._weighed[: self._graph.size, :])
        nodes, weights = self._links.fixed(x)
        answers = Home.of(x).zeros((x.shape[0], self.n_classes))
        for row in range(x.shape[0]):
            own = x[row : row + 1, :]
            itself = self._links.cosines(own, self._links.weighed(own))[0, :]
            arrival = self._arrival(namespace(x).concat([cosines[row, :], itself]), nodes[row, :], weights[row, :])
            answers[row, :] = self._graph.asked(arrival, self._rule)
        return answers

    def _arrival(self, cosines: Array, nodes: Array, weights: Array) -> Arrival:
        return Arrival(cosines, self._links.weights(cosines), nodes, weights)

    @property
    def _predict_rows(self) -> int:
        return max(1, min(BLOCK_ROWS, WORK_NUMBERS // (self._graph.size + BLOCK_ROWS)))

    def _probabilities(self, scores: Array) -> Array:
        return softmax(self.sharpness * scores)

    def _make_room(self, n: int) -> None:
        """For n samples; twice as much where there is too little, so that few samples ever have to move."""
        room = self._weighed.shape[0]
        if room < n:
            home = Home.of(self.prototypes)
            more = home.zeros((max(n, 2 * room) - room, self.dimension))
            self._weighed = home.xp.concat([self._weighed, more], axis=0)

    def _state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        graph = self._graph
        arrays = {**graph.lists._asdict(), **graph._asdict(), "weighed": self._weighed[: graph.size, :]}
        del arrays["lists"]
        return arrays, {}

    def _restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        n, fresh = self.n_seen, self._state()[0]
        for name, array in arrays.items():
            rows = fresh[name].shape[0] if name == "fixed_degrees" else n
            if tuple(array.shape) != (rows, *fresh[name].shape[1:]):
                raise ValueError(f"{name} of shape {tuple(array.shape)} after {n} samples")
        xp = namespace(self.prototypes)
        ends = {"nodes": n, "fixed": fresh["fixed_degrees"].shape[0], "classes": self.n_classes}
        for name, end in ends.items():
            if n and not (int(xp.min(arrays[name])) >= 0 and int(xp.max(arrays[name])) < end):
                raise ValueError(f"{name} that are not from 0 to {end - 1}")
        lists = NeighbourLists(*(arrays[name] for name in NeighbourLists._fields))
        self._graph = GrowingGraph(lists, *(arrays[name] for name in GrowingGraph._fields[1:]))
        self._weighed = arrays["weighed"]
