"""Experiments done: their work gathered, each piece once, handed to the runner, and the answers to the experiments."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from zeroshift.evaluate import DatasetRef, Job, JobOutcome, Ledger, run_jobs
from zeroshift.experiments._shared.experiment import Answers, Chapter, Experiment, Options, slug
from zeroshift.experiments._shared.findings import Finding, Remark
from zeroshift.experiments._shared.suite import Suite

__all__ = ["Investigation", "Planned"]


@dataclass(frozen=True)
class Planned:
    """An experiment, the sets it knows, and the work it needs."""

    experiment: Experiment
    suites: tuple[Suite, ...]
    """The sets it is asked about, with what it makes of them: those of each encoder apart, unless it mixes them."""
    jobs: tuple[Job, ...]
    error: str | None = None
    """Why it could not say what it needs: the others are done all the same."""

    @classmethod
    def of(cls, experiment: Experiment, suite: Suite, options: Options) -> Planned:
        apart = (suite,) if experiment.mixes_encoders else tuple(suite.by_encoder)
        try:
            if experiment.sets is not None:
                apart = tuple(Suite((*part.members, *experiment.sets(part))) for part in apart)
            jobs = tuple(job for part in apart for job in experiment.plan(part, options))
            return cls(experiment, apart, jobs)
        except Exception as error:
            return cls(experiment, apart, (), f"could not be planned: {type(error).__name__}: {error}")

    def chapter(self, options: Options, answers: Answers) -> Chapter:
        """What it finds; where it cannot sum its runs up, that, and why."""
        keys = {job.key for job in self.jobs}
        failed = [f"{o.job}: {o.error}" for o in answers.failed if o.job.key in keys]
        seconds = sum(float(record.get("seconds") or 0.0) for record in answers.all_of(self.jobs))
        why = self.error
        if why is None:
            try:
                return Chapter(self.experiment, self._found(options, answers), self.jobs, tuple(failed), seconds)
            except Exception as error:
                why = f"could not be summed up: {type(error).__name__}: {error}"
        remark = Remark(f"This experiment {why.rstrip('.')}.", kind="warning")
        return Chapter(self.experiment, (remark,), self.jobs, (*failed, f"{self.experiment.name} {why}"), seconds)

    def _found(self, options: Options, answers: Answers) -> tuple[Finding, ...]:
        found = [tuple(self.experiment.find(part, options, answers)) for part in self.suites]
        if len(found) == 1:
            return found[0]
        encoders = [part.encoders[0] for part in self.suites]
        marks = [slug(encoder) for encoder in encoders]
        if len(set(marks)) < len(marks):  # names that differ in signs alone come to the same letters
            marks = [f"{mark}-{place}" for place, mark in enumerate(marks, start=1)]
        named = zip(encoders, marks, found, strict=True)
        return tuple(_of_encoder(finding, encoder, mark) for encoder, mark, findings in named for finding in findings)


def _of_encoder(finding: Finding, encoder: str, mark: str) -> Finding:
    """The same, said to be of one encoder."""
    if isinstance(finding, Remark):
        return replace(finding, text=f"{encoder}: {finding.text}")
    return replace(finding, name=f"{finding.name}-{mark}", title=f"{encoder}: {finding.title}")


@dataclass(frozen=True)
class Investigation:
    """Experiments on a suite of sets."""

    suite: Suite
    options: Options
    planned: tuple[Planned, ...]

    @classmethod
    def of(cls, experiments: Sequence[Experiment], suite: Suite, options: Options | None = None) -> Investigation:
        """What is to be done; nothing is done yet."""
        if isinstance(experiments, (str, Experiment)) or not all(isinstance(e, Experiment) for e in experiments):
            raise TypeError(
                f"experiments must be a list of experiments; got {experiments!r}. "
                "Fix: [get('ablation')], with zeroshift.experiments.get."
            )
        if not isinstance(suite, Suite):
            raise TypeError(f"suite must be a Suite; got {type(suite).__name__}. Fix: Suite.of({{name: features}}).")
        if not suite.members:
            raise ValueError("suite holds no set; there is nothing to ask. Fix: Suite.of({name: features}).")
        options = options or Options()
        return cls(suite, options, tuple(Planned.of(experiment, suite, options) for experiment in experiments))

    @property
    def jobs(self) -> list[Job]:
        """All work, each piece once, set by set so that a process loads a set but once."""
        unique = {job.key: job for planned in self.planned for job in planned.jobs}
        places = {digest: place for place, digest in enumerate(self._datasets)}
        return sorted(unique.values(), key=lambda job: places[job.digest])

    def run(
        self, ledger: Ledger, *, processes: int = 0, again: bool = False, notes: Mapping[str, Any] | None = None
    ) -> Generator[JobOutcome[Job], None, None]:
        """Do what `ledger` has no record of; a progress record for each piece as it is there."""
        loaders = {digest: dataset.load for digest, dataset in self._datasets.items()}
        return run_jobs(self.jobs, loaders, ledger, processes=processes, again=again, notes=notes)

    def chapters(self, outcomes: Sequence[JobOutcome[Job]]) -> list[Chapter]:
        """What each experiment finds in what `run` yielded."""
        answers = Answers(outcomes)
        return [planned.chapter(self.options, answers) for planned in self.planned]

    @property
    def _datasets(self) -> dict[str, DatasetRef]:
        """Every set any experiment knows, by what it holds."""
        datasets: dict[str, DatasetRef] = {}
        for known in (self.suite, *(suite for planned in self.planned for suite in planned.suites)):
            for member in known.members:
                datasets.setdefault(member.dataset.digest, member.dataset)
        return datasets
