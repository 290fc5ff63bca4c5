"""What the two released variants share: the covariance, the bank similarities, the fusion, the hand-set scales."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from zeroshift.adapt.bank import KnowledgeBank
from zeroshift.adapt.statistics import discriminant, linear_head
from zeroshift.arrays import Array, Home, namespace
from zeroshift.parameters import Constraint, Number
from zeroshift.ridge import residual_precision
from zeroshift.view_method import ViewMethod
from zeroshift.zero_shot import log_softmax, logits

__all__ = ["RELEASED_SCALES", "ReleasedADAPT"]

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
    if n == 1:
        return xp.eye(d, dtype=means.dtype, device=Home.of(means).device)
    held = xp.reshape(bank.occupied, (-1,)) > 0
    return residual_precision(xp.reshape(bank.features - means[:, None, :], (-1, d))[held])


class ReleasedADAPT(ViewMethod):
    """What the two released variants share."""

    constraints: ClassVar[Mapping[str, Constraint]] = {
        "scale": Number(low=0, above=True),
        "logit_scale": Number(low=0, above=True),
        "bank_size": Number(low=1, integer=True),
        "alpha": Number(low=0, high=1),
        "view_ratio": Number(0, 1, above=True),
    }

    needs = ("prototypes", "scale")
    example_parameters: ClassVar[Mapping[str, Any]] = {"scale": 100.0}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {name: {"scale": s} for name, s in RELEASED_SCALES.items()}

    scale: float
    logit_scale: float
    bank_size: int
    alpha: float
    view_ratio: float

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
