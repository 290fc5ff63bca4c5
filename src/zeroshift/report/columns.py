"""Columns as a file, a row for each sample: CSV for people and spreadsheets, parquet for data frames."""

from __future__ import annotations

import csv
import importlib.util
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

__all__ = ["TABLE_WRITERS", "ByName", "Column", "check_suffix", "utf8", "write_csv", "write_parquet"]


class ByName(NamedTuple):
    """Classes: indices here, names in the file."""

    indices: np.ndarray
    names: Sequence[str]


Column = ByName | np.ndarray | Sequence[str]
"""Classes, numbers or texts, one a row."""


def check_suffix(path: str | os.PathLike[str], suffixes: Sequence[str]) -> None:
    """Refuse a file of predictions whose name does not end in one of `suffixes`, or whose format cannot be written.

    >>> check_suffix("predictions.csv", [".csv", ".parquet"])
    """
    suffix = Path(path).suffix
    if suffix not in suffixes:
        allowed = f"{', '.join(suffixes[:-1])} or {suffixes[-1]}"
        raise ValueError(
            f"predictions are written as {allowed}, by the file's suffix; got {str(path)!r}. "
            f"Fix: {Path(path).with_suffix('.csv')}."
        )
    if suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ImportError(
            f"{path} needs pyarrow, which is not installed. Fix: pip install 'zeroshift[parquet]', or write a .csv."
        )


def utf8(text: str) -> str:
    r"""The text, with what UTF-8 cannot hold spelled out: the names of some old files are not made of characters.

    >>> print(utf8("caf\udce9.jpg"))
    caf\udce9.jpg
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def write_csv(path: Path, columns: Mapping[str, Column]) -> None:
    """UTF-8, quoted as RFC 4180 has it, rows ended by a line feed, numbers with six significant digits."""
    with open(path, "w", encoding="utf-8", newline="") as handle:
        plain = csv.writer(handle, lineterminator="\n")
        quoted = csv.writer(handle, lineterminator="\n", quoting=csv.QUOTE_ALL)
        plain.writerow(columns)
        for row in zip(*map(_cells, columns.values()), strict=True):
            # Before Python 3.13 a carriage return does not get a cell quoted, and readers would start a new row at it.
            (quoted if any("\r" in cell for cell in row) else plain).writerow(row)


def _cells(column: Column) -> Iterable[str]:
    if isinstance(column, ByName):
        names = [utf8(name) for name in column.names]
        return (names[index] for index in column.indices)
    if isinstance(column, np.ndarray):
        return (f"{value:.6g}" for value in column) if column.dtype.kind == "f" else map(str, column)
    return map(utf8, column)


def write_parquet(path: Path, columns: Mapping[str, Column]) -> None:
    """Numbers at full precision; the names of classes are stored once and referred to by number, readers see text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays = {}
    for name, column in columns.items():
        if isinstance(column, ByName):
            names = pa.array(map(utf8, column.names), pa.string())
            arrays[name] = pa.DictionaryArray.from_arrays(pa.array(column.indices, pa.int32()), names)
        elif isinstance(column, np.ndarray):
            arrays[name] = pa.array(column)
        else:
            arrays[name] = pa.array(map(utf8, column), pa.string())
    pq.write_table(pa.table(arrays), path)


TABLE_WRITERS: Mapping[str, Callable[[Path, Mapping[str, Column]], None]] = {
    ".csv": write_csv,
    ".parquet": write_parquet,
}
"""How columns are written, by the file's suffix."""
