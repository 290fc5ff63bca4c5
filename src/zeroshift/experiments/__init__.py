"""Every experiment of the paper as a named question, asked of any feature sets; and the paper's own numbers."""

from zeroshift.experiments.investigate import Investigation
from zeroshift.experiments.parts.experiment import Answers, Chapter, Experiment, Options
from zeroshift.experiments.parts.paper import paper_table
from zeroshift.experiments.parts.suite import Member, Suite
from zeroshift.experiments.registry import get, list_experiments

__all__ = [
    "Answers",
    "Chapter",
    "Experiment",
    "Investigation",
    "Member",
    "Options",
    "Suite",
    "get",
    "list_experiments",
    "paper_table",
]
