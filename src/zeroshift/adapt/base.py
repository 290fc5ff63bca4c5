"""What online and transductive ADAPT share: parameters, labelled samples, and the public statistics."""

from __future__ import annotations

import numpy as np

from zeroshift.adapt.bank import KnowledgeBank, SoftCounts
from zeroshift.adapt.statistics import AdaptSettings, Evidence, Gaussians
from zeroshift.arrays import Array, Backend, Rows, checked_labelled, to_numpy
from zeroshift.frozen import Expression
from zeroshift.method import ViewMethod
from zeroshift.parameters import Choice, Flag, Number, Optional, array_parameter, parameter, state
from zeroshift.state_checks import check_seen
from zeroshift.views import AveragedRows

__all__ = ["ADAPT"]

MAX_COSINES = 4_000_000
"""Cosines between samples and bank entries held in memory at one time: 32 MB in float64."""


class ADAPT(ViewMethod):
    """Class-conditional Gaussians with one shared covariance, refined by a knowledge bank."""

    overconfident = True  # the Gaussian term is large compared to the zero-shot logits

    logit_scale: float = parameter(
        Number(low=0, above=True), "Scale of the zero-shot logits; 100 for CLIP.", default=100.0
    )
    bank_size: int = parameter(
        Number(low=0, integer=True),
        "Samples kept per class (L). 0 turns the bank off: every sample then counts with its zero-shot posterior.",
        default=16,
    )
    alpha: float = parameter(
        Number(low=0, high=1),
        "Weight of the bank's mean against the text prototype (0.9 in the paper's experiments).",
        default=0.9,
    )
    beta: float | None = parameter(
        Optional(Number(low=0)),
        "If given, `alpha` is replaced by sum p / (sum p + beta) per class, which grows with the samples seen.",
        default=None,
    )
    use_bank_term: bool = parameter(
        Flag(), "Add the similarity to the bank's samples to the scores (Table 5 of the paper).", default=True
    )
    update_mean: bool = parameter(
        Flag(), "Estimate class means from the samples; otherwise they stay at the prototypes (Table 5).", default=True
    )
    update_covariance: bool = parameter(
        Flag(), "Estimate the covariance from the samples; otherwise it stays the identity (Table 5).", default=True
    )
    covariance: str = parameter(
        Choice(("shared", "per_class")),
        "One covariance for all classes, or one per class from its own bank (the paper's appendix; less accurate).",
        default="shared",
    )
    iterations: int = parameter(
        Number(low=1, integer=True),
        "1 is the closed form. More alternate between prediction and means, with the present samples counted by their "
        "own prediction, until no probability changes by 1e-6 (Table 8). A class with an empty bank keeps its "
        "prototype.",
        default=1,
    )
    support: tuple[Array, np.ndarray] | None = array_parameter(
        "Labelled samples, (features, labels), for few-shot use. They stay in the bank of their class for good, in "
        "addition to `bank_size` samples. With the bank off they count with probability 1.",
        default=None,
    )
    view_ratio: float = parameter(
        Number(0, 1, above=True),
        "Share of the views that `adapt_views` keeps, those of lowest entropy; at least one is kept.",
        default=0.1,
    )

    _evidence: Evidence = state(
        lambda self: self._initial_evidence(), saved_as="", check=lambda self, evidence: self._check_evidence(evidence)
    )

    def _check_evidence(self, evidence: Evidence) -> None:
        labelled = 0 if self.support is None else len(self.support[1])
        check_seen("the number of samples without a label in the bank", evidence.size - labelled, self.n_seen)

    def _validate(self) -> None:
        if self.covariance == "per_class" and self.bank_size == 0:
            raise ValueError(
                "covariance='per_class' estimates one covariance per class from its bank; bank_size=0 keeps no bank. "
                "Fix: bank_size of at least 1, or covariance='shared'."
            )
        if self.support is not None:
            self.support = checked_labelled("support", self.support, self.prototypes)

    @property
    def means(self) -> Array:
        """Class means (K, d), float64. Before any sample they are the text prototypes."""
        return Backend.of(self.prototypes).copy(self._gaussians.means)

    @property
    def precision_matrix(self) -> Array:
        """Inverse covariance (d, d), float64; (K, d, d) with `covariance="per_class"`. Initially the identity."""
        return Backend.of(self.prototypes).copy(self._gaussians.precision)

    @property
    def bank_counts(self) -> Array:
        """Bank entries per class (K,), including labelled support samples."""
        backend = Backend.of(self.prototypes)
        return backend.xp.asarray(self._evidence.counts, device=backend.device)

    @property
    def _gaussians(self) -> Gaussians:
        raise NotImplementedError

    @property
    def _wide_prototypes(self) -> Array:
        """Prototypes in float64, the precision of every statistic."""
        backend = Backend.of(self.prototypes)
        return backend.asarray(self.prototypes, backend.xp.float64)

    @property
    def _predict_rows(self) -> int:
        """Rows per block, limited by the size of the array of cosines between rows and bank slots."""
        slots = self._evidence.weights.shape[1] if isinstance(self._evidence, KnowledgeBank) else 1
        return max(1, min(super()._predict_rows, MAX_COSINES // (self.n_classes * slots)))

    @property
    def _settings(self) -> AdaptSettings:
        return AdaptSettings(
            alpha=self.alpha,
            beta=self.beta,
            use_bank_term=self.use_bank_term,
            update_mean=self.update_mean,
            update_covariance=self.update_covariance,
            per_class=self.covariance == "per_class",
        )

    def _frozen(self, x: Expression) -> Expression:
        """log y + g + r: all but the bank term r is linear. Probabilities p weight the bank's samples: they are not
        negative, so max(0, x.x_j) p_j = max(0, x.(p_j x_j))."""
        evidence, text = self._evidence, self.logit_scale * self._wide_prototypes
        if evidence.size == 0:
            return x.linear(text).softmax()
        gaussians = self._gaussians
        scores = x.linear(text + gaussians.directions, gaussians.offsets)
        if self.use_bank_term and isinstance(evidence, KnowledgeBank):
            used = evidence.occupied_in(slice(None)).any(axis=0)
            weighted = to_numpy(evidence.features * evidence.weights[:, :, None])
            scores = scores + x.to_each(weighted[:, used]).relu().sum().columns()
        return scores.softmax()

    def _averaged(self, images: Rows) -> AveragedRows:
        """The most confident views of each image as one feature of unit length, as the bounds on cosines require.
        The views are compared, and averaged, in float64."""
        return AveragedRows(images.wide(), self._wide_prototypes, self.logit_scale, self.view_ratio, unit=True)

    def _initial_evidence(self) -> Evidence:
        backend = Backend.of(self.prototypes)
        evidence: Evidence
        if self.bank_size == 0:
            evidence = SoftCounts(backend, self.n_classes, self.dimension)
        else:
            evidence = KnowledgeBank(backend, self.n_classes, self.dimension, self.bank_size)
        if self.support is not None:
            features, labels = self.support
            evidence.pin(backend.asarray(features, backend.xp.float64), labels)
        return evidence
