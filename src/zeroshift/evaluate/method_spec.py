"""A method as it is compared: its name, its parameters, and which optional inputs it is given."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from zeroshift import methods
from zeroshift.methods import MethodInfo
from zeroshift.methods.inputs import (
    OTHER,
    PYTHON_ONLY,
    SECOND,
    SETTING,
    TEXT,
    VIEWS,
    add_implied_inputs,
    method_inputs,
    missing_input,
    prompt_words,
    starts_from_prompt,
    unaccepted_input,
)
from zeroshift.methods.sticky_filter import SUFFIX
from zeroshift.suggest import did_you_mean

__all__ = ["COMPARISON_HINTS", "GROUPS", "MethodSpec", "comparison_group", "list_method_specs"]

GROUPS = (
    "online",
    "online with views",
    "episodic",
    "transductive",
    "transductive with views",
    "few-shot",
    "few-shot with views",
)
"""What methods may see. Methods are ranked within a group and not across groups."""

COMPARISON_HINTS = {
    **{name: f"leave it out; {fix}" for name, fix in PYTHON_ONLY.items()},
    VIEWS: "zeroshift extract --views 64",
    TEXT: "--encoder SOURCE",
    SECOND: "zeroshift extract --second-encoder ENCODER",
    OTHER: "leave it out; in Python, zeroshift.encode.make_method({method!r}, ...) makes it",
    SETTING: "--set {method}.{name}=VALUE",
}
"""How a method of a comparison is given what it lacks, in terms of `zeroshift compare`."""


@dataclass(frozen=True)
class MethodSpec:
    """A method by name, its parameters, and the optional inputs it is given; checked against what the method takes.

    >>> MethodSpec("adapt_online", {"bank_size": 4}, also=("support",)).label
    'adapt_online+support bank_size=4'
    """

    method: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    also: tuple[str, ...] = ()
    """Optional inputs it is given: "support", "views" and so on."""

    def __post_init__(self) -> None:
        if not isinstance(self.method, str):
            raise TypeError(f"method must be the name of a method; got {self.method!r}. Fix: method='zero_shot'.")
        _check_parameters(self.info, self.parameters)
        object.__setattr__(self, "parameters", dict(self.parameters))  # a copy: the caller may change theirs
        object.__setattr__(self, "also", self._normalize_also(self.also))

    @classmethod
    def named(cls, text: str, parameters: Mapping[str, Any] | None = None) -> MethodSpec:
        """From `NAME`; `NAME+support` gives optional labelled samples too, `NAME+views` the views of each image.
        `NAME+filter` is an online method with `StickyFilter`.

        >>> MethodSpec.named("adapt_transductive+support").also
        ('support',)
        >>> MethodSpec.named("tda+views").given
        ('views',)
        >>> MethodSpec.named("gda_clip+support").label
        'gda_clip'
        >>> MethodSpec.named("tda+views+filter").label
        'tda+filter+views'
        """
        if not isinstance(text, str):
            raise TypeError(
                f"text must be the name of a method; got {text!r}. Fix: 'adapt_online', or with '+support'."
            )
        name, *also = text.split("+")
        if "filter" in also:
            also.remove("filter")
            name += SUFFIX
        for extra in also:
            if reason := unaccepted_input(methods.get(name), extra):
                raise ValueError(reason)
        return cls(name, {} if parameters is None else parameters, tuple(also))

    def _normalize_also(self, also: Any) -> tuple[str, ...]:
        """In a fixed order, without inputs that it is given anyway, so that one spec has one label."""
        inputs = method_inputs(self.info)
        known = inputs.from_features
        if not isinstance(also, (tuple, list)):
            fix = f"also=({also!r},)" if also in known else f"also={known!r}"
            raise TypeError(f"also must be a tuple of optional inputs of {self.method}; got {also!r}. Fix: {fix}.")
        for extra in also:
            if extra not in known:
                reason = unaccepted_input(self.info, extra) or f"{extra!r} cannot be given in a comparison."
                raise ValueError(f"also: {reason} Fix: {COMPARISON_HINTS.get(extra, f'also={known!r}')}.")
        wanted = set(add_implied_inputs(self.info, also)) - set(inputs.required)
        return tuple(extra for extra in known if extra in wanted)

    @property
    def info(self) -> MethodInfo:
        return methods.get(self.method)

    @property
    def label(self) -> str:
        """Its name wherever results are shown; different for different specs."""
        changed = (f" {name}={value}" for name, value in sorted(self.parameters.items()))
        return "+".join((self.method, *self.also)) + "".join(changed)

    @property
    def given(self) -> tuple[str, ...]:
        """The inputs it is given from a set of features, besides prototypes."""
        inputs = method_inputs(self.info)
        wanted = {*inputs.required, *self.also} - set(self.parameters)
        return tuple(name for name in inputs.from_features if name in add_implied_inputs(self.info, wanted))

    @property
    def tunes_text(self) -> bool:
        """Whether it is made with the text side of the encoder."""
        return TEXT in method_inputs(self.info).required

    @property
    def starts_from_prompt(self) -> bool:
        """Whether its first classifier is that of its own prompt instead of the set's prototypes."""
        return starts_from_prompt(self.info)

    @property
    def prompt_words(self) -> str:
        """The words of the prompt it tunes, if it tunes one."""
        return prompt_words(self.info)

    @property
    def protocol(self) -> str:
        """That of its method; a method that sees labels is few-shot."""
        return "few-shot" if "support" in self.given else self.info.protocol

    @property
    def group(self) -> str:
        """The one of `GROUPS` whose methods it may be compared with."""
        return comparison_group(self.protocol, self.given)

    @property
    def streamed(self) -> bool:
        """Whether the order of the samples matters."""
        return self.info.protocol == "online"

    @property
    def drawn(self) -> bool:
        """Whether rows are drawn for it before the run."""
        return bool({"support", "unlabelled"} & set(self.given))

    @property
    def settings(self) -> dict[str, Any]:
        """Every parameter that is neither an array nor a model, defaults included."""
        arrays = (*self.info.cls.array_parameters, *self.info.cls.model_parameters)
        defaults = {p.name: p.default for p in self.info.parameters if not p.required and p.name not in arrays}
        return {**defaults, **self.parameters}

    def missing_input(self, *held: str) -> str | None:
        """Why it cannot be run on a set of labelled features, "needs ... Fix: ..."; None if it can. `held` names
        further inputs that are available: `"views"` and `"second"` in the set, `"text"` of an encoder."""
        available = {*held, *self.parameters, *(name for name in self.given if name not in (VIEWS, SECOND))}
        return missing_input(self.info, available, requested=self.given, hints=COMPARISON_HINTS)


def comparison_group(protocol: str, given: Collection[str]) -> str:
    """The one of `GROUPS` of a method with this protocol and these inputs. Episodic methods all see views.

    >>> comparison_group("online", ["views"])
    'online with views'
    """
    return f"{protocol} with views" if VIEWS in given and protocol != "episodic" else protocol


def list_method_specs(protocol: str | None = None, *, views: bool = False) -> list[MethodSpec]:
    """Every registered method, or those of one protocol. Methods that take labelled samples optionally are listed with
    them too; with `views`, so are methods that take views optionally.

    >>> "adapt_online+support" in [spec.label for spec in list_method_specs("few-shot")]
    True
    >>> "tda+views" in [spec.label for spec in list_method_specs("online", views=True)]
    True
    """
    found = []
    for info in methods.list_methods():
        plain = MethodSpec(info.name)
        found.append(plain)
        if "support" in method_inputs(info).from_features and "support" not in plain.given:
            found.append(MethodSpec(info.name, also=("support",)))
        if views and VIEWS in method_inputs(info).from_features and VIEWS not in plain.given:
            found.append(MethodSpec(info.name, also=(VIEWS,)))
    if protocol is not None:
        methods.list_methods(protocol)  # refuses an unknown protocol
    return [spec for spec in found if protocol in (None, spec.protocol)]


def _check_parameters(info: MethodInfo, parameters: Any) -> None:
    """As the method's constructor does, but when the run is planned."""
    if not isinstance(parameters, Mapping):
        raise TypeError(
            f"parameters must be a mapping from names to values; got {parameters!r}. Fix: parameters={{}} for none."
        )
    known = [parameter.name for parameter in info.parameters]
    for name, value in parameters.items():
        if name not in known:
            takes = f"It takes: {', '.join(known)}." if known else "It takes none."
            raise TypeError(f"{info.name} has no parameter {name!r}. {did_you_mean(name, known)}{takes}")
        if name in info.cls.constraints:
            try:
                info.cls.constraints[name].check(f"{name} of {info.name}", value)
            except (TypeError, ValueError) as error:
                known_parameter = next(parameter for parameter in info.parameters if parameter.name == name)
                fix = "" if known_parameter.required else f" Fix: leave it out for {known_parameter.default!r}."
                raise type(error)(f"{error}{fix}") from None
