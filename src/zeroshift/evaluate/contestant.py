"""A method as it takes part in a comparison: with which parameters, and with what beside the prototypes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zeroshift import methods
from zeroshift.methods import MethodInfo
from zeroshift.suggest import did_you_mean

__all__ = ["GIVEN", "Contestant", "contestants"]

GIVEN = ("prompts", "support", "validation", "unlabelled")
"""Array parameters a comparison can fill from a labelled set. `validation` comes out of the labelled samples a method
is given: nothing is tuned on rows that are scored."""

HELD = ("features", "prototypes")
"""What every set holds."""


@dataclass(frozen=True)
class Contestant:
    """A method by name, its parameters, and what it is given of what it could do without.

    >>> Contestant("adapt_online", {"bank_size": 4}, also=("support",)).label
    'adapt_online+support bank_size=4'
    """

    method: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    also: tuple[str, ...] = ()

    @classmethod
    def named(cls, text: str, parameters: Mapping[str, Any] | None = None) -> Contestant:
        """From `NAME`, or `NAME+support` for a method that takes labelled samples but can do without.

        >>> Contestant.named("adapt_transductive+support").also
        ('support',)
        >>> Contestant.named("gda_clip+support").label
        'gda_clip'
        """
        name, *also = text.split("+")
        known = _array_parameters(methods.get(name))
        for extra in also:
            if extra not in known:
                offer = f"It can be given {', '.join(known)}." if known else "It can be given nothing more."
                raise ValueError(f"{name} cannot be given {extra!r}. {did_you_mean(extra, known)}{offer}")
        # One name for one thing: what it is given anyway is not said, and validation is a part of the support.
        wanted = {*also, *(["support"] if "validation" in also else [])} - set(cls(name).given)
        return cls(name, dict(parameters or {}), tuple(extra for extra in known if extra in wanted))

    @property
    def info(self) -> MethodInfo:
        return methods.get(self.method)

    @property
    def label(self) -> str:
        """Its name wherever results are shown; different for different contestants."""
        changed = (f" {name}={value}" for name, value in sorted(self.parameters.items()))
        return "+".join((self.method, *self.also)) + "".join(changed)

    @property
    def given(self) -> tuple[str, ...]:
        """What it is given beside the prototypes."""
        required = {parameter.name for parameter in self.info.parameters if parameter.required}
        wanted = required.union(self.info.needs, self.also) - set(self.parameters)
        if "validation" in wanted:
            wanted.add("support")  # of which it is a part
        return tuple(name for name in _array_parameters(self.info) if name in wanted)

    @property
    def protocol(self) -> str:
        """Whom it is to be compared with: whatever sees labels is few-shot."""
        return "few-shot" if "support" in self.given else self.info.protocol

    @property
    def streamed(self) -> bool:
        """Whether the order of the samples matters."""
        return self.info.protocol == "online"

    @property
    def drawn(self) -> bool:
        """Whether rows are drawn for it beforehand."""
        return bool({"support", "unlabelled"} & set(self.given))

    @property
    def settings(self) -> dict[str, Any]:
        """Every parameter that holds no array, the defaults as well."""
        arrays = self.info.cls.array_parameters
        defaults = {p.name: p.default for p in self.info.parameters if not p.required and p.name not in arrays}
        return {**defaults, **self.parameters}

    @property
    def obstacle(self) -> str | None:
        """Why it cannot be made from a set, in words; None where it can."""
        known = {parameter.name: parameter for parameter in self.info.parameters}
        for name, parameter in known.items():
            if parameter.required and name not in (*self.given, *self.parameters):
                return f"needs {name} ({parameter.allowed}), which has no default"
        lacking = [need for need in self.info.needs if need not in (*HELD, *known)]
        if lacking:
            return f"needs {', '.join(lacking)}, which a comparison cannot give it"
        return None


def contestants(protocol: str | None = None) -> list[Contestant]:
    """Every registered method, or those of one protocol; methods that may be given labelled samples also with them.

    >>> "adapt_online+support" in [contestant.label for contestant in contestants("few-shot")]
    True
    """
    found = []
    for info in methods.list_methods():
        plain = Contestant(info.name)
        found.append(plain)
        if "support" in _array_parameters(info) and "support" not in plain.given:
            found.append(Contestant(info.name, also=("support",)))
    if protocol is not None:
        methods.list_methods(protocol)  # refuses a protocol there is none of
    return [contestant for contestant in found if protocol in (None, contestant.protocol)]


def _array_parameters(info: MethodInfo) -> tuple[str, ...]:
    """Those of its parameters that a set can fill."""
    names = {parameter.name for parameter in info.parameters}
    return tuple(name for name in GIVEN if name in names)
