"""ZLaP with a graph over unlabelled samples known beforehand; each test sample is answered by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from zeroshift.arrays import Array, Home, Rows, check_matrix
from zeroshift.method import Method
from zeroshift.methods._shared.similarity import normalize_rows
from zeroshift.methods.zlap import WORK_NUMBERS, LinkRule, TextImageGraph
from zeroshift.parameters import Flag, Number, array_parameter, parameter

__all__ = ["ZLaPInductive"]


class ZLaPInductive(Method):
    """Spreads class labels from texts over a graph of unlabelled images, once. A test sample then gets the labels of
    its nearest images and texts in that graph, and leaves no trace: `adapt` only counts.

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
    2024. The authors solve one system a test sample. The graph is symmetric, so the K systems of the texts, solved
    once, hold all answers, with `sparse` or without. Departure: with `scale_similarities`, a test sample's similarity
    below all of the graph's counts as 0; the authors' code gives it a negative weight.
    """

    name = "zlap_inductive"
    protocol = "online"
    needs = ("prototypes", "unlabelled")
    state_size = "n (d + K), for n unlabelled samples"
    complexity = "O(n d + k K) a sample, after O(n^2 d + n k K)"
    computes_in = None

    unlabelled: Array = array_parameter(
        "Unit-length features of images of the same kind as those to come, such as a training set without its labels."
    )
    n_neighbors: int = parameter(
        Number(low=1, integer=True),
        "Nearest images (an image of the graph counts itself) and nearest texts each image is linked to.",
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
        "Scale similarities by the smallest and largest of the graph before weights are made of them.",
        default=False,
    )
    sparse: bool = parameter(Flag(), "Keep only the largest label of every node.", default=False)

    check_exceptions: ClassVar[Mapping[str, str]] = {
        "predict_before_adapt_is_zero_shot": "the unlabelled samples teach before anything is adapted to",
    }

    _graph: TextImageGraph

    def _validate(self) -> None:
        check_matrix("unlabelled", self.unlabelled, columns=self.dimension)
        home = Home.of(self.prototypes)
        with home.computing():
            self.unlabelled = home.copy(home.bring(self.unlabelled))

    def _begin(self) -> None:
        # Nothing of the stream enters the graph, so a reset has nothing to take out.
        if not hasattr(self, "_graph"):
            graph = TextImageGraph.of(self.unlabelled, self.prototypes, self._rule)
            self._graph = graph.one_class_a_node() if self.sparse else graph

    @property
    def _rule(self) -> LinkRule:
        return LinkRule(self.n_neighbors, self.gamma, self.alpha, self.scale_similarities)

    @property
    def _predict_rows(self) -> int:
        return max(1, WORK_NUMBERS // (2 * self.n_neighbors * self.n_classes))

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        for block, features in rows.blocks(self._predict_rows):
            scores = self._predict_scores(features)
            self.n_seen += features.shape[0]
            yield block, scores

    def _predict_scores(self, features: Array) -> Array:
        return self._graph.scores(features, self.prototypes, self._rule)

    def _probabilities(self, scores: Array) -> Array:
        return normalize_rows(scores)

    def _state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return {}, {}  # everything follows from the parameters

    def _restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        pass
