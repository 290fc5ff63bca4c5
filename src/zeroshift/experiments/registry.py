"""All experiments by name, in the order of a report."""

from __future__ import annotations

import re

from zeroshift.experiments import (
    ablation,
    alpha,
    awt,
    bank_size,
    calibration,
    closed_form,
    corruption,
    covariances,
    decision_regions,
    efficiency,
    encoders,
    few_shot,
    fine_grained,
    gains,
    homogeneity,
    input_order,
    long_tail,
    low_confidence,
    mean_init,
    natural_shift,
    normality,
    open_set,
    oracle,
    pruning,
    sensitivity,
    severity,
    stability,
    streams,
    tda_prompts,
    views,
)
from zeroshift.experiments._shared.experiment import Experiment
from zeroshift.suggest import did_you_mean

__all__ = ["find", "get", "list_experiments"]

MODULES = (
    gains,
    natural_shift,
    corruption,
    severity,
    fine_grained,
    encoders,
    ablation,
    bank_size,
    alpha,
    efficiency,
    views,
    awt,
    mean_init,
    tda_prompts,
    closed_form,
    input_order,
    stability,
    streams,
    sensitivity,
    few_shot,
    low_confidence,
    pruning,
    long_tail,
    covariances,
    normality,
    homogeneity,
    decision_regions,
    calibration,
    open_set,
    oracle,
)
EXPERIMENTS: tuple[Experiment, ...] = tuple(module.EXPERIMENT for module in MODULES)


PAPER_NAME = re.compile(r"(table|figure|fig)[ ._-]?(\d+)")

NO_EXPERIMENT = {
    "table-1": "compares properties of methods and contains no measurements",
    "table-12": "compares properties of methods and contains no measurements",
    "table-17": "prints Table 5 again. Fix: table-5",
    "figure-1": "is a drawing of the method",
}
"""Tables and figures of the paper that no experiment repeats, and why."""


def list_experiments() -> list[Experiment]:
    """All experiments.

    >>> [experiment.name for experiment in list_experiments()][:3]
    ['gains', 'natural-shift', 'corruption']
    """
    return list(EXPERIMENTS)


def get(name: str) -> Experiment:
    """The experiment with this name.

    >>> get("ablation").where
    'Table 5'
    """
    for experiment in EXPERIMENTS:
        if experiment.name == name:
            return experiment
    names = [experiment.name for experiment in EXPERIMENTS]
    guess = did_you_mean(name, names)
    raise ValueError(f"no experiment is called {name!r}. {guess}Fix: all, or some of {', '.join(names)}.")


def find(name: str) -> list[Experiment]:
    """The experiments that `name` stands for: one by its own name, or all that repeat a table or figure of the paper.

    >>> [experiment.name for experiment in find("table-5")], [experiment.name for experiment in find("figure-2")]
    (['ablation'], ['bank-size', 'alpha'])
    """
    parts = PAPER_NAME.fullmatch(name.lower())
    if parts is None:
        return [get(name)]
    kind = "table" if parts[1] == "table" else "figure"
    label = f"{kind}-{int(parts[2])}"
    title = f"{kind.capitalize()} {int(parts[2])}"
    if label in NO_EXPERIMENT:
        raise ValueError(f"{name}: no experiment repeats {title} of the paper, because it {NO_EXPERIMENT[label]}.")
    found = [experiment for experiment in EXPERIMENTS if label in experiment.paper_names]
    if not found:
        numbers = (int(known.split("-")[1]) for one in EXPERIMENTS for known in one.paper_names if kind in known)
        raise ValueError(f"{name}: the paper has no {title}. Fix: {kind}-1 to {kind}-{max(numbers)}.")
    return found
