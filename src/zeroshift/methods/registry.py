"""Every method under its name: what it is, needs and can be given; third parties add theirs by entry point."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from zeroshift import serialization as method_file
from zeroshift.adapt import OnlineADAPT, ReleasedOnlineADAPT, ReleasedTransductiveADAPT, TransductiveADAPT
from zeroshift.arrays import Array
from zeroshift.method import Method
from zeroshift.methods.awt import AWT
from zeroshift.methods.b2tpt import B2TPT
from zeroshift.methods.bca import BCA
from zeroshift.methods.ctpt import CTPT
from zeroshift.methods.difftpt import DiffTPT
from zeroshift.methods.dmn import DMN
from zeroshift.methods.dota import DOTA
from zeroshift.methods.dpcore import DPCore
from zeroshift.methods.dpe import DPE
from zeroshift.methods.dynaprompt import DynaPrompt
from zeroshift.methods.ecalp import ECALP
from zeroshift.methods.frolic import Frolic
from zeroshift.methods.gda_clip import GDACLIP
from zeroshift.methods.gda_pseudo import GDAPseudo
from zeroshift.methods.histo_transclip import HistoTransCLIP
from zeroshift.methods.histpt import HisTPT
from zeroshift.methods.mta import MTA
from zeroshift.methods.oga import OGA
from zeroshift.methods.promptalign import PromptAlign
from zeroshift.methods.ratta import RATTA
from zeroshift.methods.stata import StatA
from zeroshift.methods.swapprompt import SwapPrompt
from zeroshift.methods.t3a import T3A
from zeroshift.methods.tca import TCA
from zeroshift.methods.tda import TDA
from zeroshift.methods.timo import TIMO
from zeroshift.methods.timo_s import TIMOS
from zeroshift.methods.tip_adapter import TipAdapter
from zeroshift.methods.tps import TPS
from zeroshift.methods.tpt import TPT
from zeroshift.methods.transclip import TransCLIP
from zeroshift.methods.zero import ZERO
from zeroshift.methods.zero_shot import ZeroShot
from zeroshift.methods.zlap import ZLaP
from zeroshift.methods.zlap_inductive import ZLaPInductive
from zeroshift.mixture import OnlineAnchoredMixture, TransductiveAnchoredMixture
from zeroshift.suggest import did_you_mean

__all__ = ["ENTRY_POINT_GROUP", "MethodInfo", "ParameterInfo", "create", "get", "list_methods", "load"]

ENTRY_POINT_GROUP = "zeroshift.methods"
PROTOCOLS = ("online", "episodic", "transductive", "few-shot")

BUILT_IN: tuple[type[Method], ...] = (
    ZeroShot,
    OnlineADAPT,
    TransductiveADAPT,
    OnlineAnchoredMixture,
    TransductiveAnchoredMixture,
    ReleasedOnlineADAPT,
    ReleasedTransductiveADAPT,
    TDA,
    DMN,
    DOTA,
    BCA,
    OGA,
    T3A,
    ECALP,
    ZLaPInductive,
    TCA,
    DPE,
    MTA,
    ZERO,
    AWT,
    RATTA,
    TPS,
    TPT,
    CTPT,
    DiffTPT,
    PromptAlign,
    DynaPrompt,
    HisTPT,
    B2TPT,
    DPCore,
    TransCLIP,
    HistoTransCLIP,
    StatA,
    ZLaP,
    Frolic,
    GDAPseudo,
    SwapPrompt,
    TipAdapter,
    GDACLIP,
    TIMO,
    TIMOS,
)


@dataclass(frozen=True)
class ParameterInfo:
    name: str
    allowed: str
    """What it may be, in words."""
    default: Any
    required: bool


@dataclass(frozen=True)
class MethodInfo:
    name: str
    cls: type[Method]
    protocol: str
    """`"online"`, `"episodic"`, `"transductive"` or `"few-shot"`."""
    needs: tuple[str, ...]
    takes: tuple[str, ...]
    """What it can be given and does without."""
    summary: str
    parameters: tuple[ParameterInfo, ...]
    scored: str
    """Whether a sample is predicted `"before"` or `"after"` the method learns from it."""
    state_size: str
    complexity: str
    reconstructed: str | None
    """Why it is a reconstruction; None where it is written from its authors' code or equations."""
    presets: tuple[str, ...]
    """Data sets the authors set parameters for by hand."""

    @classmethod
    def of(cls, method: type[Method]) -> MethodInfo:
        summary = " ".join((inspect.getdoc(method) or "").split("\n\n")[0].split())
        return cls(
            name=method.name,
            cls=method,
            protocol=method.protocol,
            needs=method.needs,
            takes=(*method.takes, *_optional_arrays(method)),
            summary=summary,
            parameters=tuple(_parameters(method)),
            scored=method.scored,
            state_size=method.state_size,
            complexity=method.complexity,
            reconstructed=method.reconstructed,
            presets=tuple(method.presets),
        )


def _parameters(method: type[Method]) -> list[ParameterInfo]:
    described = []
    for name, parameter in inspect.signature(method).parameters.items():
        if name == "prototypes":
            continue
        free = "arrays" if name in method.array_parameters else "anything"
        allowed = method.constraints[name].describe() if name in method.constraints else free
        required = parameter.default is inspect.Parameter.empty
        described.append(ParameterInfo(name, allowed, None if required else parameter.default, required))
    return described


def _optional_arrays(method: type[Method]) -> tuple[str, ...]:
    given = inspect.signature(method).parameters
    return tuple(name for name in method.array_parameters if name in given and given[name].default is None)


@cache
def _registry() -> Mapping[str, MethodInfo]:
    methods = {method.name: MethodInfo.of(method) for method in BUILT_IN}
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        # One broken plug-in must not take the library down with it; it is named and left out.
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
            warnings.warn(f"the method plug-in {entry.value!r} was left out: {error}", stacklevel=2)
    return methods


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
    """The method registered under `name`; a near miss is answered with the name that was probably meant."""
    methods = _registry()
    if name in methods:
        return methods[name]
    raise ValueError(f"no method is called {name!r}. {did_you_mean(name, methods)}Known: {', '.join(methods)}.")


def create(name: str, prototypes: Array, **parameters: Any) -> Method:
    """A new method by name.

    >>> import numpy as np
    >>> create("adapt_online", np.eye(3, 8), bank_size=4)
    OnlineADAPT(<prototypes 3 x 8, numpy>, bank_size=4, n_seen=0)
    """
    info = get(name)
    known = {parameter.name: parameter for parameter in info.parameters}
    for given in parameters:
        if given not in known:
            hint = did_you_mean(given, known)
            raise TypeError(f"{name} has no parameter {given!r}. {hint}It takes: {', '.join(known)}.")
    for parameter in info.parameters:
        if parameter.required and parameter.name not in parameters:
            raise TypeError(f"{name} needs {parameter.name} ({parameter.allowed}); it has no default.")
    return info.cls(prototypes, **parameters)


def load(
    path: str | os.PathLike[str], *, library: str | None = None, device: str | None = None, **changes: Any
) -> Method:
    """A saved method of whatever class wrote the file; see `Method.load`."""
    return get(str(method_file.read_header(path).get("method"))).cls.load(
        path, library=library, device=device, **changes
    )
