"""Every experiment, by name, in the order a report tells them."""

from __future__ import annotations

import importlib
import importlib.util

from zeroshift.experiments.parts.experiment import Experiment
from zeroshift.suggest import did_you_mean

__all__ = ["get", "list_experiments"]

MODULES = (
    "gains",
    "natural_shift",
    "corruption",
    "severity",
    "fine_grained",
    "encoders",
    "ablation",
    "bank_size",
    "alpha",
    "efficiency",
    "mean_init",
    "tda_prompts",
    "closed_form",
    "input_order",
    "stability",
    "streams",
    "few_shot",
    "low_confidence",
    "pruning",
    "long_tail",
    "covariances",
    "normality",
    "homogeneity",
    "decision_regions",
    "calibration",
    "open_set",
    "oracle",
)


def list_experiments() -> list[Experiment]:
    names = (f"zeroshift.experiments.{name}" for name in MODULES)
    return [importlib.import_module(name).EXPERIMENT for name in names if importlib.util.find_spec(name)]


def get(name: str) -> Experiment:
    """The experiment called `name`."""
    experiments = {experiment.name: experiment for experiment in list_experiments()}
    if name not in experiments:
        guess = did_you_mean(name, experiments)
        raise ValueError(f"no experiment is called {name!r}. {guess}Fix: all, or some of {', '.join(experiments)}.")
    return experiments[name]
