"""The printed tables of the paper."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from zeroshift.suggest import did_you_mean

__all__ = ["PaperRow", "PaperTable", "paper_table", "paper_tables"]


@dataclass(frozen=True)
class PaperRow:
    """A printed row. Rows that are commented out in the source are omitted."""

    method: str
    protocol: str | None
    """"online", "transductive", or None if the paper does not say."""
    values: Mapping[str, Any]
    """By column; numbers in the printed unit (percent), text as it is, None for a dash."""
    label: str
    """Label of the row if the method is not enough, such as "Vanilla" or "Hard-to-Easy"."""
    extra: Mapping[str, Any]
    """Further fields: `task`, `config`, `std`, `seconds`, `delta`."""

    def number(self, column: str) -> float | None:
        value = self.values.get(column)
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


@dataclass(frozen=True)
class PaperTable:
    id: str
    number: int | None
    caption: str
    columns: tuple[str, ...]
    rows: tuple[PaperRow, ...]
    backbone: str
    """Empty if the paper does not say."""
    notes: str

    @property
    def title(self) -> str:
        return f"Table {self.number} of the paper"

    def row(self, **wanted: Any) -> PaperRow | None:
        """The first row with the wanted method, protocol, label or extra fields.

        >>> paper_table("natural_shift_vitb16").row(method="ADAPT", protocol="online").number("ImageNet-A")
        63.32
        >>> paper_table("few_high_confidence").row(protocol="online", task="Task 2").number("N=2")
        22.95
        """
        for row in self.rows:
            have = {"method": row.method, "protocol": row.protocol, "label": row.label, **row.extra}
            if all(name in have and have[name] == value for name, value in wanted.items()):
                return row
        return None

    def number_at(self, column: str, **wanted: Any) -> float | None:
        """A printed number; None if there is no such row or number."""
        row = self.row(**wanted)
        return None if row is None else row.number(column)


def paper_table(name: str) -> PaperTable:
    """One table of the paper by its id.

    >>> paper_table("ablation_components").number
    5
    """
    tables = paper_tables()
    if name not in tables:
        guess = did_you_mean(name, tables)
        raise ValueError(f"no table of the paper is called {name!r}. {guess}Fix: one of {', '.join(tables)}.")
    return tables[name]


@cache
def paper_tables() -> dict[str, PaperTable]:
    """All printed tables of the paper, by id."""
    text = files("zeroshift.experiments").joinpath("data/paper_tables.json").read_text(encoding="utf-8")
    return {table["id"]: _table(table) for table in json.loads(text) if not table.get("commented_out")}


def _table(table: Mapping[str, Any]) -> PaperTable:
    return PaperTable(
        id=table["id"],
        number=table["table_number"],
        caption=table["caption"],
        columns=tuple(table["columns"]),
        rows=tuple(_paper_row(row) for row in table["rows"] if not row["commented_out"]),
        backbone=table.get("backbone", ""),
        notes=table.get("notes", ""),
    )


def _paper_row(row: Mapping[str, Any]) -> PaperRow:
    known = ("task", "config", "std", "seconds", "delta", "oracle")
    return PaperRow(
        method=row["method"],
        protocol=row["protocol"],
        values=row["values"],
        label=row.get("row_label", ""),
        extra={name: row[name] for name in known if name in row},
    )
