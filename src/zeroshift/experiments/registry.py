"""All experiments by name, in the order of a report."""

from __future__ import annotations

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

__all__ = ["get", "list_experiments"]

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
