"""Every method by name: what it is, what it needs and accepts.

A built-in method registers itself when its class is defined; other packages add theirs through an entry point.
"""

from __future__ import annotations

import inspect
import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from zeroshift import serialization
from zeroshift.arrays import Array
from zeroshift.files import FileFormatError
from zeroshift.method import Method, registered_methods
from zeroshift.methods.sticky_filter import SUFFIX, StickyFilter
from zeroshift.parameters import Parameter
from zeroshift.suggest import did_you_mean

ENTRY_POINT_GROUP = "zeroshift.methods"
PROTOCOLS = ("online", "episodic", "transductive", "few-shot")
FIRST = ("zero_shot", "adapt_online", "adapt_transductive", "anchored_mixture_online", "anchored_mixture_transductive")
"""Listed before the others."""


@dataclass(frozen=True)
class ParameterInfo:
    name: str
    allowed: str
    """What it may be, in words."""
    default: Any
    required: bool
    meaning: str = ""


@dataclass(frozen=True)
class MethodInfo:
    name: str
    cls: type[Method]
    protocol: str
    """`"online"`, `"episodic"`, `"transductive"` or `"few-shot"`."""
    needs: tuple[str, ...]
    takes: tuple[str, ...]
    """What it accepts but does not require."""
    headline: str
    """What it does, in one line."""
    summary: str
    """What it does, in a paragraph."""
    parameters: tuple[ParameterInfo, ...]
    scored: str
    """Whether a sample is predicted `"before"` or `"after"` the method learns from it."""
    state_size: str
    complexity: str
    reconstructed: str | None
    """Why it is a reconstruction; None if it was written from its authors' code or equations."""
    presets: tuple[str, ...]
    """Data sets the authors set parameters for by hand."""

    @property
    def caveat(self) -> str:
        """What its numbers do not stand for, where results are shown; mostly empty."""
        return self.cls.from_features or ("reconstructed, not the authors' code" if self.reconstructed else "")

    @classmethod
    def of(cls, method: type[Method]) -> MethodInfo:
        summary = " ".join((inspect.getdoc(method) or "").split("\n\n")[0].split())
        declared = method.declared_parameters.items()
        optional = [(name, one) for name, one in declared if one.default is None]
        return cls(
            name=method.name,
            cls=method,
            protocol=method.protocol,
            needs=method.needs,
            takes=(*method.takes, *(name for name, one in optional if one.kind == "array")),
            headline=vars(method).get("headline") or re.split(r"(?<=\w)[.:;] ", summary)[0].rstrip("."),
            summary=summary,
            parameters=tuple(_describe(name, one) for name, one in declared if name != "prototypes"),
            scored=method.scored,
            state_size=method.state_size,
            complexity=method.complexity,
            reconstructed=method.reconstructed,
            presets=tuple(method.presets),
        )


def describe_caveats(caveats: Mapping[str, str]) -> list[str]:
    """One line per `MethodInfo.caveat`, with the names of all methods that it is about.

    >>> describe_caveats({"tda": "", "bca": "reconstructed", "freetta": "reconstructed"})
    ['* bca, freetta: reconstructed.']
    """
    names: dict[str, list[str]] = {}
    for name, caveat in caveats.items():
        if caveat:
            names.setdefault(caveat, []).append(name)
    return [f"* {', '.join(several)}: {caveat}." for caveat, several in names.items()]


def _describe(name: str, declared: Parameter) -> ParameterInfo:
    default = None if declared.required else declared.default
    return ParameterInfo(name, declared.describe(), default, declared.required, declared.meaning)


@cache
def _registry() -> Mapping[str, MethodInfo]:
    built_in = sorted(registered_methods().values(), key=_place)
    methods = {method.name: MethodInfo.of(method) for method in built_in}
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        # A plug-in that fails to import must not break the library: it is named in a warning and skipped.
        try:
            method = entry.load()
            if not (isinstance(method, type) and issubclass(method, Method)):
                raise TypeError(f"{method!r} is not a subclass of zeroshift.methods.Method")
            if method.name in methods:
                raise ValueError(f"the name {method.name!r} is taken")
            if method.protocol not in PROTOCOLS:
                raise ValueError(f"the protocol {method.protocol!r} is none of {', '.join(PROTOCOLS)}")
            methods[method.name] = MethodInfo.of(method)
        except Exception as error:
            warnings.warn(
                f"the method plug-in {entry.value!r} cannot be used and is skipped: {error}. "
                f"Fix: repair or uninstall the package that registers it.",
                stacklevel=2,
            )
    return methods


def _place(method: type[Method]) -> tuple[int, int, str]:
    """Where a built-in method is listed: the main ones first, then by protocol and name."""
    first = FIRST.index(method.name) if method.name in FIRST else len(FIRST)
    return first, PROTOCOLS.index(method.protocol), method.name


def list_methods(protocol: str | None = None) -> list[MethodInfo]:
    """Every registered method, or those of one protocol.

    >>> [method.name for method in list_methods("transductive")][:2]
    ['adapt_transductive', 'anchored_mixture_transductive']
    """
    methods = _registry().values()
    if protocol is not None and protocol not in PROTOCOLS:
        raise ValueError(f"protocol must be one of {', '.join(map(repr, PROTOCOLS))}; got {protocol!r}.")
    return [method for method in methods if protocol in (None, method.protocol)]


def get(name: str) -> MethodInfo:
    """The method registered under `name`; a near miss is answered with the name that was probably meant.

    `NAME+filter` is the online method NAME with `StickyFilter`.

    >>> get("tda+filter").cls.__name__
    'StickyFilter.of(TDA)'
    """
    if not isinstance(name, str):
        raise TypeError(f"the name of a method must be a string; got {name!r:.80}. Fix: such as 'tda'.")
    methods = _registry()
    if name in methods:
        return methods[name]
    if name.endswith(SUFFIX):
        return MethodInfo.of(StickyFilter.of(get(name.removesuffix(SUFFIX)).cls))
    known = [*methods, *(f"{info.name}{SUFFIX}" for info in list_methods("online") if "+" in name)]
    guess = did_you_mean(name, known)
    rest = "Fix: see `zeroshift methods`." if guess else f"Known: {', '.join(methods)}."
    raise ValueError(f"no method is called {name!r}. {guess}{rest}")


def create(name: str, prototypes: Array, **parameters: Any) -> Method:
    """A new method by name.

    >>> import numpy as np
    >>> create("adapt_online", np.eye(3, 8), bank_size=4)
    OnlineADAPT(<prototypes 3 x 8, numpy>, bank_size=4, n_seen=0)
    """
    return get(name).cls(prototypes, **parameters)


def load(
    path: str | os.PathLike[str], *, library: str | None = None, device: str | None = None, **changes: Any
) -> Method:
    """A saved method of whatever class wrote the file; see `Method.load`."""
    name = str(serialization.read_header(path).get("method"))
    try:
        cls = get(name).cls
    except ValueError as error:
        raise FileFormatError(f"{path} contains the state of a method that is not known here: {error}") from error
    return cls.load(path, library=library, device=device, **changes)
