"""`--set name=value`: text to parameters, by what each parameter of the method says it may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zeroshift.methods import MethodInfo
from zeroshift.parameters import Model
from zeroshift.suggest import did_you_mean

__all__ = ["parse_settings"]


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
