"""ECALP: labels spread from texts over a graph of all samples so far, one step a sample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from zeroshift.arrays import Array, Home, Rows, namespace
from zeroshift.labelled import Labelled, checked_labelled
from zeroshift.method import Method
from zeroshift.methods.parts.context_links import ContextLinks
from zeroshift.methods.parts.growing_graph import Arrival, GrowingGraph, SpreadRule
from zeroshift.methods.parts.neighbour_lists import NeighbourLists
from zeroshift.methods.parts.rows import unit_rows
from zeroshift.parameters import Constraint, Number
from zeroshift.zero_shot import log_posterior, softmax

__all__ = ["ECALP"]

BLOCK_ROWS = 256
WORK_NUMBERS = 4_000_000
"""Cosines held at once."""


class ECALP(Method):
    """Keeps every sample as a node of a growing graph, linked to its nearest samples and texts. At each step class
    labels spread over the whole graph for a few rounds, and the newest sample gets the label that reached it most.

    Parameters
    ----------
    prototypes : (K, d) array or tensor
        One unit-length text embedding a class.
    logit_scale : float
        Scale of the zero-shot logits; it matters only for `predict` before anything was learned.
    n_neighbors : int
        Samples each sample is linked to, itself included.
    n_text_neighbors : int
        Texts each sample is linked to.
    n_support_neighbors : int
        Labelled samples each sample is linked to.
    gamma : float
        Power that the sizes of cosines are raised to; the larger, the more the nearest count.
    alpha : float
        Share of a label that comes from the neighbours; the rest is what was carried over from the step before.
    rounds : int
        How many links a label spreads over at each step.
    carry : float
        Share of its largest label a sample carries over to the next step; it carries none of the others.
    sharpness : float
        What scores are multiplied by before the softmax: they are small, and differ by about 1e-3.
    support : pair (features (n, d), labels (n,)), optional
        Labelled samples. They become nodes whose labels are fixed, as the texts' are.

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
    array_parameters = ("prototypes", "support")
    state_size = "N (d + k): it grows with the stream"
    complexity = "O(N d + N k K) a sample"
    constraints: ClassVar[Mapping[str, Constraint]] = {
        "logit_scale": Number(low=0, above=True),
        "n_neighbors": Number(low=1, integer=True),
        "n_text_neighbors": Number(low=1, integer=True),
        "n_support_neighbors": Number(low=1, integer=True),
        "gamma": Number(low=0, above=True),
        "alpha": Number(low=0, high=1),
        "rounds": Number(low=1, integer=True),
        "carry": Number(low=0, high=1),
        "sharpness": Number(low=0, above=True),
    }
    check_exceptions: ClassVar[Mapping[str, str]] = {
        "axes_do_not_matter": "dimensions are weighed one by one, by the variance of the prototypes in each",
        "memory_is_bounded": "every sample stays as a node of the graph",
    }

    logit_scale: float
    n_neighbors: int
    n_text_neighbors: int
    n_support_neighbors: int
    gamma: float
    alpha: float
    rounds: int
    carry: float
    sharpness: float
    support: Labelled | None

    def __init__(
        self,
        prototypes: Array,
        *,
        logit_scale: float = 100.0,
        n_neighbors: int = 8,
        n_text_neighbors: int = 3,
        n_support_neighbors: int = 8,
        gamma: float = 10.0,
        alpha: float = 1.0,
        rounds: int = 3,
        carry: float = 0.2,
        sharpness: float = 10_000.0,
        support: tuple[Array, Array] | None = None,
    ) -> None:
        super().__init__(
            prototypes,
            logit_scale=logit_scale,
            n_neighbors=n_neighbors,
            n_text_neighbors=n_text_neighbors,
            n_support_neighbors=n_support_neighbors,
            gamma=gamma,
            alpha=alpha,
            rounds=rounds,
            carry=carry,
            sharpness=sharpness,
            support=support,
        )

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
