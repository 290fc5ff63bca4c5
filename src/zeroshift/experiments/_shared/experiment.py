"""What an experiment is: which jobs it needs, and what it concludes from their results."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zeroshift.evaluate import Job, JobOutcome
from zeroshift.experiments._shared.findings import Finding
from zeroshift.experiments._shared.suite import Member, Suite
from zeroshift.parameters import Number

__all__ = ["Chapter", "Experiment", "JobResults", "Options", "slug"]


def slug(text: str) -> str:
    """A file name from text: lower-case letters, digits and hyphens.

    >>> slug("CLIP ViT-B/16")
    'clip-vit-b-16'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "unnamed"


Record = Mapping[str, Any]

MOST_ORDERS = 1000
"""Upper limit for `Options.orders`."""

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


@dataclass(frozen=True)
class Options:
    """Options of every experiment."""

    orders: int = 3
    """Number of random orders of the stream, or of random draws. Slow jobs run in one order."""

    def __post_init__(self) -> None:
        Number(1, MOST_ORDERS, integer=True).check("orders", self.orders)


class JobResults:
    """The records of finished jobs, looked up by job."""

    def __init__(self, outcomes: Sequence[JobOutcome[Any]]) -> None:
        self._records = {o.job.key: o.record for o in outcomes if o.record is not None}
        self.failed = [outcome for outcome in outcomes if outcome.error is not None]

    def record(self, job: Job) -> Record | None:
        """The record of a job; None if it failed."""
        return self._records.get(job.key)

    def records(self, jobs: Sequence[Job]) -> list[Record]:
        """The records of the jobs that did not fail."""
        found = (self.record(job) for job in jobs)
        return [record for record in found if record is not None]


@dataclass(frozen=True)
class Experiment:
    """A named question about methods or features.

    `plan` returns the jobs the experiment needs; an empty list if the sets do not allow it. `find` turns their
    results into findings (None entries are ignored); it is called even without jobs, and then says why. Neither reads
    files nor prints.
    """

    name: str
    """Name on the command line: lower-case words with hyphens."""
    title: str
    question: str
    """The question, in a sentence or two."""
    plan: Callable[[Suite, Options], Sequence[Job]]
    find: Callable[[Suite, Options, JobResults], Sequence[Finding | None]]
    where: str = ""
    """Place in the paper, such as "Table 5" or "Tables 2 and 14"; empty for experiments that the paper does not have.
    The numbers are further names of the experiment: see `paper_names`."""
    tables: tuple[str, ...] = ()
    """Ids of the paper's tables for this experiment."""
    mixes_encoders: bool = False
    """Whether the sets of all encoders are analysed together. Other experiments run once per encoder."""
    extra_sets: Callable[[Suite], Sequence[Member]] | None = None
    """Makes further sets from the suite, such as several sets stacked into one. They are appended to the suite that
    `plan` and `find` get. It may load sets, and is called once."""

    @property
    def paper_names(self) -> tuple[str, ...]:
        """The tables and figures of the paper that it repeats, wholly or in part, such as `table-5` or `figure-2`."""
        named = re.findall(r"(Table|Figure)s? (\d+(?:(?:, | and )\d+)*)", self.where)
        return tuple(f"{kind.lower()}-{number}" for kind, text in named for number in re.findall(r"\d+", text))

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
    """The findings of one experiment."""

    experiment: Experiment
    findings: tuple[Finding, ...]
    jobs: tuple[Job, ...] = ()
    failed: tuple[str, ...] = field(default=())
    """Jobs that failed, and why."""
    seconds: float = 0.0
    """Total time of its runs, including those read from records."""
