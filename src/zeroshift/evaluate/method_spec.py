"""A method as it takes part in a comparison: with which parameters, and with what beside the prototypes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zeroshift import methods
from zeroshift.evaluate.inputs import ENCODER, HELD, LACKING, TEXT, VIEWS, VISION, fillable, needed
from zeroshift.methods import MethodInfo
from zeroshift.methods._shared.prompt_tuned import PromptTuned
from zeroshift.suggest import did_you_mean

__all__ = ["MethodSpec", "list_method_specs"]


@dataclass(frozen=True)
class MethodSpec:
    """A method by name, its parameters, and what it is given of what it could do without; all of them checked against
    what the method takes.

    >>> MethodSpec("adapt_online", {"bank_size": 4}, also=("support",)).label
    'adapt_online+support bank_size=4'
    """

    method: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    also: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.method, str):
            raise TypeError(f"method must be the name of a method; got {self.method!r}. Fix: method='zero_shot'.")
        _check_parameters(self.info, self.parameters)
        object.__setattr__(
            self, "parameters", dict(self.parameters)
        )  # what was checked, whatever becomes of the caller's
        object.__setattr__(self, "also", self._told_once(self.also))

    @classmethod
    def named(cls, text: str, parameters: Mapping[str, Any] | None = None) -> MethodSpec:
        """From `NAME`, or `NAME+support` for a method that takes labelled samples but can do without, `NAME+views` for
        one that takes several views of each image.

        >>> MethodSpec.named("adapt_transductive+support").also
        ('support',)
        >>> MethodSpec.named("tda+views").given
        ('views',)
        >>> MethodSpec.named("gda_clip+support").label
        'gda_clip'
        """
        if not isinstance(text, str):
            raise TypeError(
                f"text must be the name of a method; got {text!r}. Fix: 'adapt_online', or with '+support'."
            )
        name, *also = text.split("+")
        known = fillable(methods.get(name))
        for extra in also:
            if extra not in known:
                raise ValueError(_cannot_be_given(name, extra, known))
        return cls(name, {} if parameters is None else parameters, tuple(also))

    def _told_once(self, also: Any) -> tuple[str, ...]:
        """One name for one thing: what it is given anyway is not said, and validation is a part of the support."""
        known = fillable(self.info)
        if not isinstance(also, (tuple, list)):
            fix = f"also=({also!r},)" if also in known else f"also={known!r}"
            raise TypeError(f"also must be a tuple of what {self.method} is given as well; got {also!r}. Fix: {fix}.")
        for extra in also:
            if extra not in known:
                raise ValueError(f"also: {_cannot_be_given(self.method, extra, known)} Fix: also={known!r}.")
        wanted = {*also, *(["support"] if "validation" in also else [])} - needed(self.info)
        return tuple(extra for extra in known if extra in wanted)

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
        wanted = needed(self.info).union(self.also) - set(self.parameters)
        if "validation" in wanted:
            wanted.add("support")  # of which it is a part
        return tuple(name for name in fillable(self.info) if name in wanted)

    @property
    def tunes_text(self) -> bool:
        """Whether it is made with the text side of the encoder."""
        return TEXT in self.info.cls.model_parameters and TEXT in needed(self.info)

    @property
    def begins_with_words(self) -> bool:
        """Whether its classifier is at first what its own words make of the classes, and not the set's prototypes."""
        return issubclass(self.info.cls, PromptTuned)

    @property
    def words(self) -> str:
        """Those it tunes, where it tunes any."""
        return str(getattr(self.info.cls, "words", PromptTuned.words))

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
        arrays = (*self.info.cls.array_parameters, *self.info.cls.model_parameters)
        defaults = {p.name: p.default for p in self.info.parameters if not p.required and p.name not in arrays}
        return {**defaults, **self.parameters}

    @property
    def obstacle(self) -> str | None:
        """Why it cannot be run on a set of plain features, in words; None where it can."""
        return self.obstacle_with()

    def obstacle_with(self, *held: str) -> str | None:
        """The same where there are also `"views"` in the set, or an `"encoder"` beside it."""
        if VIEWS in self.given and VIEWS not in held:
            return f"needs {LACKING[VIEWS]}"
        if VISION in needed(self.info):
            return f"needs {LACKING[VISION]}"
        if self.tunes_text and ENCODER not in held:
            return f"needs {LACKING[ENCODER]}"
        filled = (*self.given, *self.parameters, *([TEXT] if self.tunes_text else []))
        known = {parameter.name: parameter for parameter in self.info.parameters}
        for name, parameter in known.items():
            if parameter.required and name not in filled:
                return f"needs {name} ({parameter.allowed}), which has no default"
        lacking = [need for need in self.info.needs if need not in (*HELD, *filled, *known)]
        if lacking:
            return f"needs {', '.join(lacking)}, which a comparison cannot give it"
        return None


def list_method_specs(protocol: str | None = None, *, views: bool = False) -> list[MethodSpec]:
    """Every registered method, or those of one protocol; methods that may be given labelled samples also with them, and
    with `views` those that may be given several views of an image also with these.

    >>> "adapt_online+support" in [spec.label for spec in list_method_specs("few-shot")]
    True
    >>> "tda+views" in [spec.label for spec in list_method_specs("online", views=True)]
    True
    """
    found = []
    for info in methods.list_methods():
        plain = MethodSpec(info.name)
        found.append(plain)
        if "support" in fillable(info) and "support" not in plain.given:
            found.append(MethodSpec(info.name, also=("support",)))
        if views and VIEWS in fillable(info) and VIEWS not in plain.given:
            found.append(MethodSpec(info.name, also=(VIEWS,)))
    if protocol is not None:
        methods.list_methods(protocol)  # refuses a protocol there is none of
    return [spec for spec in found if protocol in (None, spec.protocol)]


def _check_parameters(info: MethodInfo, parameters: Any) -> None:
    """As the method itself would, but when the run is planned, and not when it is its turn."""
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
                known_as = next(parameter for parameter in info.parameters if parameter.name == name)
                fix = "" if known_as.required else f" Fix: leave it out for {known_as.default!r}."
                raise type(error)(f"{error}{fix}") from None


def _cannot_be_given(method: str, extra: object, known: tuple[str, ...]) -> str:
    offer = f"It can be given {', '.join(known)}." if known else "It can be given nothing more."
    return f"{method} cannot be given {extra!r}. {did_you_mean(extra, known)}{offer}"
