"""`--set name=value`: text to parameters, by what each parameter of the method says it may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zeroshift import methods
from zeroshift import serialization as method_file
from zeroshift.arrays import to_numpy
from zeroshift.cli.console import print_warning
from zeroshift.features import FeatureSet
from zeroshift.files import FileFormatError
from zeroshift.method import Method
from zeroshift.methods import MethodInfo
from zeroshift.methods._shared.prompt_tuned import PromptTuned
from zeroshift.parameters import Model, Number
from zeroshift.suggest import did_you_mean

__all__ = ["Start", "parse_settings", "same_prototypes"]


def parse_settings(
    method: MethodInfo, settings: Sequence[str], elsewhere: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The parameters written as `settings`, read and checked; `elsewhere` says how those that hold arrays are given.

    >>> from zeroshift import methods
    >>> parse_settings(methods.get("adapt_online"), ["bank_size=8", "beta=none", "prune=100,0.2"])
    {'bank_size': 8, 'beta': None, 'prune': (100, 0.2)}
    """
    parameters: dict[str, Any] = {}
    for item in settings:
        name, separator, text = item.partition("=")
        if not separator:
            raise ValueError(f"--set takes name=value, for example --set bank_size=8; got {item!r}.")
        if name in parameters:
            raise ValueError(f"--set {name} is given twice. Fix: keep one.")
        parameters[name] = _parse(method, name, text, elsewhere or {})
    return parameters


def _parse(method: MethodInfo, name: str, text: str, elsewhere: Mapping[str, str]) -> Any:
    known = [parameter.name for parameter in method.parameters]
    if name not in known:
        hint = did_you_mean(name, known)
        raise ValueError(f"--set: {method.name} has no parameter {name!r}. {hint}It takes: {', '.join(known)}.")
    constraint = method.cls.constraints.get(name)
    if constraint is None or isinstance(constraint, Model):
        instead = elsewhere.get(name, "It can be given in Python only.")
        raise ValueError(
            f"--set {name}: this parameter holds {'arrays' if constraint is None else 'a model'}. {instead}"
        )
    try:
        value = constraint.parse(text)
    except ValueError:
        raise ValueError(f"--set {name} must be {constraint.describe()}; got {text!r}.") from None
    return constraint.check(f"--set {name}", value)


# The method a command starts with: a new one, or one that goes on from a saved state.


DEFAULT_METHOD = "adapt_online"

SAME_PROTOTYPES = 1e-3
"""How far entries of one prototype may be apart: half precision rounds as much, another prompt moves them further."""


@dataclass(frozen=True)
class Start:
    """What `--method`, `--set`, `--logit-scale` and `--state-in` ask for, checked before the features are read."""

    info: MethodInfo
    parameters: dict[str, Any]
    state: Path | None

    @classmethod
    def checked(
        cls,
        name: str | None,
        settings: Sequence[str],
        state: Path | None,
        logit_scale: float | None = None,
        preset: str | None = None,
        elsewhere: Mapping[str, str] | None = None,
    ) -> Start:
        """`elsewhere` says how parameters that hold arrays are given; see `parse_settings`."""
        if logit_scale is not None:
            Number(0, above=True).check("--logit-scale", logit_scale)
        if state is None:
            info = methods.get(name or DEFAULT_METHOD)
            hand_set = {} if preset is None else _preset(info, preset)
            # What is said outright counts more than what a preset brings along.
            return cls(info, {**hand_set, **_parameters(info, settings, logit_scale, elsewhere)}, None)
        if preset is not None:
            raise ValueError(
                f"--preset {preset} cannot be taken with --state-in: {state} was learned with parameters of its own. "
                "Fix: leave out --preset, or start without --state-in."
            )
        header = method_file.read_header(state)
        saved = header.get("method")
        if not isinstance(saved, str):
            raise FileFormatError(
                f"{state} has a header without 'method'; it was not written by zeroshift. "
                "Fix: pass a file that --save-state wrote."
            )
        info = methods.get(saved)
        if name is not None and name != info.name:
            raise ValueError(f"{state} holds the state of {info.name}, not of {name}. Fix: leave out --method.")
        if info.protocol in ("transductive", "episodic"):
            afresh = "set" if info.protocol == "transductive" else "image"
            raise ValueError(
                f"{info.name} learns from each {afresh} afresh; there is no state to go on from. "
                "Fix: leave out --state-in."
            )
        parameters = _parameters(info, settings, logit_scale, elsewhere)
        # Taken for the features alone, it would change the zero-shot column and leave the method as it was.
        learned_with = (header.get("parameters") or {}).get("logit_scale")
        if logit_scale is not None and learned_with is not None and logit_scale != learned_with:
            raise ValueError(
                f"--logit-scale {logit_scale:g} cannot be changed with --state-in: {state} was learned with "
                f"{learned_with:g}. Fix: leave out --logit-scale, or start without --state-in."
            )
        return cls(info, parameters, state)

    def method(
        self,
        features: FeatureSet,
        prompt: str | None,
        arrays: Mapping[str, Any] | None = None,
        models: Mapping[str, Any] | None = None,
    ) -> Method:
        """The method for these features, with the `arrays` it takes beside them and the `models` it computes with."""
        if self.state is not None:
            return self._resumed(self.state, features, prompt, models or {})
        parameters = {**self.parameters, **(arrays or {}), **(models or {})}
        if "logit_scale" in {parameter.name for parameter in self.info.parameters}:
            parameters.setdefault("logit_scale", features.logit_scale)
        own = features.prototypes_for(prompt)
        if issubclass(self.info.cls, PromptTuned):
            # It begins with what its words make of the classes.
            own = to_numpy(parameters["text"].features(parameters["text"].context))
        return methods.create(self.info.name, own, **parameters)

    def _resumed(self, state: Path, features: FeatureSet, prompt: str | None, models: Mapping[str, Any]) -> Method:
        """The saved method with what it has learned; it keeps its own prototypes, which must fit the features."""
        method = methods.load(state, library="numpy", **self.parameters, **models)
        if method.prototypes.shape != features.prototypes_for(prompt).shape:
            raise ValueError(
                f"{state} was learned with {method.n_classes} classes in d = {method.dimension}; the features have "
                f"{features.n_classes} classes in d = {features.dimension}. Fix: keep to its encoder and classes."
            )
        if models:
            return method  # made of these very models, or it would not have been loaded
        modes = features.prompts if prompt is None else (prompt,)
        if any(same_prototypes(method.prototypes, features.prototypes_for(mode)) for mode in modes):
            return method
        if prompt is not None:
            raise ValueError(f"{state} was learned with other prototypes than {prompt!r}. Fix: leave out --prompt.")
        print_warning(
            f"{state} was learned with other prototypes than those of the features; the saved ones are used. "
            "Check that both list the same classes in the same order."
        )
        return method


def _preset(info: MethodInfo, name: str) -> dict[str, Any]:
    if not info.presets:
        raise ValueError(
            f"--preset {name}: {info.name} has no presets, its authors use one setting for all data. "
            "Fix: leave out --preset."
        )
    if name not in info.presets:
        known = ", ".join(sorted(info.presets))
        guess = did_you_mean(name, info.presets)
        raise ValueError(f"--preset must be one of {known}; got {name!r}. {guess}".rstrip())
    return info.cls.preset(name)


def _parameters(
    info: MethodInfo, settings: Sequence[str], logit_scale: float | None, elsewhere: Mapping[str, str] | None
) -> dict[str, Any]:
    parameters = parse_settings(info, settings, elsewhere)
    if logit_scale is not None and "logit_scale" in parameters:
        raise ValueError(
            f"--logit-scale {logit_scale:g} and --set logit_scale={parameters['logit_scale']:g} say the same thing "
            "twice. Fix: keep --logit-scale."
        )
    return parameters


def same_prototypes(first: np.ndarray, second: np.ndarray) -> bool:
    """Of the same shape, and nowhere further apart than rounding."""
    return first.shape == second.shape and bool(np.abs(first - second).max() <= SAME_PROTOTYPES)
