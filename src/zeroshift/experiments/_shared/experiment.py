"""The one shape of an experiment: which work it needs, and what it finds in the answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zeroshift.evaluate import Job, JobOutcome
from zeroshift.experiments._shared.findings import Finding
from zeroshift.experiments._shared.suite import Member, Suite
from zeroshift.parameters import Number

__all__ = ["Answers", "Chapter", "Experiment", "Options", "slug"]


# Names of files from words.


def slug(words: str) -> str:
    """Lower-case letters, digits and hyphens.

    >>> slug("CLIP ViT-B/16")
    'clip-vit-b-16'
    """
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-") or "unnamed"


Record = Mapping[str, Any]

MOST_ORDERS = 1000
"""More would be planned for longer than they are worth: the standard error of a mean falls with their square root."""

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


@dataclass(frozen=True)
class Options:
    """What a user may choose, the same for every experiment."""

    orders: int = 3
    """Random orders of the stream, or draws of samples. Work that takes long is done in one order all the same."""

    def __post_init__(self) -> None:
        Number(1, MOST_ORDERS, integer=True).check("orders", self.orders)


class Answers:
    """Records of the work that is done, found by the work itself."""

    def __init__(self, outcomes: Sequence[JobOutcome[Any]]) -> None:
        self._records = {o.job.key: o.record for o in outcomes if o.record is not None}
        self.failed = [outcome for outcome in outcomes if outcome.error is not None]

    def of(self, job: Job) -> Record | None:
        """None where it failed."""
        return self._records.get(job.key)

    def all_of(self, jobs: Sequence[Job]) -> list[Record]:
        """Those that did not fail."""
        found = (self.of(job) for job in jobs)
        return [record for record in found if record is not None]


@dataclass(frozen=True)
class Experiment:
    """A named question about methods or features.

    `plan` says what work is needed; it may be empty where the sets do not allow the question. `find` makes findings of
    the answers; it is called even then, and says why. Both are pure: no file is read, nothing is printed.
    """

    name: str
    """What the command line takes: lower-case words with hyphens."""
    title: str
    question: str
    """What is asked, in a sentence or two."""
    plan: Callable[[Suite, Options], Sequence[Job]]
    find: Callable[[Suite, Options, Answers], Sequence[Finding]]
    where: str = ""
    """Where in the paper: "Table 5", "Figure 3"; empty for what the paper does not have."""
    tables: tuple[str, ...] = ()
    """Ids of the paper's tables that belong to it."""
    mixes_encoders: bool = False
    """Whether it wants the sets of all encoders at once. Others are asked once for each encoder: means over several
    mean nothing."""
    sets: Callable[[Suite], Sequence[Member]] | None = None
    """Further sets it makes of the suite's own, such as several stacked into one: `plan` and `find` then see a suite
    that ends with them. It may load sets, and is asked once."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            raise ValueError(
                f"name must be lower-case words joined by hyphens, as a command line takes them; got {self.name!r}. "
                "Fix: for example name='bank-size'."
            )
        for what in ("plan", "find"):
            if not callable(getattr(self, what)):
                raise TypeError(f"{what} must be a function; got {getattr(self, what)!r}. Fix: {what}={what}.")


@dataclass(frozen=True)
class Chapter:
    """What one experiment found."""

    experiment: Experiment
    findings: tuple[Finding, ...]
    jobs: tuple[Job, ...] = ()
    failed: tuple[str, ...] = field(default=())
    """Work that failed, and why."""
    seconds: float = 0.0
    """Time its runs took, those read from records included."""
