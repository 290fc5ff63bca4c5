"""ADAPT as the authors' released code computes it, for comparisons with the numbers of that code.

It differs from the paper in the mean, the covariance, the bank term and the fusion, and needs a `scale` that the
authors set by hand for every data set. docs/adapt.md lists the differences; `OnlineADAPT` and `TransductiveADAPT`
follow the paper.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from zeroshift.adapt.bank import KnowledgeBank
from zeroshift.adapt.statistics import class_means, discriminant, linear_head
from zeroshift.adapt.transductive import CHUNK_ROWS, collect_statistics
from zeroshift.arrays import Array, Backend, Rows, namespace, to_numpy
from zeroshift.frozen import Expression
from zeroshift.linalg import residual_precision
from zeroshift.method import ViewMethod
from zeroshift.parameters import Number, Optional, parameter, state
from zeroshift.state_checks import check_lengths, check_seen
from zeroshift.views import AveragedRows, average_views, images_per_block
from zeroshift.zero_shot import confidence, log_softmax, logits, pseudo_class

__all__ = ["RELEASED_SCALES", "ReleasedADAPT", "ReleasedOnlineADAPT", "ReleasedTransductiveADAPT"]


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
"""The `scale` that the authors set by hand for each of their data sets."""


def sample_covariance_precision(bank: KnowledgeBank, means: Array) -> Array:
    """d pinv((N - 1) Sigma + tr(Sigma) I), Sigma the unbiased covariance of the centred bank entries."""
    xp = namespace(means)
    d, n = means.shape[1], bank.size
    if n == 1:
        return xp.eye(d, dtype=means.dtype, device=Backend.of(means).device)
    held = xp.reshape(bank.occupied, (-1,)) > 0
    return residual_precision(xp.reshape(bank.features - means[:, None, :], (-1, d))[held])


class ReleasedADAPT(ViewMethod):
    """The parts that the two released variants share: covariance, bank similarity, fusion and presets."""

    needs = ("prototypes", "scale")
    example_parameters: ClassVar[Mapping[str, Any]] = {"scale": 100.0}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {name: {"scale": s} for name, s in RELEASED_SCALES.items()}

    scale: float = parameter(
        Number(low=0, above=True),
        "The authors' fusion constant, which they set by hand for each data set "
        '(`ReleasedOnlineADAPT.preset("dtd")`). It has no default because none would suit all data.',
    )
    logit_scale: float = parameter(
        Number(low=0, above=True), "Scale of the zero-shot logits; 100 for CLIP.", default=100.0
    )
    bank_size: int = parameter(Number(low=1, integer=True), "Samples kept per class (L).", default=16)
    alpha: float = parameter(
        Number(low=0, high=1), "Weight of the bank's mean against the text prototype.", default=0.9
    )
    view_ratio: float = parameter(
        Number(0, 1, above=True),
        "Share of the views that `adapt_views` keeps, those of lowest entropy; at least one is kept.",
        default=0.1,
    )

    _means: Array = state(lambda self: self._wide_prototypes, check=lambda self, means: check_lengths("means", means))
    _bank: KnowledgeBank = state(
        lambda self: self._empty_bank(),
        saved_as="",
        check=lambda self, bank: check_seen("the number of samples in the bank", bank.size, self.n_seen),
    )

    def _prepare(self) -> None:
        backend = Backend.of(self.prototypes)
        self._wide_prototypes = backend.asarray(self.prototypes, backend.xp.float64)

    def _empty_bank(self) -> KnowledgeBank:
        return KnowledgeBank(Backend.of(self.prototypes), self.n_classes, self.dimension, self.bank_size)

    def _derive(self) -> None:
        self._precision, self._head = self._classifier(self._bank, self._means)

    def _classifier(self, bank: KnowledgeBank, means: Array) -> tuple[Array, tuple[Array, Array]]:
        """Precision and linear classifier from bank and means."""
        if bank.size > 0:
            precision = sample_covariance_precision(bank, means)
        else:
            backend = Backend.of(self.prototypes)
            precision = backend.xp.eye(self.dimension, dtype=backend.xp.float64, device=backend.device)
        return precision, linear_head(means, precision)

    @property
    def means(self) -> Array:
        """Class means (K, d), float64."""
        return Backend.of(self.prototypes).copy(self._means)

    @property
    def precision_matrix(self) -> Array:
        """Inverse of the shared covariance (d, d), float64."""
        return Backend.of(self.prototypes).copy(self._precision)

    @property
    def bank_counts(self) -> Array:
        """Bank entries per class (K,)."""
        backend = Backend.of(self.prototypes)
        return backend.xp.asarray(self._bank.counts, device=backend.device)

    def _similarity(self, features: Array) -> Array:
        """q_k = sum_{j in B_k} (x.x_j) p_j: the paper's bank term without its max(0, .)."""
        return features @ self._bank.sums()[0].T

    def _fuse(self, features: Array, similarity: Array) -> Array:
        """The raw zero-shot logit times exp((log softmax g + scale/(2N) q - max) / scale); not normalised."""
        xp = namespace(features)
        raw = self._logits(features)
        if self._bank.size == 0:
            return raw
        total = log_softmax(discriminant(features, *self._head)) + self.scale / (2 * self._bank.size) * similarity
        return raw * xp.exp((total - xp.max(total, axis=-1, keepdims=True)) / self.scale)

    def _frozen(self, x: Expression) -> Expression:
        raw = x @ (self.logit_scale * self._wide_prototypes).T
        if self._bank.size == 0:
            return raw.softmax()
        directions, offsets = self._head
        # log softmax g is g minus a number per row, which the difference to the largest total does not contain.
        total = x.linear(directions / self.scale + self._bank.sums()[0] / (2 * self._bank.size), offsets / self.scale)
        return (raw * (total - total.max()).exp()).softmax()

    def _logits(self, features: Array) -> Array:
        return logits(features, self._wide_prototypes, self.logit_scale)

    def _predict_scores(self, features: Array) -> Array:
        return self._fuse(features, self._similarity(features))


class ZeroShotPredictions(NamedTuple):
    """Samples and their zero-shot predictions: (n, d), (n, K), (n,) and (n,)."""

    features: Array
    probabilities: Array
    classes: np.ndarray
    confidences: np.ndarray


class ReleasedOnlineADAPT(ReleasedADAPT):
    """Online ADAPT as released: the mean of a class changes only when a sample enters its bank, and counts that sample
    twice. A sample that enters no bank is scored with the bank similarities of the last sample that did.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift import ReleasedOnlineADAPT
    >>> adapter = ReleasedOnlineADAPT(np.eye(3, 8), logit_scale=10.0, **ReleasedOnlineADAPT.preset("dtd"))
    >>> adapter.adapt_scores(np.eye(3, 8)[[0, 1, 2]]).argmax(axis=1)
    array([0, 1, 2])

    Notes
    -----
    `adapt_scores` returns the unnormalised scores of the released code; `adapt` returns their softmax, which is the
    zero-shot posterior before any sample is learned. The scores multiply raw logits, so they are meaningful only if the
    cosines between features and prototypes are positive, as in CLIP. `predict` uses each sample's own similarities.

    `adapt_views` uses the mean of the most confident views, as the released code does: not scaled to unit length. Its
    class comes from its own logits, its probabilities are the mean of the views' softmaxes, and its entropy is that of
    this mean.
    """

    name = "adapt_released_online"
    headline = "ADAPT as the authors' code computes it"
    overconfident = True
    protocol = "online"
    state_size = "K L d + d^2"
    complexity = "O(K d) per sample; an insertion O(K L d^2 + d^3) more"

    _last_similarity: Array = state(lambda self: Backend.of(self.prototypes).zeros((1, self.n_classes)))

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        for row in range(len(rows)):
            at = slice(row, row + 1)
            yield at, self._step(self._zero_shot(rows[at]))

    def _adapt_view_scores(self, images: Rows) -> Iterator[tuple[slice, Array]]:
        for block, views in images.blocks(images_per_block(images, self._wide_prototypes)):
            means = average_views(views, self._wide_prototypes, self.logit_scale, ratio=self.view_ratio)
            # The class of the mean logits can differ from that of the mean probabilities.
            classes, confidences = to_numpy(pseudo_class(means.logits)), -to_numpy(means.entropy)
            samples = ZeroShotPredictions(means.features, means.probabilities, classes, confidences)
            for row in range(views.shape[0]):
                one = ZeroShotPredictions(*(array[row : row + 1] for array in samples))
                yield slice(block.start + row, block.start + row + 1), self._step(one)

    def _zero_shot(self, features: Array) -> ZeroShotPredictions:
        log_y = log_softmax(self._logits(features))
        classes, confidences = to_numpy(pseudo_class(log_y)), to_numpy(confidence(log_y))
        return ZeroShotPredictions(features, namespace(log_y).exp(log_y), classes, confidences)

    def _step(self, sample: ZeroShotPredictions) -> Array:
        """Learn from one sample, then score it (1, K)."""
        with self._learning():
            self._learn(sample)
        return self._fuse(sample.features, self._last_similarity)

    def _learn(self, sample: ZeroShotPredictions) -> None:
        features, probabilities, classes, confidences = sample
        xp = namespace(features)
        plan = self._bank.plan(classes, confidences)
        if len(plan) == 0:
            return
        k = int(classes[0])
        p = probabilities[0, k]
        self._bank.insert(plan, features, probabilities[:, k], confidences)
        weighted_sum, weight = self._bank.sums()
        moved = class_means(
            (weighted_sum[k] + p * features[0])[None, :],
            (weight[k] + p)[None],
            self._wide_prototypes[k : k + 1],
            self.alpha,
            None,
        )
        self._means = xp.concat([self._means[:k], moved, self._means[k + 1 :]], axis=0)
        self._derive()
        self._last_similarity = self._similarity(features)


class ReleasedTransductiveADAPT(ReleasedADAPT):
    """Transductive ADAPT as released: the means of the paper (a class with an empty bank keeps its prototype) with the
    covariance, bank term and fusion of the released code.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift import ReleasedTransductiveADAPT
    >>> adapter = ReleasedTransductiveADAPT(np.eye(3, 8), logit_scale=10.0, scale=60)
    >>> adapter.adapt_scores(np.eye(3, 8)[[0, 1, 2]]).argmax(axis=1)
    array([0, 1, 2])

    Notes
    -----
    `adapt_views` uses the mean of the most confident views, as the released code does: not scaled to unit length. Its
    probabilities and entropy come from the softmax of its logits; the online script averages softmaxes instead. The
    means, (N, d) in float64, are kept in memory.
    """

    name = "adapt_released_transductive"
    headline = "ADAPT as the authors' code computes it"
    overconfident = True
    protocol = "transductive"
    state_size = "K L d + d^2"
    complexity = "O(N K d + K L d^2 + d^3)"

    bank_size: int = parameter(Number(low=1, integer=True), "Most confident samples kept per class (L).", default=6)
    chunk_size: int | None = parameter(
        Optional(Number(low=1, integer=True)),
        "Rows processed together. It changes the answer only by rounding.",
        default=None,
        reload=True,
    )

    def _adapt_view_scores(self, images: Rows) -> Iterator[tuple[slice, Array]]:
        means = AveragedRows(images, self._wide_prototypes, self.logit_scale, self.view_ratio, unit=False)
        return self._adapt_scores(means.materialize())

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        xp = Backend.of(self.prototypes).xp
        chunk_rows = self.chunk_size or CHUNK_ROWS
        bank = self._empty_bank()
        soft_sum, soft_weight = collect_statistics(rows, chunk_rows, self._wide_prototypes, self.logit_scale, bank)
        bank_sum, bank_weight = bank.sums()
        # A weight of zero marks an empty bank: `class_means` keeps the prototype of such a class.
        weight = xp.where(bank_weight > 0, soft_weight + bank_weight, xp.zeros_like(bank_weight))
        means = class_means(soft_sum + bank_sum, weight, self._wide_prototypes, self.alpha, None)
        precision, head = self._classifier(bank, means)
        with self._learning(len(rows), replace=True):
            self._means, self._bank, self._precision, self._head = means, bank, precision, head
        for chunk, features in rows.blocks(chunk_rows):
            yield chunk, self._predict_scores(features)
