"""Transductive ADAPT as released."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from zeroshift.adapt.released.base import ReleasedADAPT
from zeroshift.adapt.statistics import class_means
from zeroshift.adapt.survey import CHUNK_ROWS, survey
from zeroshift.adapt.views import AveragedRows
from zeroshift.arrays import Array, Home, Rows
from zeroshift.parameters import Constraint, Number, Optional

__all__ = ["ReleasedTransductiveADAPT"]


class ReleasedTransductiveADAPT(ReleasedADAPT):
    """Transductive ADAPT as released: the paper's means (a class with an empty bank keeps its prototype), the released
    covariance, bank term and fusion.

    Parameters
    ----------
    prototypes, logit_scale, bank_size, alpha, chunk_size
        As for `TransductiveADAPT`.
    scale : float
        As for `ReleasedOnlineADAPT`.
    view_ratio : float
        Share of the views `adapt_views` keeps, those of lowest entropy; at least one.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift import ReleasedTransductiveADAPT
    >>> adapter = ReleasedTransductiveADAPT(np.eye(3, 8), logit_scale=10.0, scale=60)
    >>> adapter.adapt_scores(np.eye(3, 8)[[0, 1, 2]]).argmax(axis=1)
    array([0, 1, 2])

    Notes
    -----
    Of views, the mean of the surest stands for the image, as released: not of unit length, with the probabilities and
    the entropy of the softmax of its logits, where the online script averages softmaxes. The means, (N, d) in float64,
    are held.
    """

    name = "adapt_released_transductive"
    protocol = "transductive"
    state_size = "K L d + d^2"
    complexity = "O(N K d + K L d^2 + d^3)"
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
        view_ratio: float = 0.1,
    ) -> None:
        super().__init__(
            prototypes,
            scale=scale,
            logit_scale=logit_scale,
            bank_size=bank_size,
            alpha=alpha,
            chunk_size=chunk_size,
            view_ratio=view_ratio,
        )

    def _adapt_view_scores(self, images: Rows) -> Iterator[tuple[slice, Array]]:
        means = AveragedRows(images, self._wide_prototypes, self.logit_scale, self.view_ratio, unit=False)
        return self._adapt_scores(means.held())

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
