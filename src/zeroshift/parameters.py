"""Parameters and state, declared once.

A class that derives from `Declared` writes one line per parameter (what it may be, its meaning, its default) and one
line per piece of state (its initial value, how it merges). Constructor signature, validation, documentation, command
line, registry, save, load, reset and merge follow from these lines. Constraints (`Number`, `Choice`, ...) say what a
parameter may be, as data.
"""

from __future__ import annotations

import inspect
import math
import re
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, dataclass_transform

from zeroshift.suggest import did_you_mean

__all__ = [
    "LARGEST_SIZE",
    "REQUIRED",
    "Choice",
    "Constraint",
    "Declared",
    "Flag",
    "Model",
    "Number",
    "Optional",
    "Pair",
    "Parameter",
    "State",
    "array_parameter",
    "model_parameter",
    "parameter",
    "state",
]


class Constraint(ABC):
    """What values a parameter takes."""

    @abstractmethod
    def describe(self) -> str:
        """The allowed values in words, for messages and listings."""

    @abstractmethod
    def accept(self, value: Any) -> Any:
        """The value in plain Python form; ValueError or TypeError if it is not allowed.

        `SizeError` says that `describe` allows the value, but nothing can be computed with a number of that size.
        """

    @abstractmethod
    def parse(self, text: str) -> Any:
        """The value written as `text` on a command line; ValueError if it cannot be read."""

    def check(self, name: str, value: Any) -> Any:
        """`accept`, with a message that names the parameter, the value and the allowed values."""
        try:
            return self.accept(value)
        except SizeError as error:
            raise ValueError(f"{name} must be {self.describe()}, and {error}; got {value!r}.") from None
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"{name} must be {self.describe()}; got {value!r}.") from None


SMALLEST_SIZE, LARGEST_SIZE = 1e-15, 1e15
"""A parameter is 0 or has an absolute value between these. With other numbers, products and quotients could
leave the range of float32, and answers would be NaN."""


class SizeError(ValueError):
    """A number is too large or too close to 0 to compute with."""


@dataclass(frozen=True)
class Number(Constraint):
    """A number from `low` to `high`, 0 or of a size that one can compute with (`SMALLEST_SIZE`, `LARGEST_SIZE`).

    With `above`, `low` itself is not allowed.
    """

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    integer: bool = False

    def describe(self) -> str:
        what = "an integer" if self.integer else "a number"
        if self.low == -math.inf:
            kind = what.split()[1]
            return f"any {kind}" if self.high == math.inf else f"{what} of at most {self.high:g}"
        if self.high < math.inf:
            if self.above:
                return f"{what} greater than {self.low:g} and at most {self.high:g}"
            return f"{what} from {self.low:g} to {self.high:g}"
        return f"{what} {'greater than' if self.above else 'of at least'} {self.low:g}"

    def accept(self, value: Any) -> float | int:
        if isinstance(value, (bool, str, bytes)) or value is None:
            raise TypeError
        # A NumPy or torch scalar (model.logit_scale.exp()) becomes a Python number, which JSON can hold.
        try:
            number = float(value)
        except OverflowError:
            raise ValueError from None
        except RuntimeError:
            raise TypeError from None  # torch, about a tensor without data
        if not math.isfinite(number) or not self.low <= number <= self.high or (self.above and number == self.low):
            raise ValueError
        if abs(number) > LARGEST_SIZE:
            raise SizeError(f"at most {LARGEST_SIZE:g}" if number > 0 else f"at least {-LARGEST_SIZE:g}")
        if 0 < abs(number) < SMALLEST_SIZE:
            zero = "" if self.above and self.low == 0 else "0 or "
            raise SizeError(f"{zero}at least {SMALLEST_SIZE:g} in size")
        if not self.integer:
            return number
        if number != int(number):
            raise ValueError
        return int(number)

    def parse(self, text: str) -> float | int:
        return int(text) if self.integer else float(text)


@dataclass(frozen=True)
class Flag(Constraint):
    def describe(self) -> str:
        return "True or False"

    def accept(self, value: Any) -> bool:
        if type(value).__name__ not in ("bool", "bool_"):
            raise TypeError
        return bool(value)

    def parse(self, text: str) -> bool:
        spellings = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if text.lower() not in spellings:
            raise ValueError(text)
        return spellings[text.lower()]


@dataclass(frozen=True)
class Choice(Constraint):
    values: tuple[str, ...]

    def describe(self) -> str:
        return "one of " + ", ".join(repr(value) for value in self.values)

    def accept(self, value: Any) -> str:
        if value not in self.values:
            raise ValueError
        return str(value)

    def parse(self, text: str) -> str:
        return text


@dataclass(frozen=True)
class Pair(Constraint):
    """Two values with a constraint each, such as `prune = (every, ratio)`."""

    first: Constraint
    second: Constraint
    names: tuple[str, str]

    def describe(self) -> str:
        return f"a pair ({self.names[0]}: {self.first.describe()}, {self.names[1]}: {self.second.describe()})"

    def accept(self, value: Any) -> tuple[Any, Any]:
        first, second = value
        return self.first.accept(first), self.second.accept(second)

    def parse(self, text: str) -> tuple[Any, Any]:
        first, second = text.split(",")
        return self.first.parse(first), self.second.parse(second)


@dataclass(frozen=True)
class Optional(Constraint):
    """None, or what `inner` allows."""

    inner: Constraint

    def describe(self) -> str:
        return f"None or {self.inner.describe()}"

    def accept(self, value: Any) -> Any:
        return None if value is None else self.inner.accept(value)

    def parse(self, text: str) -> Any:
        return None if text.lower() == "none" else self.inner.parse(text)


@dataclass(frozen=True)
class Model(Constraint):
    """A model, such as the text side of an encoder: an instance of `kind`. It cannot be given on a command line."""

    kind: type
    made_by: str
    """The call that makes one, for messages."""

    def describe(self) -> str:
        name = self.kind.__name__
        return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}, as {self.made_by} makes it"

    def accept(self, value: Any) -> Any:
        if not isinstance(value, self.kind):
            raise TypeError
        return value

    def parse(self, text: str) -> Any:
        raise ValueError(text)


REQUIRED: Any = type("Required", (), {"__repr__": lambda self: "<required>"})()
"""The default of a parameter that must be given."""


@dataclass(frozen=True)
class Parameter:
    """One constructor argument. `parameter`, `array_parameter` and `model_parameter` declare one."""

    allowed: Constraint | None
    meaning: str
    default: Any = REQUIRED
    kind: str = "value"
    """`"value"` (saved in the header of a state file), `"array"` (saved as tensors) or `"model"` (not saved)."""
    reload: bool = False
    """Whether `load` may change it: it selects how to compute, not what."""
    kw_only: bool = True
    sizes_state: bool = False
    """Whether arrays of the initial state have this many entries along one axis."""
    annotation: str = ""

    @property
    def required(self) -> bool:
        return self.default is REQUIRED

    def describe(self) -> str:
        """The allowed values in words."""
        return self.allowed.describe() if self.allowed else "arrays" if self.kind == "array" else "any value"


@dataclass(frozen=True)
class State:
    """One piece of state. `state` declares one."""

    initial: Any
    """The value before any sample, which is copied, or a function of the object that returns it."""
    saved_as: str
    """Name in a state file; for a value of several parts the prefix of their names, and "" for no prefix."""
    merge: str | Callable[[Any, Any], Any] | None
    """How two values become one: "sum", "equal" (they must be the same) or a function; None if that is impossible."""
    grows: bool
    """Whether the first axis of an array grows with the samples seen."""
    check: Callable[[Any, Any], None] | None = None
    """Called with the object and a loaded value; raises ValueError if no sequence of samples leads to this value."""
    holds: Callable[[str, Any], None] | None = None
    """Called with the name and a loaded value; raises ValueError for numbers outside the range it stands for."""


_NAME_OF_ATTRIBUTE = "\0"
"""Stands for the name of the attribute, without leading underscores, until the class is created."""


def parameter(
    allowed: Constraint, meaning: str, *, default: Any = REQUIRED, reload: bool = False, sizes_state: bool = False
) -> Any:
    """Declare a parameter: what it may be, its meaning in one sentence, and its default.

    `reload` marks a parameter that selects how to compute, not what: `load` may change it. `sizes_state` marks one that
    arrays of the initial state have as the length of an axis: `load` refuses a file whose arrays are shorter before it
    allocates memory.
    """
    return Parameter(allowed, meaning, default, "value", reload, sizes_state=sizes_state)


def array_parameter(meaning: str, *, default: Any = REQUIRED, kw_only: bool = True) -> Any:
    """Declare a parameter that holds an array, or a tuple of arrays."""
    return Parameter(None, meaning, default, "array", kw_only=kw_only)


def model_parameter(allowed: Constraint, meaning: str, *, default: Any = REQUIRED) -> Any:
    """Declare a parameter that holds a model, such as the text side of an encoder.

    A state file does not contain the model. It records which one it was (`identity`), and `load` must be given it.
    """
    return Parameter(allowed, meaning, default, "model")


def state(
    initial: Any,
    *,
    saved_as: str | None = None,
    merge: str | Callable[[Any, Any], Any] | None = None,
    grows: bool = False,
    check: Callable[[Any, Any], None] | None = None,
    holds: Callable[[str, Any], None] | None = None,
    init: Literal[False] = False,
) -> Any:
    """Declare a piece of state: its initial value, or a function of the object that returns it, and how it merges.

    Reset, save, load, copy and merge follow from the declaration. A value may be an array, a number, a named tuple of
    these, or an object with `state() -> (arrays, values)` and `restore(arrays, values)`.

    `holds` says what its numbers may be, such as `unit_length` or `within(0, 1)` of `zeroshift.state_checks`: loaded
    values are checked by it. `check(method, value)` is for what depends on more than the value; a value with a function
    `check_seen(n_seen)` needs neither. They raise ValueError for a value that no sequence of samples leads to.
    """
    if merge not in (None, "sum", "equal") and not callable(merge):
        raise ValueError(f"merge must be 'sum', 'equal', a function of two values, or None; got {merge!r}.")
    return State(initial, _NAME_OF_ATTRIBUTE if saved_as is None else saved_as, merge, grows, check, holds)


@dataclass_transform(
    eq_default=False, kw_only_default=True, field_specifiers=(parameter, array_parameter, model_parameter, state)
)
class Declared:
    """Collects the declarations of a class body and of its bases, and derives signature and documentation from them."""

    declared_parameters: ClassVar[Mapping[str, Parameter]] = {}
    declared_states: ClassVar[Mapping[str, State]] = {}
    _own_declarations: ClassVar[Mapping[str, Parameter | State]] = {}
    """Those of the class body only."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        annotations = vars(cls).get("__annotations__", {})
        own: dict[str, Parameter | State] = {}
        for name, value in list(vars(cls).items()):
            if isinstance(value, Parameter):
                own[name] = replace(value, annotation=_annotation_text(annotations.get(name, "")))
                delattr(cls, name)
            elif isinstance(value, State):
                saved_as = name.lstrip("_") if value.saved_as == _NAME_OF_ATTRIBUTE else value.saved_as
                own[name] = replace(value, saved_as=saved_as)
                delattr(cls, name)
        cls._own_declarations = own
        declared: dict[str, Parameter | State] = {}
        for base in reversed(cls.__mro__):
            declared |= vars(base).get("_own_declarations", {})
        parameters = {name: one for name, one in declared.items() if isinstance(one, Parameter)}
        states = {name: one for name, one in declared.items() if isinstance(one, State)}
        _check_declarations(cls, parameters, states)
        cls.declared_parameters, cls.declared_states = parameters, states
        if "__init__" not in vars(cls):
            cls.__signature__ = _signature(parameters)  # type: ignore[attr-defined]
        if vars(cls).get("__doc__") and parameters:
            cls.__doc__ = _with_parameters(cls.__doc__ or "", parameters)

    @classmethod
    def bind(cls, arguments: tuple[Any, ...], given: Mapping[str, Any]) -> dict[str, Any]:
        """The value of every parameter, checked. TypeError names a parameter that is unknown or missing."""
        declared = cls.declared_parameters
        positional = [name for name, one in declared.items() if not one.kw_only]
        if len(arguments) > len(positional):
            raise TypeError(
                f"{cls.__name__} takes {len(positional)} positional argument{'s' * (len(positional) != 1)} "
                f"({', '.join(positional)}); got {len(arguments)}. Fix: pass the others by name."
            )
        values = dict(zip(positional, arguments, strict=False))
        for name in given:
            if name in values:
                raise TypeError(f"{cls.__name__} got {name} twice: by position and by name.")
            if name not in declared:
                known = ", ".join(declared)
                raise TypeError(
                    f"{cls.__name__} has no parameter {name!r}. {did_you_mean(name, declared)}It takes: {known}."
                )
        values |= given
        for name, one in declared.items():
            if name not in values:
                if one.required:
                    raise TypeError(
                        f"{cls.__name__} needs {name} ({one.describe()}); it has no default. Fix: pass {name}=..."
                    )
                values[name] = one.default
            if one.allowed is not None:
                values[name] = one.allowed.check(name, values[name])
        return {name: values[name] for name in declared}


def _check_declarations(cls: type, parameters: Mapping[str, Parameter], states: Mapping[str, State]) -> None:
    """Report mistakes of an author when the class is created, not when a user calls it."""
    for name in parameters:
        if name in vars(cls):
            raise TypeError(
                f"{cls.__name__}.{name} would be ignored: {name} is a declared parameter. "
                f"Fix: declare it again, {name} = parameter(..., default=...)."
            )
    for name, one in parameters.items():
        if one.allowed is not None and not one.required:
            one.allowed.check(f"the default of {cls.__name__}.{name}", one.default)
    names = ["n_seen", *(one.saved_as for one in states.values() if one.saved_as)]
    for name in names:
        if names.count(name) > 1:
            raise TypeError(
                f"{cls.__name__} would save two pieces of state as {name!r}. Fix: give one another name, saved_as=..."
            )


def _annotation_text(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _signature(parameters: Mapping[str, Parameter]) -> inspect.Signature:
    ordered = sorted(parameters.items(), key=lambda item: item[1].kw_only)
    return inspect.Signature(
        [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY if one.kw_only else inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=inspect.Parameter.empty if one.required else one.default,
                annotation=one.annotation or inspect.Parameter.empty,
            )
            for name, one in ordered
        ]
    )


SECTION = re.compile(r"^(Examples|Notes|References|See Also)\n-{3,}$", re.MULTILINE)


def _with_parameters(doc: str, parameters: Mapping[str, Parameter]) -> str:
    """The docstring with a section on the parameters, before the first other section."""
    text = inspect.cleandoc(doc)
    lines = ["Parameters", "----------"]
    for name, one in parameters.items():
        kind = one.annotation or "array"
        lines.append(f"{name} : {kind}" if one.required else f"{name} : {kind}, default {one.default!r}")
        allowed = f" Must be {one.allowed.describe()}." if one.allowed is not None else ""
        lines += [f"    {line}" for line in textwrap.wrap(one.meaning + allowed, 110)]
    section = SECTION.search(text)
    at = section.start() if section else len(text)
    head, tail = text[:at].rstrip(), text[at:]
    return "\n".join([head, "", *lines, *(["", tail] if tail else [])])
