"""The rows of `zeroshift results`: a run each, or a group of runs; values as the records hold them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from zeroshift.cli.console import print_warning
from zeroshift.cli.results_mixed import warnings_about
from zeroshift.evaluate.results import check_fields, group, offer, ordered, value_of
from zeroshift.evaluate.results_identity import told_apart
from zeroshift.report.words import counted

__all__ = ["Rows", "grouped_rows", "run_rows"]

Record = dict[str, Any]

BASELINE = "zero_shot_accuracy"

OF_RUNS = ("features", "job", "seed", "accuracy", BASELINE, "gain", "calibration_error")
OF_GROUPS = (
    "runs", "accuracy", "accuracy_low", "accuracy_high", "accuracy_worst", BASELINE, "gain", "gain_low", "gain_high",
    "calibration_error",
)  # fmt: skip


@dataclass(frozen=True)
class Rows:
    names: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    asked: tuple[str, ...] = ()
    """Columns the user named: they are shown however narrow the terminal."""
    told_apart: tuple[str, ...] = ()
    """Columns that are there because the runs differ in them."""
    summed: int | None = None
    """Runs in all rows together, where a row is a group of them."""

    def records(self) -> list[Record]:
        return [dict(zip(self.names, row, strict=True)) for row in self.rows]


def run_rows(chosen: Sequence[Record], columns: str | None, sort: str | None, *, of: Sequence[Record]) -> Rows:
    """A row for each record, with the columns asked for; or else with the usual ones, the zero-shot accuracy of the
    same features among them, and one for whatever else the runs differ in. `of` are all records there are."""
    asked = () if columns is None else tuple(dict.fromkeys(_listed("--columns", columns)))
    check_fields("--columns", asked, of)
    if sort is not None:
        check_fields("--sort", [sort.removeprefix("-")], of)
        chosen = ordered(chosen, sort.removeprefix("-"), descending=sort.startswith("-"))
    apart = () if asked else tuple(told_apart(chosen))
    after = OF_RUNS.index("seed")
    names = asked or (*OF_RUNS[:after], *apart, *OF_RUNS[after:])
    return Rows(names, tuple(tuple(value_of(record, name) for name in names) for record in chosen), asked, apart)


def grouped_rows(chosen: Sequence[Record], by: str | None, sort: str | None, *, of: Sequence[Record]) -> Rows:
    """A row for the runs that agree in the fields of `by`. Where a row mixes runs that differ in more than the set and
    the seed, a warning says in what."""
    asked = tuple(dict.fromkeys(_listed("--by", by or "")))
    check_fields("--by", asked, of)
    names = tuple(dict.fromkeys([*asked, *OF_GROUPS]))
    runs = [record for record in chosen if value_of(record, "accuracy") is not None]
    if without := len(chosen) - len(runs):
        print_warning(f"{counted(without, 'record')} without an accuracy left out: looks at features, not runs")
    for warning in warnings_about(runs, asked) if runs else ():
        print_warning(warning)
    rows = [
        {
            **dict(zip(asked, heap.of, strict=True)),
            "runs": heap.runs,
            "accuracy": heap.accuracy.mean,
            "accuracy_low": heap.accuracy.low,
            "accuracy_high": heap.accuracy.high,
            "accuracy_worst": heap.worst,
            BASELINE: heap.zero_shot,
            "gain": heap.gain.mean,
            "gain_low": heap.gain.low,
            "gain_high": heap.gain.high,
            "calibration_error": heap.calibration_error,
        }
        for heap in group(runs, asked)
    ]
    if sort is not None:
        wanted = sort.removeprefix("-")
        if wanted not in names:
            near = offer(wanted, names)
            raise ValueError(f"--sort: no column is called {wanted!r}. {near}Fix: one of {', '.join(names)}.")
        # The columns of a group stand in its dictionary under their own names, dots and all.
        order = ordered([{"at": k, "key": row[wanted]} for k, row in enumerate(rows)], "key",
                        descending=sort.startswith("-"))  # fmt: skip
        rows = [rows[place["at"]] for place in order]
    return Rows(names, tuple(tuple(row[name] for name in names) for row in rows), asked, summed=len(runs))


def _listed(option: str, text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ValueError(f"{option} names no field; got {text!r}. Fix: such as {option} features,contestant.")
    return names
