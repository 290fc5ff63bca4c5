"""Whether methods end below zero-shot, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zeroshift.experiments.parts.claims import higher, samples_behind
from zeroshift.experiments.parts.findings import Remark

__all__ = ["Harm", "harm_remark"]

LEAST_DIFFERENCE = 0.1
"""Points: what a table can show. A gain nearer to zero is told as none."""


@dataclass(frozen=True)
class Harm:
    """A cell of the table, as far as it says whether a method does harm."""

    where: str
    gain: float
    """In points."""
    zero_shot: float
    samples: Sequence[int]
    """Of each set."""

    @property
    def sure(self) -> bool | None:
        """Whether it is none; None where that is too close to say."""
        after = self.zero_shot + self.gain / 100
        return higher(after, self.zero_shot, samples=samples_behind(self.samples))

    def __str__(self) -> str:
        return f"{self.where} ({self.gain:+.1f})"


def harm_remark(found: Sequence[Harm]) -> Remark:
    """Who ends below zero-shot, and where, of the cells that are there."""
    lost = [str(cell) for cell in found if cell.sure is False]
    close = [str(cell) for cell in found if cell.sure is None and cell.gain <= -LEAST_DIFFERENCE]
    said = [f"Below zero-shot, in points: {'; '.join(lost)}."] if lost else []
    said += [f"Below zero-shot by less than a standard error, too close to say: {'; '.join(close)}."] if close else []
    if not said:
        said = [f"Of {len(found)} gains none is below zero; {sum(cell.sure is True for cell in found)} are above it by "
                "more than a standard error."]  # fmt: skip
    return Remark(" ".join(said), kind="warning" if lost else "note")
