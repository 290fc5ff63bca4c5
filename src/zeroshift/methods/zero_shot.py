"""The zero-shot classifier itself as a method: the baseline every gain is measured against."""

from __future__ import annotations

from zeroshift.arrays import Array, Backend
from zeroshift.method import Method
from zeroshift.parameters import Number, parameter
from zeroshift.zero_shot import logits

__all__ = ["ZeroShot"]


class ZeroShot(Method):
    """The softmax of scaled cosines between features and prototypes. It learns nothing; `adapt` only counts samples.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift import ZeroShot
    >>> ZeroShot(np.eye(2), logit_scale=5.0).predict(np.array([0.8, 0.6])).round(6)
    array([0.731059, 0.268941])

    Notes
    -----
    Radford et al., *Learning Transferable Visual Models From Natural Language Supervision*, 2021. Computed in the
    precision of the features, half precision in float32.
    """

    name = "zero_shot"
    headline = "Cosines with the prototypes; learns nothing"
    protocol = "online"
    state_size = "K d, the prototypes"
    complexity = "O(K d) per sample"
    computes_in = None
    linear = True

    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)

    @property
    def means(self) -> Array:
        """The prototypes, which every adaptive method starts from."""
        return Backend.of(self.prototypes).copy(self.prototypes)

    @property
    def precision_matrix(self) -> Array:
        """The identity: cosine similarity uses no covariance."""
        backend = Backend.of(self.prototypes)
        return backend.xp.eye(self.dimension, dtype=backend.xp.float64, device=backend.device)

    @property
    def bank_counts(self) -> Array:
        """Zeros: nothing is stored."""
        backend = Backend.of(self.prototypes)
        return backend.zeros((self.n_classes,), backend.xp.int64)

    def _predict_scores(self, features: Array) -> Array:
        return logits(features, self.prototypes, self.logit_scale)
