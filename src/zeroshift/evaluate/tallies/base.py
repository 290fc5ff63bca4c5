"""What every tally is: settings, a count that grows sample by sample, and a sum of two counts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from zeroshift.arrays import Array
from zeroshift.evaluate.tallies.predictions import Predictions

__all__ = ["PredictionTally", "Tally"]


class Tally(ABC):
    """A metric as it is counted. Merging what shards counted gives the whole's count: exactly where whole numbers are
    counted, to rounding where floats are summed, in any order."""

    n_samples: int = 0
    """Samples counted so far."""

    @property
    def settings(self) -> dict[str, Any]:
        """What two tallies must share to be merged."""
        return {}

    def merge(self, other: Tally) -> None:
        """Add what `other` counted; it is left as it is."""
        if type(other) is not type(self):
            given = "None" if other is None else _a(type(other))
            raise TypeError(f"other must be {_a(type(self))}; got {given}. Fix: merge tallies of one kind.")
        if other.settings != self.settings:
            raise ValueError(
                f"other was counted with {_told(other.settings)}, this {type(self).__name__} with "
                f"{_told(self.settings)}; such counts do not add up. Fix: the same settings for every shard."
            )
        self._add(other)
        self.n_samples += other.n_samples

    @abstractmethod
    def _add(self, other: Any) -> None:
        """Add the counts of a tally of the same kind and settings; `n_samples` is added for it."""

    def _some(self) -> int:
        """Samples counted, of which there must be one."""
        if self.n_samples == 0:
            raise ValueError(f"this {type(self).__name__} has counted no sample yet. Fix: update() it first.")
        return self.n_samples


class PredictionTally(Tally):
    """A tally of probabilities against labels."""

    def update(self, probabilities: Array, labels: Array) -> None:
        """Count some samples: probabilities (n, K), true classes (n,)."""
        self.count(Predictions.of(probabilities, labels))

    def count(self, said: Predictions) -> None:
        """`update` with what is checked already; nothing is counted where it is refused."""
        if not isinstance(said, Predictions):
            raise TypeError(f"said must be Predictions; got {type(said).__name__}. Fix: update(probabilities, labels).")
        classes = self.settings.get("classes", said.classes)
        if classes != said.classes:
            raise ValueError(
                f"probabilities must have {classes} columns, one for each class; got {said.classes}. "
                f"Fix: {type(self).__name__}(classes={said.classes})."
            )
        self._count(said)
        self.n_samples += len(said)

    @abstractmethod
    def _count(self, said: Predictions) -> None:
        """Add these samples to the counts; `n_samples` is added for it."""


def _a(kind: type) -> str:
    return f"{'an' if kind.__name__[0] in 'AEIOUaeiou' else 'a'} {kind.__name__}"


def _told(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items()) or "no settings"
