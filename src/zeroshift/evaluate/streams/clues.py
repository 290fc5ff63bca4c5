"""What an order may go by: labels, and what the zero-shot classifier says of every row, worked out when asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from zeroshift.feature_checks import blocks
from zeroshift.features import FeatureSet
from zeroshift.zero_shot import look

__all__ = ["Clues"]


@dataclass(frozen=True)
class Clues:
    """Of a set, seen with the prototypes of one prompt mode."""

    features: FeatureSet
    prompt: str | None = None

    @property
    def n_rows(self) -> int:
        return self.features.n_samples

    @property
    def labels(self) -> np.ndarray:
        """(N,) true classes."""
        if self.features.labels is None:
            raise ValueError("this stream goes by labels, and the set has none. Fix: kind='random', or labels.")
        return self.features.labels

    @property
    def confidences(self) -> np.ndarray:
        """(N,) negative entropies of the zero-shot posterior (Eq. 2): the higher the surer."""
        return self._looked[0]

    @property
    def pseudo_classes(self) -> np.ndarray:
        """(N,) most probable classes of the zero-shot posterior."""
        return self._looked[1]

    @cached_property
    def _looked(self) -> tuple[np.ndarray, np.ndarray]:
        prototypes = self.features.prototypes_for(self.prompt).astype(np.float64)
        confidences, classes = np.empty(self.n_rows), np.empty(self.n_rows, int)
        for rows in blocks(self.n_rows, max(prototypes.shape)):
            found = look(np.asarray(self.features.features[rows], np.float64), prototypes, self.features.logit_scale)
            confidences[rows], classes[rows] = found.confidences, found.classes
        return confidences, classes
