"""The online mixture: every sample is predicted from those before it, and is then counted by its soft label."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from zeroshift.arrays import Array, Backend, Rows
from zeroshift.mixture.base import AnchoredMixture
from zeroshift.mixture.statistics import normalize_scores
from zeroshift.mixture.sums import Sums
from zeroshift.mixture.temperature import N_TEMPERATURES
from zeroshift.parameters import Number, parameter, state
from zeroshift.zero_shot import logits

__all__ = ["OnlineAnchoredMixture"]

MAX_PENDING = 256
"""Largest number of samples counted together, which bounds the memory for pending samples."""


class Pending(NamedTuple):
    """Memory for samples that were predicted but are not in the sums yet, one row per sample."""

    features: Array
    posteriors: Array
    soft_labels: Array
    confidences: Array

    def first(self, rows: int) -> Pending:
        return Pending(*(array[:rows] for array in self))


class StreamSums:
    """Everything learned from a stream: sums up to the last update of the statistics, and the samples since."""

    def __init__(self, sums: Sums, pending: Pending) -> None:
        self.sums = sums
        self.last: Array | None = None
        """Zero-shot posterior (K,) of the last sample in the sums; None if the next sample does not follow it."""
        self.pending = pending
        self.n_pending = 0

    @property
    def n_counted(self) -> int:
        """Samples in the sums."""
        return round(float(self.sums.watched[0]))

    def add(self, features: Array, posteriors: Array, soft_labels: Array, confidences: Array | float) -> None:
        """Keep samples for the next update."""
        rows = slice(self.n_pending, self.n_pending + features.shape[0])
        for array, new in zip(self.pending, (features, posteriors, soft_labels, confidences), strict=True):
            array[rows] = new
        self.n_pending = rows.stop

    def all_sums(self) -> Sums:
        """The sums including pending samples."""
        if not self.n_pending:
            return self.sums
        x, y, soft_labels, confidences = self.pending.first(self.n_pending)
        sums = self.sums.add_samples(x, soft_labels).add_posteriors(y, self.last, in_order=True)
        return sums.add_confidences(confidences)

    def count_pending(self) -> None:
        """Move the pending samples into the sums."""
        if self.n_pending:
            last = Backend.of(self.pending.posteriors).copy(self.pending.posteriors[self.n_pending - 1])
            self.sums, self.last, self.n_pending = self.all_sums(), last, 0

    def merged(self, other: StreamSums) -> StreamSums:
        """The sums of both streams. The next sample follows neither stream's last one."""
        empty = Pending(*(array * 0.0 for array in self.pending))
        return StreamSums(self.all_sums() + other.all_sums(), empty)

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        last = self.sums.posteriors * 0.0 if self.last is None else self.last
        pending = self.pending.first(self.n_pending)._asdict()
        arrays = {f"pending_{name}": array for name, array in pending.items()}
        return {**self.sums.arrays(), "before": last, **arrays}, {"has_before": self.last is not None}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        self.sums = self.sums.restore(arrays, values)
        self.last = arrays["before"] if values["has_before"] else None
        self.n_pending = int(arrays["pending_features"].shape[0])
        if self.n_pending > self.pending.features.shape[0]:
            raise ValueError(f"pending_features has {self.n_pending} rows, more than are ever kept")
        for name, array in self.pending.first(self.n_pending)._asdict().items():
            saved = arrays[f"pending_{name}"]
            if tuple(saved.shape) != tuple(array.shape):
                raise ValueError(f"pending_{name} has shape {tuple(saved.shape)}, not {tuple(array.shape)}")
            array[:] = saved


class OnlineAnchoredMixture(AnchoredMixture):
    """Predicts each sample from all before it, then counts it by its soft label: a Gaussian mixture with means anchored
    at the text and one shrunk covariance, which is trusted as far as the samples seen allow.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift import OnlineAnchoredMixture
    >>> features = np.eye(3, 8)[[0, 1, 2, 1] * 4]
    >>> method = OnlineAnchoredMixture(np.eye(3, 8), logit_scale=10.0)
    >>> method.adapt(features).argmax(axis=1)[:4]
    array([0, 1, 2, 1])

    Notes
    -----
    Our own method; docs/anchored-mixture.md derives it and says where it is worse than others. The state is sums:
    `merge` adds those of another stream. `save` also keeps the samples since the last update of the statistics, so that
    a loaded method continues bit for bit.
    """

    name = "anchored_mixture_online"
    protocol = "online"
    scored = "before"
    complexity = "O(K d + d^2) per sample; an update of the statistics O(K d^2 + d^3), after 1/32 of the samples seen"

    correlation: float = parameter(
        Number(low=0, above=True),
        "Correlation between neighbouring posteriors at which half of `relief` applies.",
        default=0.06,
    )
    relief: float = parameter(
        Number(low=0, high=1),
        "Share of the Gaussians left out of the answers when neighbours are fully alike, as in a stream sorted by "
        "class: 1 answers zero-shot there, 0 ignores the order.",
        default=1.0,
    )
    staleness: float = parameter(
        Number(low=0, high=1),
        "The statistics are updated when this share of the samples seen (of K if fewer were seen) has arrived since "
        "the last update. With 1/32 and fewer than 64 classes that is every sample up to the 64th and every eighth at "
        "the 256th; with 1000 classes every 31st up to the 1024th. At least every 256 samples. 0 updates "
        "at every sample.",
        default=0.03125,
    )

    _stream: StreamSums = state(
        lambda self: StreamSums(self._zero_sums(), self._empty_pending()), saved_as="", merge=StreamSums.merged
    )

    def _empty_pending(self) -> Pending:
        backend, rows = Backend.of(self.prototypes), MAX_PENDING if self.staleness else 1
        widths = (self.dimension, self.n_classes, self.n_classes, 1 + N_TEMPERATURES)
        return Pending(*(backend.zeros((rows, width)) for width in widths))

    def _current_sums(self) -> Sums:
        return self._stream.sums

    def _all_sums(self) -> Sums:
        return self._stream.all_sums()

    def _update_interval(self, n: int) -> int:
        """Samples from one update of the statistics, after `n` samples, to the next.

        Fewer samples than classes say too little to be worth an update each, so `n` counts as at least K.
        """
        return max(1, min(int(self.staleness * max(n, self.n_classes)), MAX_PENDING))

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        start = 0
        while start < len(rows):
            left = self._update_interval(self._stream.n_counted) - self._stream.n_pending
            stop = min(len(rows), start + left)
            yield slice(start, stop), self._adapt_block(rows[start:stop])
            start = stop

    def _adapt_block(self, x: Array) -> Array:
        """Predict the samples with the present statistics, which contain none of them; then count them."""
        mixture = self._mixture
        log_y, y = normalize_scores(logits(x, self._wide_prototypes, self.logit_scale))
        scores, soft_labels, confidences = log_y, y, 0.0
        if mixture is not None:
            distances = mixture.distances(x)
            predicted = mixture.posteriors(log_y, distances)
            soft_labels = predicted.posteriors
            soft_labels *= mixture.reliability
            soft_labels += (1.0 - mixture.reliability) * y
            confidences = mixture.confidences(log_y, distances, predicted.answer)
            scores = mixture.temperature * predicted.answer
        with self._learning(x.shape[0]):
            self._stream.add(x, y, soft_labels, confidences)
            if self._stream.n_pending >= self._update_interval(self._stream.n_counted):
                self._stream.count_pending()
                self._derive()
        return scores

    def _adapt_view_scores(self, images: Rows) -> Iterator[tuple[slice, Array]]:
        return self._adapt_scores(self._averaged(images))

    def _restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        super()._restore(arrays, values)
        counted, pending = self._stream.n_counted, self._stream.n_pending
        if counted + pending != self.n_seen or pending > self._update_interval(counted):
            raise ValueError(f"{counted} samples in the sums and {pending} pending do not make n_seen = {self.n_seen}")
