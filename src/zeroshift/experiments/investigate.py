"""Experiments done: their work gathered, each piece once, handed to the runner, and the answers to the experiments."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zeroshift.evaluate import Entry, Job, Ledger, Outcome, run_jobs
from zeroshift.experiments.parts.experiment import Answers, Chapter, Experiment, Options
from zeroshift.experiments.parts.suite import Suite

__all__ = ["Investigation"]


@dataclass(frozen=True)
class Investigation:
    """Experiments on a suite of sets."""

    experiments: tuple[Experiment, ...]
    suite: Suite
    options: Options
    seen: tuple[Suite, ...]
    """The sets each experiment knows: the suite's, and what it makes of them."""
    planned: tuple[tuple[Job, ...], ...]
    """The work of each experiment."""

    @classmethod
    def of(cls, experiments: Sequence[Experiment], suite: Suite, options: Options | None = None) -> Investigation:
        options = options or Options()
        seen = tuple(
            suite if experiment.sets is None else Suite((*suite.members, *experiment.sets(suite)))
            for experiment in experiments
        )
        planned = tuple(
            tuple(experiment.plan(known, options)) for experiment, known in zip(experiments, seen, strict=True)
        )
        return cls(tuple(experiments), suite, options, seen, planned)

    @property
    def jobs(self) -> list[Job]:
        """All work, each piece once, set by set so that a process loads a set but once."""
        unique = {job.key: job for jobs in self.planned for job in jobs}
        places = {digest: place for place, digest in enumerate(self._entries)}
        return sorted(unique.values(), key=lambda job: places[job.digest])

    def run(
        self, ledger: Ledger, *, processes: int = 0, again: bool = False, notes: Mapping[str, Any] | None = None
    ) -> Generator[Outcome[Job], None, None]:
        """Do what `ledger` has no record of; a progress record for each piece as it is there."""
        loaders = {digest: entry.load for digest, entry in self._entries.items()}
        return run_jobs(self.jobs, loaders, ledger, processes=processes, again=again, notes=notes)

    @property
    def _entries(self) -> dict[str, Entry]:
        """Every set any experiment knows, by what it holds."""
        entries: dict[str, Entry] = {}
        for known in (self.suite, *self.seen):
            for member in known.members:
                entries.setdefault(member.entry.digest, member.entry)
        return entries

    def chapters(self, outcomes: Sequence[Outcome[Job]]) -> list[Chapter]:
        """What each experiment finds in what `run` yielded."""
        answers = Answers(outcomes)
        chapters = []
        for experiment, known, jobs in zip(self.experiments, self.seen, self.planned, strict=True):
            keys = {job.key for job in jobs}
            chapters.append(
                Chapter(
                    experiment,
                    tuple(experiment.find(known, self.options, answers)),
                    jobs,
                    tuple(f"{o.job}: {o.error}" for o in answers.failed if o.job.key in keys),
                    sum(float(record.get("seconds", 0.0)) for record in answers.all_of(jobs)),
                )
            )
        return chapters
