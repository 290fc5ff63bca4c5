"""The experiments of the paper and further ones, which run on any feature sets; and the numbers of the paper."""

from zeroshift.experiments._shared.experiment import Chapter, Experiment, JobResults, Options
from zeroshift.experiments._shared.paper import paper_table
from zeroshift.experiments._shared.suite import Member, Suite
from zeroshift.experiments.registry import find, get, list_experiments
from zeroshift.experiments.runner import Investigation

__all__ = [
    "Chapter",
    "Experiment",
    "Investigation",
    "JobResults",
    "Member",
    "Options",
    "Suite",
    "find",
    "get",
    "list_experiments",
    "paper_table",
]
