"""The online mixture: every sample is predicted from those before it, then counted by its soft label."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from zeroshift.arrays import Array, Home, Rows
from zeroshift.mixture.base import AnchoredMixture
from zeroshift.mixture.statistics import Mixture, normalised
from zeroshift.mixture.sums import Sums
from zeroshift.mixture.temperature import N_TEMPERATURES
from zeroshift.parameters import Number, array_parameter, parameter
from zeroshift.zero_shot import logits

__all__ = ["OnlineAnchoredMixture"]

MOST_PENDING = 256
"""Samples counted together at most, however many were seen: more would be held in memory for nothing."""


class Pending(NamedTuple):
    """Room for samples that were answered but are not in the sums yet, row by row. `n_seen` says how many there are."""

    features: Array
    posteriors: Array
    soft_labels: Array
    confidences: Array

    def first(self, rows: int) -> Pending:
        return Pending(*(array[:rows] for array in self))


class Stage(NamedTuple):
    """Everything from one renewal of the statistics to the next: put in place at once, or not at all."""

    n: int
    """Samples in the sums."""
    sums: Sums
    mixture: Mixture | None
    before: Array | None
    """Zero-shot posterior (K,) of the last of them; None where none is the next one's neighbour."""
    pending: Pending


class OnlineAnchoredMixture(AnchoredMixture):
    """Predicts each sample from all before it, then counts it by its soft label: a Gaussian mixture whose means are
    anchored at the text, whose covariance is shared and shrunk, and which is trusted as far as the samples allow.

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
    Our own method; docs/anchored-mixture.md derives it and says where it loses. The state is sums: `merge` adds those
    of another stream. `save` keeps the samples since the last renewal too, so that a loaded method goes on bit for bit.
    """

    name = "anchored_mixture_online"
    protocol = "online"
    scored = "before"
    complexity = "O(K d + d^2) a sample; a renewal O(K d^2 + d^3), every 32nd part of the samples seen"

    staleness: float = parameter(
        Number(low=0, high=1),
        "The statistics are renewed when this share of the samples seen, or of K where fewer were seen, has come since they were. 1/32 is, with fewer than 64 classes, every sample up to the 64th, every second up to the 96th, every eighth at the 256th; with a thousand, every 31st up to the 1024th. Never less often than every 256. 0 renews them at every sample.",
        default=0.03125,
    )
    support: tuple[Array, Array] | None = array_parameter("Labelled samples, counted as certain.", default=None)

    _stage: Stage

    @property
    def _mixture(self) -> Mixture | None:
        self._renew()
        return self._stage.mixture

    def _stage_of(self, sums: Sums, before: Array | None, pending: Pending) -> Stage:
        return Stage(round(float(sums.watched[0])), sums, self._estimated(sums), before, pending)

    def _room(self) -> Pending:
        """The same from stage to stage: what a method holds does not grow with what it saw."""
        home, most = Home.of(self.prototypes), MOST_PENDING if self.staleness else 1
        widths = (self.dimension, self.n_classes, self.n_classes, 1 + N_TEMPERATURES)
        return Pending(*(home.zeros((most, width)) for width in widths))

    def _due(self, n: int) -> int:
        """Samples that go by, after `n`, until the statistics are renewed.

        Fewer than one a class say too little of the classes to be worth a renewal each: as long as there are no more,
        it is as if there were that many.
        """
        return max(1, min(int(self.staleness * max(n, self.n_classes)), MOST_PENDING))

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        start = 0
        while start < len(rows):
            self._renew()
            stop = min(len(rows), start + self._due(self._stage.n) - self._waiting)
            scores = self._answer_block(rows[start:stop])
            yield slice(start, stop), scores
            start = stop
        self._renew()

    @property
    def _waiting(self) -> int:
        """Samples seen that the statistics do not know yet."""
        return self.n_seen - self._stage.n

    def _answer_block(self, x: Array) -> Array:
        """All predicted with the same statistics; none of them is in these."""
        mixture, n = self._stage.mixture, x.shape[0]
        log_y, y = normalised(logits(x, self._wide_prototypes, self.logit_scale))
        scores, soft_labels, confidences = log_y, y, 0.0
        if mixture is not None:
            distances = mixture.distances(x)
            reading = mixture.read(log_y, distances)
            soft_labels = reading.posteriors
            soft_labels *= mixture.reliability
            soft_labels += (1.0 - mixture.reliability) * y
            confidences = mixture.confidences(log_y, distances, reading.answer)
            scores = mixture.temperature * reading.answer
        place = slice(self._waiting, self._waiting + n)
        for array, new in zip(self._stage.pending, (x, y, soft_labels, confidences), strict=True):
            array[place] = new
        # From here on the rows count; until here they were never seen.
        self.n_seen += n
        return scores

    def _renew(self) -> None:
        """Bring the statistics up to date where that is due."""
        if self._waiting >= self._due(self._stage.n):
            self._stage = self._stage_of(self._all_sums(), self._last(), self._stage.pending)

    def _all_sums(self) -> Sums:
        if not self._waiting:
            return self._stage.sums
        x, y, soft_labels, confidences = self._stage.pending.first(self._waiting)
        sums = self._stage.sums.learned(x, soft_labels).watching(y, self._stage.before, in_order=True)
        return sums if self._stage.mixture is None else sums.answering(confidences)

    def _last(self) -> Array | None:
        """The zero-shot posterior of the last sample."""
        if not self._waiting:
            return self._stage.before
        return Home.of(self.prototypes).copy(self._stage.pending.posteriors[self._waiting - 1])

    def _take(self, sums: Sums, n_seen: int) -> None:
        # What comes next is no neighbour of either stream's last.
        self._stage, self.n_seen = self._stage_of(sums, None, self._room()), n_seen

    def _adapt_view_scores(self, images: Rows) -> Iterator[tuple[slice, Array]]:
        return self._adapt_scores(self._averaged(images))

    def _state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        before = self._stage.before
        kept = {"before": self._stage.sums.posteriors * 0.0 if before is None else before}
        pending = self._stage.pending.first(self._waiting)
        return {**self._stage.sums.arrays(), **kept, **_named(pending)}, {"has_before": before is not None}

    def _restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        before = arrays["before"] if values["has_before"] else None
        self._stage = self._stage_of(self._stage.sums.restored(arrays), before, self._room())
        kept = arrays["pending_features"].shape[0]
        if kept != self._waiting or kept > self._due(self._stage.n):
            raise ValueError(f"pending_features has {kept} rows, but {self._waiting} samples are to be counted yet")
        for name, array in _named(self._stage.pending.first(kept)).items():
            if tuple(arrays[name].shape) != tuple(array.shape):
                raise ValueError(f"{name} has shape {tuple(arrays[name].shape)}, not {tuple(array.shape)}")
            array[:] = arrays[name]


def _named(pending: Pending) -> dict[str, Array]:
    """As they are saved, beside sums of the same things."""
    return {f"pending_{name}": array for name, array in pending._asdict().items()}
