"""Which work a record is of: what tells two runs apart, whatever code did them and whenever."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from zeroshift.evaluate.one_form import one_form
from zeroshift.evaluate.streams.arrangement import UNIMPORTANT

__all__ = ["identity", "told_apart"]

IDENTITY = (
    "digest", "prompt", "contestant", "method", "given", "protocol", "seed", "shots", "stream", "timed", "every",
    "analysis", "function", "parameters", "encoder", "classes",
)  # fmt: skip
"""What a run or an analysis says of itself: see `Trial.what` and `Analysis.what`. Like the key, not the set's name."""

PLAIN = ("prompt", "shots", "timed", "every")
NESTED = {"stream": "kind", "parameters": None, "encoder": None}
"""Fields with fields of their own, and the one of these that says which others there are."""


def identity(record: Mapping[str, Any]) -> str:
    """The same text for the same work; records that do not say what they are of are each of their own."""
    if not isinstance(record.get("digest"), str) or not (record.get("contestant") or record.get("analysis")):
        return f"key {record.get('key')}"
    what = {name: record.get(name) for name in IDENTITY}
    if isinstance(what["stream"], Mapping):
        what["stream"] = {name: value for name, value in what["stream"].items() if name not in UNIMPORTANT}
    if isinstance(what["encoder"], Mapping):
        what["encoder"] = {name: value for name, value in what["encoder"].items() if name != "source"}
    return json.dumps(one_form(what), sort_keys=True)


def told_apart(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Fields, beside set, contestant and seed, in which work differs among records that have them; in order.

    >>> runs = [{"prompt": "vanilla", "stream": {"kind": kind}} for kind in ("random", "class_sorted")]
    >>> told_apart(runs)
    ['stream.kind']
    """
    found = [name for name in PLAIN if _differ(record[name] for record in records if name in record)]
    for name, chooser in NESTED.items():
        inside = [(record, record[name]) for record in records if isinstance(record.get(name), Mapping)]
        if chooser is not None and _differ(value.get(chooser) for _, value in inside):
            found.append(f"{name}.{chooser}")
        # Two kinds of stream need not both have a concentration; of one kind a field that only one has does differ.
        apart: dict[str, list[Mapping[str, Any]]] = {}
        for record, value in inside:
            apart.setdefault(_text([record.get("analysis"), chooser and value.get(chooser)]), []).append(value)
        for field in dict.fromkeys(_fields(value for _, value in inside)):
            if field not in (chooser, *UNIMPORTANT) and any(_differ(v.get(field) for v in of) for of in apart.values()):
                found.append(f"{name}.{field}")
    sets: dict[str, list[Any]] = {}
    for record in records:
        sets.setdefault(_text(record.get("features")), []).append(record.get("digest"))
    return [*found, *(["digest"] if any(map(_differ, sets.values())) else [])]


def _fields(values: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for value in values:
        yield from value


def _differ(values: Iterable[Any]) -> bool:
    return len(set(map(_text, values))) > 1


def _text(value: Any) -> str:
    return json.dumps(one_form(value), sort_keys=True)
