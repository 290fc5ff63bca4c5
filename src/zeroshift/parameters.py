"""What a parameter may be, as data: one description serves validation, the command line, registry and checks."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

__all__ = ["Choice", "Constraint", "Flag", "Model", "Number", "Optional", "Pair"]


class Constraint(ABC):
    """What values a parameter takes."""

    @abstractmethod
    def describe(self) -> str:
        """The allowed values in words, for messages and listings."""

    @abstractmethod
    def accept(self, value: Any) -> Any:
        """The value in plain Python form; ValueError or TypeError (without a message) where it is not allowed."""

    @abstractmethod
    def parse(self, text: str) -> Any:
        """The value written as `text` on a command line; ValueError where it cannot be read."""

    def check(self, name: str, value: Any) -> Any:
        """`accept`, with a message that names the parameter, what was given and what is allowed."""
        try:
            return self.accept(value)
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"{name} must be {self.describe()}; got {value!r}.") from None


@dataclass(frozen=True)
class Number(Constraint):
    """A finite number between `low` and `high`; the lower end excluded where `above`."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    integer: bool = False

    def describe(self) -> str:
        what = "an integer" if self.integer else "a number"
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
        if not math.isfinite(number) or not self.low <= number <= self.high or (self.above and number == self.low):
            raise ValueError
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
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if text.lower() not in words:
            raise ValueError(text)
        return words[text.lower()]


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
    """An object that computes, such as the text side of an encoder: one of `kind`, which cannot be typed."""

    kind: type
    made_by: str
    """The call that makes one, for messages."""

    def describe(self) -> str:
        return f"a {self.kind.__name__}, as {self.made_by} makes it"

    def accept(self, value: Any) -> Any:
        if not isinstance(value, self.kind):
            raise TypeError
        return value

    def parse(self, text: str) -> Any:
        raise ValueError(text)
