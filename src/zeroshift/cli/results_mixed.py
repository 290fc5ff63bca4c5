"""What the rows of `zeroshift results --by` have in them that a reader would not guess: runs that should not be summed
up together, and means over other sets than those of the next row."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from zeroshift.evaluate.one_form import one_form
from zeroshift.evaluate.results import value_of
from zeroshift.evaluate.results_identity import told_apart
from zeroshift.evaluate.streams.arrangement import UNIMPORTANT

__all__ = ["warnings_about"]

Record = Mapping[str, Any]

OF_A_SET = ("features", "digest", "n_samples", "n_classes", "dimension")
"""Fields by which sets are meant to be told apart."""

PLAIN = ("stored", "random")
"""Streams that are the same rows in no order of their own: which of them a method is given is its own business."""


def warnings_about(runs: Sequence[Record], by: Sequence[str]) -> Iterator[str]:
    """Sentences, none where all is as it seems."""
    heaps: dict[str, list[Record]] = {}
    for record in runs:
        heaps.setdefault(repr([value_of(record, name) for name in by]), []).append(record)
    found: dict[str, None] = {}
    for heap in heaps.values():
        jobs = {str(value_of(record, "job")) for record in heap}
        found |= dict.fromkeys([*(["contestant"] if len(jobs) > 1 else []), *told_apart(heap)])
    if found:
        yield f"rows mix runs that differ in {', '.join(found)}; add it to --by, or choose with --where"
    if not set(by).intersection(OF_A_SET):
        yield from _uneven(heaps, by, "sets", _set_of, "features")
    if not any(name.startswith("stream") for name in by):
        yield from _uneven(heaps, by, "streams", _stream_of, "stream.kind")


def _uneven(
    heaps: Mapping[str, list[Record]], by: Sequence[str], what: str, of: Callable[[Record], str], field: str
) -> Iterator[str]:
    """Whether rows are means over different things, and for two of them which."""
    covered = {name: {of(record): value_of(record, field) for record in heap} for name, heap in heaps.items()}
    first, *others = covered
    for other in others:
        if apart := covered[first].keys() ^ covered[other].keys():
            thing = sorted(str({**covered[first], **covered[other]}[key]) for key in apart)[0]
            has, lacks = (first, other) if any(str(v) == thing for v in covered[first].values()) else (other, first)
            yield (
                f"rows cover different {what}, so their means do not compare: {_called(heaps[has][0], by)} has runs on "
                f"{thing} that {_called(heaps[lacks][0], by)} lacks; choose with --where, or add {field} to --by"
            )
            return


def _called(record: Record, by: Sequence[str]) -> str:
    return ", ".join(str(value_of(record, name)) for name in by)


def _set_of(record: Record) -> str:
    return str(record.get("digest") or record.get("features"))


def _stream_of(record: Record) -> str:
    stream = record.get("stream")
    if not isinstance(stream, Mapping) or stream.get("kind") in PLAIN:
        return ""
    # The sizes of domains belong to the set.
    kept = {name: value for name, value in stream.items() if name not in (*UNIMPORTANT, "domains")}
    return json.dumps(one_form(kept), sort_keys=True)
