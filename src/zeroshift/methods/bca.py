"""BCA: class embeddings that follow the samples predicted as theirs, and a prior over labels for each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from zeroshift.arrays import Array, Home, Rows, namespace, to_numpy
from zeroshift.methods._shared.similarity import normalize_rows
from zeroshift.methods._shared.whole_steps import WholeViews
from zeroshift.parameters import Number, parameter
from zeroshift.views import RATIO, select_lowest_entropy
from zeroshift.zero_shot import logits, softmax

__all__ = ["BCA"]

BLOCK_ROWS = 64
"""Rows whose cosines are taken together; within them, an embedding that moves corrects one column."""

TIE = 1e-9
"""Probabilities this close, relative to the largest, are tied: products of another shape round differently."""


class BCA(WholeViews):
    """Moves the embedding of the predicted class towards the sample, and that class's prior over labels towards the
    posterior, whenever the posterior is high enough. A sample is predicted before it is learned from.

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
    priors (K, K), at first the identity, the posterior is softmax(s mu x) R. Scores are that posterior.

    Reconstructed: the authors' code could not be had. The rules are those two public ports of it agree on, the defaults
    those one of them gives as the authors'.
    """

    name = "bca"
    protocol = "online"
    scored = "before"
    state_size = "K d + K^2"
    complexity = "O(K d + K^2) a sample"
    reconstructed = "the authors' code could not be had; written from what two public ports of it agree on"

    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)
    likelihood_threshold: float = parameter(
        Number(low=0, high=1), "The embedding moves where the highest probability is above this.", default=0.05
    )
    likelihood_count: float = parameter(Number(low=0), "How many samples a prototype counts for.", default=20000.0)
    prior_threshold: float = parameter(
        Number(low=0, high=1), "The prior moves where the highest probability is above this.", default=0.65
    )
    prior_count: float = parameter(
        Number(low=0), "How many samples the first prior, certainty, counts for.", default=1.0
    )
    view_ratio: float = parameter(
        Number(low=0, high=1, above=True),
        "The share of views kept, those of lowest entropy, in `adapt_views`.",
        default=RATIO,
    )

    @property
    def means(self) -> Array:
        """Class embeddings (K, d) of unit length, float64."""
        self._finish()
        return Home.of(self.prototypes).copy(self._means)

    @property
    def prior(self) -> Array:
        """P(label | embedding) (K, K), float64; every row sums to 1."""
        self._finish()
        return Home.of(self.prototypes).copy(self._prior)

    def _begin(self) -> None:
        home = Home.of(self.prototypes)
        self._means = home.copy(home.bring(self.prototypes, home.xp.float64))
        self._prior = home.xp.eye(self.n_classes, dtype=home.xp.float64, device=home.device)
        # On the host: what decides is decided there.
        self._moves = np.zeros(self.n_classes, dtype=np.int64)
        self._prior_moves = np.zeros(self.n_classes, dtype=np.int64)

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        for block, x in rows.blocks(BLOCK_ROWS):
            scores = logits(x, self._means, self.logit_scale)
            cosines = self.logit_scale * (x @ x.T) if x.shape[0] > 1 else None
            answers = namespace(x).empty_like(scores)
            for row in range(x.shape[0]):
                answers[row], moved, learn = self._step(scores[row], x[row])
                self._commit(learn)
                if moved is not None and cosines is not None:
                    k, kept, added = moved
                    scores[row + 1 :, k] = kept * scores[row + 1 :, k] + added * cosines[row + 1 :, row]
            yield block, answers

    def _adapt_view(self, views: Array) -> Array:
        self._finish()
        xp = namespace(views)
        scores = logits(views, self._means, self.logit_scale)
        kept = select_lowest_entropy(scores, self.view_ratio)
        answer, _, learn = self._step(xp.mean(scores[kept], axis=0), xp.mean(views[kept], axis=0))
        self._decide(learn)
        return answer

    def _step(self, scores: Array, x: Array) -> tuple[Array, tuple[int, float, float] | None, partial[None]]:
        """The posterior (K,) of a sample with these logits; k, kept and added where mu_k = kept mu_k + added x is to be
        learned from it; and how to."""
        xp = namespace(x)
        p = softmax(scores) @ self._prior
        known = to_numpy(p)  # a GPU is asked once, for both
        sureness = float(known.max())
        k = int((known >= sureness * (1 - TIE)).argmax())
        moved = prior = mean = None
        if sureness > self.likelihood_threshold:
            count = self.likelihood_count + float(self._moves[k])
            mean = count * self._means[k] + x
            length = float(xp.linalg.vector_norm(mean))
            if length > 0:
                mean /= length
                moved = k, count / length, 1 / length
        if sureness > self.prior_threshold:
            count = self.prior_count + float(self._prior_moves[k])
            prior = (count * self._prior[k] + p) / (count + 1)
        moves = (int(self._moves[k]) + 1, int(self._prior_moves[k]) + 1)
        return p, moved, partial(self._learn, k, mean if moved is not None else None, prior, moves)

    def _learn(self, k: int, mean: Array | None, prior: Array | None, moves: tuple[int, int]) -> None:
        if mean is not None:
            self._means[k], self._moves[k] = mean, moves[0]
        if prior is not None:
            self._prior[k], self._prior_moves[k] = prior, moves[1]

    def _predict_scores(self, features: Array) -> Array:
        return softmax(logits(features, self._means, self.logit_scale)) @ self._prior

    def _probabilities(self, scores: Array) -> Array:
        return normalize_rows(scores)

    def _state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        home = Home.of(self.prototypes)
        moves = {"moves": self._moves, "prior_moves": self._prior_moves}
        counts = {name: home.xp.asarray(array, device=home.device, copy=True) for name, array in moves.items()}
        return {"means": self._means, "prior": self._prior, **counts}, {}

    def _restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        for name, own in self._state()[0].items():
            if tuple(arrays[name].shape) != tuple(own.shape):
                raise ValueError(f"{name} has shape {tuple(arrays[name].shape)}, not {tuple(own.shape)}")
        self._means, self._prior = arrays["means"], arrays["prior"]
        self._moves, self._prior_moves = (to_numpy(arrays[name]).copy() for name in ("moves", "prior_moves"))
