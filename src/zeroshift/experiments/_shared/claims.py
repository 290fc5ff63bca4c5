"""Comparing the conclusions of the paper with our results, and the paper's tables next to ours if the data
differ."""

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
    "ClaimEvidence",
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
class ClaimEvidence:
    """Whether a claim holds for one task, set or protocol, and the numbers for it."""

    where: str
    """Name of the task, set or protocol in a sentence."""
    holds: bool | None
    """None if the difference is too small to decide."""
    detail: str
    """The numbers, such as "45.1 to 47.6"."""

    def __str__(self) -> str:
        return f"{self.where} ({self.detail})"


def verdict(claim: str, evidence: Sequence[ClaimEvidence]) -> Remark | None:
    """A claim of the paper and where it holds in our results; a warning if it does not. None without evidence.

    >>> remark = verdict("pruning lowers accuracy", [ClaimEvidence("tiny", False, "+4.0 points")])
    >>> remark.text
    'The paper finds that pruning lowers accuracy. Not confirmed here: tiny (+4.0 points).'
    >>> remark.kind, remark.claim
    ('warning', 'not confirmed')
    >>> verdict("pruning lowers accuracy", [ClaimEvidence("corruption", None, "-0.1 points")]).text
    'The paper finds that pruning lowers accuracy. Too close to call here: corruption (-0.1 points).'
    """
    if not evidence:
        return None
    results = (("not confirmed", False), ("confirmed", True), ("too close to call", None))
    listed = ((answer, "; ".join(str(e) for e in evidence if e.holds is holds)) for answer, holds in results)
    (first, places), *others = ((answer, places) for answer, places in listed if places)
    begins = f"The paper finds that {claim}. {first.capitalize()} here"
    kind: Literal["warning", "note"] = "warning" if first == "not confirmed" else "note"
    answer_here: Any = {True: "confirmed", False: "not confirmed", None: "undecided"}[
        all_hold(e.holds for e in evidence)
    ]
    if not others:
        return Remark(f"{begins}: {places}.", kind, answer_here)
    further = (f"; {answer} for {where}" for answer, where in others)
    return Remark(f"{begins} for {places}{''.join(further)}.", kind, answer_here)


def all_hold(results: Iterable[bool | None]) -> bool | None:
    """Whether all values are True: False if one is False, None if one is undecided or there are no values.

    >>> all_hold([True, True]), all_hold([True, None]), all_hold([None, False]), all_hold([])
    (True, None, False, None)
    """
    found = list(results)
    if not found:
        return None
    return False if False in found else None if None in found else True


def standard_error(a: float, b: float, samples: float) -> float:
    """Standard error of the difference of two accuracies (fractions) of `samples` samples each, as if independent.

    Deliberately simple and conservative: two methods on the same samples mostly agree, so that the true standard error
    is smaller.

    >>> round(100 * standard_error(0.5, 0.5, 5000), 2)
    1.0
    """
    return math.sqrt((a * (1 - a) + b * (1 - b)) / samples)


def higher(a: float, b: float, *, samples: float, by: float = 0.0) -> bool | None:
    """Whether accuracy `a` exceeds `b` by more than `by` (all fractions).

    None if `a` is less than one `standard_error` away from `b + by`. For means over sets, `samples` comes from
    `effective_samples`.

    >>> higher(0.80, 0.70, samples=1000), higher(0.70, 0.80, samples=1000), higher(0.705, 0.70, samples=1000)
    (True, False, None)
    """
    gap = a - b - by
    if abs(gap) <= max(standard_error(a, b, samples), ROUNDING):
        return None
    return gap > 0


def within(low: float, high: float, limit: float, *, samples: float) -> bool | None:
    """Whether two accuracies differ by at most `limit` (all fractions).

    True if the measured difference is within the limit; False if it exceeds the limit by more than one
    `standard_error`; None otherwise.

    >>> [within(0.70, high, 0.01, samples=1000) for high in (0.705, 0.715, 0.75)]
    [True, None, False]
    """
    beyond = high - low - limit
    if beyond <= ROUNDING:
        return True
    return None if beyond <= standard_error(low, high, samples) else False


def effective_samples(sizes: Iterable[int]) -> float:
    """Number of samples of one set that would give the same precision as the mean over sets of these sizes.

    >>> effective_samples([500]), effective_samples([500, 500]), round(effective_samples([10, 10_000]))
    (500.0, 1000.0, 40)
    """
    counts = list(sizes)
    return len(counts) ** 2 / sum(1 / count for count in counts)


def gain_sign(record: Mapping[str, Any]) -> bool | None:
    """Whether a run is better than zero-shot on its samples; None if the interval of its gain contains zero.

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
    """Whether a method is better than zero-shot on the mean over sets, given one record per set; see `gain_sign` for
    one set."""
    if len(records) == 1:
        return gain_sign(records[0])
    after, before = (
        sum(float(record[name]) for record in records) / len(records) for name in ("accuracy", "zero_shot_accuracy")
    )
    return higher(after, before, samples=effective_samples(int(record["scored"]) for record in records))


def paper_reference(suite: Suite, *tables: str, needs: Sequence[str] = ()) -> list[Finding]:
    """Remarks on how our data, prompts or backbone differ from the paper's, and its tables if its numbers are not in
    ours.

    `needs` are the catalogue ids of the sets of the printed tables; by default all sets of each task.
    """
    other = [encoder for encoder in suite.encoders if encoder != PAPERS_BACKBONE]
    backbone = None
    if other and not data_differs(suite, needs):
        backbone = Remark(f"The paper's numbers are of {PAPERS_BACKBONE}, ours of {' and '.join(other)}.", kind="data")
    text = [remark for remark in (data_remark(suite, needs=needs), backbone) if remark is not None]
    shown = tables if other or data_differs(suite, needs) else ()
    return [*text, *(reference(table) for table in shown)]
