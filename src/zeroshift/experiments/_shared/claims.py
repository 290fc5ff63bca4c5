"""What the paper concludes, held against what came out here; and its table beside ours where the data differ."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from zeroshift.evaluate import gain_interval
from zeroshift.experiments._shared.findings import Finding, Remark
from zeroshift.experiments._shared.suite import Suite
from zeroshift.experiments._shared.tables import ROUNDING, data_differs, data_remark, reference
from zeroshift.experiments._shared.tasks import PAPERS_BACKBONE

__all__ = [
    "Evidence",
    "above_zero_shot",
    "all_hold",
    "effective_samples",
    "gain_sign",
    "higher",
    "paper_reference",
    "standard_error",
    "verdict",
    "within",
]


@dataclass(frozen=True)
class Evidence:
    """Whether a claim holds in one place, and the numbers that say so."""

    where: str
    """"corruption", "online": what the place is called in a sentence."""
    holds: bool | None
    """None where the numbers are too close to say: a tie is neither for the claim nor against it."""
    detail: str
    """"45.1 to 47.6"."""

    def __str__(self) -> str:
        return f"{self.where} ({self.detail})"


def verdict(claim: str, evidence: Sequence[Evidence]) -> Remark | None:
    """A claim of the paper, and where it holds here: a warning where it does not. None without evidence.

    >>> verdict("pruning lowers accuracy", [Evidence("corruption", False, "+4.0 points")])
    Remark(text='The paper finds that pruning lowers accuracy. Not so here: corruption (+4.0 points).', kind='warning')
    >>> verdict("pruning lowers accuracy", [Evidence("corruption", None, "-0.1 points")]).text
    'The paper finds that pruning lowers accuracy. Too close to say here: corruption (-0.1 points).'
    """
    if not evidence:
        return None
    results = (("not so", False), ("so it is", True), ("too close to say", None))
    listed = ((answer, "; ".join(str(e) for e in evidence if e.holds is holds)) for answer, holds in results)
    (first, places), *others = ((answer, places) for answer, places in listed if places)
    begins = f"The paper finds that {claim}. {first.capitalize()} here"
    kind: Literal["warning", "note"] = "warning" if first == "not so" else "note"
    if not others:
        return Remark(f"{begins}: {places}.", kind)
    further = (f"; {answer} for {where}" for answer, where in others)
    return Remark(f"{begins} for {places}{''.join(further)}.", kind)


def all_hold(results: Iterable[bool | None]) -> bool | None:
    """Whether all answers are yes: no where one is no, too close to say where one is, and where there are none.

    >>> all_hold([True, True]), all_hold([True, None]), all_hold([None, False]), all_hold([])
    (True, None, False, None)
    """
    found = list(results)
    if not found:
        return None
    return False if False in found else None if None in found else True


def standard_error(a: float, b: float, samples: float) -> float:
    """Of the difference of two accuracies (fractions), each of as many samples, as if the samples were not the same.

    A deliberately simple rule. Two methods on the same samples mostly agree, so that their true difference is surer
    than this: what counts as too close to say is rather too much than too little.

    >>> round(100 * standard_error(0.5, 0.5, 5000), 2)
    1.0
    """
    return math.sqrt((a * (1 - a) + b * (1 - b)) / samples)


def higher(a: float, b: float, *, samples: float, by: float = 0.0) -> bool | None:
    """Whether accuracy `a` lies above `b`, by more than `by`: all are fractions.

    None where that is too close to say: where `a` is less than one `standard_error` away from `b + by`. A tie always
    is. For means over sets, `samples` is what `effective_samples` says.

    >>> higher(0.80, 0.70, samples=1000), higher(0.70, 0.80, samples=1000), higher(0.705, 0.70, samples=1000)
    (True, False, None)
    """
    gap = a - b - by
    if abs(gap) <= max(standard_error(a, b, samples), ROUNDING):
        return None
    return gap > 0


def within(low: float, high: float, limit: float, *, samples: float) -> bool | None:
    """Whether two accuracies lie at most `limit` apart: all are fractions.

    What was measured within the limit is within it. What was measured beyond it is beyond only where that is more than
    one `standard_error`, and too close to say otherwise.

    >>> [within(0.70, high, 0.01, samples=1000) for high in (0.705, 0.715, 0.75)]
    [True, None, False]
    """
    beyond = high - low - limit
    if beyond <= ROUNDING:
        return True
    return None if beyond <= standard_error(low, high, samples) else False


def effective_samples(sizes: Iterable[int]) -> float:
    """How many samples of one set would make an accuracy as sure as the mean over sets of these sizes is.

    >>> effective_samples([500]), effective_samples([500, 500]), round(effective_samples([10, 10_000]))
    (500.0, 1000.0, 40)
    """
    counts = list(sizes)
    return len(counts) ** 2 / sum(1 / count for count in counts)


def gain_sign(record: Mapping[str, Any]) -> bool | None:
    """Whether a run is above zero-shot on its own samples; None where the interval of its gain holds zero.

    >>> (
    ...     gain_sign({"paired": [70, 20, 2, 8]}),
    ...     gain_sign({"paired": [70, 2, 20, 8]}),
    ...     gain_sign({"paired": [70, 9, 8, 13]}),
    ... )
    (True, False, None)
    """
    low, high = gain_interval(record["paired"])
    return True if low > 0 else False if high < 0 else None


def above_zero_shot(records: Sequence[Mapping[str, Any]]) -> bool | None:
    """Whether a method is above zero-shot on the mean over sets, given its record for each: of one set, `gain_sign`."""
    if len(records) == 1:
        return gain_sign(records[0])
    after, before = (
        sum(float(record[name]) for record in records) / len(records) for name in ("accuracy", "zero_shot_accuracy")
    )
    return higher(after, before, samples=effective_samples(int(record["scored"]) for record in records))


def paper_reference(suite: Suite, *tables: str, needs: Sequence[str] = ()) -> list[Finding]:
    """How our data, prompts or backbone differ from the paper's, where they do, and its own tables where its numbers
    do not stand in ours.

    `needs` are the sets, by their ids in the catalogue, that the printed tables are of; without, all of each task.
    """
    other = [encoder for encoder in suite.encoders if encoder != PAPERS_BACKBONE]
    backbone = None
    if other and not data_differs(suite, needs):
        backbone = Remark(f"The paper's numbers are of {PAPERS_BACKBONE}, ours of {' and '.join(other)}.", kind="data")
    text = [remark for remark in (data_remark(suite, needs=needs), backbone) if remark is not None]
    shown = tables if other or data_differs(suite, needs) else ()
    return [*text, *(reference(table) for table in shown)]
