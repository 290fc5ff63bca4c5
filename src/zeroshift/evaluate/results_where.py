"""Conditions on the fields of records, as a person types them: NAME=VALUE, NAME!=VALUE, NAME>0.5."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zeroshift.evaluate.results import check_fields, offer, value_of

__all__ = ["Condition"]

FORM = re.compile(r"\s*([^\s=!<>][^=!<>]*?)\s*(!=|>=|<=|==|=|>|<)\s*(.*?)\s*", re.DOTALL)

ORDERS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}

FRACTIONS = ("accuracy", "calibration_error")
"""How the names of fields end that hold fractions of one."""

SHOWN = 8
"""Values named where none of them was meant."""


@dataclass(frozen=True)
class Condition:
    """`name sign value`.

    >>> Condition.parse("settings.alpha>0.5").holds({"settings": {"alpha": 0.9}})
    True
    >>> Condition.parse("seed=none").holds({"seed": 0})
    False
    """

    name: str
    sign: str
    value: str

    @classmethod
    def parse(cls, text: str) -> Condition:
        found = FORM.fullmatch(text)
        if found is None:
            raise ValueError(
                f"--where takes NAME=VALUE, NAME!=VALUE or NAME>NUMBER, such as --where contestant=tda; got {text!r}. "
                "Fix: put it in quotes where it has > or <."
            )
        name, sign, value = found.groups()
        condition = cls(name, "=" if sign == "==" else sign, value)
        if condition.sign in ORDERS:
            number = _number(value)
            if number is None:
                raise ValueError(f"--where {text}: {sign} compares with a number; got {value!r}. Fix: {name}{sign}0.5.")
            if name.endswith(FRACTIONS) and abs(number) > 1:
                raise ValueError(
                    f"--where {text}: {name} is a fraction of one; got {value}. Fix: {name}{sign}{number / 100:g}."
                )
        return condition

    def holds(self, record: Mapping[str, Any]) -> bool:
        value = value_of(record, self.name)
        if self.sign in ORDERS:
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            return number and ORDERS[self.sign](float(value), float(self.value))
        return self._equals(value) == (self.sign == "=")

    def check(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Refuse a field that no record has, and to put words in the order of numbers."""
        check_fields(f"--where {self}", [self.name], records)
        values = [value for record in records if (value := value_of(record, self.name)) is not None]
        if self.sign in ORDERS and not any(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values):
            some = _written(values[0]) if values else "none"
            raise ValueError(
                f"--where {self}: {self.sign} compares numbers, and {self.name} holds none; it is {some} in the first "
                f"record. Fix: {self.name}={some}, or {self.name}!={some}."
            )

    def why_none(self, records: Sequence[Mapping[str, Any]], after: Sequence[Condition] = ()) -> str:
        """What the field holds instead, in a sentence; for a condition that holds for none of the records that are left
        `after` others."""
        values = [value_of(record, self.name) for record in records]
        known = list(dict.fromkeys(_written(value) for value in values))
        near = offer(self.value, known) if self.sign == "=" and _number(self.value) is None else ""
        more = f" and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
        there = f"{self.name} is {', '.join(known[:SHOWN])}{more}"
        if not after:
            return f"no record has {self}. {near}{there}."
        before = " and ".join(map(str, after))
        return f"none of the records with {before} has {self}. {near}There {there}."

    def _equals(self, value: Any) -> bool:
        number = _number(self.value)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and number is not None:
            return math.isclose(float(value), number, rel_tol=1e-9)
        return _written(value).lower() == self.value.lower()

    def __str__(self) -> str:
        return f"{self.name}{self.sign}{self.value}"


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _written(value: Any) -> str:
    """As it is typed: none, true, tda, support,prompts."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
