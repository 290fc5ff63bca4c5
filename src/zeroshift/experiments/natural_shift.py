"""Table 2 (Table 14 with RN50): ImageNet and its natural variants, or sets that stand in for them."""

from __future__ import annotations

from functools import partial

from zeroshift.experiments._shared.experiment import Experiment
from zeroshift.experiments._shared.main_table import main_table_findings, main_table_jobs, set_columns
from zeroshift.experiments._shared.tasks import NATURAL, OTHER

__all__ = ["EXPERIMENT"]

TASK = NATURAL
SOURCE = "imagenet"
"""The source of the shifts; the mean without it is the paper's `OOD Avg.`"""

PLACES = partial(set_columns, TASK, source=SOURCE, also=(OTHER,))
"""Sets of none of the paper's tasks are included too, because the question is the same."""


EXPERIMENT = Experiment(
    name="natural-shift",
    title="Natural distribution shift",
    question="How accurate is each method on natural images that differ from those the encoder knows best?",
    plan=partial(main_table_jobs, PLACES),
    find=partial(main_table_findings, TASK, PLACES, heading="Accuracy under natural shift"),
    where="Tables 2 and 14",
    tables=("natural_shift_vitb16", "natural_shift_rn50"),
)
