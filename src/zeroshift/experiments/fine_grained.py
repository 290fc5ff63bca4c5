"""Table 4 (Table 16 with RN50): ten fine-grained sets, or sets that stand in for them."""

from __future__ import annotations

from functools import partial

from zeroshift.experiments._shared.experiment import Experiment
from zeroshift.experiments._shared.main_table import main_table_findings, main_table_jobs, set_columns
from zeroshift.experiments._shared.tasks import FINE_GRAINED

__all__ = ["EXPERIMENT"]

TASK = FINE_GRAINED
PLACES = partial(set_columns, TASK)


EXPERIMENT = Experiment(
    name="fine-grained",
    title="Fine-grained categorisation",
    question="How accurate is each method if all classes are of one kind, such as birds or cars?",
    plan=partial(main_table_jobs, PLACES),
    find=partial(main_table_findings, TASK, PLACES, heading="Accuracy on fine-grained sets"),
    where="Tables 4 and 16",
    tables=("fine_grained_vitb16", "fine_grained_rn50"),
)
