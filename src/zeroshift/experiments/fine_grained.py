"""Table 4 (Table 16 with RN50): ten sets of things of one kind, or sets that stand in for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from zeroshift.evaluate import Job
from zeroshift.experiments.parts.experiment import Answers, Experiment, Options
from zeroshift.experiments.parts.findings import Finding
from zeroshift.experiments.parts.main_table import main_findings, main_jobs
from zeroshift.experiments.parts.set_columns import set_columns
from zeroshift.experiments.parts.suite import Suite
from zeroshift.experiments.parts.tasks import FINE_GRAINED

__all__ = ["EXPERIMENT"]

TASK = FINE_GRAINED
PLACES = partial(set_columns, TASK)


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    return main_jobs(PLACES, suite, options)


def _find(suite: Suite, options: Options, answers: Answers) -> Sequence[Finding]:
    return main_findings(TASK, PLACES, suite, options, answers, heading="Accuracy on fine-grained sets")


EXPERIMENT = Experiment(
    name="fine-grained",
    title="Fine-grained categorisation",
    question="How accurate is each method where all classes are things of one kind?",
    plan=_plan,
    find=_find,
    where="Tables 4 and 16",
    tables=("fine_grained_vitb16", "fine_grained_rn50"),
)
