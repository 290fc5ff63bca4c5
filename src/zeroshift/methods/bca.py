"""BCA: class embeddings that move towards the samples predicted as theirs, each with a prior over labels."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from zeroshift.arrays import Array, Backend, namespace, to_numpy
from zeroshift.frozen import Expression
from zeroshift.method import OnlineViewMethod
from zeroshift.methods._shared.similarity import inner_products, normalize_rows, unit_rows
from zeroshift.parameters import Number, parameter, state
from zeroshift.state_checks import check_range, check_seen, unit_length, within
from zeroshift.views import select_lowest_entropy
from zeroshift.zero_shot import softmax

TIE = 1e-9
"""Probabilities this close, relative to the largest, are ties: matrix products of another shape round differently."""


class Posterior(NamedTuple):
    """Samples and their posteriors with the present embeddings and priors."""

    features: Array
    """(n, d)."""
    p: Array
    """(n, K)."""


class BCA(OnlineViewMethod):
    """Moves the embedding of the predicted class towards the sample, and the prior over labels of that class towards
    the posterior, if the highest probability is above a threshold. A sample is predicted before it is learned from.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import BCA
    >>> method = BCA(np.eye(2), logit_scale=5.0, likelihood_count=2, likelihood_threshold=0, prior_threshold=0)
    >>> method.adapt(np.array([[0.8, 0.6], [0.6, 0.8]])).round(6)
    array([[0.731059, 0.268941],
           [0.38354 , 0.61646 ]])

    Notes
    -----
    Zhou et al., *Bayesian Test-Time Adaptation for Vision-Language Models*, CVPR 2025 (arXiv 2503.09248). With R the
    priors (K, K), initially the identity, the posterior is softmax(s mu x) R. Scores are that posterior.

    Reconstructed: the authors' code is not available. The rules are those on which two public ports of it agree; the
    defaults are those that one of them attributes to the authors.
    """

    name = "bca"
    headline = "Moves class embeddings and priors of labels"
    scored = "before"
    state_size = "K d + K^2"
    complexity = "O(K d + K^2) per sample"
    reconstructed = "the authors' code is not available; written from what two public ports of it agree on"

    likelihood_threshold: float = parameter(
        Number(low=0, high=1), "The embedding moves if the highest probability is above this.", default=0.05
    )
    likelihood_count: float = parameter(Number(low=0), "How many samples each prototype counts as.", default=20000.0)
    prior_threshold: float = parameter(
        Number(low=0, high=1), "The prior moves if the highest probability is above this.", default=0.65
    )
    prior_count: float = parameter(
        Number(low=0), "How many samples the initial prior, the identity, counts as.", default=1.0
    )

    _means: Array = state(lambda self: Backend.of(self.prototypes).copy(self.prototypes64), holds=unit_length)
    _prior: Array = state(lambda self: self.as_own(np.eye(self.n_classes)), holds=within(0, 1))
    # Counts of updates, on the host like every decision.
    _moves: np.ndarray = state(
        lambda self: np.zeros(self.n_classes, dtype=np.int64),
        check=lambda self, moves: check_moves("moves", moves, self.n_seen),
    )
    _prior_moves: np.ndarray = state(
        lambda self: np.zeros(self.n_classes, dtype=np.int64),
        check=lambda self, moves: check_moves("prior_moves", moves, self.n_seen),
    )

    @property
    def means(self) -> Array:
        """Class embeddings (K, d) of unit length, float64."""
        return Backend.of(self.prototypes).copy(self._means)

    @property
    def prior(self) -> Array:
        """P(label | embedding) (K, K), float64; every row sums to 1."""
        return Backend.of(self.prototypes).copy(self._prior)

    def observe(self, features: Array) -> Posterior:
        scores = self.logit_scale * inner_products(features, self._means)
        return Posterior(features, softmax(scores) @ self._prior)

    def observe_views(self, views: Array) -> Posterior:
        xp = namespace(views)
        scores = self.logit_scale * views @ self._means.T
        kept = select_lowest_entropy(scores, self.view_ratio)
        p = softmax(xp.mean(scores[kept], axis=0, keepdims=True)) @ self._prior
        return Posterior(xp.mean(views[kept], axis=0, keepdims=True), p)

    def learn(self, x: Posterior) -> None:
        p = to_numpy(x.p)
        highest = float(p.max())
        k = int((p >= highest * (1 - TIE)).argmax())
        if highest > self.likelihood_threshold:
            mean = (self.likelihood_count + float(self._moves[k])) * self._means[k] + x.features
            if bool((mean != 0).any()):
                self._means[k] = unit_rows(mean)
                self._moves[k] += 1
        if highest > self.prior_threshold:
            count = self.prior_count + float(self._prior_moves[k])
            self._prior[k] = (count * self._prior[k] + x.p) / (count + 1)
            self._prior_moves[k] += 1

    def score(self, x: Posterior) -> Array:
        return x.p

    def _frozen(self, x: Expression) -> Expression:
        scores = x.linear(self.logit_scale * self._means).softmax() @ self._prior
        return scores / scores.sum()

    def _probabilities(self, scores: Array) -> Array:
        return normalize_rows(scores)


def check_moves(name: str, moves: np.ndarray, n_seen: int) -> None:
    check_range(name, moves, 0)
    check_seen(f"the sum of {name}", int(moves.sum()), n_seen)
