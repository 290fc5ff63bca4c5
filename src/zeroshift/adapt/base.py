"""What the online and the transductive ADAPT share: switches, support samples, and what can be read off them."""

from __future__ import annotations

import numpy as np

from zeroshift.adapt.bank import KnowledgeBank, SoftCounts
from zeroshift.adapt.statistics import Evidence, Gaussians, Rule
from zeroshift.arrays import Array, Home, Rows, checked_labelled
from zeroshift.method import ViewMethod
from zeroshift.parameters import Choice, Flag, Number, Optional, parameter
from zeroshift.views import AveragedRows

__all__ = ["ADAPT"]


WORK_NUMBERS = 4_000_000
"""Cosines between samples and bank entries held at once: 32 MB in float64."""


class ADAPT(ViewMethod):
    """Class-conditional Gaussians with one shared covariance, refined by a knowledge bank."""

    logit_scale: float = parameter(
        Number(low=0, above=True), "Scale of the zero-shot logits; 100 for CLIP.", default=100.0
    )
    bank_size: int = parameter(
        Number(low=0, integer=True),
        "Samples kept a class (L). 0 turns the bank off: every sample counts with its soft posterior.",
        default=16,
    )
    alpha: float = parameter(
        Number(low=0, high=1),
        "Weight of the bank's mean against the text prototype (0.9 in the paper's experiments).",
        default=0.9,
    )
    beta: float | None = parameter(
        Optional(Number(low=0)),
        "Where given, replaces `alpha` by sum p / (sum p + beta) for each class: trust grows with what was seen.",
        default=None,
    )
    use_bank_term: bool = parameter(
        Flag(),
        "The components of the paper's ablation (Table 5). Off means: no bank term; means stay at the prototypes; the covariance stays the identity.",
        default=True,
    )
    update_mean: bool = parameter(
        Flag(),
        "The components of the paper's ablation (Table 5). Off means: no bank term; means stay at the prototypes; the covariance stays the identity.",
        default=True,
    )
    update_covariance: bool = parameter(
        Flag(),
        "The components of the paper's ablation (Table 5). Off means: no bank term; means stay at the prototypes; the covariance stays the identity.",
        default=True,
    )
    covariance: str = parameter(
        Choice(("shared", "per_class")),
        "One covariance for all classes, or one a class from its own bank (the paper's appendix; it does worse).",
        default="shared",
    )
    iterations: int = parameter(
        Number(low=1, integer=True),
        "1 is the closed form. More alternate prediction and means, the samples at hand counted with their own prediction, until no probability moves by 1e-6 (Table 8). A class whose bank is empty keeps its prototype.",
        default=1,
    )
    view_ratio: float = parameter(
        Number(0, 1, above=True),
        "Share of the views `adapt_views` keeps, those of lowest entropy; at least one.",
        default=0.1,
    )

    support: tuple[Array, np.ndarray] | None

    _evidence: Evidence

    def _validate(self) -> None:
        if self.covariance == "per_class" and self.bank_size == 0:
            raise ValueError(
                "covariance='per_class' estimates one covariance a class from its bank; bank_size=0 leaves none. "
                "Fix: bank_size of at least 1, or covariance='shared'."
            )
        if self.support is not None:
            self.support = checked_labelled("support", self.support, self.prototypes)

    @property
    def means(self) -> Array:
        """Class means (K, d), float64: the text prototypes until something was learned."""
        return Home.of(self.prototypes).copy(self._gaussians.means)

    @property
    def precision(self) -> Array:
        """Inverse covariance (d, d), float64; (K, d, d) with `covariance="per_class"`. The identity at the start."""
        return Home.of(self.prototypes).copy(self._gaussians.precision)

    @property
    def bank_counts(self) -> Array:
        """Bank entries a class (K,), labelled support samples included."""
        home = Home.of(self.prototypes)
        return home.xp.asarray(self._evidence.counts, device=home.device)

    @property
    def _gaussians(self) -> Gaussians:
        raise NotImplementedError

    @property
    def _wide_prototypes(self) -> Array:
        """Prototypes in float64, the precision of every statistic."""
        home = Home.of(self.prototypes)
        return home.bring(self.prototypes, home.xp.float64)

    @property
    def _predict_rows(self) -> int:
        """Few enough that the bank term's cosines, one for every row and bank slot, stay a small array."""
        slots = self._evidence.weights.shape[1] if isinstance(self._evidence, KnowledgeBank) else 1
        return max(1, min(super()._predict_rows, WORK_NUMBERS // (self.n_classes * slots)))

    @property
    def _rule(self) -> Rule:
        return Rule(
            alpha=self.alpha,
            beta=self.beta,
            use_bank_term=self.use_bank_term,
            update_mean=self.update_mean,
            update_covariance=self.update_covariance,
            per_class=self.covariance == "per_class",
        )

    def _averaged(self, images: Rows) -> AveragedRows:
        """Each image's surest views as one feature of unit length, which every bound on cosines relies on."""
        return AveragedRows(images, self._wide_prototypes, self.logit_scale, self.view_ratio, unit=True)

    def _fresh_evidence(self) -> Evidence:
        home = Home.of(self.prototypes)
        evidence: Evidence
        if self.bank_size == 0:
            evidence = SoftCounts(home, self.n_classes, self.dimension)
        else:
            evidence = KnowledgeBank(home, self.n_classes, self.dimension, self.bank_size)
        if self.support is not None:
            features, labels = self.support
            evidence.pin(home.bring(features, home.xp.float64), labels)
        return evidence
