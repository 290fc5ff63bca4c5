"""Running experiments: collect their jobs, run each job once, and hand the results to the experiments."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from zeroshift.distributed import Executor
from zeroshift.evaluate import DatasetRef, Job, JobOutcome, Ledger, run_jobs
from zeroshift.experiments._shared.experiment import Chapter, Experiment, JobResults, Options, slug
from zeroshift.experiments._shared.findings import Finding, Remark
from zeroshift.experiments._shared.suite import Suite

__all__ = ["Investigation", "PlannedExperiment"]


@dataclass(frozen=True)
class PlannedExperiment:
    """An experiment with its sets and jobs."""

    experiment: Experiment
    suites: tuple[Suite, ...]
    """Its sets, with the extra sets it makes; one suite per encoder unless it mixes encoders."""
    jobs: tuple[Job, ...]
    error: str | None = None
    """Why planning failed. The other experiments still run."""

    @classmethod
    def of(cls, experiment: Experiment, suite: Suite, options: Options) -> PlannedExperiment:
        suites = (suite,) if experiment.mixes_encoders else tuple(suite.by_encoder)
        try:
            if experiment.extra_sets is not None:
                suites = tuple(Suite((*part.members, *experiment.extra_sets(part))) for part in suites)
            jobs = tuple(job for part in suites for job in experiment.plan(part, options))
            return cls(experiment, suites, jobs)
        except Exception as error:
            return cls(experiment, suites, (), f"could not be planned: {type(error).__name__}: {error}")

    def chapter(self, options: Options, results: JobResults) -> Chapter:
        """The findings; if `find` fails, a warning with the reason."""
        keys = {job.key for job in self.jobs}
        failed = [f"{o.job}: {o.error}" for o in results.failed if o.job.key in keys]
        seconds = sum(float(record.get("seconds") or 0.0) for record in results.records(self.jobs))
        why = self.error
        if why is None:
            try:
                return Chapter(self.experiment, self._findings(options, results), self.jobs, tuple(failed), seconds)
            except Exception as error:
                why = f"could not be evaluated: {type(error).__name__}: {error}"
        remark = Remark(f"This experiment {why.rstrip('.')}.", kind="warning")
        return Chapter(self.experiment, (remark,), self.jobs, (*failed, f"{self.experiment.name} {why}"), seconds)

    def _findings(self, options: Options, results: JobResults) -> tuple[Finding, ...]:
        by_suite = [
            tuple(finding for finding in self.experiment.find(part, options, results) if finding is not None)
            for part in self.suites
        ]
        if len(by_suite) == 1:
            return by_suite[0]
        encoders = [part.encoders[0] for part in self.suites]
        slugs = [slug(encoder) for encoder in encoders]
        if len(set(slugs)) < len(slugs):  # names that differ only in punctuation
            slugs = [f"{name}-{position}" for position, name in enumerate(slugs, start=1)]
        named = zip(encoders, slugs, by_suite, strict=True)
        return tuple(
            _label_with_encoder(finding, encoder, suffix) for encoder, suffix, findings in named for finding in findings
        )


def _label_with_encoder(finding: Finding, encoder: str, suffix: str) -> Finding:
    """The finding with the name of its encoder in the title."""
    if isinstance(finding, Remark):
        return replace(finding, text=f"{encoder}: {finding.text}")
    return replace(finding, name=f"{finding.name}-{suffix}", title=f"{encoder}: {finding.title}")


@dataclass(frozen=True)
class Investigation:
    """Experiments on a suite of sets."""

    suite: Suite
    options: Options
    planned: tuple[PlannedExperiment, ...]

    @classmethod
    def of(cls, experiments: Sequence[Experiment], suite: Suite, options: Options | None = None) -> Investigation:
        """Plan experiments; nothing runs yet."""
        if isinstance(experiments, (str, Experiment)) or not all(isinstance(e, Experiment) for e in experiments):
            raise TypeError(
                f"experiments must be a list of experiments; got {experiments!r}. "
                "Fix: [get('ablation')], with zeroshift.experiments.get."
            )
        if not isinstance(suite, Suite):
            raise TypeError(f"suite must be a Suite; got {type(suite).__name__}. Fix: Suite.of({{name: features}}).")
        if not suite.members:
            raise ValueError("suite is empty. Fix: Suite.of({name: features}).")
        options = options or Options()
        return cls(
            suite, options, tuple(PlannedExperiment.of(experiment, suite, options) for experiment in experiments)
        )

    @property
    def jobs(self) -> list[Job]:
        """All jobs without duplicates, ordered by set so that a process loads each set once."""
        unique = {job.key: job for planned in self.planned for job in planned.jobs}
        positions = {digest: place for place, digest in enumerate(self._datasets)}
        return sorted(unique.values(), key=lambda job: positions[job.digest])

    def run(
        self,
        ledger: Ledger,
        *,
        processes: int = 0,
        again: bool = False,
        notes: Mapping[str, Any] | None = None,
        on: str | Executor | None = None,
    ) -> Generator[JobOutcome[Job], None, None]:
        """Run the jobs that `ledger` has no record of; yields every outcome as it is available."""
        loaders = {digest: dataset.load for digest, dataset in self._datasets.items()}
        return run_jobs(self.jobs, loaders, ledger, processes=processes, again=again, notes=notes, on=on)

    def chapters(self, outcomes: Sequence[JobOutcome[Job]]) -> list[Chapter]:
        """The findings of each experiment, from the outcomes that `run` yielded."""
        results = JobResults(outcomes)
        return [planned.chapter(self.options, results) for planned in self.planned]

    @property
    def _datasets(self) -> dict[str, DatasetRef]:
        """Every set of any experiment, by digest."""
        datasets: dict[str, DatasetRef] = {}
        for known in (self.suite, *(suite for planned in self.planned for suite in planned.suites)):
            for member in known.members:
                datasets.setdefault(member.dataset.digest, member.dataset)
        return datasets
