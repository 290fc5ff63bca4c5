"""Fields of records by their names, with dots into nested ones: what there are, and what each holds."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from zeroshift.suggest import did_you_mean

__all__ = ["check_fields", "field_names", "number_of", "offer", "value_of"]

HIDDEN = ("detail", "kind", "schema")
"""Fields no table shows: curves and matrices, and what every record has the same."""

TOLD_APART = ("stream.", "parameters.")
"""Where lists of numbers are fields too: they tell runs apart."""

SHORT = 8
"""How long a list of numbers may be and still be a field: counts are, curves are not."""

SHOWN = 12
"""Fields named where none of them was meant, the nearest first."""

NEAR = 0.6
"""How alike two names must be, from 0 to 1, before one is offered for the other."""

ACCURACIES = ("accuracy", "zero_shot_accuracy")

COMPUTED = ("job", "gain")
"""Fields that no record holds, worked out from it: its contestant or else its analysis, and the gain in points."""


def value_of(record: Mapping[str, Any], name: str) -> Any:
    """A field by its name, with dots into nested ones; None where the record has none.

    Names may have dots of their own: the longest that is there counts. An accuracy that is no number counts as none.

    >>> record = {"accuracy": 0.75, "zero_shot_accuracy": 0.5, "settings": {"alpha": 0.9}, "contestant": "tda"}
    >>> value_of(record, "settings.alpha"), value_of(record, "gain"), value_of(record, "job"), value_of(record, "seed")
    (0.9, 25.0, 'tda', None)
    """
    if name == "gain":
        found, baseline = number_of(record, "accuracy"), number_of(record, "zero_shot_accuracy")
        return None if found is None or baseline is None else 100 * (found - baseline)
    if name in ACCURACIES:
        return number_of(record, name)
    if name == "job":
        return record.get("contestant") or record.get("analysis")
    return _inside(record, name.split("."))


def number_of(record: Mapping[str, Any], name: str) -> float | None:
    """What a field of the record's own holds, where it is a number."""
    value = record.get(name)
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return value if number else None


def field_names(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """Every field that holds a number, a word, or a few of them in some record.

    >>> field_names([{"accuracy": 0.5, "settings": {"alpha": 0.9}, "detail": {"curve": []}}])
    ['job', 'gain', 'accuracy', 'settings.alpha']
    """
    return list(dict.fromkeys([*COMPUTED, *(name for record in records for name in _leaves(record) if name)]))


def check_fields(option: str, names: Iterable[str], records: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a field that no record has."""
    known = field_names(records)
    for name in names:
        if name not in known:
            nearest = difflib.get_close_matches(name.lower(), known, n=SHOWN, cutoff=0)
            listed = ", ".join(nearest)
            more = f"; all {len(known)} with --fields" if len(known) > len(nearest) else ""
            raise ValueError(f"{option}: no record has {name!r}. {offer(name, known)}Fix: one of {listed}{more}.")


def offer(given: str, known: Iterable[str]) -> str:
    """A question after the name that was meant, where one is near enough to be it; else nothing.

    >>> offer("acuracy", ["accuracy", "seed"]), offer("colour", ["accuracy", "seed"])
    ("Did you mean 'accuracy'? ", '')
    """
    names = list(known)
    near = difflib.get_close_matches(given.lower(), names, n=1, cutoff=NEAR)
    return did_you_mean(given, near or [name for name in names if given and name.startswith(given)])


def _inside(value: Any, parts: Sequence[str]) -> Any:
    """The value at the end of a way of names, each of one part or of several joined by dots."""
    if not parts or not isinstance(value, Mapping):
        return None if parts else value
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        if name in value and (found := _inside(value[name], parts[length:])) is not None:
            return found
    return None


def _leaves(record: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for name, value in record.items():
        if before or name not in HIDDEN:
            if isinstance(value, Mapping):
                yield from _leaves(value, f"{before}{name}.")
            elif not isinstance(value, list) or _told(value) or before in TOLD_APART:
                yield f"{before}{name}"


def _told(values: list[Any]) -> bool:
    """Whether a list can stand in a table: words, or a few numbers."""
    words = all(isinstance(one, str) for one in values)
    return words or (len(values) <= SHORT and all(isinstance(one, (int, float)) for one in values))
