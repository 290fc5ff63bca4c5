"""ADAPT as the authors' released code computes it, for those who compare against that code's numbers.

It differs from the paper in the mean, the covariance, the bank term and the fusion, and needs a `scale` the authors
set by hand for every data set. docs/adapt.md lists the differences; `OnlineADAPT` and `TransductiveADAPT` follow the
paper.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from zeroshift.adapt.bank import KnowledgeBank
from zeroshift.adapt.statistics import ZERO_TRACE, class_means, discriminant, linear_head
from zeroshift.adapt.survey import CHUNK_ROWS, survey
from zeroshift.arrays import Array, Home, Rows, namespace
from zeroshift.method import Method
from zeroshift.parameters import Constraint, Number, Optional
from zeroshift.zero_shot import log_softmax, logits, pseudo_class

__all__ = ["RELEASED_SCALES", "ReleasedOnlineADAPT", "ReleasedTransductiveADAPT"]

RELEASED_SCALES: Mapping[str, float] = {
    "imagenet": 20,
    "imagenet_sketch": 20,
    "imagenetv2": 30,
    "imagenet_a": 40,
    "imagenet_r": 100,
    "imagenet_c": 10,
    "oxford_pets": 100,
    "eurosat": 100,
    "fgvc_aircraft": 100,
    "food101": 100,
    "caltech101": 100,
    "oxford_flowers": 60,
    "stanford_cars": 60,
    "dtd": 60,
    "sun397": 60,
    "ucf101": 70,
}
"""The authors' hand-set `scale` for each of their data sets."""


def sample_covariance_precision(bank: KnowledgeBank, means: Array) -> Array:
    """d pinv((N - 1) Sigma + tr(Sigma) I), Sigma the unbiased covariance of the centred bank entries."""
    xp = namespace(means)
    d, n = means.shape[1], bank.size
    identity = xp.eye(d, dtype=means.dtype, device=Home.of(means).device)
    if n == 1:
        return identity
    occupied = bank.occupied[:, :, None]
    centred = xp.reshape((bank.features - means[:, None, :]) * occupied, (-1, d))
    grand_mean = xp.sum(centred, axis=0) / n
    centred = centred - grand_mean * xp.reshape(occupied, (-1, 1))
    covariance = centred.T @ centred / (n - 1)
    trace = float(xp.linalg.trace(covariance))
    # The pseudo-inverse of this matrix is its inverse unless there is no spread, and then it is zero.
    return d * xp.linalg.inv((n - 1) * covariance + trace * identity) if trace > ZERO_TRACE else xp.zeros_like(identity)


class ReleasedADAPT(Method):
    """What the two released variants share."""

    constraints: ClassVar[Mapping[str, Constraint]] = {
        "scale": Number(low=0, above=True),
        "logit_scale": Number(low=0, above=True),
        "bank_size": Number(low=1, integer=True),
        "alpha": Number(low=0, high=1),
    }

    needs = ("prototypes", "scale")
    example_parameters: ClassVar[Mapping[str, Any]] = {"scale": 100.0}

    scale: float
    logit_scale: float
    bank_size: int
    alpha: float

    @classmethod
    def preset(cls, dataset: str) -> dict[str, float]:
        """The authors' hand-set parameters for one of their data sets, to be passed on by name.

        >>> ReleasedOnlineADAPT.preset("dtd")
        {'scale': 60}
        """
        if dataset not in RELEASED_SCALES:
            raise ValueError(f"dataset must be one of {', '.join(sorted(RELEASED_SCALES))}; got {dataset!r}.")
        return {"scale": RELEASED_SCALES[dataset]}

    def _begin(self) -> None:
        home = Home.of(self.prototypes)
        self._wide_prototypes = home.bring(self.prototypes, home.xp.float64)
        self._bank = KnowledgeBank(home, self.n_classes, self.dimension, self.bank_size)
        self._means = self._wide_prototypes
        self._precision = home.xp.eye(self.dimension, dtype=home.xp.float64, device=home.device)
        self._head = linear_head(self._means, self._precision)

    @property
    def means(self) -> Array:
        """Class means (K, d), float64."""
        return Home.of(self.prototypes).copy(self._means)

    @property
    def precision(self) -> Array:
        """Inverse of the shared covariance (d, d), float64."""
        return Home.of(self.prototypes).copy(self._precision)

    @property
    def bank_counts(self) -> Array:
        """Bank entries a class (K,)."""
        home = Home.of(self.prototypes)
        return home.xp.asarray(self._bank.counts, device=home.device)

    def _refresh(self) -> None:
        """Covariance and linear classifier for the present means and bank."""
        if self._bank.size > 0:
            self._precision = sample_covariance_precision(self._bank, self._means)
            self._head = linear_head(self._means, self._precision)

    def _similarity(self, features: Array) -> Array:
        """q_k = sum_{j in B_k} (x.x_j) p_j: the paper's bank term without its max(0, .)."""
        return features @ self._bank.sums()[0].T

    def _fused(self, features: Array, similarity: Array) -> Array:
        """The raw zero-shot logit times exp((log softmax g + scale/(2N) q - max) / scale); not normalised."""
        xp = namespace(features)
        raw = self._logits(features)
        if self._bank.size == 0:
            return raw
        total = log_softmax(discriminant(features, *self._head)) + self.scale / (2 * self._bank.size) * similarity
        return raw * xp.exp((total - xp.max(total, axis=-1, keepdims=True)) / self.scale)

    def _logits(self, features: Array) -> Array:
        return logits(features, self._wide_prototypes, self.logit_scale)

    def _predict_scores(self, features: Array) -> Array:
        return self._fused(features, self._similarity(features))

    def _state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return {"means": self._means, **self._bank.arrays()}, {}

    def _restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        if tuple(arrays["means"].shape) != tuple(self._means.shape):
            raise ValueError(f"means has shape {tuple(arrays['means'].shape)}, not {tuple(self._means.shape)}")
        self._means = arrays["means"]
        self._bank.restore(arrays)
        self._refresh()


class ReleasedOnlineADAPT(ReleasedADAPT):
    """Online ADAPT as released: a class's mean moves only when a sample enters its bank, that sample counted twice; a
    sample that enters no bank is scored with the bank similarities of the last one that did.

    Parameters
    ----------
    prototypes, logit_scale, bank_size, alpha
        As for `OnlineADAPT`.
    scale : float
        The authors' fusion constant, which they set by hand for each data set (`ReleasedOnlineADAPT.preset("dtd")`).
        There is no honest default, so it must be given.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift import ReleasedOnlineADAPT
    >>> adapter = ReleasedOnlineADAPT(np.eye(3, 8), logit_scale=10.0, **ReleasedOnlineADAPT.preset("dtd"))
    >>> adapter.adapt_scores(np.eye(3, 8)[[0, 1, 2]]).argmax(axis=1)
    array([0, 1, 2])

    Notes
    -----
    `adapt_scores` gives the released code's own unnormalised scores; `adapt` gives their softmax, which before any
    learning is the zero-shot posterior. The scores multiply raw logits, so they make sense only where cosines between
    features and prototypes are positive, as CLIP's are. `predict` uses each sample's own bank similarities.
    """

    name = "adapt_released_online"
    protocol = "online"

    def __init__(
        self, prototypes: Array, *, scale: float, logit_scale: float = 100.0, bank_size: int = 16, alpha: float = 0.9
    ) -> None:
        super().__init__(prototypes, scale=scale, logit_scale=logit_scale, bank_size=bank_size, alpha=alpha)

    def _begin(self) -> None:
        super()._begin()
        self._last_similarity = Home.of(self.prototypes).zeros((1, self.n_classes))

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        for row in range(len(rows)):
            at = slice(row, row + 1)
            features = rows[at]
            before = (self._means, self._precision, self._head, self._last_similarity)
            try:
                self._learn(features)
                scores = self._fused(features, self._last_similarity)
            except BaseException:
                # Interrupted, or out of memory: as if the sample had never come.
                self._bank.undo()
                self._means, self._precision, self._head, self._last_similarity = before
                raise
            self.n_seen += 1
            yield at, scores

    def _learn(self, features: Array) -> None:
        xp = namespace(features)
        log_y = log_softmax(self._logits(features))
        if not self._bank.offer(features, log_y):
            return
        k = int(pseudo_class(log_y)[0])
        weighted_sum, weight = self._bank.sums()
        p = xp.exp(log_y[0, k])
        moved = class_means(
            (weighted_sum[k] + p * features[0])[None, :],
            (weight[k] + p)[None],
            self._wide_prototypes[k : k + 1],
            self.alpha,
            None,
        )
        self._means = xp.concat([self._means[:k], moved, self._means[k + 1 :]], axis=0)
        self._refresh()
        self._last_similarity = self._similarity(features)

    def _state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        arrays, values = super()._state()
        return {**arrays, "last_similarity": self._last_similarity}, values

    def _restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        super()._restore(arrays, values)
        self._last_similarity = arrays["last_similarity"]


class ReleasedTransductiveADAPT(ReleasedADAPT):
    """Transductive ADAPT as released: the paper's means (a class with an empty bank keeps its prototype), the released
    covariance, bank term and fusion.

    Parameters
    ----------
    prototypes, logit_scale, bank_size, alpha, chunk_size
        As for `TransductiveADAPT`.
    scale : float
        As for `ReleasedOnlineADAPT`.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift import ReleasedTransductiveADAPT
    >>> adapter = ReleasedTransductiveADAPT(np.eye(3, 8), logit_scale=10.0, scale=60)
    >>> adapter.adapt_scores(np.eye(3, 8)[[0, 1, 2]]).argmax(axis=1)
    array([0, 1, 2])
    """

    name = "adapt_released_transductive"
    protocol = "transductive"
    reload_parameters = ("chunk_size",)
    constraints: ClassVar[Mapping[str, Constraint]] = {
        **ReleasedADAPT.constraints,
        "chunk_size": Optional(Number(low=1, integer=True)),
    }

    chunk_size: int | None

    def __init__(
        self,
        prototypes: Array,
        *,
        scale: float,
        logit_scale: float = 100.0,
        bank_size: int = 6,
        alpha: float = 0.9,
        chunk_size: int | None = None,
    ) -> None:
        super().__init__(
            prototypes, scale=scale, logit_scale=logit_scale, bank_size=bank_size, alpha=alpha, chunk_size=chunk_size
        )

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        self.reset()
        xp = Home.of(self.prototypes).xp
        chunk_rows = self.chunk_size or CHUNK_ROWS
        try:
            soft_sum, soft_weight = survey(rows, chunk_rows, self._wide_prototypes, self.logit_scale, self._bank)
            bank_sum, bank_weight = self._bank.sums()
            # No weight means no bank: `class_means` leaves such a class at its prototype.
            weight = xp.where(bank_weight > 0, soft_weight + bank_weight, xp.zeros_like(bank_weight))
            self._means = class_means(soft_sum + bank_sum, weight, self._wide_prototypes, self.alpha, None)
            self._refresh()
        except BaseException:
            # Interrupted, or out of memory: half a set teaches nothing.
            self.reset()
            raise
        self.n_seen = len(rows)
        for chunk, features in rows.blocks(chunk_rows):
            yield chunk, self._predict_scores(features)
