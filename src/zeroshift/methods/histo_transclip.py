"""Histo-TransCLIP: TransCLIP with the mean of many prompts for text."""

from __future__ import annotations

from zeroshift.arrays import Array, namespace
from zeroshift.methods._shared.prompts import checked_prompts
from zeroshift.methods._shared.similarity import unit_rows
from zeroshift.methods.transclip import TransCLIP
from zeroshift.parameters import Flag, array_parameter, parameter

__all__ = ["HistoTransCLIP"]


class HistoTransCLIP(TransCLIP):
    """TransCLIP with the plain mean of each class's prompts for text. The mean is shorter the less the prompts agree,
    so that logits are flatter and lean towards classes whose prompts agree.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import HistoTransCLIP
    >>> prompts = np.array([[[1.0, 0.0], [0.6, 0.8]], [[0.0, 1.0], [0.0, 1.0]]])
    >>> method = HistoTransCLIP(np.eye(2), prompts=prompts, logit_scale=10.0)
    >>> method.adapt(np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])).argmax(axis=1)
    array([0, 0, 1])

    Notes
    -----
    *Boosting Vision-Language Models for Histopathology Classification: Predict all at once*, 2024 (arXiv 2409.01883),
    after the authors' code, which differs from TransCLIP's in the mean of the prompts only. The notes to
    `TransCLIP` hold here too.
    """

    name = "histo_transclip"
    needs = ("prototypes", "prompts")

    prompts: Array = array_parameter("Unit-length embeddings of P prompts a class.")
    renormalise: bool = parameter(
        Flag(), "Scale the mean of the prompts to unit length, which the authors do not.", default=False
    )

    def _validate(self) -> None:
        self.prompts = checked_prompts(self.prompts, self.prototypes)

    def _begin(self) -> None:
        # Prompts pass as unit vectors when nearly so; the authors scale each before they average.
        means = namespace(self.prompts).mean(unit_rows(self.prompts), axis=1)
        self._mean_prompts = unit_rows(means) if self.renormalise else means
        super()._begin()

    @property
    def _text(self) -> Array:
        return self._mean_prompts
