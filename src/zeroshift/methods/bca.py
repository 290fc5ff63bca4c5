"""BCA: class embeddings that move towards the samples predicted as theirs, each with a prior over labels."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from zeroshift.arrays import Array, Backend, Rows, namespace, to_numpy
from zeroshift.frozen import Expression
from zeroshift.method import ViewMethod
from zeroshift.methods._shared.similarity import normalize_rows
from zeroshift.parameters import Number, parameter, state
from zeroshift.state_checks import check_lengths, check_range, check_seen
from zeroshift.views import RATIO, select_lowest_entropy
from zeroshift.zero_shot import logits, softmax

__all__ = ["BCA"]

BLOCK_ROWS = 64
"""Samples whose logits are computed together; when an embedding moves, only its column of logits is updated."""

TIE = 1e-9
"""Probabilities this close, relative to the largest, are ties: matrix products of another shape round differently."""


def check_moves(name: str, moves: np.ndarray, n_seen: int) -> None:
    check_range(name, moves, 0)
    check_seen(f"the sum of {name}", int(moves.sum()), n_seen)


class BCA(ViewMethod):
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
    protocol = "online"
    scored = "before"
    state_size = "K d + K^2"
    complexity = "O(K d + K^2) per sample"
    reconstructed = "the authors' code is not available; written from what two public ports of it agree on"

    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)
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
    view_ratio: float = parameter(
        Number(low=0, high=1, above=True),
        "Share of the views that `adapt_views` keeps, those of lowest entropy; at least one.",
        default=RATIO,
    )

    _means: Array = state(
        lambda self: self._initial_means(), check=lambda self, means: check_lengths("means", means, unit=True)
    )
    _prior: Array = state(lambda self: self._identity(), check=lambda self, prior: check_range("prior", prior, 0, 1))
    # Counts of updates, on the host like every decision.
    _moves: np.ndarray = state(
        lambda self: np.zeros(self.n_classes, dtype=np.int64),
        check=lambda self, moves: check_moves("moves", moves, self.n_seen),
    )
    _prior_moves: np.ndarray = state(
        lambda self: np.zeros(self.n_classes, dtype=np.int64),
        check=lambda self, moves: check_moves("prior_moves", moves, self.n_seen),
    )

    def _initial_means(self) -> Array:
        backend = Backend.of(self.prototypes)
        return backend.copy(backend.asarray(self.prototypes, backend.xp.float64))

    def _identity(self) -> Array:
        backend = Backend.of(self.prototypes)
        return backend.xp.eye(self.n_classes, dtype=backend.xp.float64, device=backend.device)

    @property
    def means(self) -> Array:
        """Class embeddings (K, d) of unit length, float64."""
        return Backend.of(self.prototypes).copy(self._means)

    @property
    def prior(self) -> Array:
        """P(label | embedding) (K, K), float64; every row sums to 1."""
        return Backend.of(self.prototypes).copy(self._prior)

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        for block, x in rows.blocks(BLOCK_ROWS):
            scores = logits(x, self._means, self.logit_scale)
            products = self.logit_scale * (x @ x.T) if x.shape[0] > 1 else None
            answers = namespace(x).empty_like(scores)
            for row in range(x.shape[0]):
                answers[row], moved = self._adapt_one(scores[row], x[row])
                if moved is not None and products is not None:
                    # The logits of the following samples, with the new embedding of class k.
                    k, kept, added = moved
                    scores[row + 1 :, k] = kept * scores[row + 1 :, k] + added * products[row + 1 :, row]
            yield block, answers

    def _adapt_view(self, views: Array) -> Array:
        xp = namespace(views)
        scores = logits(views, self._means, self.logit_scale)
        kept = select_lowest_entropy(scores, self.view_ratio)
        return self._adapt_one(xp.mean(scores[kept], axis=0), xp.mean(views[kept], axis=0))[0]

    def _adapt_one(self, scores: Array, x: Array) -> tuple[Array, tuple[int, float, float] | None]:
        """Learn from a sample x (d,) with these logits (K,).

        Returns its posterior (K,), and (k, kept, added) if the embedding of class k became kept * mu_k + added * x.
        """
        xp = namespace(x)
        p = softmax(scores) @ self._prior
        known = to_numpy(p)  # one transfer from a GPU for both
        highest = float(known.max())
        k = int((known >= highest * (1 - TIE)).argmax())
        moved = prior = mean = None
        if highest > self.likelihood_threshold:
            count = self.likelihood_count + float(self._moves[k])
            mean = count * self._means[k] + x
            length = float(xp.linalg.vector_norm(mean))
            if length > 0:
                mean /= length
                moved = k, count / length, 1 / length
        if highest > self.prior_threshold:
            count = self.prior_count + float(self._prior_moves[k])
            prior = (count * self._prior[k] + p) / (count + 1)
        with self._learning():
            if moved is not None:
                self._means[k] = mean
                self._moves[k] += 1
            if prior is not None:
                self._prior[k] = prior
                self._prior_moves[k] += 1
        return p, moved

    def _predict_scores(self, features: Array) -> Array:
        return softmax(logits(features, self._means, self.logit_scale)) @ self._prior

    def _frozen(self, x: Expression) -> Expression:
        scores = x.linear(self.logit_scale * self._means).softmax() @ self._prior
        return scores / scores.sum()

    def _probabilities(self, scores: Array) -> Array:
        return normalize_rows(scores)
