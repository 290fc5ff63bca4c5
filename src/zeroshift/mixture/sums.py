"""Everything the mixture keeps about the samples: sums. Two shards are merged by adding their sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from zeroshift.arrays import Array, Backend
from zeroshift.mixture.temperature import N_TEMPERATURES
from zeroshift.state_checks import check_range

__all__ = ["Sums"]


@dataclass(frozen=True)
class Sums:
    """Sums over samples x_i with soft labels q_i and zero-shot posteriors y_i; float64, and never changed in place."""

    counts: Array
    """(K,) sum of q_i."""
    weighted: Array
    """(K, d) sum of q_i x_i^T."""
    scatter: Array
    """(d, d) sum of x_i x_i^T."""
    total: Array
    """(d,) sum of x_i."""
    posteriors: Array
    """(K,) sum of y_i."""
    watched: Array
    """(4,) number of samples; sum of |y_i|^2; pairs of neighbours in the stream; sum of y_i.y_(i-1) over them."""
    confidences: Array
    """(1 + N_TEMPERATURES,) sum of the reference posterior's probability of the labels given, and of the confidence of
    the answers at each temperature. See `temperature.py`."""

    @classmethod
    def zeros(cls, backend: Backend, classes: int, dimension: int) -> Sums:
        shapes = {
            "counts": (classes,),
            "weighted": (classes, dimension),
            "scatter": (dimension, dimension),
            "total": (dimension,),
            "posteriors": (classes,),
            "watched": (4,),
            "confidences": (1 + N_TEMPERATURES,),
        }
        return cls(**{name: backend.zeros(shape) for name, shape in shapes.items()})

    @classmethod
    def from_labelled(cls, features: Array, labels: np.ndarray, classes: int) -> Sums:
        """Samples whose classes are known. They are not part of the stream and say nothing about its order."""
        backend, d = Backend.of(features), features.shape[1]
        q = backend.zeros((features.shape[0], classes))
        q[backend.index(np.arange(len(labels))), backend.index(labels)] = 1.0
        return cls.zeros(backend, classes, d).add_samples(features, q)

    def add_samples(self, features: Array, soft_labels: Array) -> Sums:
        """With these samples in the sums that the classes are estimated from."""
        xp = Backend.of(features).xp
        return self.add_labels(features, soft_labels)._replace(
            scatter=self.scatter + features.T @ features,
            total=self.total + xp.sum(features, axis=0),
        )

    def add_labels(self, features: Array, soft_labels: Array) -> Sums:
        """With soft labels of samples whose features are in the sums already."""
        xp = Backend.of(features).xp
        return self._replace(
            counts=self.counts + xp.sum(soft_labels, axis=0),
            weighted=self.weighted + soft_labels.T @ features,
        )

    def without_labels(self) -> Sums:
        """The sums that do not depend on the labels of the samples."""
        zeros = Sums.zeros(Backend.of(self.counts), *self.weighted.shape)
        return self._replace(counts=zeros.counts, weighted=zeros.weighted, confidences=zeros.confidences)

    def add_posteriors(self, posteriors: Array, last: Array | None, *, in_order: bool) -> Sums:
        """With zero-shot posteriors (n, K) of the stream; `last` (K,) is the one before the first of them. Without an
        order there are no neighbours."""
        backend = Backend.of(posteriors)
        xp, n = backend.xp, posteriors.shape[0]
        pairs, products = 0, backend.zeros(())
        if in_order:
            pairs = n - 1 + (last is not None)
            products = xp.sum(posteriors[1:] * posteriors[:-1])
            if last is not None:
                products = products + xp.sum(last * posteriors[0])
        added = backend.zeros((4,))
        added[0], added[1], added[2], added[3] = n, xp.sum(posteriors * posteriors), pairs, products
        return self._replace(
            posteriors=self.posteriors + xp.sum(posteriors, axis=0),
            watched=self.watched + added,
        )

    def add_confidences(self, confidences: Array) -> Sums:
        """With the rows (n, 1 + N_TEMPERATURES) of samples that were predicted."""
        xp = Backend.of(confidences).xp
        return self._replace(confidences=self.confidences + xp.sum(confidences, axis=0))

    def __add__(self, other: Sums) -> Sums:
        backend = Backend.of(self.counts)
        arrays = other.arrays().items()
        return Sums(
            **{name: getattr(self, name) + backend.asarray(array, backend.xp.float64) for name, array in arrays}
        )

    def arrays(self) -> dict[str, Array]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return self.arrays(), {}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> Sums:
        """New sums from saved arrays, which must have the shapes of these."""
        for name, array in self.arrays().items():
            if tuple(arrays[name].shape) != tuple(array.shape):
                raise ValueError(f"{name} has shape {tuple(arrays[name].shape)}, not {tuple(array.shape)}")
        for name in ("counts", "posteriors", "watched", "confidences"):
            check_range(name, arrays[name], 0)
        return Sums(**{name: arrays[name] for name in self.arrays()})

    def _replace(self, **arrays: Array) -> Sums:
        return Sums(**{**self.arrays(), **arrays})
