"""`--method`, `--set`, `--preset`, `--logit-scale` and `--state-in`: which method a command runs, with which
parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from zeroshift import methods, serialization
from zeroshift.cli.console import print_warning
from zeroshift.features import FeatureSet
from zeroshift.files import FileFormatError
from zeroshift.method import Method
from zeroshift.methods import MethodInfo
from zeroshift.parameters import Model, Number
from zeroshift.suggest import did_you_mean

__all__ = [
    "DEFAULT_METHODS",
    "METHOD_PANEL",
    "MethodOptions",
    "Online",
    "Settings",
    "Transductive",
    "choose_method",
    "parse_settings",
    "same_prototypes",
]

METHOD_PANEL = "Method"

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "-s", metavar="NAME=VALUE", help="A parameter of the method; can be repeated.",
        rich_help_panel=METHOD_PANEL,
    ),
]  # fmt: skip
Online = Annotated[
    bool,
    typer.Option(
        "--online", help="Use the online mixture: learn sample by sample, in the order of the input.",
        rich_help_panel=METHOD_PANEL,
    ),
]  # fmt: skip
Transductive = Annotated[
    bool,
    typer.Option(
        "--transductive", help="Use the transductive mixture: learn from the whole set; the default.",
        rich_help_panel=METHOD_PANEL,
    ),
]  # fmt: skip

DEFAULT_METHODS = {"online": "anchored_mixture_online", "transductive": "anchored_mixture_transductive"}
"""More accurate than ADAPT on average, better calibrated, and safer with few images or few classes: docs/guide.md."""


LEARNS_FROM_EACH = {"transductive": "set", "episodic": "image"}
"""Protocols whose methods start again for each set or image, so that a command cannot resume them."""


def choose_method(name: str | None, *, online: bool, transductive: bool, saves_state: bool = False) -> str:
    """The method of `--method`, `--online` and `--transductive`; an error if they disagree.

    By default it is the anchored mixture: transductive, or online if the state is saved, because a transductive method
    cannot resume. For the same reason `--save-state` is refused for methods that keep nothing for other samples.

    >>> choose_method(None, online=False, transductive=False), choose_method(None, online=True, transductive=False)
    ('anchored_mixture_transductive', 'anchored_mixture_online')
    """
    if online and transductive:
        raise ValueError("--online and --transductive contradict each other. Fix: give one.")
    if transductive and saves_state:
        raise ValueError(
            "--transductive and --save-state contradict each other: a transductive method learns from each set "
            "separately and cannot resume. Fix: leave out one of them."
        )
    if name is None:
        return DEFAULT_METHODS["online" if online or saves_state else "transductive"]
    info, protocol = methods.get(name), "online" if online else "transductive"
    if (online or transductive) and info.protocol != protocol:
        raise ValueError(
            f"--{protocol} and --method {name} contradict each other: {name} is {info.protocol}. "
            f"Fix: leave out --{protocol}."
        )
    if saves_state and info.protocol in LEARNS_FROM_EACH:
        raise ValueError(
            f"--save-state: {name} learns from each {LEARNS_FROM_EACH[info.protocol]} separately and cannot resume "
            "from a state. Fix: leave out --save-state, or choose an online method."
        )
    return name


def parse_settings(
    method: MethodInfo, settings: Sequence[str], hints: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The parameters written as `name=value`, parsed and checked; `hints` says how arrays and models are given.

    >>> from zeroshift import methods
    >>> parse_settings(methods.get("adapt_online"), ["bank_size=8", "beta=none", "prune=100,0.2"])
    {'bank_size': 8, 'beta': None, 'prune': (100, 0.2)}
    """
    parameters: dict[str, Any] = {}
    for setting in settings:
        name, separator, text = setting.partition("=")
        if not separator:
            raise ValueError(f"--set takes name=value, for example --set bank_size=8; got {setting!r}.")
        if name in parameters:
            raise ValueError(f"--set {name} is given twice. Fix: keep one.")
        parameters[name] = _parse_value(method, name, text, hints or {})
    return parameters


def _parse_value(method: MethodInfo, name: str, text: str, hints: Mapping[str, str]) -> Any:
    known = [parameter.name for parameter in method.parameters]
    if name not in known:
        owners = [info.name for info in methods.list_methods() if name in (one.name for one in info.parameters)]
        others = " and others" if len(owners) > 1 else ""
        guess = f"It is a parameter of {owners[0]}{others}. " if owners else did_you_mean(name, known)
        raise ValueError(f"--set: {method.name} has no parameter {name!r}. {guess}It takes: {', '.join(known)}.")
    constraint = method.cls.constraints.get(name)
    if constraint is None or isinstance(constraint, Model):
        what = "arrays" if constraint is None else "a model"
        fix = f"Fix: {hints[name]}." if name in hints else "It can be given in Python only."
        raise ValueError(f"--set {name}: this parameter holds {what}. {fix}")
    try:
        value = constraint.parse(text)
    except ValueError:
        raise ValueError(f"--set {name} must be {constraint.describe()}; got {text!r}.") from None
    return constraint.check(f"--set {name}", value)


@dataclass(frozen=True)
class MethodOptions:
    """The method and its parameters, checked before the features are read."""

    info: MethodInfo
    parameters: dict[str, Any]
    state: Path | None = None
    """A saved state to resume from."""

    @classmethod
    def parse(
        cls,
        name: str,
        settings: Sequence[str],
        *,
        logit_scale: float | None = None,
        preset: str | None = None,
        hints: Mapping[str, str] | None = None,
    ) -> MethodOptions:
        """From the options of a command; `hints` as in `parse_settings`."""
        _check_scale(logit_scale)
        info = methods.get(name)
        from_preset = {} if preset is None else _load_preset(info, preset)
        # --set takes precedence over --preset.
        return cls(info, {**from_preset, **_parse_parameters(info, settings, logit_scale, hints)})

    @classmethod
    def parse_resumed(
        cls,
        state: Path,
        name: str | None,
        settings: Sequence[str],
        *,
        transductive: bool = False,
        logit_scale: float | None = None,
        preset: str | None = None,
        hints: Mapping[str, str] | None = None,
    ) -> MethodOptions:
        """From a saved state, which decides the method, and the options that may be combined with one."""
        _check_scale(logit_scale)
        if transductive:
            raise ValueError(
                "--transductive and --state-in contradict each other: a transductive method learns from each set "
                "separately. Fix: leave out --state-in."
            )
        if preset is not None:
            raise ValueError(
                f"--preset {preset} cannot be combined with --state-in: {state} was learned with its own parameters. "
                "Fix: leave out --preset, or start without --state-in."
            )
        header = serialization.read_header(state)
        saved = header.get("method")
        if not isinstance(saved, str):
            raise FileFormatError(
                f"{state} has a header without 'method'; it was not written by zeroshift. "
                "Fix: pass a file that --save-state wrote."
            )
        info = methods.get(saved)
        if name is not None and name != info.name:
            raise ValueError(f"{state} holds the state of {info.name}, not of {name}. Fix: leave out --method.")
        if info.protocol in LEARNS_FROM_EACH:
            raise ValueError(
                f"{info.name} learns from each {LEARNS_FROM_EACH[info.protocol]} separately and cannot resume from a "
                "state. Fix: leave out --state-in."
            )
        parameters = _parse_parameters(info, settings, logit_scale, hints)
        # It would change the zero-shot column and leave the method as it was.
        learned_with = (header.get("parameters") or {}).get("logit_scale")
        if logit_scale is not None and learned_with is not None and logit_scale != learned_with:
            raise ValueError(
                f"--logit-scale {logit_scale:g} cannot be changed with --state-in: {state} was learned with "
                f"{learned_with:g}. Fix: leave out --logit-scale, or start without --state-in."
            )
        return cls(info, parameters, state)

    def resume(self, features: FeatureSet, prompt: str | None, models: Mapping[str, Any]) -> Method:
        """The saved method with its state; it keeps its own prototypes, which must fit the features."""
        state = self.state
        assert state is not None
        method = methods.load(state, library="numpy", **self.parameters, **models)
        if method.prototypes.shape != features.prototypes_for(prompt).shape:
            raise ValueError(
                f"{state} was learned with {method.n_classes} classes in d = {method.dimension}; the features have "
                f"{features.n_classes} classes in d = {features.dimension}. Fix: keep to its encoder and classes."
            )
        if models:
            return method  # loading has compared the models with those it was made from
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


def _check_scale(logit_scale: float | None) -> None:
    if logit_scale is not None:
        Number(0, above=True).check("--logit-scale", logit_scale)


def _load_preset(info: MethodInfo, name: str) -> dict[str, Any]:
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


def _parse_parameters(
    info: MethodInfo, settings: Sequence[str], logit_scale: float | None, hints: Mapping[str, str] | None
) -> dict[str, Any]:
    parameters = parse_settings(info, settings, hints)
    if logit_scale is not None and "logit_scale" in parameters:
        raise ValueError(
            f"--logit-scale {logit_scale:g} and --set logit_scale={parameters['logit_scale']:g} set the same "
            "parameter. Fix: keep --logit-scale."
        )
    return parameters


SAME_PROTOTYPES = 1e-3
"""Largest difference between entries of one prototype: half precision rounds as much, another prompt differs more."""


def same_prototypes(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether two matrices have the same shape and differ by no more than rounding."""
    return first.shape == second.shape and bool(np.abs(first - second).max() <= SAME_PROTOTYPES)
