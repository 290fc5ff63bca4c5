"""All the mixture knows of the samples it saw: sums, so that what two shards know is what both know, added."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from zeroshift.arrays import Array, Home
from zeroshift.mixture.temperature import N_TEMPERATURES

__all__ = ["Sums"]


@dataclass(frozen=True)
class Sums:
    """Of samples x_i with soft labels q_i and zero-shot posteriors y_i; float64, and never written to."""

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
    """(4,) samples; sum of |y_i|^2; pairs of neighbours in the stream; sum of y_i.y_(i-1) over these."""
    confidences: Array
    """(1 + N_TEMPERATURES,) sum of what a calm look believes of the labels given, and of the confidences in them at
    each temperature. See `temperature.py`."""

    @classmethod
    def none(cls, home: Home, classes: int, dimension: int) -> Sums:
        shapes = {
            "counts": (classes,),
            "weighted": (classes, dimension),
            "scatter": (dimension, dimension),
            "total": (dimension,),
            "posteriors": (classes,),
            "watched": (4,),
            "confidences": (1 + N_TEMPERATURES,),
        }
        return cls(**{name: home.zeros(shape) for name, shape in shapes.items()})

    @classmethod
    def of_labelled(cls, features: Array, labels: np.ndarray, classes: int) -> Sums:
        """Samples whose classes are known. They were not in the stream, and nothing is said of it."""
        home, d = Home.of(features), features.shape[1]
        q = home.zeros((features.shape[0], classes))
        q[home.index(np.arange(len(labels))), home.index(labels)] = 1.0
        return cls.none(home, classes, d).learned(features, q)

    def learned(self, features: Array, soft_labels: Array) -> Sums:
        """With these samples in the sums the classes are estimated from."""
        xp = Home.of(features).xp
        return self.relabelled(features, soft_labels)._changed(
            scatter=self.scatter + features.T @ features,
            total=self.total + xp.sum(features, axis=0),
        )

    def relabelled(self, features: Array, soft_labels: Array) -> Sums:
        """With soft labels of samples whose features are in the sums already."""
        xp = Home.of(features).xp
        return self._changed(
            counts=self.counts + xp.sum(soft_labels, axis=0),
            weighted=self.weighted + soft_labels.T @ features,
        )

    def unlabelled(self) -> Sums:
        """What the sums hold whatever the samples' labels."""
        nothing = Sums.none(Home.of(self.counts), *self.weighted.shape)
        return self._changed(counts=nothing.counts, weighted=nothing.weighted, confidences=nothing.confidences)

    def watching(self, posteriors: Array, before: Array | None, *, in_order: bool) -> Sums:
        """With zero-shot posteriors (n, K) of the stream; `before` (K,) is the one before the first. Without an order
        there are no neighbours."""
        home = Home.of(posteriors)
        xp, n = home.xp, posteriors.shape[0]
        pairs, products = 0, home.zeros(())
        if in_order:
            pairs = n - 1 + (before is not None)
            products = xp.sum(posteriors[1:] * posteriors[:-1])
            if before is not None:
                products = products + xp.sum(before * posteriors[0])
        more = home.zeros((4,))
        more[0], more[1], more[2], more[3] = n, xp.sum(posteriors * posteriors), pairs, products
        return self._changed(
            posteriors=self.posteriors + xp.sum(posteriors, axis=0),
            watched=self.watched + more,
        )

    def answering(self, confidences: Array) -> Sums:
        """With the rows (n, 1 + N_TEMPERATURES) of samples that were answered."""
        xp = Home.of(confidences).xp
        return self._changed(confidences=self.confidences + xp.sum(confidences, axis=0))

    def __add__(self, other: Sums) -> Sums:
        return Sums(**{name: array + getattr(other, name) for name, array in self.arrays().items()})

    def arrays(self) -> dict[str, Array]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def restored(self, arrays: Mapping[str, Array]) -> Sums:
        """Of saved arrays, which must be of the same shapes."""
        for name, array in self.arrays().items():
            if tuple(arrays[name].shape) != tuple(array.shape):
                raise ValueError(f"{name} has shape {tuple(arrays[name].shape)}, not {tuple(array.shape)}")
        return Sums(**{name: arrays[name] for name in self.arrays()})

    def _changed(self, **arrays: Array) -> Sums:
        return Sums(**{**self.arrays(), **arrays})
